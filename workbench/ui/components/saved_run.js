/* A saved run in the place of the engine: opened from a file, looked at, and let go of.
 *
 * The server reads the file and serves it under runs/ID/ as it serves the engine at the root, so every view shows it
 * as it shows the engine. The chat goes on with the engine. After a reload the page shows the engine again.
 */
(function (wb) {
  "use strict";

  const { text } = wb;

  const MEBIBYTE = 2 ** 20;
  /** As the server's limit: a file that is larger is not even sent. */
  const MOST_BYTES = 64 * MEBIBYTE;

  const savedRun = {
    /** Name of the run that is open, null for the engine. */
    name: null,
    /** Name of the run that `python app.py --replay` shows behind it, null where there is an engine. */
    behind: null,
    /** Name of the file that is being sent and read, null when none is. */
    opening: null,
    /** Why the last file was not opened, in words. */
    refusal: null,
    /** That the open run was lost, in words. */
    loss: null,

    /** Whether a visitor opened it here. `python app.py --replay` also shows a run, but no engine is behind it. */
    isOpen() { return wb.runRoot !== ""; },

    /** What the feed says of the run that is shown: name, first, last, model, saved_at, is_redacted. Null for an engine. */
    facts() { return (wb.store.service && wb.store.service.saved_run) || null; },

    /** Send a file to the server and look at it. The live view goes on when it is refused. */
    async open(file) {
      if (this.opening !== null) return;
      this.opening = file.name;
      this.refusal = this.loss = null;
      wb.store.notify("feed");
      try {
        const { id, name } = await send(file);
        this.look(`runs/${id}/`, name);
      } catch (error) {
        this.refusal = text("Not opened: {reason}", { reason: String(error.message || error) });
      } finally {
        this.opening = null;
        wb.store.notify("feed");
      }
    },

    /** Back to the engine. */
    close() { if (this.isOpen()) this.look("", null); },

    /** The server does not have the run any more. */
    lose() {
      if (!this.isOpen()) return;
      this.loss = text("The saved run {name} is not open on the server any more: open the file again.", { name: this.name });
      this.look("", null);
    },

    dismissLoss() { this.loss = null; wb.store.notify("feed"); },

    /** Begin anew with another feed: its first frame makes the store forget what it held. */
    look(root, name) {
      const before = wb.runRoot, facts = this.facts();
      if (!before) this.behind = facts && facts.name;
      wb.runRoot = root;
      this.name = name;
      wb.feed.restart();
      if (before) fetch(wb.serverAddress(before.slice(0, -1)), { method: "DELETE" }).catch(() => {});  // it goes by itself, too
    },
  };

  async function send(file) {
    if (file.size > MOST_BYTES) {
      throw new Error(text("{name} has {size} MiB, the page opens at most {limit} MiB: open it with python app.py --replay FILE", {
        name: file.name, size: Math.ceil(file.size / MEBIBYTE), limit: MOST_BYTES / MEBIBYTE,
      }));
    }
    let response;
    try {
      response = await fetch(wb.serverAddress("runs", { name: file.name }), { method: "POST", body: file });
    } catch {
      throw new Error(text("the server does not answer, or {name} cannot be read: try again", { name: file.name }));
    }
    const told = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(typeof told.detail === "string" ? told.detail : text("the server answered {status}", { status: response.status }));
    return told;
  }

  wb.savedRun = savedRun;
})((window.wb = window.wb || {}));
