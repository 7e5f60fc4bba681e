/* The block map: wires the store to canvas, chips, strip and panels, and the person's pointer and keys to the store. */
(function (wb) {
  "use strict";

  const { text } = wb;

  const ANNOUNCE_MS = 2000;
  const HOVER_MS = 80;
  /** Between two pictures of a fade: each costs a frame of the page. */
  const FLASH_GAP_MS = 30;
  const ARROWS = { arrowleft: [-1, 0], a: [-1, 0], arrowright: [1, 0], d: [1, 0], arrowup: [0, -1], w: [0, -1], arrowdown: [0, 1], s: [0, 1] };

  /** A lost feed makes the live picture old; a recorded step stays what it is. */
  const isStale = () => wb.feed.isStale() && !wb.store.past;

  class BlockMap {
    constructor(root, server) {
      this.root = root;
      this.parts = wb.dom.parts(root);
      this.desk = new wb.panels.DetailsDesk(server);
      this.travel = new wb.travel.Travel(this.parts);
      this.lens = new wb.lens.Lens();
      this.layout = null;
      this.cursor = -1;
      this.announcedAt = 0;
      this.hoverTimer = null;
      this.isAnimating = false;
      this.lastOptions = null;
      this.listenToPointer();
      this.listenToKeys();
    }

    get view() { return wb.store.view(); }
    /** The block of the panel: hovered before pinned. */
    get block() { return wb.store.hover.block >= 0 ? wb.store.hover.block : wb.store.selection.block; }

    update(topics) {
      if (!wb.dom.isShown(this.parts.chips.parentElement)) return;
      const view = this.view;
      this.root.classList.toggle("wb-stale", isStale());
      wb.totals.drawTotals(this.parts, view);
      wb.totals.drawModes(this.parts.modes, wb.store.mode);
      wb.totals.drawKey(this.parts.key, wb.store.mode);
      wb.totals.drawStates(this.root);
      wb.totals.drawChips(this.parts.chips, view);
      this.drawEmpty(view);
      this.drawMap(topics);
      const request = view.byId.get(wb.store.selection.request) || null;
      wb.strip.draw(this.parts, view, request);
      wb.panels.drawBlock(this.parts, view, this.block, this.desk);
      wb.panels.drawRequest(this.parts, view, request);
      wb.queue.draw(this.parts, view);
      wb.traffic.draw(this.parts, view);
      this.travel.draw(view);
      this.announce(view);
    }

    drawEmpty(view) {
      const isLoaded = view.numBlocks > 0;
      wb.dom.hide(this.parts.empty, isLoaded && view.requests.size > 0);
      const rest = view.status.includes(wb.store.CACHED)
        ? text("No requests now. Hatched blocks keep what earlier ones computed, for whoever begins alike.")
        : wb.savedRun.facts() ? text("No request was in the engine at this step.") : text("No requests yet. Send a message or add 8 background requests.");
      wb.dom.setText(this.parts.empty, isLoaded ? rest : text("The block map appears when the model is loaded."));
      wb.dom.hide(this.parts.map, !isLoaded);
    }

    options(view) {
      const lit = wb.store.litRequest();
      const order = lit ? view.tableOf(lit) : [];
      return {
        layout: this.layout, mode: wb.store.mode, compact: false, stale: isStale(),
        lit, order, table: lit && order.length ? new Set(order) : null,
        block: wb.store.selection.block, state: wb.store.state,
      };
    }

    drawMap(topics) {
      const view = this.view;
      if (!view.numBlocks) return;
      this.layout = wb.geometry.mapLayout(wb.dom.innerWidth(this.parts.map.parentElement), view.numBlocks, this.lens);
      const options = (this.lastOptions = this.options(view));
      const dirty = wb.store.dirty;
      const isQuiet = !this.layout.isBig && !options.table && options.block < 0 && options.mode !== 2 && !options.stale && this.cursor < 0;
      const isNews = [...topics].every((topic) => topic === "data" || topic === "cursor");
      if (isQuiet && dirty && isNews) wb.mapCanvas.drawSome(this.parts.map, view, dirty, options);
      else wb.mapCanvas.drawAll(this.parts.map, view, options);
      this.drawCursor(options);
      this.drawZoom();
      this.animate();
    }

    drawZoom() {
      const { zoomBox, zoomText, zoomIn, zoomOut, map } = this.parts;
      wb.dom.hide(zoomBox, !this.layout.isBig);
      wb.dom.setText(zoomText, `${this.lens.zoom}×`);
      zoomOut.disabled = this.lens.zoom === 1;
      zoomIn.disabled = this.layout.pitch >= 16;
      map.style.touchAction = this.lens.zoom > 1 ? "none" : "";
    }

    /** Enlarge the map of a big pool, or show it whole again with a factor of 0. */
    zoom(factor) {
      if (!this.layout || !this.layout.isBig) return false;
      if (factor) this.lens.zoomAtCenter(this.layout, factor);
      else this.lens.reset();
      wb.store.notify("theme");
      return true;
    }

    /** The keyboard's cell: a thin frame, apart from the pinned block. */
    drawCursor() {
      if (this.cursor < 0 || this.cursor >= this.view.numBlocks || document.activeElement !== this.parts.map || !this.layout.isVisible(this.cursor)) return;
      const g = this.parts.map.getContext("2d");
      const [x, y] = this.layout.at(this.cursor);
      g.strokeStyle = wb.palette.colors().cursor;
      g.lineWidth = 1;
      g.strokeRect(x - 0.5, y - 0.5, this.layout.cell + 1, this.layout.cell + 1);
    }

    /** Fade what was just allocated, freed or moved; nothing flashes when reduced motion is asked for. */
    animate() {
      const { flashes } = wb.store;
      if (wb.mapCanvas.isStill()) flashes.clear();
      if (flashes.size > this.view.numBlocks / 2) {  // all that changed while nobody looked is no news
        for (const [block, { kind }] of flashes) if (kind === "turned") flashes.delete(block);
      }
      if (this.isAnimating || !flashes.size) return;
      this.isAnimating = true;
      const frame = () => {
        const canDraw = wb.dom.isShown(this.parts.map) && this.lastOptions && this.lastOptions.layout === this.layout;
        const isGoingOn = canDraw && wb.mapCanvas.drawFlashes(this.parts.map.getContext("2d"), this.view, this.lastOptions, performance.now());
        this.isAnimating = Boolean(isGoingOn);
        if (isGoingOn) setTimeout(() => requestAnimationFrame(frame), FLASH_GAP_MS);
        else if (canDraw && (this.lastOptions.table || this.lastOptions.block >= 0)) wb.store.notify("selection");
      };
      requestAnimationFrame(frame);
    }

    /** What the picture says, in words, at most every two seconds. */
    announce(view) {
      const now = performance.now();
      const figures = view.figures;
      const totals = view.totals();
      const swapped = (figures.swap_blocks || 0) - (figures.free_swap_blocks || 0);
      const told = { active: totals.active, all: view.numBlocks, cached: totals.cached, free: totals.free, swapped, running: figures.running || 0, waiting: figures.waiting || 0 };
      const selected = wb.store.selection.request;
      const blocks = text("Physical KV blocks. {active} of {all} blocks active, {cached} cached, {free} free", told);
      const host = swapped ? text(", {swapped} in host memory", told) : "";
      const requests = text("; {running} requests running, {waiting} waiting", told);
      const label = `${blocks}${host}${requests}${selected ? text(". Request {id} selected", { id: selected }) : ""}`;
      if (now - this.announcedAt < ANNOUNCE_MS || this.parts.announce.textContent === label) return;
      this.announcedAt = now;
      this.parts.announce.textContent = label;
      this.parts.map.setAttribute("aria-label", label);
    }

    // ------------------------------------------------------------------ pointer

    listenToPointer() {
      const { map, strip, modes } = this.parts;
      map.addEventListener("pointermove", (event) => this.onMove(event));
      map.addEventListener("pointerleave", () => this.leave());
      const wasDragged = wb.lens.listen(map, this.lens, () => this.layout, () => wb.store.notify("theme"));
      map.addEventListener("click", (event) => wasDragged() || this.pin(this.at(event)));
      this.parts.zoomIn.addEventListener("click", () => this.zoom(2));
      this.parts.zoomOut.addEventListener("click", () => this.zoom(0.5));
      this.parts.savePng.addEventListener("click", () => this.layout && wb.saveMap.savePicture(this.view, this.options(this.view)));
      this.parts.saveJson.addEventListener("click", () => wb.saveMap.saveState(this.view));
      strip.addEventListener("click", (event) => {
        const request = this.view.byId.get(wb.store.selection.request);
        const block = wb.strip.blockAt(strip, this.view, request, event.offsetX);
        if (block >= 0) wb.store.select(request.id, block);
      });
      strip.addEventListener("pointermove", (event) => this.onStripMove(event));
      strip.addEventListener("pointerleave", () => { this.parts.tip.hidden = true; });
      this.root.addEventListener("click", (event) => {
        const button = event.target.closest("button.wb-state");
        if (button) wb.store.toggleState(button.dataset.state);
      });
      [...modes.children].forEach((button, i) => button.addEventListener("click", () => wb.store.setMode(i)));
      modes.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const mode = (wb.store.mode + step + 4) % 4;
        wb.store.setMode(mode);
        modes.children[mode].focus();
      });
    }

    at(event) {
      return this.layout ? this.layout.blockAt(event.offsetX, event.offsetY, this.view.numBlocks) : -1;
    }

    onMove(event) {
      if (event.pointerType === "touch") return;
      const block = this.at(event);
      if (block < 0) { this.leave(); return; }
      this.showTip(block, event.clientX, event.clientY);
      clearTimeout(this.hoverTimer);
      this.hoverTimer = setTimeout(() => this.hover(block), HOVER_MS);
    }

    /** A cell of the strip tells its block and all who share it. */
    onStripMove(event) {
      const request = this.view.byId.get(wb.store.selection.request);
      const block = wb.strip.blockAt(this.parts.strip, this.view, request, event.offsetX);
      if (block >= 0 && event.pointerType !== "touch") this.showTip(block, event.clientX, event.clientY);
      else this.parts.tip.hidden = true;
    }

    leave() {
      clearTimeout(this.hoverTimer);
      this.parts.tip.hidden = true;
      wb.store.setHover(null, -1);
    }

    /** The request that a block stands for: the selected one where that is among its owners. */
    ownerFor(block) {
      const owners = this.view.ownersOf(block);
      return owners.find((owner) => owner.id === wb.store.selection.request) || owners[0] || null;
    }

    hover(block) {
      const owner = this.ownerFor(block);
      wb.store.setHover(owner ? owner.id : null, block);
    }

    /** Pin a block; its owner is selected with it. */
    pin(block) {
      if (block < 0) return;
      const owner = this.ownerFor(block);
      wb.store.select(owner ? owner.id : null, block);
    }

    clear() {
      this.cursor = -1;
      this.parts.tip.hidden = true;
      if (wb.store.state) wb.store.toggleState(wb.store.state);
      wb.store.select(null, -1);
      wb.store.setHover(null, -1);
    }

    showTip(block, x, y) { wb.mapTip.show(this.parts, this.view, block, this.ownerFor(block), x, y); }

    // ------------------------------------------------------------------ keys

    listenToKeys() {
      const { map } = this.parts;
      map.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if (this.onKey(event.key.toLowerCase())) event.preventDefault();
      });
      map.addEventListener("blur", () => { this.cursor = -1; this.leave(); });
    }

    onKey(key) {
      if (ARROWS[key]) { this.moveCursor(...ARROWS[key]); return true; }
      if (key === "enter") { this.pin(this.cursor >= 0 ? this.cursor : wb.store.hover.block); return true; }
      if (key === "escape") { this.clear(); return true; }
      if ("1234".includes(key)) { wb.store.setMode(Number(key) - 1); return true; }
      if (key === "+" || key === "=") return this.zoom(2);
      if (key === "-") return this.zoom(0.5);
      if (key === "0") return this.zoom(0);
      return wb.travel.onKey(key);
    }

    moveCursor(dx, dy) {
      const { columns } = this.layout, last = this.view.numBlocks - 1;
      const from = this.cursor >= 0 ? this.cursor : Math.max(0, wb.store.selection.block);
      this.cursor = this.cursor < 0 ? from : Math.max(0, Math.min(last, from + dx + dy * columns));
      if (this.layout.isBig) {
        this.lens.reveal(this.layout, this.cursor);
        this.layout = wb.geometry.mapLayout(wb.dom.innerWidth(this.parts.map.parentElement), this.view.numBlocks, this.lens);
      }
      const box = this.parts.map.getBoundingClientRect();
      const [x, y] = this.layout.center(this.cursor);
      this.hover(this.cursor);
      this.showTip(this.cursor, box.left + x, box.top + y);
    }
  }

  wb.define("blockMap", (root, { server }) => {
    const map = new BlockMap(root, server);
    root.wbMap = map;
    new wb.runTools.RunTools(root, map.parts);
    return (topics) => map.update(topics);
  });
})((window.wb = window.wb || {}));
