/* Time travel under the map: freeze and follow, step by step, and a scrubber over all recorded steps. */
(function (wb) {
  "use strict";

  const { text } = wb;

  const HEIGHT = 47, TRACK_TOP = 4, TRACK_HEIGHT = 30, THUMB_Y = 38, LABEL_Y = 42;
  const NEAR_THUMB = 26, LABEL_EVERY = 120;
  const PAGE_STEPS = 10;
  const KEYS = {
    ",": () => wb.store.stepBy(-1), ".": () => wb.store.stepBy(1),
    " ": () => (wb.store.isFrozen() ? wb.store.follow() : wb.store.freeze()),
    f: () => wb.store.follow(),
  };
  const SLIDER_KEYS = {
    ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1,
    PageDown: -PAGE_STEPS, PageUp: PAGE_STEPS, Home: -Infinity, End: Infinity,
  };

  /** Act on a key that both the map and the timeline know; false when it is none. */
  function onKey(key) {
    const act = KEYS[key];
    if (act) act();
    return Boolean(act);
  }

  /** Step under a horizontal position of a track of `width` pixels. */
  function stepAt(x, width) {
    const { first, last } = wb.store.range;
    return first + Math.round((Math.max(0, Math.min(width, x)) / width) * (last - first));
  }

  function xOf(step, width) {
    const { first, last } = wb.store.range;
    return last > first ? Math.round(((step - first) / (last - first)) * width) : width;
  }

  class Travel {
    constructor(parts) {
      this.parts = parts;
      this.listen();
    }

    listen() {
      const { back, forth, freeze, scrubber } = this.parts;
      back.addEventListener("click", () => KEYS[","]());
      forth.addEventListener("click", () => KEYS["."]());
      freeze.addEventListener("click", () => KEYS[" "]());
      scrubber.addEventListener("pointerdown", (event) => {
        scrubber.setPointerCapture(event.pointerId);
        this.scrub(event);
      });
      scrubber.addEventListener("pointermove", (event) => scrubber.hasPointerCapture(event.pointerId) && this.scrub(event));
      scrubber.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if (this.onSliderKey(event.key)) event.preventDefault();
      });
    }

    scrub(event) {
      const { first, last } = wb.store.range;
      if (last > first) wb.store.seek(stepAt(event.offsetX, this.parts.scrubber.clientWidth));
    }

    onSliderKey(key) {
      if (!(key in SLIDER_KEYS)) return onKey(key.toLowerCase());
      if (SLIDER_KEYS[key] === -Infinity) wb.store.seek(wb.store.range.first);
      else if (SLIDER_KEYS[key] === Infinity) wb.store.follow();
      else wb.store.stepBy(SLIDER_KEYS[key]);
      return true;
    }

    draw(view) {
      const { parts } = this;
      wb.recorded.want();
      const { first, last } = wb.store.range, isFrozen = wb.store.isFrozen();
      for (const name of ["travel", "saveMap", "scrubber"]) wb.dom.hide(parts[name], last < 0);
      if (last < 0) return;
      drawFreeze(parts.freeze, isFrozen);
      parts.back.disabled = view.stepId <= first;
      parts.forth.disabled = view.stepId >= last;
      wb.dom.setText(parts.shownStep, text("step {step}", { step: view.stepId }));
      wb.dom.setText(parts.shownNote, this.note(view));
      parts.shownNote.classList.toggle("wb-failed", Boolean(wb.store.pastError));
      this.drawScrubber(view, isFrozen ? wb.store.cursor : last);
    }

    /** "of 1,240 · 3.2 s behind live", "live", or why a step could not be had. */
    note(view) {
      if (wb.store.pastError) return wb.store.pastError;
      const isSaved = Boolean(wb.savedRun.facts());
      if (!wb.store.isFrozen()) return isSaved ? text("end of the run") : text("live");
      const { last } = wb.store.range, behind = wb.recorded.secondsBehind(view.stepId);
      const words = behind === null ? wb.format.plural(last - view.stepId, "step") : `${wb.format.fixed(behind, 1)} s`;
      return isSaved ? text("of {last} · {time} before the end", { last, time: words }) : text("of {last} · {time} behind live", { last, time: words });
    }

    drawScrubber(view, step) {
      const { scrubber } = this.parts;
      const width = wb.dom.innerWidth(scrubber.parentElement);
      const g = wb.dom.fit(scrubber, width, HEIGHT);
      const x = Math.min(width - 5, Math.max(5, xOf(step, width)));
      drawUse(g, view, width);
      drawLabels(g, width, x);
      drawThumb(g, x);
      const { first, last } = wb.store.range;
      const told = { valuemin: first, valuemax: last, valuenow: step, valuetext: `${text("step {step}", { step: view.stepId })}, ${this.note(view)}` };
      for (const [name, value] of Object.entries(told)) scrubber.setAttribute(`aria-${name}`, String(value));
    }
  }

  /** Freeze and follow; a saved run stands still by itself, and has an end to go to. */
  function drawFreeze(button, isFrozen) {
    const isSaved = Boolean(wb.savedRun.facts());
    const [label, title] = isSaved
      ? [text("To the end"), text("Show the last step of the saved run (F or Space)")]
      : isFrozen
        ? [text("Follow live"), text("Show the present again (F or Space)")]
        : [text("Freeze"), text("Stop the picture; the engine goes on (Space)")];
    wb.dom.setText(button, label);
    button.title = title;
    button.disabled = isSaved && !isFrozen;
    button.classList.toggle("wb-on", isFrozen && !isSaved);
  }

  /** How much of the pool was active, and cached, over all recorded steps; preemptions as marks above. */
  function drawUse(g, view, width) {
    const c = wb.palette.colors(), { history } = wb.recorded;
    const cachedColor = g.createPattern(c.hatch, "repeat"), activeColor = wb.palette.mix(c.decode, c.canvas, 0.35);
    const bottom = TRACK_TOP + TRACK_HEIGHT;
    const heightOf = (numBlocks) => Math.round((TRACK_HEIGHT * numBlocks) / view.numBlocks);
    const columns = [], marks = [];
    for (let x = 0, from = wb.store.range.first; x < width; x++) {
      const to = stepAt(x + 1, width);
      if (!wb.recorded.has(to)) continue;
      const active = heightOf(history.at("active", to)), cached = heightOf(history.at("cached", to)), last = columns.at(-1);
      if (last && last.x + last.width === x && last.active === active && last.cached === cached) last.width++;
      else columns.push({ x, width: 1, active, cached });
      if (x - (marks.at(-1) ?? -Infinity) >= 4 && hasPreemption(history, from, to)) marks.push(x);
      from = to + 1;
    }
    g.fillStyle = c["cached-bg"];  // only where the steps are known: an empty pool looks otherwise
    for (const { x, width: wide } of columns) g.fillRect(x, TRACK_TOP, wide, TRACK_HEIGHT);
    g.fillStyle = activeColor;
    for (const { x, width: wide, active } of columns) g.fillRect(x, bottom - active, wide, active);
    g.fillStyle = cachedColor;
    for (const { x, width: wide, active, cached } of columns) g.fillRect(x, bottom - active - cached, wide, cached);
    for (const x of marks) markPreemption(g, x, c);
  }

  function hasPreemption(history, from, to) {
    for (let step = from; step <= to; step++) if (history.has(step) && history.at("preempted", step)) return true;
    return false;
  }

  function markPreemption(g, x, c) {
    g.fillStyle = c.preempted;
    g.beginPath();
    g.moveTo(x - 3, 0);
    g.lineTo(x + 3, 0);
    g.lineTo(x, 6);
    g.fill();
  }

  /** Step numbers below the track, none where the thumb is. */
  function drawLabels(g, width, thumb) {
    g.fillStyle = wb.palette.colors().subdued;
    const count = Math.max(1, Math.floor(width / LABEL_EVERY));
    for (let i = 0; i <= count; i++) {
      const x = (i / count) * width;
      const text = wb.format.count(stepAt(x, width)), half = g.measureText(text).width / 2;
      const center = Math.max(half, Math.min(width - half, x));
      g.textAlign = "center";
      if (Math.abs(center - thumb) > NEAR_THUMB) g.fillText(text, center, LABEL_Y);
    }
  }

  function drawThumb(g, x) {
    const c = wb.palette.colors();
    g.fillStyle = c.canvas;
    g.fillRect(x - 2.5, TRACK_TOP - 1, 5, TRACK_HEIGHT + 2);
    g.fillStyle = c.cursor;
    g.fillRect(x - 0.75, TRACK_TOP - 2, 1.5, TRACK_HEIGHT + 4);
    g.beginPath();
    g.arc(x, THUMB_Y, 4.5, 0, 7);
    g.fill();
  }

  wb.travel = { Travel, onKey };
})((window.wb = window.wb || {}));
