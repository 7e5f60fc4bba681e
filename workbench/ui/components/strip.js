/* A request's block table as a strip: logical cells above, brackets over contiguous physical runs below. */
(function (wb) {
  "use strict";

  const { text } = wb;

  const LEFT = 34, HEIGHT = 53, CELL_TOP = 13, CELL_HEIGHT = 16, LABEL_PX = 27;

  function layoutOf(width, length) {
    const room = (width - LEFT) / length;
    const pitch = Math.min(14, room >= 1 ? Math.floor(room * 4) / 4 : room);
    return { pitch, gap: pitch > 3 ? 1 : pitch > 1 ? 0.5 : 0, at: (index) => LEFT + index * pitch };
  }

  function drawCells(g, view, request, table, layout) {
    const c = wb.palette.colors();
    const hue = wb.palette.request(request);
    const every = 2 ** Math.max(3, Math.ceil(Math.log2(LABEL_PX / layout.pitch)));
    table.forEach((block, index) => {
      const x = layout.at(index), width = layout.pitch - layout.gap;
      const height = (CELL_HEIGHT * view.filled[block]) / view.blockSize;
      g.fillStyle = wb.palette.mix(hue, c.canvas, 0.68);
      g.fillRect(x, CELL_TOP, width, CELL_HEIGHT);
      g.fillStyle = hue;
      g.fillRect(x, CELL_TOP + CELL_HEIGHT - height, width, height);
      if (view.refs[block] > 1) { g.fillStyle = c.shared; g.fillRect(x, CELL_TOP, width, 3); }
      if (index % every === 0) { g.fillStyle = c.subdued; g.fillText(index, x, 6); }
      if (block === wb.store.selection.block) {
        g.strokeStyle = c.cursor;
        g.lineWidth = 1.5;
        g.strokeRect(x - 0.5, CELL_TOP - 0.5, layout.pitch, CELL_HEIGHT + 1);
      }
    });
  }

  /** Brackets over runs; a label that would overlap its neighbour is left out. */
  function drawRuns(g, runs, layout, width) {
    const c = wb.palette.colors();
    let taken = -99;
    for (const run of runs) {
      const left = layout.at(run.index), right = layout.at(run.index + run.length) - layout.gap;
      g.strokeStyle = c.subdued;
      g.lineWidth = 1;
      g.beginPath();
      g.moveTo(left + 0.5, 33);
      g.lineTo(left + 0.5, 37.5);
      g.lineTo(right - 0.5, 37.5);
      g.lineTo(right - 0.5, 33);
      g.stroke();
      const label = run.length > 1 ? `${run.block}–${run.block + run.length - 1}` : `${run.block}`;
      const labelWidth = g.measureText(label).width;
      if (left < taken) continue;
      const x = Math.min(left, width - labelWidth);
      g.fillStyle = c.text;
      g.fillText(label, x, 48);
      taken = x + labelWidth + 8;
    }
  }

  /** "5 blocks in 2 physical runs, 3 shared with r1, r2". */
  function noteOf(view, request, table, runs) {
    const { plural, some } = wb.format;
    const { numBlocks, sharers } = view.sharersOf(request);
    const shared = numBlocks ? text(", {count} shared with {names}", { count: numBlocks, names: some(sharers.map((r) => r.id), 4) }) : "";
    return text("{blocks} in {runs}", { blocks: plural(table.length, "block"), runs: plural(runs.length, "physical run") }) + shared;
  }

  /** Draw the strip and its heading; a hint when no request is looked at. */
  function draw(parts, view, request) {
    const table = view.tableOf(request);
    wb.dom.hide(parts.stripSquare, !request);
    wb.dom.hide(parts.strip, !table.length);
    if (!request) {
      wb.dom.setText(parts.stripTitle, text("Select a request or a block to see its table"));
      wb.dom.setText(parts.stripNote, "");
      return;
    }
    parts.stripSquare.style.background = wb.palette.swatch(request);
    wb.dom.setText(parts.stripTitle, text("{id} block table: logical → physical", { id: request.id }));
    const runs = wb.geometry.runsOf(table);
    wb.dom.setText(parts.stripNote, table.length ? noteOf(view, request, table, runs) : text("holds no block now"));
    if (!table.length) return;
    const width = wb.dom.innerWidth(parts.strip.parentElement);
    const g = wb.dom.fit(parts.strip, width, HEIGHT);
    const layout = layoutOf(width, table.length);
    g.textAlign = "left";
    g.fillStyle = wb.palette.colors().subdued;
    g.fillText("log", 0, 6);
    g.fillText("phys", 0, 48);
    drawCells(g, view, request, table, layout);
    drawRuns(g, runs, layout, width);
  }

  /** Physical block under a horizontal position on the strip, -1 for none. */
  function blockAt(canvas, view, request, x) {
    const table = view.tableOf(request);
    if (!table.length) return -1;
    const index = Math.floor((x - LEFT) / layoutOf(canvas.clientWidth, table.length).pitch);
    return index >= 0 && index < table.length ? table[index] : -1;
  }

  wb.strip = { draw, blockAt };
})((window.wb = window.wb || {}));
