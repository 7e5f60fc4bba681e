/* One store for all views of a browser tab: the engine's state as last heard, and what the person looks at.
 *
 * Views draw `store.view()`: the live snapshot, or the recorded step that stands in its place while the
 * person has frozen the picture. Live frames are taken over meanwhile, so that following goes on at once.
 * Listeners get a set of topics: "data", "cursor" (shown step and recorded range), "selection", "feed", "theme".
 */
(function (wb) {
  "use strict";

  const { Snapshot, FREE, CACHED, ACTIVE } = wb.snapshot;
  const RATE_POINTS = 64;
  const NOBODY = new Set();

  const listeners = new Set();
  let pending = null;

  const store = {
    FREE, CACHED, ACTIVE, Snapshot,
    live: new Snapshot(0, 0),
    /** A recorded step in the place of the live one, or null. */
    past: null,
    /** Step that everybody looks at; null follows live. It runs ahead of `past` while that is fetched. */
    cursor: null,
    /** First and last recorded step, -1 before the first one. */
    range: { first: -1, last: -1 },
    /** Why the last wish to see a recorded step could not be met, in words; null when it was. */
    pastError: null,
    seeking: null,
    known: { instance: 0, epoch: 0, version: 0 },
    service: null,
    rates: [],
    /** Ids of this visitor's requests to the engine. */
    own: new Set(),
    mode: 0,
    /** State of the blocks that the legend's filter keeps in front: "active", "cached", "shared", "free"; null for all. */
    state: null,
    selection: { request: null, block: -1 },
    hover: { request: null, block: -1 },
    /** Blocks of the last delta; null when everything may differ from what was drawn. */
    dirty: null,
    /** Block → {at (performance.now), kind}: what just befell it, for the flash. "turned" is allocated or freed;
     *  "copy", "swap_in" and "swap_out" moved its contents. */
    flashes: new Map(),

    view() { return this.past || this.live; },
    /** Ids of this visitor's requests in what is shown: nobody's in a saved run, whatever their names. */
    get mine() { return wb.savedRun.isOpen() ? NOBODY : this.own; },
    isFrozen() { return this.cursor !== null; },

    // ------------------------------------------------------------------ live frames

    /** Take over a frame. False: it builds on a state that we do not hold; ask for a full one. */
    apply(frame) {
      const { requests, living, service } = frame.body;
      if (!frame.isFull && !(this.holds(frame) && this.live.canTake(requests, living))) return false;
      const isSame = this.isSameEngine(frame);
      if (!isSame) this.forgetEngine();
      const lastStep = isSame ? this.live.stepId : frame.stepId;
      const turned = frame.isFull ? [] : this.live.take(frame);
      if (frame.isFull) this.live = Snapshot.of(frame);
      if (!this.past) {
        this.markDirty(frame);
        this.flash(turned, frame.body.transfers.filter(([step]) => step > lastStep));
      }
      if (service) this.service = service;
      this.known = { instance: frame.instance, epoch: frame.epoch, version: frame.version };
      this.setRange(this.live);
      this.sampleRate(performance.now());
      this.dropEnded();
      this.notify("data");
      return true;
    },

    holds(frame) {
      return this.isSameEngine(frame) && frame.baseVersion === this.known.version && frame.numBlocks === this.live.numBlocks;
    },

    isSameEngine(frame) { return frame.instance === this.known.instance && frame.epoch === this.known.epoch; },

    markDirty(frame) {
      if (frame.isFull) this.dirty = null;
      else if (this.dirty) for (const [id] of frame.records) this.dirty.add(id);
    },

    /** Flash blocks that were just allocated or freed, and those whose contents moved. */
    flash(turned, transfers) {
      const at = performance.now();
      for (const block of turned) this.flashes.set(block, { at, kind: "turned" });
      for (const [, kind, , blocks] of transfers) {
        const touched = kind === "copy" ? blocks.filter((_, i) => i % 2) : blocks;
        for (const block of touched) this.flashes.set(block, { at, kind });
      }
    },

    setRange(live) {
      const first = live.figures.first_step ?? Math.min(0, live.stepId);
      if (first === this.range.first && live.stepId === this.range.last) return;
      this.range = { first, last: live.stepId };
      this.notify("cursor");
    },

    /** Another engine's steps are not ours: nothing that was looked at exists in it. */
    forgetEngine() {
      this.flashes.clear();
      this.rates = [];
      this.range = { first: -1, last: -1 };
      this.selection = { request: null, block: -1 };
      this.hover = { request: null, block: -1 };
      this.notify("selection");
      if (this.isFrozen()) this.follow();
    },

    /** The selection of a request that ended is let go; its id may come again. A frozen picture keeps it. */
    dropEnded() {
      if (this.isFrozen()) return;
      for (const place of [this.selection, this.hover]) {
        if (place.request !== null && !this.live.byId.has(place.request)) { place.request = null; this.notify("selection"); }
      }
    },

    /** One point of the header's sparkline every half second. */
    sampleRate(now) {
      const last = this.rates.at(-1);
      if (last && now - last.at < 500) return;
      this.rates.push({ at: now, value: this.live.figures.tokens_per_s || 0 });
      if (this.rates.length > RATE_POINTS) this.rates.shift();
    },

    // ------------------------------------------------------------------ time travel

    /** Freeze at a recorded step. The newest call wins; the promise ends when nothing is left to fetch. */
    seek(step) {
      if (this.range.last < 0) return Promise.resolve();
      this.cursor = Math.max(this.range.first, Math.round(step));
      this.pastError = null;
      this.notify("cursor");
      this.seeking ||= this.fetchPast().finally(() => { this.seeking = null; });
      return this.seeking;
    },

    /** Freeze at the step that the live picture shows. */
    freeze() { return this.seek(this.live.stepId); },

    /** Go `delta` steps from where the person looks, within what is recorded. */
    stepBy(delta) {
      const from = this.isFrozen() ? this.cursor : this.live.stepId;
      return this.seek(Math.min(this.range.last, from + delta));
    },

    /** Show the live state again. */
    follow() {
      this.pastError = null;
      if (this.isFrozen()) this.show(null, null);
    },

    /** Fetch steps until the one that is wanted now is shown; one request is under way at a time. */
    async fetchPast() {
      while (this.isFrozen() && !(this.past && this.past.stepId === this.cursor)) {
        const wanted = this.cursor, root = wb.runRoot;
        let frame = null, error = null;
        try { frame = await readFrame(wanted); } catch (caught) { error = String(caught.message || caught); }
        if (!this.isFrozen()) return;
        if (root !== wb.runRoot) continue;  // the answer is another run's
        if (frame && !this.isSameEngine(frame)) { this.follow(); return; }
        const isNewest = this.cursor === wanted;
        if (frame) this.show(Snapshot.of(frame), isNewest ? wanted : this.cursor, frame.body.transfers);
        if (isNewest) {
          this.pastError = error;
          if (error) this.keepCursor();
          return;
        }
      }
    },

    /** A step that could not be had leaves the picture where it was. */
    keepCursor() {
      this.cursor = this.past ? this.past.stepId : null;
      this.notify("cursor");
    },

    /** Put a recorded step, or null for the live one, in front of everybody. */
    show(past, cursor, transfers) {
      const before = this.view();
      this.flashes.clear();
      this.past = past;
      this.cursor = cursor;
      this.dirty = null;
      if (past && past.stepId === before.stepId + 1) this.flash(turnedBetween(before, past), transfers);
      else if (past && past.stepId === before.stepId - 1) this.flash(turnedBetween(before, past), []);
      this.dropEnded();
      this.notify("data");
      this.notify("cursor");
    },

    // ------------------------------------------------------------------ what the person looks at

    select(request, block) {
      this.selection = { request, block };
      this.notify("selection");
    },

    /** Choose a request, or let it go when it was chosen already. */
    toggleRequest(id) {
      this.select(this.selection.request === id ? null : id, -1);
    },

    setHover(request, block) {
      if (this.hover.request === request && this.hover.block === block) return;
      this.hover = { request, block };
      this.notify("selection");
    },

    /** Keep blocks of one state in front, or all again when it was chosen already. */
    toggleState(state) {
      this.state = this.state === state ? null : state;
      this.notify("selection");
    },

    setMode(mode) { this.mode = mode; this.notify("selection"); },
    setMine(id) { if (id) this.own.add(id); this.notify("selection"); },

    /** The request to light: the hovered one before the selected one. */
    litRequest() {
      const view = this.view();
      return view.byId.get(this.hover.request) || view.byId.get(this.selection.request) || null;
    },

    // ------------------------------------------------------------------ listeners

    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },

    /** Tell the listeners once in the next animation frame, with all topics since the last time. */
    notify(topic) {
      if (pending) { pending.add(topic); return; }
      pending = new Set([topic]);
      requestAnimationFrame(() => {
        const topics = pending;
        pending = null;
        for (const listener of [...listeners]) {
          try { listener(topics); } catch (error) { reportError(error); }  // one broken view does not stop the others
        }
        this.dirty = new Set();
      });
    },
  };

  /** The full frame of a recorded step. */
  async function readFrame(step) {
    const response = await fetch(wb.address("history/frame", { step }), { cache: "no-store" });
    if (!response.ok) {
      const told = await response.json().catch(() => ({}));
      throw new Error(told.error || told.detail || `the history answered ${response.status}`);
    }
    const frame = wb.decodeFrame(await response.arrayBuffer());
    if (!frame.isFull) throw new wb.FrameError("a recorded step came as a delta");
    return frame;
  }

  /** Blocks that are active in one of two states only. */
  function turnedBetween(before, after) {
    const turned = [];
    for (let block = 0; block < after.numBlocks; block++) {
      if ((before.status[block] === ACTIVE) !== (after.status[block] === ACTIVE)) turned.push(block);
    }
    return turned;
  }

  wb.store = store;
})((window.wb = window.wb || {}));
