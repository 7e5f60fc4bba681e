/* The line of totals above the map, its bar, the legend of the colour mode, and the owners' chips. */
(function (wb) {
  "use strict";

  const { text } = wb;

  /** Form, words, and the state that a click keeps in front. */
  const OWNER_KEY = [
    ["fill", text("fill = tokens used"), null], ["notch", text("shared"), "shared"], ["hatch", text("cached, free to reuse"), "cached"],
    ["free", text("free"), "free"], ["pip", text("owner 13–24"), null],
  ];
  const RAMP_KEYS = [
    null,
    [["1", "2", "3", "4", "5", "6+"], text("references")],
    [[">256", "≤256", "≤64", "≤16", "≤4", text("now")], text("steps since allocated, or last used if cached")],
    [["0", "3", "9", "21", "45", "93+"], text("logical index")],
  ];

  const WASTE_NOTE = text("Internal waste: slots of held blocks without a token. External waste: free blocks in runs too short for the first in the queue.");
  const LAYOUT_NOTE = text("Contiguous layout: every request holds one run of blocks for all that it may become. ");

  /** How much of the contexts was found in the prefix cache; a dash before the first one is looked up, and where it is off. */
  function drawHits(parts, { looked_up_tokens: all, cached_tokens: found }) {
    wb.dom.setText(parts.hitRate, wb.format.percent(all ? (found || 0) / all : null));
    wb.dom.setText(parts.hitTokens, all ? text("of {count}", { count: all }) : "");
  }

  /** Slots and blocks that serve nobody, and what an engine without paging would hold for the same requests. */
  function drawWaste(parts, view, totals) {
    const { count, percent, plural } = wb.format;
    const figures = view.figures, slots = totals.active * view.blockSize;
    const isPaged = !wb.store.service || wb.store.service.kv_layout !== "contiguous";
    const unused = figures.waste_slots || 0;
    wb.dom.setText(parts.waste, percent(slots ? unused / slots : null));
    wb.dom.setText(parts.wasteSlots, slots ? plural(unused, "slot") : "");
    wb.dom.setText(parts.externalWaste, view.numBlocks ? count(figures.waste_blocks || 0) : "–");
    wb.dom.setText(parts.externalShare, figures.waste_blocks ? text("of {count} free", { count: totals.free + totals.cached }) : "");
    wb.dom.hide(parts.contiguousBox, !isPaged);
    wb.dom.setText(parts.contiguousBlocks, figures.contiguous_blocks ? count(figures.contiguous_blocks) : "–");
    wb.dom.setText(parts.contiguousAgainst, figures.contiguous_blocks ? text("against {count}", { count: totals.active }) : "");
    wb.dom.setText(parts.wasteNote, (isPaged ? "" : LAYOUT_NOTE) + WASTE_NOTE);
  }

  /** Host memory for swapped contexts; hidden where preemption only recomputes. */
  function drawSwap(parts, figures) {
    const service = wb.store.service || {};  // before the first step only the service knows of the swap space
    const all = figures.swap_blocks || service.num_swap_blocks || 0;
    const used = figures.swap_blocks ? all - (figures.free_swap_blocks || 0) : 0;
    wb.dom.hide(parts.swapBox, !all);
    if (!all) return;
    wb.dom.setText(parts.swapText, text("{part} of {whole}", { part: used, whole: wb.format.plural(all, "block") }));
    parts.barSwapped.style.width = `${(100 * used) / all}%`;
    parts.swapBar.setAttribute("aria-label", text("swap space: {used} of {all} blocks in use", { used, all }));
  }

  function drawTotals(parts, view) {
    const { count } = wb.format;
    const totals = view.totals();
    const set = (name, text) => wb.dom.setText(parts[name], text);
    const isLoaded = view.numBlocks > 0;
    set("active", isLoaded ? count(totals.active) : "–");
    set("ofAll", isLoaded ? text("of {count}", { count: view.numBlocks }) : "");
    set("shared", isLoaded ? count(totals.shared) : "–");
    set("saved", totals.saved ? text("saves {count}", { count: totals.saved }) : "");
    set("cached", isLoaded ? count(totals.cached) : "–");
    set("free", isLoaded ? count(totals.free) : "–");
    drawHits(parts, view.figures);
    drawWaste(parts, view, totals);
    drawSwap(parts, view.figures);
    const share = (n) => (isLoaded ? `${(100 * n) / view.numBlocks}%` : "0%");
    parts.barShared.style.width = share(totals.shared);
    parts.barActive.style.width = share(totals.active - totals.shared);
    parts.barCached.style.width = share(totals.cached);
    parts.bar.setAttribute("aria-label", text("active {active}, cached {cached}, free {free} of {all} blocks", { active: totals.active, cached: totals.cached, free: totals.free, all: view.numBlocks }));
    return totals;
  }

  function drawKey(box, mode) {
    const c = wb.palette.colors();
    const stamp = `${mode}/${c.theme}`;
    if (box.dataset.stamp === stamp) return;
    box.dataset.stamp = stamp;
    const entry = (className, background, text, state) => {
      const node = wb.dom.element(state ? "button" : "span", state ? "wb-state" : "");
      const square = wb.dom.element("i", className);
      if (background) square.style.background = background;
      node.append(square, text);
      if (state) { node.type = "button"; node.dataset.state = state; }
      return node;
    };
    if (!RAMP_KEYS[mode]) {
      box.replaceChildren(...OWNER_KEY.map(([form, text, state]) => entry(`wb-sw wb-sw-${form}`, "", text, state)));
      return;
    }
    const [labels, meaning] = RAMP_KEYS[mode];
    box.replaceChildren(...labels.map((text, i) => entry("wb-sw", c.ramp[i], text)), wb.dom.element("span", "", meaning));
  }

  /** The buttons of the totals and the legend that filter by a block's state. */
  function drawStates(root) {
    for (const button of root.querySelectorAll("button.wb-state")) {
      const isOn = button.dataset.state === wb.store.state;
      button.classList.toggle("wb-on", isOn);
      button.setAttribute("aria-pressed", String(isOn));
    }
  }

  function drawModes(buttons, mode) {
    [...buttons.children].forEach((button, i) => {
      const isOn = i === mode;
      button.classList.toggle("wb-on", isOn);
      button.setAttribute("aria-checked", String(isOn));
      button.tabIndex = isOn ? 0 : -1;
    });
  }

  /** Chips of all requests that were ever admitted, by colour slot, with their blocks or what became of them. */
  function drawChips(box, view) {
    const tables = view.tables();
    const owners = [...view.requests.values()].filter((r) => r.slot !== null).sort((a, b) => a.slot - b.slot);
    wb.dom.reconcile(box, owners, (r) => r.key, wb.dom.chip((id) => wb.store.toggleRequest(id)),
      (node, request) => wb.dom.updateChip(node, request, isHeld(request) ? text(request.status) : String((tables.get(request.key) || []).length)));
  }

  const isHeld = (request) => request.status !== "running";

  wb.totals = { drawTotals, drawKey, drawStates, drawModes, drawChips };
})((window.wb = window.wb || {}));
