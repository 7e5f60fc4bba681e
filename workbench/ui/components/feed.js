/* The one connection of a browser tab to the engine's live feed.
 *
 * A WebSocket, or polling of the same frames where sockets do not get through. Hidden tabs let go of
 * the connection and say on return which state they hold. Silence of more than STALE_MS is shown.
 */
(function (wb) {
  "use strict";

  const STALE_MS = 2500;
  const POLL_MS = 100;
  const IDLE_POLL_MS = 500;
  const IDLE_POLLS = 20;
  const MAX_BACKOFF_MS = 4000;
  const SOCKET_FAILURES_BEFORE_POLLING = 2;
  const SOCKET_RETRY_MS = 30000;
  const DEAD_SOCKET_MS = 8000;
  /** The server closes with it the socket of a saved run that is not open any more. */
  const FEED_GONE = 4404;

  const feed = {
    /** idle (nothing to show or hidden), connecting, live, stale */
    state: "idle",
    transport: "websocket",
    lastFrameAt: 0,
    frames: [],
    error: null,

    socket: null,
    timer: null,
    failures: 0,
    attempt: 0,
    unchangedPolls: 0,
    pollingSince: 0,
    openedAt: 0,
    elements: new Set(),

    /** Keep the feed alive for as long as `element` is in the page. */
    attach(element) {
      this.elements.add(element);
      if (this.state === "idle") this.start();
    },

    isWanted() {
      for (const element of this.elements) if (!element.isConnected) this.elements.delete(element);
      return this.elements.size > 0 && !document.hidden;
    },

    start() {
      if (!this.isWanted() || this.socket || this.timer) return;
      this.setState("connecting");
      this.attempt++;
      if (this.transport === "websocket" && window.WebSocket) this.openSocket();
      else this.beginPolling();
    },

    stop() {
      this.attempt++;
      clearTimeout(this.timer);
      this.timer = null;
      const socket = this.socket;
      this.socket = null;
      if (socket) socket.close();
      this.setState("idle");
    },

    restart() { this.stop(); this.start(); },

    openSocket() {
      const socket = new WebSocket(wb.address("live", wb.store.known, location.protocol === "https:" ? "wss:" : "ws:"));
      socket.binaryType = "arraybuffer";
      socket.onmessage = (event) => {
        if (this.socket === socket) this.receive(event.data);
      };
      socket.onclose = (event) => {
        if (this.socket === socket && event.code === FEED_GONE) wb.savedRun.lose();
        else this.loseSocket(socket);
      };
      this.socket = socket;
      this.openedAt = performance.now();
    },

    /** A socket closed, or is as good as closed: try again, by polling when none ever brought a frame. */
    loseSocket(socket) {
      if (this.socket !== socket) return;
      const isHeard = this.lastFrameAt > this.openedAt;
      this.socket = null;
      socket.close();
      this.failures++;
      if (!isHeard && this.failures >= SOCKET_FAILURES_BEFORE_POLLING) this.transport = "polling";
      this.retryLater();
    },

    /** A proxy may swallow a socket without closing it. */
    dropDeadSocket() {
      const quietSince = Math.max(this.lastFrameAt, this.openedAt);
      if (this.socket && performance.now() - quietSince > DEAD_SOCKET_MS) this.loseSocket(this.socket);
    },

    retryLater() {
      const wait = Math.min(MAX_BACKOFF_MS, 200 * 2 ** Math.min(this.failures, 6)) * (0.75 + Math.random() / 2);
      this.timer = setTimeout(() => { this.timer = null; this.start(); }, wait);
      if (this.state === "live") this.setState("connecting");
    },

    beginPolling() {
      this.transport = "polling";
      this.pollingSince = performance.now();
      this.timer = setTimeout(() => this.poll(this.attempt), 0);
    },

    async poll(attempt) {
      if (!this.isWanted()) { this.stop(); return; }
      if (window.WebSocket && performance.now() - this.pollingSince > SOCKET_RETRY_MS) {
        this.transport = "websocket";
        this.failures = SOCKET_FAILURES_BEFORE_POLLING - 1;
        this.restart();
        return;
      }
      const before = wb.store.known.version;
      try {
        const response = await fetch(wb.address("live/frame", wb.store.known), { cache: "no-store" });
        if (attempt !== this.attempt) return;
        if (response.status === 404 && wb.savedRun.isOpen()) { wb.savedRun.lose(); return; }
        if (!response.ok) throw new Error(`the live feed answered ${response.status}`);
        const buffer = await response.arrayBuffer();
        if (attempt !== this.attempt) return;
        if (!this.receive(buffer)) throw this.error || new Error("a delta for a state that this page does not hold");
      } catch (error) {
        if (attempt !== this.attempt) return;
        this.error = error;
        this.failures++;
        this.timer = null;
        this.retryLater();
        return;
      }
      if (attempt !== this.attempt) return;
      this.unchangedPolls = wb.store.known.version === before ? this.unchangedPolls + 1 : 0;
      this.timer = setTimeout(() => this.poll(attempt), this.unchangedPolls > IDLE_POLLS ? IDLE_POLL_MS : POLL_MS);
    },

    /** Take over a frame. False when it cannot be used: the next connection asks for a full one. */
    receive(buffer) {
      this.error = null;
      let isApplied;
      try {
        isApplied = wb.store.apply(wb.decodeFrame(buffer));
      } catch (error) {
        if (!(error instanceof wb.FrameError)) throw error;
        this.error = error;
        isApplied = false;
      }
      if (!isApplied) {
        wb.store.known = { instance: 0, epoch: 0, version: 0 };
        if (this.transport === "websocket" && this.socket) this.socket.close();
        return false;
      }
      this.failures = 0;
      this.lastFrameAt = performance.now();
      this.frames.push({ at: this.lastFrameAt, bytes: buffer.byteLength });
      while (this.frames.length && this.frames[0].at < this.lastFrameAt - 3000) this.frames.shift();
      this.setState("live");
      return true;
    },

    setState(state) {
      if (this.state === state) return;
      this.state = state;
      wb.store.notify("feed");
    },

    /** Milliseconds since the engine was last heard. */
    silenceMs() { return this.lastFrameAt ? performance.now() - this.lastFrameAt : 0; },
    isStale() { return this.lastFrameAt > 0 && this.state !== "idle" && this.silenceMs() > STALE_MS; },

    /** Frames per second and mean kilobytes per frame over the last three seconds. */
    rate() {
      const n = this.frames.length;
      if (n < 2) return { perSecond: n, kilobytes: n ? this.frames[0].bytes / 1000 : 0 };
      const span = (this.frames[n - 1].at - this.frames[0].at) / 1000;
      return { perSecond: (n - 1) / span, kilobytes: this.frames.reduce((sum, f) => sum + f.bytes, 0) / n / 1000 };
    },
  };

  let wasStale = false;
  setInterval(() => {
    const isStale = feed.isStale();
    if (isStale || wasStale) wb.store.notify("feed");
    wasStale = isStale;
    feed.dropDeadSocket();
    if (feed.state !== "idle" && !feed.isWanted()) feed.stop();
    else if (feed.state === "idle") feed.start();
  }, 250);
  document.addEventListener("visibilitychange", () => (document.hidden ? feed.stop() : feed.start()));
  window.addEventListener("pagehide", () => feed.stop());
  window.addEventListener("pageshow", () => feed.start());

  wb.feed = feed;
})((window.wb = window.wb || {}));
