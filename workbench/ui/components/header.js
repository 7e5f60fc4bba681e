/* The header strip: which model runs on what, the live figures, and whether the feed is alive. Below it, notices and errors. */
(function (wb) {
  "use strict";

  const { text } = wb;

  const SPARK_WIDTH = 64, SPARK_HEIGHT = 18;
  const LOST_MS = 6000;

  const DTYPES = { float32: "fp32", float16: "fp16", bfloat16: "bf16" };
  const shortType = (dtype) => DTYPES[dtype] || dtype || "";

  /** Word and class of the feed's state. */
  function feedState() {
    const { state } = wb.feed;
    if (wb.feed.isStale()) return [text("stale {seconds} s", { seconds: (wb.feed.silenceMs() / 1000).toFixed(1) }), "wb-lost"];
    if (state === "live" && wb.savedRun.facts()) return [text("saved run"), "wb-paused"];
    if (wb.store.isFrozen()) return [text("paused"), "wb-paused"];
    if (state === "live") return [text("live"), "wb-live-dot"];
    if (state === "idle") return [text("paused"), "wb-paused"];
    return [text("connecting"), "wb-lost"];
  }

  const wayOf = (feed) => (feed.transport === "polling" ? text("polling") : "WebSocket");

  function drawFeed(parts) {
    const [word, className] = feedState();
    wb.dom.setText(parts.feed, word);
    if (parts.feed.dataset.state !== className) {
      parts.feed.className = `wb-v wb-feed ${className}`;
      parts.feed.dataset.state = className;
    }
    const { perSecond, kilobytes } = wb.feed.rate();
    parts.feed.title = text("{way}, {rate} frames/s, {size} kB/frame", { way: wayOf(wb.feed), rate: perSecond.toFixed(1), size: kilobytes.toFixed(2) });
  }

  function drawModel(parts, service) {
    wb.dom.setText(parts.model, service ? service.model_name || "–" : "–");
    const type = service ? shortType(service.dtype) : "";
    wb.dom.setText(parts.precision, service && service.source_format ? `${type} (${service.source_format})` : "");
    parts.model.parentElement.title = service && service.source_format ? text("{model}: weights {format} computed in {type}, KV cache {type}", { model: service.model_name, format: service.source_format, type }) : "";
    const backend = service ? [service.backend, service.device === "cpu" ? "" : service.device].filter(Boolean).join(", ") : "";
    wb.dom.setText(parts.backend, backend || "–");
    parts.backend.title = backend;
  }

  function drawFigures(parts, view) {
    const { count, fixed, percent } = wb.format;
    const f = view.figures;
    const isLoaded = view.numBlocks > 0;
    wb.dom.setText(parts.queue, isLoaded ? `${count(f.running)} / ${count(f.waiting)}` : "– / –");
    wb.dom.setText(parts.rate, isLoaded ? fixed(f.tokens_per_s, 1) : "–");
    wb.dom.setText(parts.used, isLoaded ? percent(f.active_blocks / view.numBlocks, 0) : "–");
  }

  /** Accepted of the tokens that were drafted and verified within the last seconds. */
  function drawAcceptance(parts, { draft_tokens: drafted, accepted_tokens: accepted }) {
    wb.dom.setText(parts.acceptance, drafted ? wb.format.fixed((accepted || 0) / drafted, 2) : "–");
    parts.acceptance.parentElement.title = drafted
      ? text("{accepted} of {drafted} drafted tokens accepted in the last 5 s", { accepted: accepted || 0, drafted })
      : text("no draft was verified in the last 5 s");
  }

  function drawSpark(canvas) {
    if (!wb.dom.isShown(canvas)) return;
    const c = wb.palette.colors();
    const g = wb.dom.fit(canvas, SPARK_WIDTH, SPARK_HEIGHT);
    const values = wb.store.rates.map((r) => r.value);
    if (values.length < 2) return;
    const most = Math.max(1e-9, ...values);
    g.strokeStyle = c.decode;
    g.lineWidth = 1.25;
    g.beginPath();
    values.forEach((v, i) => g.lineTo(SPARK_WIDTH - values.length + i + 0.5, SPARK_HEIGHT - 1 - (15 * v) / most));
    g.stroke();
  }

  function drawUse(canvas, view) {
    if (!wb.dom.isShown(canvas)) return;
    const c = wb.palette.colors();
    const g = wb.dom.fit(canvas, SPARK_WIDTH, SPARK_HEIGHT);
    const share = (n) => (view.numBlocks ? Math.round((SPARK_WIDTH * (n || 0)) / view.numBlocks) : 0);
    const active = share(view.figures.active_blocks);
    g.fillStyle = c.free;
    g.fillRect(0, 5, SPARK_WIDTH, 8);
    g.fillStyle = c.decode;
    g.fillRect(0, 5, active, 8);
    g.fillStyle = g.createPattern(c.hatch, "repeat");
    g.fillRect(active, 5, share(view.figures.cached_blocks), 8);
  }

  const isLoading = (service) => Boolean(service) && (service.state === "loading" || service.state === "reloading");

  /** Words and a determinate bar while a model loads. */
  function drawProgress(parts, service) {
    wb.dom.hide(parts.progress, !isLoading(service));
    if (!isLoading(service)) return;
    const { megabytes } = wb.format;
    const isCounted = service.total_bytes > 0;
    const amount = isCounted ? ` ${megabytes(service.done_bytes)} / ${megabytes(service.total_bytes)} MB` : "";
    const verb = service.state === "loading" ? text("Loading the model") : text("Reloading the engine");
    wb.dom.setText(parts.progressText, `${verb}: ${text(service.phase || "starting")}${amount}`);
    parts.progressBar.style.width = isCounted ? `${(100 * service.done_bytes) / service.total_bytes}%` : "0%";
  }

  /** What tells one error from another: the server, the engine, the words. */
  const errorKey = (service) => JSON.stringify([wb.store.known.instance, wb.store.known.epoch, service.error, service.error_traceback]);

  /** The error that this visitor has put aside, in all of the browser's tabs. */
  const dismissed = {
    key: null,
    read() {
      try { return localStorage.getItem("wb-dismissed-error") || this.key; } catch { return this.key; }
    },
    keep(key) {
      this.key = key;
      try { localStorage.setItem("wb-dismissed-error", key); } catch { /* private window: for this page only */ }
    },
  };

  /** What went wrong, in words, with its traceback; and a way out. */
  function drawError(parts, service, restart) {
    const isStopped = Boolean(service) && service.state === "stopped";
    const isFailed = isStopped || (Boolean(service) && Boolean(service.error));
    const isGone = isStopped || (isFailed && service.state === "failed");
    wb.dom.hide(parts.error, !isFailed || (!isGone && dismissed.read() === errorKey(service)));
    wb.dom.hide(parts.dismiss, isGone);
    if (!isFailed) return;
    wb.dom.setText(parts.errorTitle, isGone ? text("The engine is not running") : text("The engine reported an error"));
    wb.dom.setText(parts.errorText, service.error || text("It was shut down and takes no more requests: start the workbench again."));
    wb.dom.hide(parts.trace, !service.error_traceback);
    wb.dom.setText(parts.traceText, service.error_traceback || "");
    wb.dom.hide(parts.restart, isStopped || !restart.isPossible);
    parts.restart.disabled = restart.isUnderWay || isLoading(service);
    wb.dom.setText(parts.restart, parts.restart.disabled ? text("Restarting …") : text("Restart the engine"));
    const isNews = Boolean(restart.refusal) && restart.refusal !== service.error;
    wb.dom.hide(parts.restartSaid, !isNews);
    wb.dom.setText(parts.restartSaid, isNews ? text("Not restarted: {reason}", { reason: restart.refusal }) : "");
  }

  /** Restarting the engine: one wish at a time. What comes of it stands in the feed; a refusal does not. */
  class Restart {
    constructor(server) {
      this.server = server;
      this.isUnderWay = false;
      this.refusal = "";
    }

    /** A saved run's error is not that of the engine behind the page. */
    get isPossible() { return Boolean(this.server) && !wb.savedRun.facts(); }

    async begin() {
      if (this.isUnderWay) return;
      this.isUnderWay = true;
      this.refusal = "";
      wb.store.notify("feed");
      try {
        this.refusal = await this.server.restart_engine(null);
      } catch (error) {
        this.refusal = String(error.message || error);
      } finally {
        this.isUnderWay = false;
        wb.store.notify("feed");
      }
    }
  }

  /** A notice as the server says it, or in the visitor's language where the page has words for it. */
  function noticeWords(notice) {
    const facts = wb.savedRun.facts();
    return facts && notice === `Replay of ${facts.name}: nothing is computed` ? text("Replay of {name}: nothing is computed", facts) : text(notice);
  }

  function drawNotices(parts, service) {
    const isLost = wb.feed.isStale() && wb.feed.silenceMs() > LOST_MS;
    wb.dom.hide(parts.lost, !isLost);
    const notices = (service && service.notices) || [];
    wb.dom.hide(parts.notices, !notices.length);
    wb.dom.reconcile(parts.notices, notices, (notice) => notice, (notice) => wb.dom.element("p", "", noticeWords(notice)), () => {});
  }

  /** "· steps 0–1,240 · model · saved at 1 Apr 2025, 15:30 · request names, no prompts". */
  function describeRun({ first, last, model, saved_at: savedAt, is_redacted: isRedacted }) {
    const { count } = wb.format, at = new Date(savedAt);
    const time = Number.isNaN(at.getTime()) ? savedAt : at.toLocaleString(wb.language === "zh" ? "zh-CN" : "en-GB", { dateStyle: "medium", timeStyle: "short" });
    const names = isRedacted ? text("redacted: no request names, no prompts") : text("request names, no prompts");
    return ["", text("steps {first}–{last}", { first: count(first), last: count(last) }), model || "–", text("saved at {time}", { time }), names].join(" · ").trimStart();
  }

  /** What is looked at in the place of the engine, or that it was lost. */
  function drawRun(parts) {
    const facts = wb.savedRun.facts();
    wb.dom.hide(parts.run, !facts);
    if (facts) {
      wb.dom.setText(parts.runName, text("Saved run {name}", { name: facts.name }));
      wb.dom.setText(parts.runFacts, describeRun(facts));
    }
    wb.dom.hide(parts.runClose, !wb.savedRun.isOpen());
    const { behind } = wb.savedRun;
    wb.dom.setText(parts.runClose, behind ? text("Back to {name}", { name: behind }) : text("Back to the live engine"));
    wb.dom.hide(parts.runLost, !wb.savedRun.loss);
    wb.dom.setText(parts.runLostText, wb.savedRun.loss || "");
  }

  /** The button is gone then: the keyboard goes on at the tab in front. */
  function closeRun() {
    wb.savedRun.close();
    const tab = document.querySelector('#wb-tabs button[role="tab"][aria-selected="true"]');
    if (tab) tab.focus();
  }

  wb.define("header", (root, { server }) => {
    const parts = wb.dom.parts(root), restart = new Restart(server);
    parts.restart.addEventListener("click", () => restart.begin());
    parts.runClose.addEventListener("click", closeRun);
    parts.runLostDismiss.addEventListener("click", () => wb.savedRun.dismissLoss());
    parts.dismiss.addEventListener("click", () => {
      dismissed.keep(errorKey(wb.store.service));
      wb.store.notify("feed");
    });
    return () => {
      const view = wb.store.view();
      root.classList.toggle("wb-stale", wb.feed.isStale());
      drawModel(parts, wb.store.service);
      drawFigures(parts, view);
      drawAcceptance(parts, view.figures);
      drawFeed(parts);
      drawSpark(parts.spark);
      drawUse(parts.use, view);
      drawRun(parts);
      drawProgress(parts, wb.store.service);
      drawError(parts, wb.store.service, restart);
      drawNotices(parts, wb.store.service);
    };
  });

  /** Bottom line: what live figures were measured on, and the feed's own cost. */
  wb.define("statusLine", (root) => {
    const parts = wb.dom.parts(root);
    return () => {
      const { perSecond, kilobytes } = wb.feed.rate(), isSaved = Boolean(wb.savedRun.facts());
      wb.dom.hide(parts.here, isSaved);
      wb.dom.hide(parts.elsewhere, !isSaved);
      const told = { way: wayOf(wb.feed), rate: perSecond.toFixed(0), size: kilobytes.toFixed(2) };
      wb.dom.setText(parts.feed, text("Feed: {way}, {rate} frames/s, {size} kB/frame", told));
      wb.dom.setText(parts.step, wb.store.view().stepId >= 0 ? text("Step {step}", { step: wb.store.view().stepId }) : "");
    };
  });
})((window.wb = window.wb || {}));
