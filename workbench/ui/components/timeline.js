/* The timeline: reads the history, lays out the canvas, draws it, and tells the store what the person chooses. */
(function (wb) {
  "use strict";

  const GUTTER = 92;
  const ROWS_TOP = 146;
  const FEWEST_ROWS = 8, MOST_ROWS = 24;
  const QUEUED_SHOWN = 4;
  /** Minimap, padding and the page's status line. */
  const BELOW_ROWS = 100;
  const NARROW = 500;
  const ANNOUNCE_MS = 2000;

  class Timeline {
    constructor(root) {
      this.root = root;
      this.parts = wb.dom.parts(root);
      // The block map reads the same history: it is fetched and kept once.
      wb.recorded.want();
      this.history = wb.recorded.history;
      this.reader = wb.recorded.reader;
      this.axis = new wb.timelineAxis.Axis(this.history);
      this.minimap = new wb.timelineTracks.Minimap();
      /** What lies below the cursor, and what it was painted from; likewise the whole canvas. */
      this.picture = document.createElement("canvas");
      this.pictureStamp = this.stamp = "";
      this.desk = new wb.inspector.StepDesk(() => this.redraw());
      this.filter = { text: "", state: "all", isMine: false };
      /** Key of the request that is selected here; it may have ended, then the store does not know it. */
      this.key = null;
      /** Key of the row that the keyboard is at. */
      this.pointed = null;
      /** Rows below the lowest one shown, as the person scrolled; null keeps to the newest that have run. */
      this.rowsBelow = null;
      this.shownBelow = 0;
      this.space = FEWEST_ROWS;
      this.rows = [];
      this.rowToShow = null;
      this.layout = null;
      this.engine = "";
      this.revealed = null;
      this.wasFrozen = false;
      this.chosen = null;
      this.announcedAt = -ANNOUNCE_MS;
      this.isDue = false;
      wb.timelineControls.listen(this);
    }

    get cursor() { return wb.store.cursor; }
    get isFrozen() { return wb.store.cursor !== null; }
    get row() { return this.history.rows.get(this.key) || null; }

    /** Draw once in the next frame. */
    redraw() {
      if (this.isDue) return;
      this.isDue = true;
      requestAnimationFrame(() => { this.isDue = false; if (this.root.isConnected) this.update(); });
    }

    update() {
      if (!wb.dom.isShown(this.parts.find)) return;
      this.reader.want();
      this.noticeEngine();
      this.noticeSelection();
      const isAny = !this.history.isEmpty;
      wb.dom.hide(this.parts.timeline, !isAny);
      this.drawEmpty(isAny);
      if (isAny) this.drawTimeline();
      this.drawPanels();
      wb.timelineControls.draw(this);
      this.announce();
    }

    /** Another engine: its window, rows and steps are others. */
    noticeEngine() {
      const engine = `${this.history.instance}/${this.history.epoch}`;
      if (engine === this.engine) return;
      this.engine = engine;
      this.axis.reset();
      this.key = this.pointed = this.revealed = null;
      this.rowsBelow = null;
      this.space = FEWEST_ROWS;
    }

    /** What other views selected is selected here; what ended stays, since its row does. */
    noticeSelection() {
      const { chosen } = wb.timeline;
      if (chosen === this.chosen) return;
      const row = this.row && this.row.id === chosen.id ? this.row : this.history.rowOf(chosen.id);
      if (!row) return;
      this.chosen = chosen;
      this.key = row.key;
      this.rowToShow = row;
    }

    drawEmpty(isAny) {
      const { empty, lost } = this.parts;
      const nothing = wb.store.live.numBlocks ? "timeline.empty" : "timeline.not_loaded";
      wb.dom.setText(empty, wb.timelineWords(isAny ? "timeline.nothing_matches" : nothing));
      wb.dom.hide(empty, isAny);
      wb.dom.hide(lost, !this.reader.error);
      if (this.reader.error) wb.dom.setText(lost, wb.timelineWords("timeline.lost", { reason: this.reader.error }));
    }

    // ------------------------------------------------------------------ drawing

    drawTimeline() {
      const width = wb.dom.innerWidth(this.parts.timeline.parentElement);
      this.axis.setPlot(GUTTER, width - GUTTER - 2);
      this.followCursor();
      this.rows = wb.timelineRows.select(this.history, this.axis.visible(), this.filter, wb.store.mine);
      this.layout = this.lay(width);
      wb.dom.hide(this.parts.empty, this.rows.length > 0);
      this.paint();
    }

    /** Keep up with live, or bring the step that everybody looks at into the window. */
    followCursor() {
      if (this.wasFrozen && !this.isFrozen) this.axis.toNewest();
      this.wasFrozen = this.isFrozen;
      this.axis.keepUp(this.isFrozen);
      if (this.cursor === this.revealed || (this.isFrozen && !this.history.has(this.cursor))) return;
      this.revealed = this.cursor;
      if (this.isFrozen) this.axis.reveal(this.cursor);
    }

    lay(width) {
      const isNarrow = width < NARROW;
      const rowHeight = isNarrow ? 18 : 20, most = isNarrow ? 14 : this.rowsThatFit(rowHeight);
      const numRows = Math.min(most, this.rows.length);
      this.space = Math.min(most, Math.max(this.space, numRows));
      this.scrollToRow(numRows);
      const rowsEnd = ROWS_TOP + this.space * rowHeight;
      const minimapTop = rowsEnd + 12;
      return {
        width, left: GUTTER, plotWidth: width - GUTTER - 2, rowHeight, numRows,
        firstRow: this.rows.length - numRows - this.shownBelow,
        rowsTop: ROWS_TOP, rowsEnd, minimapTop, height: minimapTop + wb.timelineTracks.MINIMAP_HEIGHT + 4,
      };
    }

    /** Keep to the rows that there are, and bring the row that is to be seen among the shown ones. */
    scrollToRow(numRows) {
      const most = this.rows.length - numRows, place = this.rows.indexOf(this.rowToShow);
      this.rowToShow = null;
      if (place >= 0) this.rowsBelow = Math.max(most - place, Math.min(this.shownBelow, this.rows.length - 1 - place));
      this.shownBelow = Math.max(0, Math.min(this.rowsBelow === null ? this.queuedBelow() : this.rowsBelow, most));
    }

    /** A long queue does not push those that run out of sight: only its first few are shown below them. */
    queuedBelow() {
      let queued = 0;
      while (queued < this.rows.length && this.rows[this.rows.length - 1 - queued].scheduledS === null) queued++;
      return Math.max(0, queued - QUEUED_SHOWN);
    }

    /** So many rows that the minimap still lies inside the window, within what is readable. */
    rowsThatFit(rowHeight) {
      const top = this.parts.timeline.parentElement.getBoundingClientRect().top + window.scrollY;
      const room = window.innerHeight - top - ROWS_TOP - BELOW_ROWS;
      return Math.max(FEWEST_ROWS, Math.min(MOST_ROWS, Math.floor(room / rowHeight)));
    }

    /** Paint nothing again that looks the same: the picture while its steps stay, and the cursor over it. */
    paint() {
      const { axis, layout, history } = this, tracks = wb.timelineTracks;
      const step = this.isFrozen && history.has(this.cursor) ? this.cursor : null;
      const pictureStamp = this.stampOfPicture(), stamp = `${pictureStamp}/${step}`;
      if (stamp === this.stamp) return;
      if (pictureStamp !== this.pictureStamp) this.paintPicture();
      [this.pictureStamp, this.stamp] = [pictureStamp, stamp];
      const g = wb.dom.fit(this.parts.timeline, layout.width, layout.height);
      wb.dom.copy(g, this.picture);
      const isSeen = step !== null && axis.endX(step) >= layout.left && axis.x(step) <= layout.width;
      tracks.drawAxis(g, axis, layout, isSeen ? axis.x(step) : null);
      if (step !== null) tracks.drawCursor(g, axis, layout, step);
      this.minimap.draw(g, axis, layout, step);
    }

    /** All that the picture depends on. */
    stampOfPicture() {
      const { axis, layout, history, rows, key, pointed } = this;
      return JSON.stringify([
        this.engine, history.version, axis.isWall, axis.from, axis.to, layout, key, pointed,
        rows.length, wb.timelineRows.shownOf(rows, layout).map((row) => row.key),
        wb.store.mine.size, wb.store.live.numBlocks, wb.palette.colors().stamp, window.devicePixelRatio,
      ]);
    }

    /** Lines, tracks and rows of the steps in the window. */
    paintPicture() {
      const { axis, layout } = this, tracks = wb.timelineTracks;
      const g = wb.dom.fit(this.picture, layout.width, layout.height), bars = tracks.barsOf(axis);
      tracks.drawGrid(g, axis, layout);
      tracks.drawTokens(g, axis, layout, bars);
      tracks.drawBlocks(g, axis, layout, bars, wb.store.live.numBlocks || 1);
      wb.timelineRows.draw(g, axis, layout, this.rows, { key: this.key, pointed: this.pointed, mine: wb.store.mine });
    }

    drawPanels() {
      const { history, desk } = this;
      const newest = history.isEmpty ? -1 : history.last;
      const answer = desk.want(this.isFrozen ? this.cursor : newest, this.engine, !this.isFrozen);
      // While following, a step and its reasons change together.
      const isTold = !this.isFrozen && answer && history.has(answer.step);
      this.step = this.isFrozen ? this.cursor : isTold ? answer.step : newest;
      wb.inspector.drawStep(this.parts, history, this.step, !this.isFrozen, answer, desk.error);
      wb.inspector.drawRequest(this.parts, history, this.row);
    }

    /** What the picture says, in words, at most every two seconds. */
    announce() {
      const now = performance.now(), { history, axis } = this;
      if (history.isEmpty || now - this.announcedAt < ANNOUNCE_MS) return;
      const words = wb.timelineWords, { count } = wb.format;
      const [first, last] = axis.visible();
      let preemptions = 0;
      for (let step = first; step <= last; step++) preemptions += history.at("preempted", step);
      let text = words("timeline.summary", {
        first: count(first), last: count(last), count: count(history.numSteps), requests: count(this.rows.length),
        preemptions: count(preemptions), running: count(history.at("running", last)), waiting: count(history.at("waiting", last)),
      });
      if (this.isFrozen) text += words("timeline.summary_cursor", { step: count(this.cursor) });
      if (this.row) text += words("timeline.summary_request", { id: this.row.id });
      if (this.parts.announce.textContent === text) return;
      this.announcedAt = now;
      this.parts.announce.textContent = text;
      this.parts.timeline.setAttribute("aria-label", text);
    }

    // ------------------------------------------------------------------ what the person does

    /** Select a request here, and in the store where it still lives there. */
    select(row) {
      this.key = row ? row.key : null;
      wb.store.select(row ? row.id : null, -1);
      if (row) this.rowToShow = row;
      this.redraw();
    }

    selectKey(key) {
      const row = this.history.rows.get(key);
      if (!row) return;
      if (row.last < this.axis.visible()[0] || row.first > this.axis.visible()[1]) this.axis.reveal(Math.max(row.first, this.history.first));
      this.select(row);
    }

    seek(step) {
      if (this.history.has(step)) wb.store.seek(step);
    }

    /** Go `delta` rows from the one that the keyboard is at. */
    point(delta) {
      if (!this.rows.length) return;
      const from = this.rows.findIndex((row) => row.key === (this.pointed === null ? this.key : this.pointed));
      const to = from < 0 ? (delta > 0 ? this.layout.firstRow : this.rows.length - 1) : from + delta;
      const row = this.rows[Math.max(0, Math.min(this.rows.length - 1, to))];
      this.pointed = row.key;
      this.rowToShow = row;
      this.redraw();
    }

    scrollRows(delta) {
      this.rowsBelow = this.shownBelow + delta;
      this.redraw();
    }

    followLive() {
      this.rowsBelow = null;
      wb.store.follow();
      this.axis.toNewest();
      this.redraw();
    }

    toggleFreeze() {
      if (this.isFrozen) this.followLive();
      else wb.store.freeze();
    }

    clear() {
      this.pointed = null;
      this.select(null);
    }
  }

  /** The last request that any view selected, kept also while the timeline is not there yet. */
  wb.timeline = { chosen: null, Timeline };
  wb.store.subscribe((topics) => {
    const id = wb.store.selection.request;
    if (topics.has("selection") && id !== null && (!wb.timeline.chosen || wb.timeline.chosen.id !== id)) wb.timeline.chosen = { id };
    if (topics.has("selection") && id === null && wb.timeline.chosen) wb.timeline.chosen = { id: null };
  });

  wb.define("timeline", (root) => {
    const timeline = new Timeline(root);
    root.wbTimeline = timeline;
    new wb.runTools.RunTools(root, timeline.parts);
    return () => timeline.update();
  });
})((window.wb = window.wb || {}));
