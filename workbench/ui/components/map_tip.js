/* The tooltip of the block map: what a block is, beside the pointer or the keyboard's cell. */
(function (wb) {
  "use strict";

  const { text } = wb;

  const WIDTH = 230;
  const BESIDE = 14;

  /** State, owners and fill of a block; `owner` is the request that it stands for, or null. */
  function pairsOf(view, block, owner) {
    const pairs = [[text("State"), wb.panels.STATUS[view.status[block]]]];
    if (owner) {
      const owners = view.ownersOf(block).map((each) => each.id);
      pairs.push([owners.length > 1 ? text("Owners") : text("Owner"), wb.format.some(owners, 3)], [text("Logical"), String(view.logical[block])]);
    }
    pairs.push([text("Filled"), `${view.filled[block]} / ${view.blockSize}`]);
    return pairs;
  }

  /** Show it beside a point of the window, inside the window. */
  function show({ tip, tipTitle, tipSquare, tipRows }, view, block, owner, x, y) {
    tipSquare.hidden = !owner;
    if (owner) tipSquare.style.background = wb.palette.swatch(owner);
    wb.dom.setText(tipTitle, text("Block {id}", { id: String(block) }));
    wb.dom.rows(tipRows, pairsOf(view, block, owner));
    tip.hidden = false;
    tip.style.left = `${Math.max(4, Math.min(window.innerWidth - WIDTH, x + BESIDE))}px`;
    tip.style.top = `${Math.max(4, Math.min(window.innerHeight - tip.offsetHeight - 12, y + BESIDE))}px`;
  }

  wb.mapTip = { show };
})((window.wb = window.wb || {}));
