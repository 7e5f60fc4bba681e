/* Pointers, fingers and wheel on the timeline. */
(function (wb) {
  "use strict";

  const DRAG_PIXELS = 4;
  const EDGE_PIXELS = 6;
  const WHEEL_ZOOM = 0.0015;
  const ROW_WHEEL = 40;

  /** Follows the pointers that are down: one pans or moves the brush, two pinch; what did not move was a click. */
  class Hands {
    constructor(timeline) {
      this.timeline = timeline;
      this.canvas = timeline.parts.timeline;
      this.down = new Map();
      this.drag = null;
      this.canvas.addEventListener("pointerdown", (event) => this.onDown(event));
      this.canvas.addEventListener("pointermove", (event) => this.onMove(event));
      this.canvas.addEventListener("pointerup", (event) => this.onUp(event, true));
      this.canvas.addEventListener("pointercancel", (event) => this.onUp(event, false));
      this.canvas.addEventListener("pointerleave", () => { timeline.parts.tip.hidden = true; wb.store.setHover(null, -1); });
      this.canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    }

    point(event) {
      const box = this.canvas.getBoundingClientRect();
      return wb.timelineTip.at(this.timeline, event.clientX - box.left, event.clientY - box.top);
    }

    onDown(event) {
      const point = this.point(event);
      if (!point || event.button > 0) return;
      this.canvas.setPointerCapture(event.pointerId);
      this.down.set(event.pointerId, point);
      this.drag = this.down.size === 2 ? this.beginPinch() : this.begin(point);
      if (this.drag.kind === "brush") this.moveBrush(point);
    }

    begin(point) {
      const { axis, shownBelow } = this.timeline;
      const window_ = { from: axis.from, to: axis.to };
      if (point.area !== "minimap") return { kind: "pan", start: point, ...window_, shownBelow, hasMoved: false };
      return { kind: "brush", edge: this.edgeAt(point), start: point, ...window_, hasMoved: true };
    }

    beginPinch() {
      const [a, b] = [...this.down.values()];
      const { axis } = this.timeline;
      return { kind: "pinch", distance: Math.max(10, Math.abs(a.x - b.x)), middle: axis.placeAt((a.x + b.x) / 2), span: axis.span, hasMoved: true };
    }

    /** Which part of the brush lies under a point: "from", "to", "inside", or "outside". */
    edgeAt(point) {
      const { minimap, axis, history, layout } = this.timeline;
      const [from, to] = minimap.brush(axis).map((step) => minimap.x(history, layout, step));
      if (Math.abs(point.x - from) <= EDGE_PIXELS) return "from";
      if (Math.abs(point.x - to) <= EDGE_PIXELS) return "to";
      return point.x > from && point.x < to ? "inside" : "outside";
    }

    onMove(event) {
      const point = this.point(event);
      if (!point) return;
      if (!this.down.has(event.pointerId)) { this.hover(point, event); return; }
      this.down.set(event.pointerId, point);
      const { drag } = this;
      if (drag.kind === "pan") this.pan(point);
      else if (drag.kind === "brush") this.moveBrush(point);
      else this.pinch();
      this.timeline.parts.tip.hidden = true;
      this.timeline.redraw();
    }

    hover(point, event) {
      wb.timelineTip.showTip(this.timeline, point, event);
      this.canvas.classList.toggle("wb-edge", point.area === "minimap" && ["from", "to"].includes(this.edgeAt(point)));
      const id = point.row && wb.store.view().byId.has(point.row.id) ? point.row.id : null;
      wb.store.setHover(id, -1);
    }

    pan(point) {
      const { drag, timeline } = this, { axis, layout } = timeline;
      const [dx, dy] = [point.x - drag.start.x, point.y - drag.start.y];
      if (!drag.hasMoved && Math.hypot(dx, dy) < DRAG_PIXELS) return;
      drag.hasMoved = true;
      this.canvas.classList.add("wb-dragging");
      const by = dx / axis.pixelsPerUnit;
      axis.show(drag.from - by, drag.to - by);
      const rows = Math.round(dy / layout.rowHeight);
      if (drag.start.area !== "tracks" && (rows || timeline.rowsBelow !== null)) timeline.rowsBelow = drag.shownBelow + rows;
    }

    pinch() {
      const [a, b] = [...this.down.values()], { axis } = this.timeline, { drag } = this;
      const span = drag.span * (drag.distance / Math.max(10, Math.abs(a.x - b.x)));
      const share = ((a.x + b.x) / 2 - axis.left) / axis.width;
      axis.show(drag.middle - share * span, drag.middle + (1 - share) * span);
    }

    moveBrush(point) {
      const { drag, timeline } = this, { axis, minimap, history, layout } = timeline;
      const step = minimap.stepAt(history, layout, point.x);
      const before = { isWall: axis.isWall, from: drag.from, to: drag.to };
      const place = (value) => (before.isWall ? placeInTime(history, value) : value);
      if (drag.edge === "from") axis.show(Math.min(place(step), drag.to), drag.to);
      else if (drag.edge === "to") axis.show(drag.from, Math.max(place(step), drag.from));
      else {
        const moved = drag.edge === "outside" ? place(step) - (drag.from + drag.to) / 2 : place(step) - place(minimap.stepAt(history, layout, drag.start.x));
        axis.show(drag.from + moved, drag.to + moved);
      }
      timeline.redraw();
    }

    onUp(event, isDone) {
      const point = this.down.get(event.pointerId);
      if (!point) return;
      this.down.delete(event.pointerId);
      this.canvas.classList.remove("wb-dragging");
      const { drag } = this;
      this.drag = this.down.size === 1 ? { ...this.begin([...this.down.values()][0]), hasMoved: true } : null;
      if (isDone && drag && !drag.hasMoved) this.click(point);
    }

    /** A step is sought, a request selected; both at once in a row. */
    click(point) {
      const { timeline } = this;
      if (point.row) timeline.select(point.area === "names" && point.row.key === timeline.key ? null : point.row);
      if (point.area === "tracks" || point.area === "rows") timeline.seek(point.step);
    }

    onWheel(event) {
      const { timeline } = this, point = this.point(event);
      if (!point) return;
      event.preventDefault();
      const scale = event.deltaMode === 1 ? 16 : 1;
      const [dx, dy] = event.shiftKey && !event.deltaX ? [event.deltaY * scale, 0] : [event.deltaX * scale, event.deltaY * scale];
      if (Math.abs(dx) > Math.abs(dy)) timeline.axis.pan(dx);
      else if (point.area === "names") this.scroll(dy);
      else timeline.axis.zoom(Math.exp(dy * WHEEL_ZOOM), point.area === "minimap" ? undefined : point.x);
      timeline.parts.tip.hidden = true;
      timeline.redraw();
    }

    /** Rows scroll by whole rows; what is left of a small turn counts for the next. */
    scroll(pixels) {
      this.scrolled = (this.scrolled || 0) + pixels;
      const rows = Math.trunc(this.scrolled / ROW_WHEEL);
      this.scrolled -= rows * ROW_WHEEL;
      if (rows) this.timeline.scrollRows(-rows);
    }
  }

  /** A place between steps on the clock: inside a step in proportion. */
  function placeInTime(history, value) {
    const step = Math.max(history.first, Math.min(history.last, Math.floor(value)));
    const share = Math.max(0, Math.min(1, value - step));
    return history.startOf(step) + share * (history.endOf(step) - history.startOf(step));
  }

  wb.timelineHands = { Hands };
})((window.wb = window.wb || {}));
