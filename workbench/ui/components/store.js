/* One store for all views of a browser tab: the engine's state as last heard, and what the person looks at.
 *
 * Views draw `store.view()`. It is the live snapshot; a recorded step can stand in its place later
 * without a view noticing. Listeners get a set of topics: "data", "selection", "feed", "theme".
 */
(function (wb) {
  "use strict";

  const FREE = 0, CACHED = 1, ACTIVE = 2;
  const RATE_POINTS = 64;
  const MOVEMENTS_KEPT = 8;

  /** A request as a row of the feed gives it; the order is that of REQUEST_FIELDS in telemetry/frames.py. */
  function readRequest(row) {
    const [key, id, status, slot, prompt, output, computed, blocks, isPrefill, preemptions,
      family, sequences, priority, cached, miss, swapped, most, decision, preemption] = row;
    return {
      key, id, status, slot, prompt, output, computed, blocks, isPrefill, preemptions,
      family, sequences, priority, cached, miss, swapped, most,
      decision: readDecision(decision), preemption: readDecision(preemption),
    };
  }

  /** Why a request is held back: codes, numbers, and the same in words; null for most requests. */
  function readDecision(told) {
    if (!told) return null;
    const [decision, reason, numbers, cause, since, words] = told;
    return { decision, reason, numbers, cause, since, words };
  }

  /** All blocks of one pool as parallel arrays, plus the requests and figures that go with them. */
  class Snapshot {
    constructor(numBlocks, blockSize) {
      this.numBlocks = numBlocks;
      this.blockSize = blockSize;
      this.stepId = -1;
      this.status = new Uint8Array(numBlocks);
      this.filled = new Uint8Array(numBlocks);
      this.refs = new Uint16Array(numBlocks);
      this.owner = new Uint32Array(numBlocks);
      this.logical = new Int32Array(numBlocks).fill(-1);
      this.since = new Uint32Array(numBlocks);
      this.changed = new Uint32Array(numBlocks);
      /** Block → keys of its owners after the first, for shared blocks. */
      this.furtherOwners = new Map();
      this.requests = new Map();
      this.byId = new Map();
      this.figures = {};
      this.tables_ = null;
    }

    /** Overwrite one block; true when it was just allocated or freed. */
    write(id, block) {
      const turned = (this.status[id] === ACTIVE) !== (block.status === ACTIVE);
      for (const name of ["status", "filled", "refs", "owner", "logical", "since", "changed"]) this[name][id] = block[name];
      return turned;
    }

    /** Take over the further owners of a frame's records: those that it does not name have none. */
    setFurtherOwners(records, runs) {
      for (const [id] of records) this.furtherOwners.delete(id);
      for (const [first, length, ...keys] of runs) {
        for (let block = first; block < first + length; block++) this.furtherOwners.set(block, keys);
      }
    }

    /** Take over changed rows; `living` are the keys of all requests, in the engine's order. */
    setRequests(rows, living) {
      const changed = new Map(rows.map((row) => [row[0], readRequest(row)]));
      const known = this.requests;
      this.requests = new Map(living.map((key) => [key, changed.get(key) || known.get(key)]));
      this.byId = new Map([...this.requests.values()].map((request) => [request.id, request]));
      this.tables_ = null;
    }

    /** Whether every living request is either known or among the rows. */
    canTake(rows, living) {
      const given = new Set(rows.map((row) => row[0]));
      return living.every((key) => given.has(key) || this.requests.has(key));
    }

    /** Request key → its physical blocks in logical order. */
    tables() {
      if (this.tables_) return this.tables_;
      const tables = new Map();
      for (let b = 0; b < this.numBlocks; b++) {
        if (this.status[b] !== ACTIVE || !this.owner[b]) continue;
        for (const key of [this.owner[b], ...(this.furtherOwners.get(b) || [])]) {
          if (!tables.has(key)) tables.set(key, []);
          tables.get(key).push(b);
        }
      }
      for (const table of tables.values()) table.sort((a, b) => this.logical[a] - this.logical[b]);
      return (this.tables_ = tables);
    }

    tableOf(request) {
      return (request && this.tables().get(request.key)) || [];
    }

    /** "prefill" or "decode" for a running request, otherwise its status. Recomputing is prefill, too. */
    phaseOf(request) {
      if (request.status !== "running") return request.status;
      const isPrefill = request.output === 0 || request.computed < request.prompt + request.output - 1;
      return isPrefill ? "prefill" : "decode";
    }

    /** The first owner, whose colour the block has. */
    ownerOf(block) {
      return this.requests.get(this.owner[block]) || null;
    }

    /** All owners, the oldest first. */
    ownersOf(block) {
      const keys = [this.owner[block], ...(this.furtherOwners.get(block) || [])];
      return keys.map((key) => this.requests.get(key)).filter(Boolean);
    }

    /** The requests that share a block with this one, and how many of its blocks are shared. */
    sharersOf(request) {
      const sharers = new Set();
      const shared = this.tableOf(request).filter((block) => this.refs[block] > 1);
      for (const block of shared) for (const owner of this.ownersOf(block)) if (owner !== request) sharers.add(owner);
      return { numBlocks: shared.length, sharers: [...sharers] };
    }

    /** Counts over the whole pool. */
    totals() {
      const t = { active: 0, cached: 0, free: 0, shared: 0, saved: 0 };
      for (let b = 0; b < this.numBlocks; b++) {
        if (this.status[b] === FREE) t.free++;
        else if (this.status[b] === CACHED) t.cached++;
        else {
          t.active++;
          if (this.refs[b] > 1) { t.shared++; t.saved += this.refs[b] - 1; }
        }
      }
      return t;
    }
  }

  const listeners = new Set();
  let pending = null;

  const store = {
    FREE, CACHED, ACTIVE, Snapshot,
    live: new Snapshot(0, 0),
    known: { instance: 0, epoch: 0, version: 0 },
    service: null,
    rates: [],
    mine: new Set(),
    mode: 0,
    selection: { request: null, block: -1 },
    hover: { request: null, block: -1 },
    /** Blocks of the last delta; null after a full frame: everything may differ. */
    dirty: null,
    /** Block → {at (performance.now), kind}: what just befell it, for the flash. "turned" is allocated or freed;
     *  "copy", "swap_in" and "swap_out" moved its contents. */
    flashes: new Map(),
    /** The last movements of block contents, oldest first: {step, kind, request, blocks}. */
    movements: [],

    view() { return this.live; },

    /** Take over a frame. False: it builds on a state that we do not hold; ask for a full one. */
    apply(frame) {
      const { requests, living, shared, transfers } = frame.body;
      if (!frame.isFull && !(this.holds(frame) && this.live.canTake(requests, living))) return false;
      const now = performance.now();
      const lastStep = this.isSameEngine(frame) ? this.live.stepId : frame.stepId;
      if (frame.isFull) {
        if (!this.isSameEngine(frame)) this.forgetEngine();
        this.live = new Snapshot(frame.numBlocks, frame.blockSize);
        this.dirty = null;
        this.movements = [];
      } else if (this.dirty) {
        for (const [id] of frame.records) this.dirty.add(id);
      }
      for (const [id, block] of frame.records) {
        if (this.live.write(id, block) && !frame.isFull) this.flashes.set(id, { at: now, kind: "turned" });
      }
      this.live.setFurtherOwners(frame.records, shared);
      this.takeMovements(transfers, lastStep, now);
      this.live.stepId = frame.stepId;
      this.live.setRequests(requests, living);
      this.live.figures = frame.body.figures;
      if (frame.body.service) this.service = frame.body.service;
      this.known = { instance: frame.instance, epoch: frame.epoch, version: frame.version };
      this.sampleRate(now);
      this.dropEnded();
      this.notify("data");
      return true;
    },

    holds(frame) { return this.isSameEngine(frame) && frame.baseVersion === this.known.version; },
    isSameEngine(frame) { return frame.instance === this.known.instance && frame.epoch === this.known.epoch; },

    /** Keep the last movements, and flash the blocks of those after the last step that we knew. */
    takeMovements(transfers, lastStep, now) {
      for (const [step, kind, request, blocks] of transfers) {
        this.movements.push({ step, kind, request, blocks });
        if (step <= lastStep) continue;
        const touched = kind === "copy" ? blocks.filter((_, i) => i % 2) : blocks;
        for (const block of touched) this.flashes.set(block, { at: now, kind });
      }
      this.movements = this.movements.slice(-MOVEMENTS_KEPT);
    },

    forgetEngine() {
      this.flashes.clear();
      this.rates = [];
      this.selection = { request: null, block: -1 };
      this.hover = { request: null, block: -1 };
      this.notify("selection");
    },

    /** The selection of a request that ended is let go; its id may come again. */
    dropEnded() {
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

    setMode(mode) { this.mode = mode; this.notify("selection"); },
    setMine(id) { if (id) this.mine.add(id); this.notify("selection"); },

    /** The request to light: the hovered one before the selected one. */
    litRequest() {
      const view = this.view();
      return view.byId.get(this.hover.request) || view.byId.get(this.selection.request) || null;
    },

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
        for (const listener of [...listeners]) listener(topics);
        this.dirty = new Set();
      });
    },
  };

  wb.store = store;
})((window.wb = window.wb || {}));
