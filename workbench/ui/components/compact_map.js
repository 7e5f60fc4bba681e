/* The compact map beside the chat: every block as a small cell, one's own request lit, its phase and figures.
 *
 * The answer beside it streams on while the other tabs look at a recorded step, so it always shows the newest one.
 */
(function (wb) {
  "use strict";

  const { text } = wb;

  const PHASES = ["queued", "prefill", "decode", "done"];

  /** Which of the four phases a request is in; `wasSeen` tells an ended request from one not yet heard of. */
  function placeOf(request, wasSeen, view) {
    if (!request) return wasSeen ? 3 : -1;
    return Math.max(0, PHASES.indexOf(view.phaseOf(request)));
  }

  /** Words of a phase: "queued #3", "prefill 512/2,048", "decode 116", "preempted", "swapped". */
  function words(index, phase, request, view) {
    if (index !== phase || !request) return text(PHASES[index]);
    if (phase === 0) return request.status === "waiting" ? text("queued #{place}", { place: queuePlace(view, request) }) : text(request.status);
    if (phase === 1) return text("prefill {done}/{total}", { done: request.computed, total: request.prompt + request.output });
    return phase === 2 ? text("decode {count}", { count: request.output }) : text(PHASES[index]);
  }

  function queuePlace(view, request) {
    return [...view.requests.values()].filter((r) => r.status !== "running").indexOf(request) + 1;
  }

  /** The living sequences of a request: its answers and beams are named "r5", "r5.1", "r5.2". */
  function familyOf(view, id) {
    if (!id) return [];
    return [...view.byId.values()].filter((r) => r.id === id || r.id.startsWith(`${id}.`));
  }

  class CompactMap {
    constructor(root) {
      this.root = root;
      this.parts = wb.dom.parts(root);
      this.id = null;
      this.wasSeen = false;
      this.last = null;
      this.parts.open.addEventListener("click", () => this.openMap());
    }

    /** Follow a request; null for none. */
    follow(id) {
      if (this.id === id) return;
      this.id = id || null;
      this.wasSeen = false;
      this.last = null;
      wb.store.setMine(id);
    }

    update() {
      if (!wb.dom.isShown(this.root)) return;
      const isAway = wb.savedRun.isOpen();
      wb.dom.hide(this.parts.away, !isAway);
      for (const name of ["map", "rows", "open"]) wb.dom.hide(this.parts[name], isAway);
      if (isAway) { this.drawAway(); return; }
      const view = wb.store.live;
      const family = familyOf(view, this.id);
      const request = family[0] || null;
      if (request) { this.wasSeen = true; this.last = request; }
      for (const each of family) if (!wb.store.mine.has(each.id)) wb.store.setMine(each.id);
      const table = new Set(family.flatMap((each) => view.tableOf(each)));
      this.root.classList.toggle("wb-stale", wb.feed.isStale());
      this.drawHeading(view, request, family.reduce((count, each) => count + each.sequences, 0));
      this.drawMoment(view);
      this.drawCells(view, family, table);
      this.drawRows(view, request, table);
    }

    /** The feed is a saved run's: nothing is known of the engine that the chat goes on with. */
    drawAway() {
      for (const name of ["square", "moment", "phases"]) this.parts[name].hidden = true;
      wb.dom.setText(this.parts.title, this.id ? text("Your request {id}", { id: this.id }) : text("Block pool"));
    }

    drawHeading(view, request, numSequences) {
      wb.dom.hide(this.parts.square, !request);
      if (request) this.parts.square.style.background = wb.palette.swatch(request);
      const several = numSequences > 1 ? ` · ${text("{count} sequences", { count: numSequences })}` : "";
      wb.dom.setText(this.parts.title, this.id ? text("Your request {id}", { id: this.id }) + several : text("Block pool"));
      const phase = placeOf(request, this.wasSeen, view);
      wb.dom.hide(this.parts.phases, !this.id);
      [...this.parts.phases.children].forEach((node, i) => {
        node.classList.toggle("wb-on", i === phase);
        wb.dom.setText(node, words(i, phase, request, view));
      });
    }

    /** Which step this is, where the other tabs show another one. */
    drawMoment(view) {
      const { cursor } = wb.store;
      wb.dom.hide(this.parts.moment, cursor === null);
      if (cursor !== null) wb.dom.setText(this.parts.moment, text("Newest step, {newest}. Blocks and Timeline stand at step {step}.", { newest: view.stepId, step: cursor }));
    }

    /** Every block; one's own stand out, each in the colour of its first owner where there are several sequences. */
    drawCells(view, family, table) {
      wb.dom.hide(this.parts.map, !view.numBlocks);
      if (!view.numBlocks) return;
      const width = wb.dom.innerWidth(this.parts.map.parentElement);
      const layout = wb.geometry.compactLayout(width, view.numBlocks);
      const lit = family.length === 1 ? family[0] : null;
      const options = { layout, mode: 0, compact: true, stale: wb.feed.isStale(), lit, table: table.size ? table : null };
      const g = wb.dom.fit(this.parts.map, layout.width, layout.height);
      wb.mapCanvas.drawCells(g, view, options);
      for (const block of table) if (view.refs[block] > 1 && !layout.isCoarse) this.markShared(g, layout, block);
    }

    /** The corner that marks a shared block in the full map, as whole pixels of these small cells. */
    markShared(g, layout, block) {
      const [x, y] = layout.at(block);
      const side = Math.max(1, Math.round(layout.cell / 2));
      g.fillStyle = wb.palette.colors().shared;
      g.fillRect(x + layout.cell - side, y, side, side);
    }

    drawRows(view, request, table) {
      const { count, percent } = wb.format;
      const service = wb.store.service || {};
      const shown = request || this.last;
      const figures = view.figures, isLoaded = view.numBlocks > 0;
      const own = [
        [text("Context"), shown ? text("{used} / {limit} tokens", { used: shown.prompt + shown.output, limit: count(service.max_model_len) }) : "–"],
        [text("Blocks"), text("{part} of {whole}", { part: count(table.size) + this.sharedWords(view, table), whole: view.numBlocks })],
        [text("Cached prefix"), shown ? wb.format.plural(shown.cached, "token") : "–"],
      ];
      wb.dom.rows(this.parts.rows, [
        ...(this.id ? own : [[text("Blocks"), isLoaded ? count(view.numBlocks) : "–"]]),
        [text("Pool"), isLoaded ? text("{share} active", { share: percent((figures.active_blocks || 0) / view.numBlocks, 0) }) : "–"],
        [text("Queue"), !isLoaded ? "–" : text("{running} running, {waiting} waiting", { running: figures.running || 0, waiting: figures.waiting || 0 })],
      ]);
      const label = text("Block pool: {active} of {total} blocks active", { active: figures.active_blocks || 0, total: view.numBlocks });
      if (this.parts.map.getAttribute("aria-label") !== label) this.parts.map.setAttribute("aria-label", label);
    }

    /** " (7 shared)" when others refer to some of these blocks, too. */
    sharedWords(view, table) {
      const shared = [...table].filter((block) => view.refs[block] > 1).length;
      return shared ? ` (${text("{count} shared", { count: shared })})` : "";
    }

    /** Show the full map as it is now, with this request selected. */
    openMap() {
      wb.store.follow();
      const [first] = familyOf(wb.store.live, this.id);
      if (first) wb.store.select(first.id, -1);
      wb.dom.openTab("blocks");
    }
  }

  wb.define("compactMap", (root, { props, watch }) => {
    const map = new CompactMap(root);
    root.wbMap = map;
    map.follow(props.value);
    watch("value", () => { map.follow(props.value); wb.store.notify("selection"); });
    return () => map.update();
  });
})((window.wb = window.wb || {}));
