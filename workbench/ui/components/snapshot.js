/* All blocks and requests of one step, live or recorded: what every view draws. */
(function (wb) {
  "use strict";

  const FREE = 0, CACHED = 1, ACTIVE = 2;
  const MOVEMENTS_KEPT = 8;

  /** A request as a row of the feed gives it; the order is that of REQUEST_FIELDS in telemetry/frames.py. */
  function readRequest(row) {
    const [key, id, status, slot, prompt, output, computed, blocks, isPrefill, preemptions,
      family, sequences, priority, cached, miss, swapped, most, decision, preemption] = row;
    return {
      key, id, status, slot, prompt, output, computed, blocks, isPrefill, preemptions,
      family, sequences, priority, cached, miss: wb.ownLine(miss), swapped, most,
      decision: readDecision(decision), preemption: readDecision(preemption),
    };
  }

  /** Why a request is held back: codes, numbers, and the same in words; null for most requests. */
  function readDecision(told) {
    if (!told) return null;
    const [decision, reason, numbers, cause, since, words] = told;
    return { decision, reason, numbers, cause, since, words: wb.ownLine(words) };
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
      /** The last movements of block contents, oldest first: {step, kind, request, blocks}. */
      this.movements = [];
      this.tables_ = null;
    }

    /** The state that a full frame holds. */
    static of(frame) {
      const made = new Snapshot(frame.numBlocks, frame.blockSize);
      made.take(frame);
      return made;
    }

    /** Take over what a frame holds. Returns the blocks that were just allocated or freed. */
    take(frame) {
      const { requests, living, shared, transfers, figures } = frame.body;
      const turned = [];
      for (const [id, block] of frame.records) if (this.write(id, block)) turned.push(id);
      this.setFurtherOwners(frame.records, shared);
      this.setRequests(requests, living);
      const told = transfers.map(([step, kind, request, blocks]) => ({ step, kind, request, blocks }));
      this.movements = [...this.movements, ...told].slice(-MOVEMENTS_KEPT);
      this.figures = figures;
      this.stepId = frame.stepId;
      return turned;
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

  wb.snapshot = { Snapshot, FREE, CACHED, ACTIVE };
})((window.wb = window.wb || {}));
