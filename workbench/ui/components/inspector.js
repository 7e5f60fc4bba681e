/* The panels beside the timeline: what one step did and why, and the life of one request. */
(function (wb) {
  "use strict";

  const LIVE_GAP_MS = 500;
  const SETTLE_MS = 60;
  const COLORS = {
    admitted: "prefill", resumed: "prefill", chunked: "prefill", deferred: "", preempted: "preempted", failed: "error",
  };

  /** Milliseconds as our figures are written: whole from 100, seconds from 10,000. */
  function milliseconds(ms) {
    if (!Number.isFinite(ms)) return "–";
    if (ms >= 10000) return `${(ms / 1000).toFixed(1)} s`;
    return `${ms >= 100 ? Math.round(ms).toLocaleString("en-US") : ms.toFixed(1)} ms`;
  }

  /** Asks for the reasons of a step: the newest question wins, one is under way at a time. */
  class StepDesk {
    constructor(onChange) {
      this.onChange = onChange;
      this.wanted = -1;
      this.stamp = "";
      this.answer = null;
      this.error = null;
      this.isBusy = false;
      this.timer = null;
      this.askedAt = -LIVE_GAP_MS;
    }

    /** The newest answer that there is; asks for `step` of the engine `stamp` unless it is that one. */
    want(step, stamp, isLive) {
      if (stamp !== this.stamp) { this.answer = this.error = null; this.wanted = -1; this.stamp = stamp; }
      if (step >= 0 && step !== this.wanted) {
        this.wanted = step;
        this.askSoon(isLive ? Math.max(0, this.askedAt + LIVE_GAP_MS - performance.now()) : SETTLE_MS);
      }
      return this.answer;
    }

    askSoon(wait) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.ask(), wait);
    }

    async ask() {
      if (this.isBusy) { this.askSoon(SETTLE_MS); return; }
      const { wanted, stamp } = this;
      this.isBusy = true;
      this.askedAt = performance.now();
      let answer = null, error = null;
      try {
        const response = await fetch(wb.address("history/step", { step: wanted }), { cache: "no-store" });
        const told = await response.json().catch(() => ({}));
        if (!response.ok) throw new Error(told.error || told.detail || `the server answered ${response.status}`);
        answer = told;
      } catch (caught) {
        error = String(caught.message || caught);
      } finally {
        this.isBusy = false;
      }
      if (stamp !== this.stamp) return;
      if (answer) this.answer = answer;
      this.error = wanted === this.wanted ? error : this.error;
      this.onChange();
    }
  }

  // ------------------------------------------------------------------ the step

  function drawStep(parts, history, step, isLive, answer, error) {
    const isAny = history.has(step);
    wb.dom.hide(parts.stepNone, isAny);
    wb.dom.hide(parts.stepSome, !isAny);
    if (!isAny) return;
    const words = wb.timelineWords, { count } = wb.format;
    const told = answer && answer.step === step ? answer : null;
    wb.dom.setText(parts.stepName, count(step));
    wb.dom.hide(parts.stepTag, !isLive);
    wb.dom.setText(parts.stepTag, words("inspector.live"));
    parts.stepBack.disabled = step <= history.first;
    parts.stepOn.disabled = step >= history.last;
    const at = (name) => history.at(name, step);
    wb.dom.rows(parts.stepRows, [
      [words("inspector.duration"), milliseconds(at("duration"))],
      ...(told && told.draft_ms ? [[words("inspector.draft"), milliseconds(told.draft_ms)]] : []),
      ...(told ? [[words("inspector.execute"), milliseconds(told.execute_ms)], [words("inspector.rest"), milliseconds(told.schedule_ms + told.update_ms)]] : []),
      [words("inspector.scheduled"), `${count(at("scheduled"))} / ${count(at("budget"))}`],
      [words("inspector.prefill"), count(at("prefill"))],
      [words("inspector.decode"), count(at("decode"))],
      [words("inspector.running"), `${count(at("running"))} / ${count(at("waiting"))}`],
      ...(told && told.drafts.length ? [[words("inspector.drafts"), accepted(told.drafts)]] : []),
      ...(told ? memory(told) : []),
    ]);
    const share = (name) => `${(100 * at(name)) / Math.max(1, at("budget"), at("scheduled"))}%`;
    parts.stepPrefill.style.width = share("prefill");
    parts.stepDecode.style.width = share("decode");
    drawReasons(parts, history, step, told, error);
  }

  function memory({ blocks, swap, waste, lookups }) {
    const words = wb.timelineWords, { count } = wb.format;
    const key = blocks.cached ? "inspector.blocks_cached" : "inspector.blocks";
    const rows = [[words("inspector.free"), words(key, { count: count(blocks.total - blocks.active), cached: count(blocks.cached) })]];
    if (swap.total) rows.push([words("inspector.swap"), `${count(swap.total - swap.free)} / ${count(swap.total)}`]);
    rows.push([words("inspector.waste"), words("inspector.slots_and_blocks", { slots: count(waste.slots), blocks: count(waste.blocks) })]);
    if (lookups.looked_up) rows.push([words("inspector.looked_up"), `${count(lookups.cached)} / ${count(lookups.looked_up)}`]);
    return rows;
  }

  function drawReasons(parts, history, step, told, error) {
    const words = wb.timelineWords;
    const reasons = told ? told.explanations : [];
    const isFolded = parts.reasonsMore.getAttribute("aria-expanded") !== "true";
    const kept = isFolded ? reasons.filter((_, i) => !isBehind(reasons, i)) : reasons;
    const lines = told ? [...kept.map(explained), ...verified(told.drafts), ...summed(history, step), ...moved(told.transfers)] : [];
    const numFolded = reasons.filter((_, i) => isBehind(reasons, i)).length;
    wb.dom.hide(parts.reasonsMore, !numFolded);
    wb.dom.setText(parts.reasonsMore, words(isFolded ? "inspector.unfold" : "inspector.fold", { count: wb.format.count(numFolded) }));
    const note = error ? words("inspector.lost", { reason: error }) : told ? words("inspector.nothing") : words("inspector.asking");
    wb.dom.hide(parts.reasonsNote, lines.length > 0);
    wb.dom.setText(parts.reasonsNote, note);
    wb.dom.reconcile(parts.reasons, lines, (line) => line.name, createLine, (node, line) => updateLine(history, node, line));
  }

  /** Whether a decision only says that a request stands behind others that are told already. */
  const isBehind = (reasons, i) => i > 1 && [i - 2, i - 1, i].every((n) => reasons[n].reason === "behind_head");

  /** A decision: its first words, which request, and the rule. */
  function explained(decision, i) {
    const sentence = wb.ownLine(decision.text);
    const [, label, rule] = sentence.match(/^(.*?)[:：]\s*(.*)$/s) || [null, decision.decision, sentence];
    return { name: `${i}/${decision.id}/${decision.decision}`, label, rule, key: decision.key, id: decision.id, color: COLORS[decision.decision] };
  }

  /** Those that simply went on. */
  function summed(history, step) {
    const words = wb.timelineWords, { count } = wb.format, e = history.entries;
    const { PREFILL, DECODE } = wb.timelineHistory;
    const [from, to] = history.entriesOf(step);
    const all = { [PREFILL]: { requests: 0, tokens: 0 }, [DECODE]: { requests: 0, tokens: 0 } };
    for (let i = from; i < to; i++) {
      if (!e.tokens[i] || !all[e.kind[i]] || (e.kind[i] === DECODE && e.tokens[i] > 1)) continue;
      all[e.kind[i]].requests++;
      all[e.kind[i]].tokens += e.tokens[i];
    }
    const line = (name, kind, color) => {
      const { requests, tokens } = all[kind];
      if (!requests) return [];
      const rule = words(`inspector.${name}_${requests === 1 ? "one" : "many"}`, { count: count(requests), tokens: count(tokens) });
      return [{ name, label: words(`inspector.${name}`), rule, key: null, id: null, color }];
    };
    return [...line("computed", PREFILL, "prefill"), ...line("decoded", DECODE, "decode")];
  }

  /** "3 of 8": accepted of all tokens that were drafted for the step. */
  function accepted(drafts) {
    const sum = (place) => drafts.reduce((total, draft) => total + draft[place], 0);
    return wb.timelineWords("tip.of", { part: wb.format.count(sum(3)), whole: wb.format.count(sum(2)) });
  }

  /** Drafts that the step verified, one line for each request. */
  function verified(drafts) {
    const words = wb.timelineWords, { count } = wb.format;
    return drafts.map(([key, id, drafted, accepted]) => ({
      name: `draft/${id}`, label: words("inspector.verified"), key, id, color: "accepted",
      rule: words("inspector.drafted", { accepted: count(accepted), drafted: count(drafted) }),
    }));
  }

  function moved(transfers) {
    const words = wb.timelineWords, counts = {};
    for (const [kind] of transfers) counts[kind] = (counts[kind] || 0) + 1;
    return Object.entries(counts).map(([kind, n]) => ({
      name: kind, label: words("inspector.moved"), rule: words(`inspector.${kind}`, { count: wb.format.count(n) }), key: null, id: null, color: "swapped",
    }));
  }

  function createLine() {
    const node = wb.dom.element("div", "wb-why");
    const rule = wb.dom.element("p");
    const request = wb.dom.element("button", "wb-who-row");
    request.type = "button";
    request.append(wb.dom.element("i", "wb-sw"), wb.dom.element("b"));
    request.addEventListener("click", () => request.dispatchEvent(new CustomEvent("wb-request", { bubbles: true, detail: Number(request.dataset.request) })));
    rule.append(request, wb.dom.element("span"));
    node.append(wb.dom.element("span", "wb-why-label"), rule);
    return node;
  }

  function updateLine(history, node, { label, rule, key, id, color }) {
    const [word, paragraph] = node.children, [request, text] = paragraph.children;
    wb.dom.setText(word, label);
    word.style.color = color ? `var(--wb-${color})` : "";
    wb.dom.hide(request, id === null);
    if (id !== null) {
      const row = history.rows.get(key) || null;
      request.firstElementChild.style.background = wb.palette.swatch(row);
      wb.dom.setText(request.lastElementChild, id);
      request.dataset.request = row ? key : "";
    }
    wb.dom.setText(text, rule);
  }

  // ------------------------------------------------------------------ the request

  function drawRequest(parts, history, row) {
    wb.dom.hide(parts.lifeNone, Boolean(row));
    wb.dom.hide(parts.lifeSome, !row);
    if (!row) return;
    const words = wb.timelineWords, { count } = wb.format;
    parts.lifeSquare.style.background = wb.palette.swatch(row);
    wb.dom.setText(parts.lifeName, row.id);
    wb.dom.setText(parts.lifeTag, words("request.priority", { priority: row.priority }));
    const nowS = history.isEmpty ? 0 : history.endOf(history.last);
    const since = (seconds) => (row.isWhole && seconds !== null ? milliseconds(1000 * (seconds - row.arrival)) : "–");
    const isQueued = row.scheduledS === null && !row.isEnded;
    const queued = isQueued ? words("request.so_far", { time: milliseconds(1000 * (nowS - row.arrival)) }) : since(row.scheduledS);
    const times = row.preemptedAt.length;
    const lost = milliseconds(1000 * row.lostUntil(nowS));
    const chunks = words(row.prefillSteps === 1 ? "request.prefill_in_one" : "request.prefill_in", { tokens: count(row.prefillTokens), chunks: count(row.prefillSteps) });
    wb.dom.rows(parts.lifeRows, [
      [words("request.arrived"), row.isWhole ? words("request.arrived_at", { step: count(row.first) }) : words("request.before")],
      ...(row.family && row.family !== row.id ? [[words("request.family"), row.family]] : []),
      [words("request.queued"), queued],
      [words("request.ttft"), since(row.firstTokenS)],
      [words("request.prefill"), row.prefillSteps ? chunks : "–"],
      [words("request.decode"), words(row.decodeSteps === 1 ? "request.one_step" : "request.steps", { count: count(row.decodeSteps) })],
      ...(row.draftTokens ? [[words("request.drafts"), words("tip.of", { part: count(row.acceptedTokens), whole: count(row.draftTokens) })]] : []),
      [words("request.output"), words(row.outputTokens === 1 ? "request.one_token" : "request.tokens", { count: count(row.outputTokens) })],
      [words("request.preempted"), times ? words("request.lost", { times: count(times), lost }) : words("request.never")],
      ...(row.isEnded ? [[words("request.ended"), `${words("request.arrived_at", { step: count(row.endedAt) })}, ${words(row.isFailed ? "kind.failed" : "kind.finished")}`]] : []),
    ]);
  }

  wb.inspector = { StepDesk, drawStep, drawRequest, milliseconds };
})((window.wb = window.wb || {}));
