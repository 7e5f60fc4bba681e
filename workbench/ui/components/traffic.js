/* What moved between blocks and host memory: totals, and the last movements in words. */
(function (wb) {
  "use strict";

  const { text } = wb;

  const MAX_ROWS = 6;
  const MAX_PAIRS = 2;
  const NONE = text("Nothing has moved. Ask for several answers to see blocks copied before they are written, or let a small pool run full with preemption “Swap”.");
  const PAST_NONE = text("Nothing moved in this step.");

  /** "block 7 → 19", "3 blocks, 7 → 19, 8 → 20 and others". */
  function copied(blocks) {
    const pairs = [];
    for (let i = 0; i < blocks.length; i += 2) pairs.push(`${blocks[i]} → ${blocks[i + 1]}`);
    if (pairs.length === 1) return text("block {pair}", { pair: pairs[0] });
    const shown = { count: pairs.length, pairs: pairs.slice(0, MAX_PAIRS).join(", ") };
    return pairs.length > MAX_PAIRS ? text("{count} blocks, {pairs} and others,", shown) : text("{count} blocks, {pairs},", shown);
  }

  function words({ step, kind, request, blocks }) {
    if (kind === "copy") return text("step {step}: {id} copied {blocks} before writing", { step, id: request, blocks: copied(blocks) });
    const told = { step, id: request, blocks: wb.format.plural(blocks.length, "block") };
    return kind === "swap_out" ? text("step {step}: {id} swapped out {blocks}", told) : text("step {step}: {id} swapped in {blocks}", told);
  }

  function create({ kind }) {
    const node = wb.dom.element("p");
    node.append(wb.dom.element("i", `wb-sw ${kind === "copy" ? "wb-sw-copied" : "wb-sw-swapped"}`), wb.dom.element("span"));
    return node;
  }

  /** Draw the totals and the list, the newest movement first. */
  function draw(parts, view) {
    const { count } = wb.format, figures = view.figures;
    wb.dom.setText(parts.movedCopy, count(figures.copy || 0));
    wb.dom.setText(parts.movedOut, count(figures.swap_out || 0));
    wb.dom.setText(parts.movedIn, count(figures.swap_in || 0));
    const shown = view.movements.slice(-MAX_ROWS).reverse();
    wb.dom.hide(parts.trafficNone, shown.length > 0);
    wb.dom.setText(parts.trafficNone, wb.store.past ? PAST_NONE : NONE);
    wb.dom.reconcile(parts.trafficRows, shown, (m) => `${m.step}/${m.kind}/${m.request}/${m.blocks[0]}`, create,
      (node, movement) => wb.dom.setText(node.lastElementChild, words(movement)));
  }

  wb.traffic = { draw };
})((window.wb = window.wb || {}));
