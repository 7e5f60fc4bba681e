/* The recorded steps as arrays, for all views of this browser tab: how full the pool was, and when each step began. */
(function (wb) {
  "use strict";

  const LIVE_GAP_MS = 1000;
  /** While no view draws them: how many steps they may fall behind, and how often to ask then. */
  const MOST_BEHIND = 64, UNSEEN_GAP_MS = 5000;

  const recorded = {
    history: null,
    reader: null,
    wantedAt: -LIVE_GAP_MS,
    timer: null,

    /** Bring the arrays up to date: at most once a second for a live picture, as fast as the reader may for a frozen one. */
    want() {
      if (!this.reader) {
        this.history = new wb.timelineHistory.History();
        this.reader = new wb.timelineReader.Reader(this.history, () => wb.store.notify("cursor"));
      }
      if (document.hidden) return;
      const now = performance.now();
      const isFar = wb.store.live.stepId - this.history.last > 100;
      const wait = wb.store.isFrozen() || isFar ? 0 : this.wantedAt + LIVE_GAP_MS - now;
      if (wait > 0) { this.wantLater(wait); return; }
      this.wantedAt = now;
      this.reader.want();
    },

    /** The engine may rest before the second is over: look again then. */
    wantLater(wait) {
      if (this.timer || !this.reader.isBehind()) return;
      this.timer = setTimeout(() => { this.timer = null; wb.store.notify("cursor"); }, wait);
    },

    /** Nobody looks, but who looks later may find the server gone: then what was not read is lost. */
    keepUp() {
      if (!this.reader || document.hidden || performance.now() - this.reader.askedAt < UNSEEN_GAP_MS) return;
      const known = this.reader.isSameEngine() && !this.history.isEmpty ? this.history.last : -1;
      if (wb.store.live.stepId - known >= MOST_BEHIND) this.reader.want();
    },

    has(step) { return this.history !== null && this.reader.isSameEngine() && this.history.has(step); },

    /** Seconds from the start of one step to that of the newest one we know; null when it is not known. */
    secondsBehind(step) {
      return this.has(step) ? this.history.startOf(this.history.last) - this.history.startOf(step) : null;
    },
  };

  wb.store.subscribe((topics) => topics.has("data") && recorded.keepUp());
  wb.recorded = recorded;
})((window.wb = window.wb || {}));
