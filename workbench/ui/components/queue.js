/* The queue: who is held back, what they need, what is free, and the rule in words as the engine's side gives it. */
(function (wb) {
  "use strict";

  const { text } = wb;

  const MAX_ROWS = 6;

  const isHeld = (request) => request.status !== "running";

  /** "12 / 9": blocks needed and free, where the rule compared those. */
  function comparison(decision) {
    const numbers = (decision && decision.numbers) || {};
    const { needed_blocks: needed, free_blocks: free } = numbers;
    return needed === undefined || free === undefined ? "" : text("{needed} / {free} free", { needed, free });
  }

  function create(request) {
    const node = wb.dom.element("div");
    const head = wb.dom.element("div", "wb-row");
    head.append(wb.dom.chip((id) => wb.store.toggleRequest(id))(request), wb.dom.element("span", "wb-grow"), wb.dom.element("span", "wb-n"));
    head.lastElementChild.title = text("blocks needed / blocks free");
    node.append(head, wb.dom.element("p"), wb.dom.element("p", "wb-then"));
    return node;
  }

  function update(view, node, request) {
    const [head, now, then] = node.children;
    const { decision, preemption } = request;
    wb.dom.updateChip(head.firstElementChild, request, text(view.phaseOf(request)));
    wb.dom.setText(head.lastElementChild, comparison(decision));
    wb.dom.setText(now, decision ? decision.words : text("waiting: no step has looked at it yet"));
    const isOther = preemption && preemption.words !== (decision && decision.words);
    wb.dom.hide(then, !isOther);
    wb.dom.setText(then, isOther ? text("Step {step}, {words}", { step: preemption.since, words: preemption.words }) : "");
  }

  /** Draw who waits, in the engine's order; those that came back a moment ago follow. */
  function draw(parts, view) {
    const all = [...view.requests.values()];
    const held = all.filter(isHeld), back = all.filter((r) => !isHeld(r) && r.decision);
    const shown = [...held, ...back].slice(0, MAX_ROWS);
    const more = Math.max(held.length, view.figures.waiting || 0) - Math.min(held.length, MAX_ROWS);
    wb.dom.hide(parts.queueNone, shown.length > 0);
    wb.dom.setText(parts.queueCount, held.length ? text("{count} waiting", { count: view.figures.waiting }) : "");
    wb.dom.reconcile(parts.queueRows, shown, (r) => r.key, create, (node, request) => update(view, node, request));
    wb.dom.hide(parts.queueMore, more <= 0);
    wb.dom.setText(parts.queueMore, more > 0 ? text("and {count} more", { count: more }) : "");
  }

  wb.queue = { draw };
})((window.wb = window.wb || {}));
