/* The part of the history that the timeline shows, over steps or over wall time, and how it moves.
 *
 * A place on the axis is a step id, or seconds of the engine's clock. `from` and `to` are places; the window keeps
 * to the newest step while `follows` is true.
 */
(function (wb) {
  "use strict";

  const PIXELS_PER_STEP = 6;
  const FEWEST_STEPS = 8;
  const SHORTEST_S = 0.01;

  class Axis {
    constructor(history) {
      this.history = history;
      this.isWall = false;
      this.follows = true;
      this.from = 0;
      this.to = 0;
      this.left = 0;
      this.width = 1;
    }

    get span() { return this.to - this.from; }
    get pixelsPerUnit() { return this.width / this.span; }

    /** Pixels of the plot area. The first call chooses the window. */
    setPlot(left, width) {
      this.left = left;
      this.width = Math.max(1, width);
      if (!this.history.isEmpty && this.span <= 0) this.showSteps(this.history.last + 1 - width / PIXELS_PER_STEP, this.history.last + 1);
    }

    /** Nothing is shown until the next `setPlot`: another engine. */
    reset() {
      this.from = this.to = 0;
      this.follows = true;
    }

    /** First and last place of the whole history. */
    bounds() {
      const { history } = this;
      return this.isWall ? [history.startOf(history.first), history.endOf(history.last)] : [history.first, history.last + 1];
    }

    placeOf(step) { return this.isWall ? this.history.startOf(step) : step; }
    endPlaceOf(step) { return this.isWall ? this.history.endOf(step) : step + 1; }
    pixelOf(place) { return this.left + (place - this.from) * this.pixelsPerUnit; }
    x(step) { return this.pixelOf(this.placeOf(step)); }
    endX(step) { return this.pixelOf(this.endPlaceOf(step)); }
    placeAt(x) { return this.from + (x - this.left) / this.pixelsPerUnit; }

    /** The step at a place; the nearest recorded one. */
    stepAtPlace(place) {
      const { history } = this;
      const step = this.isWall ? history.stepAtTime(place) : Math.floor(place);
      return Math.max(history.first, Math.min(history.last, step));
    }
    stepAt(x) { return this.stepAtPlace(this.placeAt(x)); }

    /** First and last step of which something lies in the window. */
    visible() { return [this.stepAtPlace(this.from), this.stepAtPlace(this.isWall ? this.to : Math.ceil(this.to) - 1)]; }

    showSteps(from, to) {
      const { history } = this;
      if (!this.isWall) { this.show(from, to); return; }
      const clamp = (step) => Math.max(history.first, Math.min(history.last, Math.floor(step)));
      this.show(history.startOf(clamp(from)), history.endOf(clamp(to - 1)));
    }

    /** Move the window to these places, kept inside the history. It follows when it ends at the newest step. */
    show(from, to) {
      const [first, end] = this.bounds();
      const shortest = this.isWall ? SHORTEST_S : FEWEST_STEPS;
      const longest = Math.max(end - first, this.isWall ? shortest : Math.min(this.width / PIXELS_PER_STEP, to - from));
      const span = Math.max(shortest, Math.min(to - from, longest));
      const start = Math.max(first, Math.min(from, end - span));
      this.from = start;
      this.to = start + span;
      this.follows = this.to >= end - 1e-9 * Math.abs(end);
    }

    showAll() { this.show(...this.bounds()); }

    /** Keep up with the history: the newest step stays in the window, or what left the history leaves it. */
    keepUp(isHeld) {
      if (this.history.isEmpty || this.span <= 0) return;
      const [first, end] = this.bounds();
      const followed = this.follows;
      if (followed && !isHeld) this.show(end - this.span, end);
      else if (this.from < first) { this.show(first, first + this.span); this.follows = followed; }
    }

    toNewest() {
      this.follows = true;
      this.keepUp(false);
    }

    pan(pixels) {
      const by = pixels / this.pixelsPerUnit;
      this.show(this.from + by, this.to + by);
    }

    /** Change the span by a factor; the place under pixel `x` stays, or the newest step while following. */
    zoom(factor, x) {
      const anchor = this.follows ? this.to : this.placeAt(x === undefined ? this.left + this.width / 2 : x);
      this.show(anchor - (anchor - this.from) * factor, anchor + (this.to - anchor) * factor);
    }

    /** Bring a step into the window, in its middle when it was outside. */
    reveal(step) {
      if (!this.history.has(step) || this.span <= 0) return;
      const [from, to] = [this.placeOf(step), this.endPlaceOf(step)];
      if (from >= this.from && to <= this.to) return;
      const middle = (from + to) / 2;
      this.show(middle - this.span / 2, middle + this.span / 2);
    }

    /** Steps or wall time; the same steps stay in the window. */
    setWall(isWall) {
      if (this.isWall === isWall) return;
      const isSet = !this.history.isEmpty && this.span > 0;
      const [first, last] = isSet ? this.visible() : [0, 0];
      const { follows } = this;
      this.isWall = isWall;
      if (isSet) this.showSteps(first, last + 1);
      this.follows = this.follows || follows;
    }

    /** Round places for the labels: `{place, text}`, about one for each 90 pixels. */
    ticks() {
      const most = Math.max(3, Math.floor(this.width / 90));
      const [first] = this.bounds();
      const zero = this.isWall ? first : 0;
      const gap = roundGap(this.span / most, this.isWall ? 0.001 : 1);
      const ticks = [];
      for (let n = Math.ceil((this.from - zero) / gap - 1e-9); zero + n * gap < this.to; n++) {
        ticks.push({ place: zero + n * gap, text: this.isWall ? seconds(n * gap, gap) : wb.format.count(n * gap) });
      }
      return ticks;
    }
  }

  /** The smallest of 1, 2, 5, 10, 20 … times `unit` that is at least `least`. */
  function roundGap(least, unit) {
    let gap = unit;
    for (let n = 0; gap < least; n++) gap *= n % 3 === 1 ? 2.5 : 2;
    return gap;
  }

  function seconds(value, gap) {
    if (gap < 0.1) return `${Math.round(value * 1000).toLocaleString("en-US")} ms`;
    return `${value.toFixed(gap < 1 ? 1 : 0)} s`;
  }

  wb.timelineAxis = { Axis };
})((window.wb = window.wb || {}));
