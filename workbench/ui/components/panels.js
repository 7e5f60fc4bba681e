/* The panels beside the map: one block, and one request. Decoded tokens are asked of the engine on demand. */
(function (wb) {
  "use strict";

  const { text } = wb;

  const STATUS = ["free", "cached, reusable", "active"].map((word) => text(word));
  const MAX_OWNERS = 8;
  const REFETCH_MS = 500;
  const SETTLE_MS = 120;

  /** Asks the engine for a block's tokens: the newest question wins, one is under way at a time. */
  class DetailsDesk {
    constructor(server) {
      this.server = server;
      this.block = -1;
      this.stamp = "";
      this.details = null;
      this.isBusy = false;
      this.askedAt = -REFETCH_MS;
      this.timer = null;
    }

    /** Details of `block` in the state `stamp`, as far as they are here; asks for newer ones. */
    want(block, stamp) {
      if (block !== this.block) this.details = null;
      if (block !== this.block || stamp !== this.stamp) {
        const isNew = block !== this.block;
        this.block = block;
        this.stamp = stamp;
        this.askSoon(isNew ? SETTLE_MS : Math.max(SETTLE_MS, this.askedAt + REFETCH_MS - performance.now()));
      }
      return this.details;
    }

    askSoon(wait) {
      if (this.timer) return;
      this.timer = setTimeout(() => { this.timer = null; this.ask(); }, wait);
    }

    async ask() {
      if (this.isBusy) { this.askSoon(SETTLE_MS); return; }
      const { block, stamp } = this;
      if (block < 0) return;
      this.isBusy = true;
      this.askedAt = performance.now();
      try {
        const answer = await this.server.block_details(block);
        if (block === this.block) this.details = answer;
      } catch (error) {
        if (block === this.block) this.details = { error: String(error.message || error) };
      } finally {
        this.isBusy = false;
      }
      if (block !== this.block || stamp !== this.stamp) this.askSoon(REFETCH_MS);
      wb.store.notify("selection");
    }
  }

  function heading(parts, prefix, title, tag) {
    wb.dom.setText(parts[`${prefix}Name`], title);
    wb.dom.hide(parts[`${prefix}Tag`], !tag);
    wb.dom.setText(parts[`${prefix}Tag`], tag);
  }

  /** "this step", "12 steps ago", "never". */
  function lastUse(view, block) {
    if (view.status[block] === wb.store.ACTIVE) return text("this step");
    if (view.status[block] === wb.store.FREE && view.changed[block] === 0) return text("never");
    const steps = Math.max(0, view.stepId - view.since[block]);
    return steps ? text("{steps} ago", { steps: wb.format.plural(steps, "step") }) : text("this step");
  }

  function drawBlock(parts, view, block, desk) {
    const isAny = block >= 0 && block < view.numBlocks;
    wb.dom.hide(parts.blockNone, isAny);
    wb.dom.hide(parts.blockSome, !isAny);
    if (!isAny) return;
    const status = view.status[block], bytes = wb.store.service ? wb.store.service.block_bytes : null;
    heading(parts, "block", String(block), STATUS[status]);
    const refs = view.refs[block];
    wb.dom.rows(parts.blockRows, [
      [text("References"), refs > 1 ? text("{count} (shared)", { count: refs }) : String(refs)],
      [text("Filled"), text("{used} / {limit} tokens", { used: view.filled[block], limit: view.blockSize })],
      [text("Logical index"), view.logical[block] < 0 ? "–" : String(view.logical[block])],
      [text("Last use"), lastUse(view, block)],
      [text("Allocated"), status === wb.store.ACTIVE ? text("step {step}", { step: view.since[block] }) : "–"],
      [text("Bytes"), wb.format.kib(bytes)],
    ]);
    const details = wb.store.isFrozen() || wb.savedRun.facts() ? null : desk.want(block, `${wb.store.known.epoch}/${view.changed[block]}/${status}`);
    drawOwners(parts, view, block);
    drawTokens(parts, view, block, details);
  }

  function drawOwners(parts, view, block) {
    const owners = view.ownersOf(block);
    const more = owners.length > MAX_OWNERS ? text("Owners, and {count} more", { count: owners.length - MAX_OWNERS }) : text("Owners");
    wb.dom.hide(parts.owners, !owners.length);
    wb.dom.setText(parts.ownersLabel, owners.length ? more : text("No owner"));
    wb.dom.reconcile(parts.owners, owners.slice(0, MAX_OWNERS), (r) => r.key, wb.dom.chip((id) => wb.store.select(id, block)),
      (node, request) => wb.dom.updateChip(node, request, ""));
  }

  /** Slots of the block with their tokens; blanks for empty slots. */
  function drawTokens(parts, view, block, details) {
    const filled = view.filled[block], first = Math.max(0, view.logical[block]) * view.blockSize;
    const isHere = details && details.block_id === block && details.tokens;
    let label = filled ? text("Tokens {first}–{last}", { first, last: first + filled - 1 }) : text("Holds no token");
    const isSaved = Boolean(wb.savedRun.facts());
    if (filled && isSaved) label += text(": not in the file of a saved run");
    else if (filled && wb.store.isFrozen()) label += text(": shown live only");
    else if (filled) label += isHere ? (details.is_hidden ? text(", text hidden") : text(", decoded")) : details && details.error ? `: ${details.error}` : text(", asking the engine…");
    wb.dom.setText(parts.tokensLabel, label);
    wb.dom.hide(parts.tokens, !filled || isSaved || wb.store.isFrozen());
    const texts = isHere ? details.tokens : [];
    const slots = Array.from({ length: filled }, (_, i) => ({ i, text: i < texts.length ? visible(texts[i]) : "…", id: isHere ? details.token_ids[i] : null }));
    wb.dom.reconcile(parts.tokens, slots, (s) => s.i, () => wb.dom.element("span"), (node, slot) => {
      wb.dom.setText(node, slot.text);
      const title = slot.id === null || slot.id === undefined ? "" : text("token id {id}", { id: String(slot.id) });
      if (node.title !== title) node.title = title;
    });
  }

  /** White space made visible. */
  const visible = (text) => text.replace(/^ /, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";

  function drawRequest(parts, view, request) {
    wb.dom.hide(parts.requestNone, Boolean(request));
    wb.dom.hide(parts.requestSome, !request);
    const chosen = wb.store.selection.request;
    wb.dom.setText(parts.requestNoneTitle, chosen ? text("Request {id}", { id: chosen }) : text("No request selected"));
    wb.dom.setText(parts.requestNoneText, chosen ? text("It is not in the engine at step {step}.", { step: view.stepId }) : text("Choose a chip, or click one of its blocks."));
    if (!request) return;
    const { count } = wb.format;
    const shared = view.sharersOf(request).numBlocks;
    parts.requestSquare.style.background = wb.palette.swatch(request);
    heading(parts, "request", request.id, text(view.phaseOf(request)));
    const times = [text("never"), text("once")][request.preemptions] || text("{count} times", { count: request.preemptions });
    wb.dom.rows(parts.requestRows, [
      [text("Tokens"), text("{all} = {prompt} + {output} out", { all: request.prompt + request.output, prompt: request.prompt, output: request.output })],
      [text("Computed"), `${count(request.computed)} / ${count(request.prompt + request.output)}`],
      [text("Blocks"), shared ? `${request.blocks} (${text("{count} shared", { count: shared })})` : String(request.blocks)],
      ...(request.swapped ? [[text("In host memory"), wb.format.plural(request.swapped, "block")]] : []),
      ...answers(view, request),
      [text("Prefix cache"), request.cached ? text("{count} tokens reused", { count: request.cached }) : request.miss || "–"],
      ...(request.cached && request.miss ? [["", request.miss]] : []),
      [text("Priority"), String(request.priority)],
      [text("Preempted"), times],
    ]);
    drawReserved(parts, view, request);
  }

  /** How many answers the request has, and which one this is; nothing for an only one. */
  function answers(view, request) {
    const family = [...view.requests.values()].filter((r) => r.family === request.family);
    const all = family.reduce((sum, r) => sum + r.sequences, 0);
    if (all < 2) return [];
    const own = request.sequences > 1 ? text("{count}, not parted yet", { count: request.sequences }) : text("one of {count} of {id}", { count: all, id: request.family });
    return [[text("Answers"), own]];
  }

  /** What paging reserves for the request, against one contiguous run for all that it may become. */
  function drawReserved(parts, view, request) {
    const isPaged = !wb.store.service || wb.store.service.kv_layout !== "contiguous";
    const slots = (tokens) => Math.ceil(tokens / view.blockSize) * view.blockSize;
    const held = request.blocks * view.blockSize;
    const longest = isPaged ? slots(request.most) * request.sequences : held;
    wb.dom.hide(parts.reserved, !longest);
    if (!longest) return;
    const paged = isPaged ? held : slots(request.computed);
    const used = `${(100 * request.computed) / longest}%`;
    const hue = wb.palette.request(request);
    wb.dom.setText(parts.paged, wb.format.count(paged));
    wb.dom.setText(parts.contiguous, wb.format.count(longest));
    for (const name of ["pagedUsed", "contiguousUsed"]) { parts[name].style.width = used; parts[name].style.background = hue; }
    parts.pagedUnused.style.width = `${Math.max(0.6, (100 * Math.max(0, paged - request.computed)) / longest)}%`;
    parts.usedSquare.style.background = hue;
  }

  wb.panels = { DetailsDesk, drawBlock, drawRequest, STATUS };
})((window.wb = window.wb || {}));
