/* One row for each request: queued hollow, prefill one cell a step, decode a line, preemption a notch with a dotted
 * line to the step that resumed it (dashed where its context was kept in host memory), the end a tick. A verified
 * draft stands on the decode line: accepted tokens above it, rejected ones below.
 */
(function (wb) {
  "use strict";

  const { WAITED, PREFILL, DECODE, SWAPPED, isHeld } = wb.timelineHistory;
  const CELL_PIXELS = 3;
  const CELL_GAP = 0.75;
  const NOTCH_PIXELS = 6;
  const ARROW_PIXELS = 8;
  /** Height of an accepted token, and of a rejected one against it; a long draft is drawn smaller, to stay in its row. */
  const ACCEPTED_PIXELS = 2, REJECTED_SHARE = 0.875, VERIFY_ROOM = 8;

  const STATES = {
    all: () => true,
    running: (row) => !row.isEnded,
    finished: (row) => row.isEnded,
    preempted: (row) => row.preemptedAt.length > 0,
  };

  /** The rows that overlap the window and pass the filter, in order of arrival. */
  function select(history, [from, to], filter, mine) {
    const wanted = filter.text.trim().toLowerCase();
    return history.ordered.filter((row) => row.numRuns && row.first <= to && row.last >= from
      && STATES[filter.state](row)
      && (!wanted || row.id.toLowerCase().includes(wanted))
      && (!filter.isMine || mine.has(row.id) || mine.has(row.family)));
  }

  function drawName(g, row, layout, y, middle, { isSelected, isPointed, isMine }) {
    const c = wb.palette.colors(), { label } = wb.timelineTracks;
    const color = wb.palette.slot(row.slot);
    if (isSelected) {
      g.fillStyle = wb.palette.mix(color, c.canvas, 0.8);
      g.fillRect(0, y, layout.left - 6, layout.rowHeight);
    }
    if (isPointed) {
      g.strokeStyle = c.cursor;
      g.lineWidth = 1;
      g.strokeRect(0.5, y + 0.5, layout.left - 7, layout.rowHeight - 1);
    }
    g.fillStyle = color;
    g.fillRect(4, middle - 4, 9, 9);
    if (wb.palette.hasPip(row.slot)) { g.fillStyle = c.canvas; g.fillRect(7, middle - 1, 3, 3); }
    const note = isMine ? wb.timelineWords("timeline.you") : wb.timelineWords("timeline.priority", { priority: row.priority });
    const room = layout.left - 10 - 19 - g.measureText(note).width - 4;
    label(g, shorten(g, row.id, room), 19, middle + 0.5, c.text);
    label(g, note, layout.left - 10, middle + 0.5, c.subdued, "right");
  }

  /** A name cut in its middle, where it is too long. */
  function shorten(g, name, room) {
    if (g.measureText(name).width <= room) return name;
    let kept = name.length - 1;
    while (kept > 2 && g.measureText(cut(name, kept)).width > room) kept--;
    return cut(name, kept);
  }
  const cut = (name, kept) => `${name.slice(0, Math.ceil(kept / 2))}…${name.slice(name.length - Math.floor(kept / 2))}`;

  /** Runs of the row inside the window. What would fall on pixels that its kind has painted already is left out. */
  function drawRuns(g, row, axis, middle) {
    const [from, to] = axis.visible();
    const painted = new Array(5).fill(-Infinity);
    for (let run = row.runAt(from); run < row.numRuns && row.from[run] <= to; run++) {
      // Only what lies in the history has a place; a run may have begun before it.
      const first = Math.max(row.from[run], axis.history.first), last = row.to[run];
      const kind = row.kinds[run], x = axis.x(first), end = axis.endX(last);
      if (isHeld(kind)) {
        if (run > 0 && isHeld(row.kinds[run - 1])) continue;
        if (x < painted[kind]) continue;
        painted[kind] = x + NOTCH_PIXELS;
        drawHeld(g, row, run, axis, middle);
        continue;
      }
      if (end < painted[kind]) continue;
      painted[kind] = Math.max(end, x + 1);
      if (kind === PREFILL) drawPrefill(g, axis, middle, Math.max(first, from), Math.min(last, to));
      else if (kind === DECODE) drawDecode(g, x, end, middle);
      else drawWaiting(g, x, end, middle, run === 0);
    }
  }

  /** One cell a step; one bar where cells would be too small to see. */
  function drawPrefill(g, axis, middle, first, last) {
    g.fillStyle = wb.palette.colors().prefill;
    const x = axis.x(first), width = axis.endX(last) - x;
    if (width < CELL_PIXELS * (last - first + 1)) { g.fillRect(x, middle - 6, Math.max(1, width), 13); return; }
    for (let step = first; step <= last; step++) {
      const at = axis.x(step);
      g.fillRect(at, middle - 6, Math.max(1, axis.endX(step) - at - CELL_GAP), 13);
    }
  }

  function drawDecode(g, x, end, middle) {
    g.fillStyle = wb.palette.colors().decode;
    g.fillRect(x, middle - 1, Math.max(1, end - x), 3);
  }

  /** Verified drafts: accepted tokens above the line, rejected ones below. Steps that share pixels show the most of each. */
  function drawVerified(g, row, axis, middle) {
    const { steps, accepted, rejected } = row.verified;
    if (!steps.length) return;
    const c = wb.palette.colors(), [from, to] = axis.visible();
    const unit = Math.min(ACCEPTED_PIXELS, VERIFY_ROOM / row.longestDraft);
    let x = -Infinity, width = 0, up = 0, down = 0;
    const paint = () => {
      g.fillStyle = c.accepted;
      if (up) g.fillRect(x, middle - 1 - up * unit, width, up * unit);
      g.fillStyle = c.rejected;
      if (down) g.fillRect(x, middle + 2, width, down * unit * REJECTED_SHARE);
    };
    for (let i = firstAt(steps, Math.max(from, axis.history.first)); i < steps.length && steps[i] <= to; i++) {
      const at = axis.x(steps[i]), wide = axis.endX(steps[i]) - at;
      if (at < x + 1) { up = Math.max(up, accepted[i]); down = Math.max(down, rejected[i]); continue; }
      paint();
      [x, width, up, down] = [at, Math.max(1, wide - (wide >= CELL_PIXELS ? CELL_GAP : 0)), accepted[i], rejected[i]];
    }
    paint();
  }

  /** Place of the first of ascending steps that is not before `step`. */
  function firstAt(steps, step) {
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Queued: hollow. A running request that a step left out: only its outline's base. */
  function drawWaiting(g, x, end, middle, isQueue) {
    g.strokeStyle = wb.palette.colors().subdued;
    g.lineWidth = 1;
    if (isQueue) g.strokeRect(Math.round(x) + 0.5, middle - 3, Math.max(1, Math.round(end - x) - 2), 7);
    else { g.fillStyle = wb.palette.colors().subdued; g.fillRect(x, middle, Math.max(1, end - x), 1); }
  }

  /** From the preemption to the resumption: notch, line, arrow head. Recomputing is dotted, swapping dashed. */
  function drawHeld(g, row, run, axis, middle) {
    let last = run;
    while (last + 1 < row.numRuns && isHeld(row.kinds[last + 1])) last++;
    const isResumed = last + 1 < row.numRuns;
    const isSwapped = row.kinds[run] === SWAPPED;
    const x = axis.x(Math.max(row.from[run], axis.history.first));
    const end = isResumed ? axis.x(row.from[last + 1]) : axis.endX(row.to[last]);
    g.strokeStyle = g.fillStyle = wb.palette.colors().preempted;
    g.lineWidth = 1;
    if (end - x > ARROW_PIXELS) {
      g.setLineDash(isSwapped ? [5, 2] : [2, 2]);
      g.beginPath();
      g.moveTo(x, middle + 0.5);
      g.lineTo(isResumed ? end - 6 : end, middle + 0.5);
      g.stroke();
      g.setLineDash([]);
      if (isResumed) triangle(g, end - 1, middle + 0.5, end - 7, middle - 3, end - 7, middle + 4);
    }
    if (row.from[run] < axis.history.first) return;
    triangle(g, x - 4, middle - 8, x + 5, middle - 8, x + 0.5, middle - 1);
    g.fillRect(x, middle - 4, 1.5, 10);
    if (isSwapped) g.strokeRect(Math.round(x) + 2.5, middle + 1.5, 4, 4);
  }

  function triangle(g, ...points) {
    g.beginPath();
    for (let i = 0; i < points.length; i += 2) g.lineTo(points[i], points[i + 1]);
    g.fill();
  }

  function drawEnd(g, row, axis, middle) {
    if (!row.isEnded || !axis.history.has(row.endedAt)) return;
    const c = wb.palette.colors(), x = axis.endX(row.endedAt);
    g.fillStyle = row.isFailed ? c.error : c.text;
    g.fillRect(x, middle - 6, 1.5, 13);
    if (row.isFailed) g.fillRect(x - 2, middle - 6, 5.5, 1.5);
  }

  const shownOf = (rows, { firstRow, numRows }) => rows.slice(firstRow, firstRow + numRows);

  /** Draw the shown rows, and how many lie above and below them. */
  function draw(g, axis, layout, rows, state) {
    const c = wb.palette.colors(), { clip, label } = wb.timelineTracks;
    const shown = shownOf(rows, layout);
    const middleOf = (i) => layout.rowsTop + i * layout.rowHeight + layout.rowHeight / 2 - 0.5;
    shown.forEach((row, i) => {
      const y = layout.rowsTop + i * layout.rowHeight;
      if (i % 2 === 0) { g.fillStyle = wb.palette.mix(c.free, c.canvas, 0.72); g.fillRect(0, y, layout.width, layout.rowHeight); }
      const isMine = state.mine.has(row.id) || state.mine.has(row.family);
      drawName(g, row, layout, y, middleOf(i), { isSelected: row.key === state.key, isPointed: row.key === state.pointed, isMine });
    });
    clip(g, layout, layout.rowsTop - 8, layout.rowsEnd - layout.rowsTop + 8, () => {
      shown.forEach((row, i) => { drawRuns(g, row, axis, middleOf(i)); drawVerified(g, row, axis, middleOf(i)); drawEnd(g, row, axis, middleOf(i)); });
    });
    if (layout.firstRow > 0) label(g, wb.timelineWords("timeline.earlier", { count: layout.firstRow }), 0, layout.rowsTop - 8, c.subdued);
    const later = rows.length - layout.firstRow - shown.length;
    if (later > 0) label(g, wb.timelineWords("timeline.later", { count: later }), 0, layout.rowsEnd + 4, c.subdued);
    drawScrollbar(g, layout, rows.length);
  }

  function drawScrollbar(g, layout, numRows) {
    if (numRows <= layout.numRows) return;
    const height = layout.numRows * layout.rowHeight;
    g.fillStyle = wb.palette.colors().line;
    g.fillRect(layout.width - 2, layout.rowsTop + (height * layout.firstRow) / numRows, 2, Math.max(8, (height * layout.numRows) / numRows));
  }

  wb.timelineRows = { select, shownOf, draw, STATES };
})((window.wb = window.wb || {}));
