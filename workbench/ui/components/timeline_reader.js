/* Brings the history up to the live step, chunk by chunk: one request is under way at a time, at most four a second.
 *
 * It asks only when it is told to: by views that are shown, and now and then by `recorded.keepUp`.
 */
(function (wb) {
  "use strict";

  const GAP_MS = 250;
  const RETRY_MS = 2000;
  const MOST_STEPS = 2000;

  class Reader {
    /** `onChange` is called after each answer, `history` holds more then, or `error` says why not. */
    constructor(history, onChange) {
      this.history = history;
      this.onChange = onChange;
      this.error = null;
      this.isBusy = false;
      this.timer = null;
      this.askedAt = -RETRY_MS;
    }

    isSameEngine() {
      const { instance, epoch } = wb.store.known;
      return this.history.instance === instance && this.history.epoch === epoch;
    }

    isBehind() {
      if (!this.isSameEngine()) return wb.store.live.stepId >= 0;
      return this.history.isEmpty ? wb.store.live.stepId >= 0 : this.history.last < wb.store.live.stepId;
    }

    /** Ask for what is missing, now or when enough time has passed. */
    want() {
      this.forgetOther();
      if (this.isBusy || this.timer || !this.isBehind()) return;
      const wait = this.askedAt + (this.error ? RETRY_MS : GAP_MS) - performance.now();
      if (wait <= 0) this.ask();
      else this.timer = setTimeout(() => { this.timer = null; this.ask(); }, wait);
    }

    /** Steps of another engine are not shown for one that has none yet. */
    forgetOther() {
      const { instance, epoch } = wb.store.known;
      if (!this.history.isEmpty && !this.isSameEngine() && wb.store.live.stepId < 0) this.history.forget(instance, epoch);
    }

    async ask() {
      const { history } = this, root = wb.runRoot;
      this.isBusy = true;
      this.askedAt = performance.now();
      const isOurs = this.isSameEngine() && !history.isEmpty;
      const { instance, epoch } = isOurs ? history : wb.store.known;
      try {
        const url = wb.address("history/steps", { after: isOurs ? history.last : -1, instance, epoch, limit: MOST_STEPS });
        const response = await fetch(url, { cache: "no-store" });
        if (!response.ok) throw new Error(`the server answered ${response.status}`);
        const chunk = await response.arrayBuffer();
        if (root === wb.runRoot) history.take(chunk);
        if (this.isSameEngine() && wb.store.range.first >= 0) history.forgetBefore(wb.store.range.first);
        this.error = null;
      } catch (error) {
        this.error = String(error.message || error);
      } finally {
        this.isBusy = false;
      }
      this.onChange();
    }
  }

  wb.timelineReader = { Reader };
})((window.wb = window.wb || {}));
