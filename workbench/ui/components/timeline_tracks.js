/* The timeline's shared parts: axis, the two pinned tracks, the cursor, and the minimap with its brush. */
(function (wb) {
  "use strict";

  const LEAST_PIXELS = 3;
  const TOKENS = { top: 18, height: 54 };
  const BLOCKS = { top: 80, height: 46 };
  const MINIMAP_HEIGHT = 32;
  const HANDLE = 4;

  /** Steps of the window, merged so that each bar is at least three pixels wide: `{x, width, step, first, last}`.
   *
   * `step` has the most tokens of `first` … `last`. Bars are cut at fixed places of the axis, so that they do not
   * flicker while the window moves.
   */
  function barsOf(axis) {
    const { history } = axis;
    const cell = LEAST_PIXELS / axis.pixelsPerUnit;
    const [from, to] = axis.visible();
    const bars = [];
    for (let first = from; first <= to;) {
      let last = first, step = first;
      if (axis.endPlaceOf(first) - axis.placeOf(first) < cell) {
        const cut = (Math.floor(axis.placeOf(first) / cell) + 1) * cell;
        while (last < to && axis.placeOf(last + 1) < cut) {
          last++;
          if (history.at("scheduled", last) > history.at("scheduled", step)) step = last;
        }
      }
      bars.push({ x: axis.x(first), width: axis.endX(last) - axis.x(first), step, first, last });
      first = last + 1;
    }
    return bars;
  }

  /** The highest of a figure from one step to another. Over all steps in one picture: it reads the column itself. */
  function highest({ steps, base }, name, first, last) {
    const column = steps[name];
    let most = 0;
    for (let place = first - base; place <= last - base; place++) if (column[place] > most) most = column[place];
    return most;
  }

  function label(g, text, x, y, color, align = "left") {
    g.fillStyle = color;
    g.textAlign = align;
    g.fillText(text, x, y);
  }

  /** The numbers of the axis above all else, none where the cursor's stands. */
  function drawAxis(g, axis, layout, cursorX) {
    const c = wb.palette.colors();
    label(g, wb.timelineWords(axis.isWall ? "timeline.wall_time" : "timeline.step"), 0, 7, c.subdued);
    for (const { place, text } of axis.ticks()) {
      const x = Math.round(axis.pixelOf(place));
      const isFree = x < layout.width - 44 && (cursorX === null || Math.abs(x - cursorX) > 46);
      if (isFree) label(g, text, x + 2, 7, c.subdued);
    }
  }

  /** The lines of the axis behind tracks and rows. */
  function drawGrid(g, axis, layout) {
    g.fillStyle = wb.palette.colors().grid;
    for (const { place } of axis.ticks()) g.fillRect(Math.round(axis.pixelOf(place)), 16, 1, layout.rowsEnd - 16);
  }

  function clip(g, layout, top, height, draw) {
    g.save();
    g.beginPath();
    g.rect(layout.left, top, layout.plotWidth, height);
    g.clip();
    draw();
    g.restore();
  }

  /** Tokens of each step, decode below prefill, against the budget. */
  function drawTokens(g, axis, layout, bars) {
    const c = wb.palette.colors(), { history } = axis, { top, height } = TOKENS;
    g.fillStyle = wb.palette.mix(c.free, c.canvas, 0.55);
    g.fillRect(layout.left, top, layout.plotWidth, height);
    const [from, to] = axis.visible();
    const most = Math.max(1, highest(history, "budget", from, to), highest(history, "scheduled", from, to));
    const unit = (height - 8) / most, ground = top + height;
    clip(g, layout, top, height, () => {
      for (const [name, below, color] of [["decode", null, c.decode], ["prefill", "decode", c.prefill]]) {
        g.fillStyle = color;
        for (const { x, width, step } of bars) {
          const bar = history.at(name, step) * unit;
          const lifted = below ? history.at(below, step) * unit : 0;
          if (bar) g.fillRect(x, ground - lifted - bar, Math.max(1, width - (width > 2 ? 0.75 : 0)), bar);
        }
      }
    });
    const budget = history.at("budget", to), y = Math.round(ground - budget * unit) + 0.5;
    g.strokeStyle = c.text;
    g.setLineDash([3, 3]);
    g.beginPath();
    g.moveTo(layout.left, y);
    g.lineTo(layout.left + layout.plotWidth, y);
    g.stroke();
    g.setLineDash([]);
    label(g, wb.timelineWords("timeline.budget", { budget: wb.format.count(budget) }), 0, top + 9, c.subdued);
    label(g, wb.timelineWords("timeline.tokens_per_step"), 0, ground - 7, c.subdued);
  }

  /** Blocks in use after each step, and hatched above them those that are cached and free to reuse. */
  function drawBlocks(g, axis, layout, bars, numBlocks) {
    const c = wb.palette.colors(), { history } = axis, { top, height } = BLOCKS;
    const unit = height / Math.max(1, numBlocks), ground = top + height;
    g.fillStyle = wb.palette.mix(c.free, c.canvas, 0.55);
    g.fillRect(layout.left, top, layout.plotWidth, height);
    clip(g, layout, top, height, () => {
      g.fillStyle = g.createPattern(c.hatch, "repeat");
      for (const { x, width, first, last } of bars) {
        const active = highest(history, "active", first, last) * unit, cached = highest(history, "cached", first, last) * unit;
        if (cached) g.fillRect(x, Math.max(top, ground - active - cached), Math.max(1, width + 0.3), Math.min(cached, height - active));
      }
      g.fillStyle = wb.palette.mix(c.decode, c.canvas, 0.35);
      for (const { x, width, first, last } of bars) {
        const active = highest(history, "active", first, last) * unit;
        g.fillRect(x, ground - active, Math.max(1, width + 0.3), active);
      }
    });
    label(g, wb.format.count(numBlocks), 0, top + 5, c.subdued);
    label(g, wb.timelineWords("timeline.kv_blocks"), 0, ground - 7, c.subdued);
  }

  /** The step that all views look at: a line, the step's width, and its number on the axis. */
  function drawCursor(g, axis, layout, step) {
    const c = wb.palette.colors();
    const x = axis.x(step), width = axis.endX(step) - x;
    clip(g, layout, 14, layout.rowsEnd - 14, () => {
      g.fillStyle = c.cursor;
      g.globalAlpha = 0.12;
      g.fillRect(x, 16, Math.max(1, width), layout.rowsEnd - 16);
      g.globalAlpha = 1;
      g.fillRect(Math.round(x) - 0.5, 14, 1, layout.rowsEnd - 14);
    });
    if (x < layout.left - 1 || x > layout.width) return;
    const text = wb.format.count(step);
    g.font = '600 10px "IBM Plex Mono", monospace';
    const width_ = g.measureText(text).width + 8, at = Math.min(Math.round(x) - 0.5, layout.width - width_);
    g.fillStyle = c.cursor;
    g.fillRect(at, 0, width_, 14);
    label(g, text, at + 4, 7.5, c.canvas);
    g.font = '10px "IBM Plex Mono", monospace';
  }

  /** All recorded steps, always over steps. Drawn anew only when the history, the width or the theme changed. */
  class Minimap {
    constructor() {
      this.picture = document.createElement("canvas");
      this.stamp = "";
    }

    /** Pixel of a step's left edge. */
    x(history, layout, step) { return layout.left + (layout.plotWidth * (step - history.first)) / history.numSteps; }
    stepAt(history, layout, x) { return history.first + ((x - layout.left) / layout.plotWidth) * history.numSteps; }

    /** First and last edge of the brush, in steps. */
    brush(axis) {
      if (!axis.isWall) return [axis.from, axis.to];
      const [first, last] = axis.visible();
      return [first, last + 1];
    }

    draw(g, axis, layout, cursor) {
      const c = wb.palette.colors(), { history } = axis, top = layout.minimapTop;
      this.paint(history, layout, c);
      g.drawImage(this.picture, layout.left, top, layout.plotWidth, MINIMAP_HEIGHT);
      const [from, to] = this.brush(axis).map((step) => Math.max(layout.left, Math.min(layout.left + layout.plotWidth, this.x(history, layout, step))));
      g.fillStyle = c.canvas;
      g.globalAlpha = 0.62;
      g.fillRect(layout.left, top, from - layout.left, MINIMAP_HEIGHT);
      g.fillRect(to, top, layout.left + layout.plotWidth - to, MINIMAP_HEIGHT);
      g.globalAlpha = 1;
      g.strokeStyle = c.text;
      g.lineWidth = 1;
      g.strokeRect(Math.round(from) + 0.5, top - 0.5, Math.max(2, Math.round(to - from) - 1), MINIMAP_HEIGHT + 1);
      g.fillStyle = c.text;
      for (const edge of [from, to - HANDLE]) g.fillRect(Math.round(edge), top + 9, HANDLE, 14);
      if (cursor !== null && history.has(cursor)) {
        g.fillStyle = c.cursor;
        g.fillRect(Math.round(this.x(history, layout, cursor)), top, 1, MINIMAP_HEIGHT);
      }
      g.fillStyle = c.subdued;
      g.textAlign = "left";
      g.fillText(wb.timelineWords("timeline.all_steps", { count: wb.format.count(history.numSteps) }), 0, top + 16, layout.left - 8);
    }

    paint(history, layout, c) {
      const stamp = `${history.version}/${layout.plotWidth}/${c.theme}`;
      if (stamp === this.stamp) return;
      this.stamp = stamp;
      const g = wb.dom.fit(this.picture, layout.plotWidth, MINIMAP_HEIGHT);
      g.fillStyle = wb.palette.mix(c.free, c.canvas, 0.4);
      g.fillRect(0, 0, layout.plotWidth, MINIMAP_HEIGHT);
      const most = Math.max(1, highest(history, "budget", history.last, history.last), highest(history, "scheduled", history.first, history.last));
      const unit = (MINIMAP_HEIGHT - 2) / most, ground = MINIMAP_HEIGHT - 1;
      const width = layout.plotWidth / history.numSteps, merged = Math.max(1, Math.ceil(1 / width));
      g.globalAlpha = 0.85;
      for (let first = history.first; first <= history.last; first += merged) {
        const last = Math.min(history.last, first + merged - 1), x = (first - history.first) * width;
        const decode = highest(history, "decode", first, last) * unit, all = highest(history, "scheduled", first, last) * unit;
        const bar = (last - first + 1) * width + 0.3;
        g.fillStyle = c.prefill;
        if (all > decode) g.fillRect(x, ground - all, bar, all - decode);
        g.fillStyle = c.decode;
        g.fillRect(x, ground - decode, bar, decode);
      }
      g.globalAlpha = 1;
      g.fillStyle = c.preempted;
      for (let step = history.first; step <= history.last; step++) {
        if (history.at("preempted", step)) g.fillRect((step - history.first) * width - 1, 0, 2.5, 5);
      }
    }
  }

  wb.timelineTracks = { drawAxis, drawGrid, drawTokens, drawBlocks, drawCursor, barsOf, clip, label, Minimap, MINIMAP_HEIGHT, TOKENS, BLOCKS };
})((window.wb = window.wb || {}));
