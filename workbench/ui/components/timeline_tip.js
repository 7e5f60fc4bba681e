/* What lies under the pointer on the timeline, and the tooltip that says so. */
(function (wb) {
  "use strict";

  const TIP_WIDTH = 230;

  /** What lies under a point of the canvas: its area, row and step. */
  function at(timeline, x, y) {
    const { layout, axis, rows } = timeline;
    if (!layout || timeline.history.isEmpty) return null;
    const place = Math.floor((y - layout.rowsTop) / layout.rowHeight);
    const row = place >= 0 && place < layout.numRows ? rows[layout.firstRow + place] : null;
    const area = y >= layout.minimapTop - 4 ? "minimap" : x < layout.left ? "names" : y < layout.rowsTop - 8 ? "tracks" : "rows";
    return { area, row: area === "minimap" || area === "tracks" ? null : row, step: axis.stepAt(x), x, y };
  }

  /** Beside the pointer, inside the window; nothing for a touch, which selects at once. */
  function showTip(timeline, point, event) {
    const { tip, tipSquare, tipTitle, tipRows } = timeline.parts;
    const isStep = point && (point.area === "tracks" || point.area === "rows");
    if (!isStep || (point.area === "rows" && !point.row) || event.pointerType === "touch") { tip.hidden = true; return; }
    const { row } = point;
    tipSquare.hidden = !row;
    if (row) tipSquare.style.background = wb.palette.swatch(row);
    const [title, pairs] = row ? rowTip(timeline, row, point.step) : stepTip(timeline, point);
    wb.dom.setText(tipTitle, title);
    wb.dom.rows(tipRows, pairs);
    tip.hidden = false;
    tip.style.left = `${Math.max(4, Math.min(window.innerWidth - TIP_WIDTH, event.clientX + 14))}px`;
    tip.style.top = `${Math.max(4, Math.min(window.innerHeight - tip.offsetHeight - 12, event.clientY + 14))}px`;
  }

  function kindWord(row, step) {
    const { WAITED, PREFILL, DECODE, SWAPPED } = wb.timelineHistory;
    const kind = row.kindAt(step);
    if (kind === null) return row.isEnded && step > row.endedAt ? (row.isFailed ? "kind.failed" : "kind.finished") : "kind.idle";
    if (kind === WAITED) return row.runAt(step) === 0 ? "kind.waited" : "kind.idle";
    return { [PREFILL]: "kind.prefill", [DECODE]: "kind.decode", [SWAPPED]: "kind.swapped" }[kind] || "kind.preempted";
  }

  function rowTip({ history }, row, step) {
    const words = wb.timelineWords, { count } = wb.format;
    const entry = history.entryOf(step, row.key);
    const pairs = [[words("tip.step"), count(step)], [words("tip.duration"), wb.inspector.milliseconds(history.at("duration", step))]];
    if (entry && entry.tokens) pairs.push([words("tip.tokens"), count(entry.tokens)]);
    const draft = entry && wb.timelineHistory.draftOf(entry);
    if (draft) pairs.push([words("tip.draft"), words("tip.of", { part: count(draft.accepted), whole: count(draft.drafted) })]);
    if (entry && entry.newTokens) pairs.push([words("tip.new_tokens"), count(entry.newTokens)]);
    if (entry && !entry.tokens) {
      const key = wb.timelineHistory.isHeld(entry.kind) ? "tip.preempted_at" : "tip.waited";
      pairs.push([words(key), count(row.from[row.runAt(step)])]);
    }
    return [`${row.id} ${words(kindWord(row, step))}`, pairs];
  }

  /** A bar of a track: one step, or the one with the most tokens of those that share the bar. */
  function stepTip({ history, axis }, { step, y }) {
    const words = wb.timelineWords, { count } = wb.format;
    const bar = wb.timelineTracks.barsOf(axis).find(({ first, last }) => step >= first && step <= last) || { step, first: step, last: step };
    const told = (name) => history.at(name, bar.step);
    const range = bar.first === bar.last ? [] : [[words("tip.steps"), `${count(bar.first)}–${count(bar.last)}`]];
    const isTokens = y < wb.timelineTracks.BLOCKS.top - 4;
    const numBlocks = wb.store.live.numBlocks;
    return [`${words("inspector.step")} ${count(bar.step)}`, [
      ...range,
      [words("tip.duration"), wb.inspector.milliseconds(told("duration"))],
      ...(isTokens
        ? [[words("tip.tokens"), words("tip.of", { part: count(told("scheduled")), whole: count(told("budget")) })], [words("tip.prefill"), count(told("prefill"))], [words("tip.decode"), count(told("decode"))]]
        : [[words("tip.active"), words("tip.of", { part: count(told("active")), whole: count(numBlocks) })], [words("tip.cached"), count(told("cached"))], [words("tip.free"), count(numBlocks - told("active") - told("cached"))]]),
    ]];
  }

  wb.timelineTip = { at, showTip };
})((window.wb = window.wb || {}));
