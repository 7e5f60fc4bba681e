/* The map's canvas: all cells or only the changed ones, axes, the lit request's order, the selected block, the flash. */
(function (wb) {
  "use strict";

  const FLASH_MS = 300;
  const MOVED_FLASH_MS = 700;
  const MANY_RUNS = 24;
  const NEAR = 8;
  const COARSE_TAGS = 8;

  function drawAxes(g, layout) {
    if (layout.isBig) { wb.overview.drawAxes(g, layout); return; }
    const c = wb.palette.colors();
    g.fillStyle = c.subdued;
    g.textAlign = "left";
    for (let column = 0; column < layout.columns; column += 8) g.fillText(column, layout.gutter + column * layout.pitch + 1, 6);
    g.textAlign = "right";
    const step = layout.pitch > 20 ? 1 : layout.columns > 32 ? 4 : 8;
    for (let row = 0; row < layout.rows; row += Math.min(step, Math.max(1, Math.ceil(layout.rows / 4)))) {
      const y = layout.top + row * layout.pitch + layout.cell / 2 + 0.5;
      g.fillText(wb.format.count(row * layout.columns), layout.gutter - 4, y);
    }
  }

  /** Solid inside runs, dashes for jumps; with many runs only the jumps near the selected block. */
  function drawOrder(g, layout, table, selected) {
    const c = wb.palette.colors();
    const place = table.indexOf(selected);
    const isSparse = wb.geometry.runsOf(table).length <= MANY_RUNS;
    const isNear = (i) => isSparse || (place >= 0 && Math.abs(i - place) <= NEAR);
    g.lineJoin = "round";
    for (const isJumpPass of layout.isCoarse ? [true] : [false, true]) {
      g.strokeStyle = isJumpPass ? c.cursor : c.canvas;
      g.lineWidth = isJumpPass ? 1 : 2;
      g.globalAlpha = isJumpPass ? 0.65 : 1;
      g.setLineDash(isJumpPass ? [3, 3] : []);
      g.beginPath();
      for (let i = 1; i < table.length; i++) {
        const isRun = table[i] === table[i - 1] + 1 && table[i] % layout.columns !== 0;
        if (isRun === isJumpPass || (isJumpPass && !isNear(i))) continue;
        g.moveTo(...layout.center(table[i - 1]));
        g.lineTo(...layout.center(table[i]));
      }
      g.stroke();
    }
    g.setLineDash([]);
    g.globalAlpha = 1;
    drawEnds(g, layout, table);
    const tagEvery = layout.isCoarse ? 2 ** Math.max(4, Math.ceil(Math.log2(table.length / COARSE_TAGS))) : 16;
    for (let i = 0; i < table.length; i += tagEvery) drawTag(g, layout, table[i], String(i));
  }

  /** Dot = first block, square = last block. */
  function drawEnds(g, layout, table) {
    const c = wb.palette.colors();
    const [x, y] = layout.center(table[0]);
    g.fillStyle = c.cursor;
    g.beginPath();
    g.arc(x, y, 3, 0, 7);
    g.fill();
    const [endX, endY] = layout.center(table.at(-1));
    g.strokeStyle = c.cursor;
    g.lineWidth = 1.5;
    g.strokeRect(endX - 3, endY - 3, 6, 6);
  }

  /** Logical index of a block, above it where there is room. */
  function drawTag(g, layout, block, text) {
    const c = wb.palette.colors();
    const [x, y] = layout.center(block);
    g.font = '600 10px "IBM Plex Mono", monospace';
    const width = g.measureText(text).width + 6;
    const left = Math.min(x - layout.cell / 2, layout.width - width - 1);
    const top = y - layout.cell / 2 - 12 < 0 ? y + layout.cell / 2 + 1 : y - layout.cell / 2 - 12;
    g.fillStyle = c.cursor;
    g.fillRect(left, top, width, 12);
    g.fillStyle = c.canvas;
    g.textAlign = "left";
    g.fillText(text, left + 3, top + 6.5);
    g.font = '10px "IBM Plex Mono", monospace';
  }

  function drawSelected(g, layout, block) {
    const c = wb.palette.colors();
    const [x, y] = layout.at(block);
    g.strokeStyle = c.canvas;
    g.lineWidth = 1;
    g.strokeRect(x - 2.5, y - 2.5, layout.cell + 5, layout.cell + 5);
    g.strokeStyle = c.cursor;
    g.lineWidth = 2;
    g.strokeRect(x - 1, y - 1, layout.cell + 2, layout.cell + 2);
  }

  /** Colour, length in ms and first strength of a flash. */
  function flashOf(kind) {
    const c = wb.palette.colors();
    if (kind === "turned") return [c.cursor, FLASH_MS, 0.55];
    return [kind === "copy" ? c.copied : c.swapped, MOVED_FLASH_MS, 1];
  }

  /** Just allocated or freed, copied or swapped: a veil that fades. Returns whether any is left. */
  function drawFlashes(g, view, options, now) {
    const flashes = wb.store.flashes;
    for (const [block, { at, kind }] of flashes) {
      const [color, lastsMs, strength] = flashOf(kind);
      const age = Math.max(0, now - at) / lastsMs;
      if (age > 1) flashes.delete(block);
      if (block >= view.numBlocks || !options.layout.isVisible(block)) continue;
      redrawCell(g, view, block, options);
      if (age > 1) continue;
      const [x, y] = options.layout.at(block);
      g.globalAlpha = strength * (1 - age);
      g.fillStyle = color;
      g.fillRect(x, y, options.layout.cell, options.layout.cell);
      g.globalAlpha = 1;
    }
    return flashes.size > 0;
  }

  function redrawCell(g, view, block, options) {
    const { layout } = options;
    if (layout.isCoarse) { wb.overview.drawCell(g, view, block, options); return; }
    const [x, y] = layout.at(block);
    g.clearRect(x, y, layout.cell, layout.cell);
    wb.cells.draw(g, view, block, options);
  }

  /** Draw everything. */
  function drawAll(canvas, view, options) {
    const { layout } = options;
    const g = wb.dom.fit(canvas, layout.width, layout.height);
    g.save();
    drawAxes(g, layout);
    if (layout.isBig) clip(g, layout);
    drawCells(g, view, options);
    if (options.table && options.order.length) drawOrder(g, layout, options.order, options.block);
    if (options.block >= 0 && options.block < view.numBlocks) drawSelected(g, layout, options.block);
    g.restore();
  }

  /** Keep to the window of a big pool. */
  function clip(g, layout) {
    g.beginPath();
    g.rect(layout.edge.left, layout.edge.top, layout.window.width, layout.window.height);
    g.clip();
  }

  /** All cells that are visible. */
  function drawCells(g, view, options) {
    const { layout } = options;
    if (layout.isCoarse) { wb.overview.draw(g, view, options); return; }
    const { columns, rows } = layout.range();
    for (let row = rows[0]; row < rows[1]; row++) {
      const first = row * layout.columns;
      for (let block = first + columns[0]; block < Math.min(view.numBlocks, first + columns[1]); block++) wb.cells.draw(g, view, block, options);
    }
  }

  /** Draw the cells in `blocks` over what is there; only right while nothing is lit or selected. */
  function drawSome(canvas, view, blocks, options) {
    const g = canvas.getContext("2d");
    for (const block of blocks) redrawCell(g, view, block, options);
  }

  const reducedMotion = window.matchMedia("(prefers-reduced-motion: reduce)");
  wb.mapCanvas = {
    drawAll, drawCells, drawSome, drawFlashes,
    isStill: () => reducedMotion.matches,
  };
})((window.wb = window.wb || {}));
