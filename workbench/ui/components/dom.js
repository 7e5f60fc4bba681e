/* Small helpers that touch the document only where something changed, so that clicks and focus survive live updates. */
(function (wb) {
  "use strict";

  function setText(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }

  /** Setting an attribute, even to the value that it has, makes the browser compute styles again. */
  function hide(node, isHidden) {
    if (node.hidden !== isHidden) node.hidden = isHidden;
  }

  function element(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }

  /** Make `parent`'s children those of `items`, one for each key, reusing what is there. */
  function reconcile(parent, items, keyOf, create, update) {
    const old = new Map([...parent.children].map((node) => [node.dataset.key, node]));
    let place = parent.firstElementChild;
    for (const item of items) {
      const key = String(keyOf(item));
      let node = old.get(key);
      old.delete(key);
      if (!node) { node = create(item); node.dataset.key = key; }
      update(node, item);
      if (node === place) place = place.nextElementSibling;
      else parent.insertBefore(node, place);
    }
    for (const node of old.values()) node.remove();
  }

  /** Label / value rows of a description list. */
  function rows(list, pairs) {
    reconcile(list, pairs, ([label]) => label,
      ([label]) => { const row = element("div"); row.append(element("dt", "", label), element("dd")); return row; },
      (row, [, value]) => setText(row.lastElementChild, value));
  }

  /** Named parts of a component's template. */
  function parts(root) {
    const found = {};
    for (const node of root.querySelectorAll("[data-part]")) found[node.dataset.part] = node;
    return found;
  }

  /** Size a canvas in CSS pixels for the device's pixel ratio; returns its cleared context. */
  function fit(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    if (g.textBaseline === "middle") return g;
    // A new or resized context has forgotten these; setting a font makes the browser compute the document's styles.
    g.font = '10px "IBM Plex Mono", monospace';
    g.textBaseline = "middle";
    return g;
  }

  /** Lay a canvas of the same size over another, pixel upon pixel. */
  function copy(g, canvas) {
    g.save();
    g.resetTransform();
    g.drawImage(canvas, 0, 0);
    g.restore();
  }

  /** Node → {width, isShown} of its last layout: asking the document between two writes would force a layout each time. */
  const sizes = new WeakMap();
  const observer = new ResizeObserver((entries) => {
    const isNews = entries.map(({ target }) => isChanged(sizes.get(target), measure(target)));
    if (isNews.includes(true)) wb.store.notify("theme");
  });

  const isChanged = (before, now) => !before || before.width !== now.width || before.isShown !== now.isShown;

  function measure(node) {
    const style = getComputedStyle(node);
    const width = Math.floor(node.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
    const size = { width, isShown: node.offsetParent !== null };
    sizes.set(node, size);
    return size;
  }

  /** The size of a node; the first call asks the document, from then on the browser tells of changes. */
  function sizeOf(node) {
    const known = sizes.get(node);
    if (known) return known;
    observer.observe(node);
    return measure(node);
  }

  /** Width inside an element's padding, whole pixels. What was hidden a moment ago has no width yet: it is asked again. */
  const innerWidth = (node) => sizeOf(node).width || measure(node).width;

  /** Whether an element is laid out, as that of a tab in front is. */
  const isShown = (node) => node.isConnected && sizeOf(node).isShown;

  /** Chip of a request: owner square, id, block count. */
  function chip(onChoose) {
    return (request) => {
      const node = element("button", "wb-chip");
      node.type = "button";
      node.append(element("i", "wb-sw"), element("span"), element("span", "wb-n"));
      node.addEventListener("click", () => onChoose(request.id));
      node.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && wb.store.setHover(request.id, -1));
      node.addEventListener("pointerleave", () => wb.store.setHover(null, -1));
      return node;
    };
  }

  function updateChip(node, request, count) {
    const [square, name, number] = node.children;
    const background = wb.palette.swatch(request);
    if (square.dataset.bg !== background) { square.style.background = background; square.dataset.bg = background; }
    setText(name, wb.store.mine.has(request.id) ? wb.text("{id} you", { id: request.id }) : request.id);
    setText(number, count);
    node.classList.toggle("wb-held", request.status !== "running");
    const isOn = wb.store.selection.request === request.id;
    node.classList.toggle("wb-on", isOn);
    node.setAttribute("aria-pressed", String(isOn));
  }

  const views = {};

  /** Register a component: `create(element, context)` returns its update function `(topics) => void`. */
  function define(name, create) { views[name] = create; }

  /** Bring a component to life: called once from js_on_load. */
  function mount(name, root, context) {
    wb.translate(root);
    const update = views[name](root, context);
    const stop = wb.store.subscribe((topics) => (root.isConnected ? update(topics) : stop()));
    observer.observe(root);
    wb.feed.attach(root);
    wb.store.notify("theme");
  }

  /** Open a tab of the page by its id; false when there is none. */
  function openTab(id) {
    const tab = document.querySelector(`#wb-tabs button[role="tab"][data-tab-id="${id}"]`);
    if (tab) tab.click();
    return Boolean(tab);
  }

  wb.dom = { openTab, setText, hide, element, reconcile, rows, parts, fit, copy, innerWidth, isShown, chip, updateChip };
  wb.define = define;
  wb.mount = mount;
})((window.wb = window.wb || {}));
