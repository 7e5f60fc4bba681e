/* The line of totals above the map, its bar, the legend of the colour mode, and the owners' chips. */
(function (wb) {
  "use strict";

  const OWNER_KEY = [["fill", "fill = tokens used"], ["notch", "shared"], ["hatch", "cached, free to reuse"], ["free", "free"], ["pip", "owner 13–24"]];
  const RAMP_KEYS = [
    null,
    [["1", "2", "3", "4", "5", "6+"], "references"],
    [[">256", "≤256", "≤64", "≤16", "≤4", "now"], "steps since allocated, or last used if cached"],
    [["0", "3", "9", "21", "45", "93+"], "logical index"],
  ];

  /** Share of `max_model_len` per running request that a contiguous allocator would hold and not use. */
  function contiguousWaste(view) {
    const longest = wb.store.service ? wb.store.service.max_model_len : 0;
    let used = 0, held = 0;
    for (const request of view.requests.values()) {
      if (request.status !== "running") continue;
      used += request.computed;
      held += longest;
    }
    return held ? 1 - used / held : null;
  }

  function drawTotals(parts, view) {
    const { count, percent } = wb.format;
    const totals = view.totals();
    const set = (name, text) => wb.dom.setText(parts[name], text);
    const isLoaded = view.numBlocks > 0;
    set("active", isLoaded ? count(totals.active) : "–");
    set("ofAll", isLoaded ? `of ${count(view.numBlocks)}` : "");
    set("shared", isLoaded ? count(totals.shared) : "–");
    set("saved", totals.saved ? `saves ${count(totals.saved)}` : "");
    set("cached", isLoaded ? count(totals.cached) : "–");
    set("free", isLoaded ? count(totals.free) : "–");
    const slots = totals.active * view.blockSize;
    set("waste", percent(slots ? totals.wasteSlots / slots : null));
    set("wasteSlots", slots ? wb.format.plural(totals.wasteSlots, "slot") : "");
    const waste = contiguousWaste(view);
    set("contiguousWaste", percent(waste, 0));
    const longest = wb.store.service ? count(wb.store.service.max_model_len) : "–";
    parts.contiguousBox.title = `share of ${longest} tokens (the longest context) reserved per running request that holds nothing`;
    const share = (n) => (isLoaded ? `${(100 * n) / view.numBlocks}%` : "0%");
    parts.barShared.style.width = share(totals.shared);
    parts.barActive.style.width = share(totals.active - totals.shared);
    parts.barCached.style.width = share(totals.cached);
    parts.bar.setAttribute("aria-label", `active ${totals.active}, cached ${totals.cached}, free ${totals.free} of ${view.numBlocks} blocks`);
    return totals;
  }

  function drawKey(box, mode) {
    const c = wb.palette.colors();
    const stamp = `${mode}/${c.theme}`;
    if (box.dataset.stamp === stamp) return;
    box.dataset.stamp = stamp;
    const entry = (className, background, text) => {
      const node = wb.dom.element("span");
      const square = wb.dom.element("i", className);
      if (background) square.style.background = background;
      node.append(square, text);
      return node;
    };
    if (!RAMP_KEYS[mode]) { box.replaceChildren(...OWNER_KEY.map(([form, text]) => entry(`wb-sw wb-sw-${form}`, "", text))); return; }
    const [labels, meaning] = RAMP_KEYS[mode];
    box.replaceChildren(...labels.map((text, i) => entry("wb-sw", c.ramp[i], text)), wb.dom.element("span", "", meaning));
  }

  function drawModes(buttons, mode) {
    [...buttons.children].forEach((button, i) => {
      const isOn = i === mode;
      button.classList.toggle("wb-on", isOn);
      button.setAttribute("aria-checked", String(isOn));
      button.tabIndex = isOn ? 0 : -1;
    });
  }

  /** Chips of all requests that hold blocks or run, by colour slot; the queue as one count. */
  function drawChips(box, view) {
    const tables = view.tables();
    const owners = [...view.requests.values()].filter((r) => r.slot !== null).sort((a, b) => a.slot - b.slot);
    wb.dom.reconcile(box, owners, (r) => r.key, wb.dom.chip((id) => wb.store.toggleRequest(id)),
      (node, request) => wb.dom.updateChip(node, request, String((tables.get(request.key) || []).length)));
  }

  wb.totals = { drawTotals, drawKey, drawModes, drawChips, contiguousWaste };
})((window.wb = window.wb || {}));
