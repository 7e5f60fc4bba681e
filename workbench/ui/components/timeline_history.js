/* What the engine did, step by step, as the timeline draws it: parallel arrays that grow, one entry for each
 * step and one for each request in each step, and a row of runs for each request.
 *
 * The layout of a chunk is that of GET /history/steps: header, steps, entries, JSON, little-endian.
 */
(function (wb) {
  "use strict";

  const HEADER_BYTES = 32, STEP_BYTES = 48, ENTRY_BYTES = 12;
  const FORMAT = 1;
  const MOST_STEPS = 20000;
  const COMPACT_AFTER = 2048;

  /** What a request did in a step. Beyond 2 it was held: preempted, its context dropped or kept in host memory. */
  const WAITED = 0, PREFILL = 1, DECODE = 2, PREEMPTED = 3, SWAPPED = 4;
  const FIRST_SEEN = 1, RESUMED = 4, PREEMPTED_NOW = 8, SWAPPED_NOW = 16, FINISHED = 32, FAILED = 64;
  const isHeld = (kind) => kind === PREEMPTED || kind === SWAPPED;

  /** The draft that a step verified for a request, null without one: a decode computes one token, and each drafted one.
   *  What is new are the accepted ones and one more. (An answer may end within its draft; its last token then counts
   *  as that one here, and as accepted in the inspector, which knows.)
   */
  function draftOf({ kind, tokens, newTokens }) {
    if (kind !== DECODE || tokens < 2) return null;
    return { drafted: tokens - 1, accepted: Math.max(0, Math.min(tokens, newTokens) - 1) };
  }

  class HistoryError extends Error {}

  /** Typed arrays of one length that double when they are full. */
  class Columns {
    constructor(types) {
      this.types = types;
      this.capacity = 256;
      for (const [name, Type] of Object.entries(types)) this[name] = new Type(this.capacity);
    }

    reserve(length) {
      if (length <= this.capacity) return;
      while (this.capacity < length) this.capacity *= 2;
      for (const [name, Type] of Object.entries(this.types)) {
        const wider = new Type(this.capacity);
        wider.set(this[name]);
        this[name] = wider;
      }
    }

    /** Drop the first `count` of `length` places. */
    dropFirst(count, length) {
      for (const name of Object.keys(this.types)) this[name].copyWithin(0, count, length);
    }
  }

  const STEP_COLUMNS = {
    duration: Float32Array, started: Float64Array, scheduled: Uint32Array, prefill: Uint32Array, decode: Uint32Array,
    budget: Uint32Array, running: Uint16Array, waiting: Uint16Array, active: Uint32Array, cached: Uint32Array,
    firstEntry: Uint32Array, preempted: Uint16Array,
  };
  const ENTRY_COLUMNS = { key: Uint32Array, tokens: Uint32Array, kind: Uint8Array, flags: Uint8Array, newTokens: Uint16Array };

  /** One request: its name, runs of steps in which it did the same, and the figures of its life. */
  class Row {
    constructor([key, id, slot, family, priority, arrival]) {
      Object.assign(this, { key, id, slot, family, priority, arrival });
      this.first = -1;
      this.last = -1;
      this.isWhole = false;
      /** Runs as parallel lists: what it did, from which step to which (inclusive). */
      this.kinds = [];
      this.from = [];
      this.to = [];
      this.preemptedAt = [];
      this.endedAt = -1;
      this.isFailed = false;
      this.prefillTokens = this.prefillSteps = this.decodeSteps = this.outputTokens = 0;
      this.scheduledS = this.firstTokenS = this.heldSinceS = null;
      this.lostS = 0;
      /** Steps that verified a draft, with its accepted and rejected tokens, as parallel lists. */
      this.verified = { steps: [], accepted: [], rejected: [] };
      this.longestDraft = this.draftTokens = this.acceptedTokens = 0;
    }

    get numRuns() { return this.kinds.length; }
    get isEnded() { return this.endedAt >= 0; }
    get kind() { return this.kinds[this.numRuns - 1]; }

    /** Index of the first run that ends at `step` or later. */
    runAt(step) {
      let low = 0, high = this.numRuns;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.to[middle] < step) low = middle + 1;
        else high = middle;
      }
      return low;
    }

    /** What the request did in a step, null where the history does not name it. */
    kindAt(step) {
      const run = this.runAt(step);
      return run < this.numRuns && this.from[run] <= step ? this.kinds[run] : null;
    }

    add(step, entry, startedS, endedS) {
      const { kind, flags, tokens, newTokens } = entry;
      const run = this.numRuns - 1;
      if (run >= 0 && this.kinds[run] === kind && this.to[run] === step - 1) this.to[run] = step;
      else { this.kinds.push(kind); this.from.push(step); this.to.push(step); }
      if (this.first < 0) { this.first = step; this.isWhole = (flags & FIRST_SEEN) !== 0; }
      this.last = step;
      this.count(kind, tokens, newTokens);
      const draft = draftOf(entry);
      if (draft) this.verify(step, draft.drafted, draft.accepted);
      if (tokens && this.scheduledS === null) this.scheduledS = startedS;
      if (newTokens && this.firstTokenS === null) this.firstTokenS = endedS;
      if (flags & PREEMPTED_NOW) { this.preemptedAt.push(step); this.heldSinceS = startedS; }
      else if (this.heldSinceS !== null && !isHeld(kind)) { this.lostS += startedS - this.heldSinceS; this.heldSinceS = null; }
      if (flags & (FINISHED | FAILED)) { this.endedAt = step; this.isFailed = (flags & FAILED) !== 0; }
    }

    count(kind, tokens, newTokens) {
      if (kind === PREFILL && tokens) { this.prefillTokens += tokens; this.prefillSteps++; }
      if (kind === DECODE && tokens) this.decodeSteps++;
      this.outputTokens += newTokens;
    }

    verify(step, drafted, accepted) {
      const { steps, accepted: up, rejected: down } = this.verified;
      steps.push(step);
      up.push(accepted);
      down.push(drafted - accepted);
      this.longestDraft = Math.max(this.longestDraft, drafted);
      this.draftTokens += drafted;
      this.acceptedTokens += accepted;
    }

    /** Seconds for which it was preempted, up to `nowS` when it still is. */
    lostUntil(nowS) { return this.lostS + (this.heldSinceS === null || this.isEnded ? 0 : Math.max(0, nowS - this.heldSinceS)); }
  }

  class History {
    constructor() { this.forget(0, 0); }

    /** Begin anew: another engine, or a gap in what we have. */
    forget(instance, epoch) {
      this.instance = instance;
      this.epoch = epoch;
      /** Step id of place 0 of the step columns; `first` is the oldest step that counts. */
      this.base = 0;
      this.first = 0;
      this.count = 0;
      this.numEntries = 0;
      this.steps = new Columns(STEP_COLUMNS);
      this.entries = new Columns(ENTRY_COLUMNS);
      /** Request key → row, and the rows in order of arrival. */
      this.rows = new Map();
      this.ordered = [];
      this.version = (this.version || 0) + 1;
    }

    get isEmpty() { return this.count === 0; }
    get last() { return this.base + this.count - 1; }
    get numSteps() { return this.isEmpty ? 0 : this.last - this.first + 1; }
    has(step) { return !this.isEmpty && step >= this.first && step <= this.last; }

    /** One figure of a step. */
    at(name, step) { return this.steps[name][step - this.base]; }
    startOf(step) { return this.steps.started[step - this.base]; }
    endOf(step) { return this.steps.started[step - this.base] + this.steps.duration[step - this.base] / 1000; }

    /** Take over a chunk. Returns how many steps it brought.
     *
     * Throws HistoryError when the bytes are no chunk.
     */
    take(buffer) {
      const chunk = readHeader(buffer);
      if (chunk.instance !== this.instance || chunk.epoch !== this.epoch) this.forget(chunk.instance, chunk.epoch);
      if (!chunk.numSteps) return 0;
      if (!this.isEmpty && chunk.first !== this.last + 1) this.forget(chunk.instance, chunk.epoch);
      if (this.isEmpty) this.base = this.first = chunk.first;
      this.name(chunk.json.requests);
      this.takeSteps(chunk);
      this.takeEntries(chunk);
      this.count += chunk.numSteps;
      this.numEntries += chunk.numEntries;
      this.forgetBefore(this.last - MOST_STEPS + 1);
      this.version++;
      return chunk.numSteps;
    }

    name(requests) {
      let isNew = false;
      for (const told of requests) {
        const row = this.rows.get(told[0]);
        if (row) { row.slot = told[2] === null ? row.slot : told[2]; continue; }
        this.rows.set(told[0], new Row(told));
        isNew = true;
      }
      if (isNew) this.ordered = [...this.rows.values()].sort((a, b) => a.arrival - b.arrival || a.key - b.key);
    }

    takeSteps({ view, numSteps }) {
      this.steps.reserve(this.count + numSteps);
      const s = this.steps;
      for (let n = 0, at = HEADER_BYTES, to = this.count; n < numSteps; n++, at += STEP_BYTES, to++) {
        s.duration[to] = view.getFloat32(at + 4, true);
        s.started[to] = view.getFloat64(at + 8, true);
        s.scheduled[to] = view.getUint32(at + 16, true);
        s.prefill[to] = view.getUint32(at + 20, true);
        s.decode[to] = view.getUint32(at + 24, true);
        s.budget[to] = view.getUint32(at + 28, true);
        s.running[to] = view.getUint16(at + 32, true);
        s.waiting[to] = view.getUint16(at + 34, true);
        s.active[to] = view.getUint32(at + 36, true);
        s.cached[to] = view.getUint32(at + 40, true);
        s.firstEntry[to] = view.getUint32(at + 44, true) + this.numEntries;
        s.preempted[to] = 0;
      }
    }

    takeEntries({ view, numSteps, numEntries }) {
      this.entries.reserve(this.numEntries + numEntries);
      const e = this.entries, s = this.steps;
      let place = this.count;
      for (let n = 0, at = HEADER_BYTES + numSteps * STEP_BYTES, to = this.numEntries; n < numEntries; n++, at += ENTRY_BYTES, to++) {
        while (place + 1 < this.count + numSteps && s.firstEntry[place + 1] <= to) place++;
        const entry = {
          key: view.getUint32(at, true), tokens: view.getUint32(at + 4, true),
          kind: view.getUint8(at + 8), flags: view.getUint8(at + 9), newTokens: view.getUint16(at + 10, true),
        };
        for (const name of Object.keys(ENTRY_COLUMNS)) e[name][to] = entry[name];
        if (entry.flags & PREEMPTED_NOW) s.preempted[place]++;
        const row = this.rows.get(entry.key);
        if (!row) throw new HistoryError(`the history names no request with key ${entry.key}`);
        row.add(this.base + place, entry, s.started[place], s.started[place] + s.duration[place] / 1000);
      }
    }

    /** Let go of the steps before `step`: the server does not hold them any more. */
    forgetBefore(step) {
      if (this.isEmpty || step <= this.first) return;
      this.first = Math.min(step, this.last);
      const isOver = (row) => row.last >= 0 && row.last < this.first;
      if (this.ordered.some(isOver)) {
        this.ordered = this.ordered.filter((row) => !isOver(row) || !this.rows.delete(row.key));
      }
      this.version++;
      if (this.first - this.base > COMPACT_AFTER) this.compact();
    }

    compact() {
      const dropped = this.first - this.base, droppedEntries = this.steps.firstEntry[dropped];
      this.steps.dropFirst(dropped, this.count);
      this.entries.dropFirst(droppedEntries, this.numEntries);
      this.base = this.first;
      this.count -= dropped;
      this.numEntries -= droppedEntries;
      for (let i = 0; i < this.count; i++) this.steps.firstEntry[i] -= droppedEntries;
    }

    /** Entries of a step: `[from, to)` in the entry columns. */
    entriesOf(step) {
      const place = step - this.base;
      return [this.steps.firstEntry[place], place + 1 < this.count ? this.steps.firstEntry[place + 1] : this.numEntries];
    }

    /** What a step did for one request, null when it is not named there. */
    entryOf(step, key) {
      if (!this.has(step)) return null;
      const [from, to] = this.entriesOf(step), e = this.entries;
      for (let i = from; i < to; i++) {
        if (e.key[i] === key) return { key, tokens: e.tokens[i], kind: e.kind[i], flags: e.flags[i], newTokens: e.newTokens[i] };
      }
      return null;
    }

    /** The newest request of a name: a name may come again after its request ended. */
    rowOf(id) {
      for (let i = this.ordered.length - 1; i >= 0; i--) if (this.ordered[i].id === id) return this.ordered[i];
      return null;
    }

    /** The last step that began at `seconds` or before; the first step when none did. */
    stepAtTime(seconds) {
      let low = this.first - this.base, high = this.count - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.steps.started[middle] <= seconds) low = middle;
        else high = middle - 1;
      }
      return this.base + low;
    }
  }

  function readHeader(buffer) {
    const view = new DataView(buffer);
    const size = buffer.byteLength;
    if (size < HEADER_BYTES || String.fromCharCode(...new Uint8Array(buffer, 0, 4)) !== "WBHS") throw new HistoryError("not a chunk of the history");
    const format = view.getUint16(4, true);
    if (format !== FORMAT) throw new HistoryError(`history format ${format}, this page reads ${FORMAT}: reload the page`);
    const [numSteps, numEntries, jsonBytes] = [20, 24, 28].map((at) => view.getUint32(at, true));
    const jsonAt = HEADER_BYTES + numSteps * STEP_BYTES + numEntries * ENTRY_BYTES;
    if (size !== jsonAt + jsonBytes) throw new HistoryError(`a chunk of ${size} bytes, its header says ${jsonAt + jsonBytes}`);
    let json;
    try {
      json = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, jsonAt, jsonBytes)));
    } catch (error) {
      throw new HistoryError(`the names in a chunk cannot be read: ${error.message}`);
    }
    if (!json || !Array.isArray(json.requests)) throw new HistoryError("a chunk without its list of requests");
    return { view, instance: view.getUint32(8, true), epoch: view.getUint32(12, true), first: view.getInt32(16, true), numSteps, numEntries, json };
  }

  wb.timelineHistory = { draftOf, History, HistoryError, WAITED, PREFILL, DECODE, PREEMPTED, SWAPPED, RESUMED, PREEMPTED_NOW, SWAPPED_NOW, isHeld };
})((window.wb = window.wb || {}));
