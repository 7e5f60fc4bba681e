/* The lens over the map of a big pool: how much it enlarges, and which part of the pool lies under it. */
(function (wb) {
  "use strict";

  const MOST_PITCH = 16;
  const DRAG_PX = 4;

  class Lens {
    constructor() { this.reset(); }

    reset() {
      this.zoom = 1;
      /** Upper left corner of the visible part, as shares of the whole. */
      this.x = 0;
      this.y = 0;
    }

    /** Enlarge by `factor` around a point of the canvas, which stays where it is. */
    zoomAt(layout, px, py, factor) {
      const base = layout.pitch / layout.zoom;
      const most = 2 ** Math.ceil(Math.log2(MOST_PITCH / base));
      const zoom = Math.max(1, Math.min(most, this.zoom * factor));
      if (zoom === this.zoom) return false;
      const { window, edge } = layout;
      const [u, v] = [(px - edge.left) / window.width, (py - edge.top) / window.height].map((share) => Math.max(0, Math.min(1, share)));
      this.x += u / this.zoom - u / zoom;
      this.y += v / this.zoom - v / zoom;
      this.zoom = zoom;
      this.clamp();
      return true;
    }

    zoomAtCenter(layout, factor) {
      return this.zoomAt(layout, layout.edge.left + layout.window.width / 2, layout.edge.top + layout.window.height / 2, factor);
    }

    /** Move what is seen by so many pixels. */
    pan(layout, dx, dy) {
      this.x -= dx / (layout.window.width * this.zoom);
      this.y -= dy / (layout.window.height * this.zoom);
      this.clamp();
    }

    /** Bring a block into the window. */
    reveal(layout, block) {
      const [x, y] = layout.at(block), { edge, window, pitch } = layout;
      const outside = (at, low, size) => (at < low ? low - at : Math.min(0, low + size - pitch - at));
      this.pan(layout, outside(x, edge.left, window.width), outside(y, edge.top, window.height));
    }

    clamp() {
      const most = 1 - 1 / this.zoom;
      this.x = Math.max(0, Math.min(most, this.x));
      this.y = Math.max(0, Math.min(most, this.y));
    }
  }

  /** Let wheel and drag on `canvas` move a lens. `layoutOf()` is the layout that is drawn, `redraw` draws anew.
   *  Returns `wasDragged()`: whether the pointer that just went up had moved the picture. */
  function listen(canvas, lens, layoutOf, redraw) {
    let held = null, hasMoved = false;
    canvas.addEventListener("wheel", (event) => {
      const layout = layoutOf();
      if (!layout || !layout.isBig || !(event.ctrlKey || document.activeElement === canvas)) return;
      const isTurned = lens.zoomAt(layout, event.offsetX, event.offsetY, event.deltaY < 0 ? 2 : 0.5);
      if (isTurned || event.ctrlKey) event.preventDefault();
      if (isTurned) redraw();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      hasMoved = false;
      held = lens.zoom > 1 && event.isPrimary ? { x: event.clientX, y: event.clientY } : null;
      if (held) canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held || !event.isPrimary) return;
      const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
      if (!hasMoved && Math.hypot(dx, dy) < DRAG_PX) return;
      hasMoved = true;
      held = { x: event.clientX, y: event.clientY };
      lens.pan(layoutOf(), dx, dy);
      redraw();
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { held = null; });
    return () => hasMoved;
  }

  wb.lens = { Lens, listen };
})((window.wb = window.wb || {}));
