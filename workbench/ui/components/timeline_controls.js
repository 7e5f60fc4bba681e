/* Keys, buttons and filters of the timeline. */
(function (wb) {
  "use strict";

  const ZOOM_STEP = 1.5;

  const KEYS = {
    arrowleft: (t) => t.axis.pan(-t.axis.width / 8), a: (t) => t.axis.pan(-t.axis.width / 8),
    arrowright: (t) => t.axis.pan(t.axis.width / 8), d: (t) => t.axis.pan(t.axis.width / 8),
    arrowup: (t) => t.point(-1), w: (t) => t.point(-1),
    arrowdown: (t) => t.point(1), s: (t) => t.point(1),
    "+": (t) => t.axis.zoom(1 / ZOOM_STEP), "=": (t) => t.axis.zoom(1 / ZOOM_STEP),
    "-": (t) => t.axis.zoom(ZOOM_STEP), "−": (t) => t.axis.zoom(ZOOM_STEP),
    0: (t) => t.axis.showAll(),
    home: (t) => t.axis.show(t.axis.bounds()[0], t.axis.bounds()[0] + t.axis.span),
    end: (t) => t.axis.show(t.axis.bounds()[1] - t.axis.span, t.axis.bounds()[1]),
    ",": () => wb.store.stepBy(-1), ".": () => wb.store.stepBy(1),
    enter: (t) => { if (t.pointed !== null) t.selectKey(t.pointed); },
    escape: (t) => t.clear(),
    " ": (t) => t.toggleFreeze(),
    f: (t) => t.followLive(),
  };

  function listenToKeys(timeline) {
    const { timeline: canvas, tip } = timeline.parts;
    canvas.addEventListener("keydown", (event) => {
      const act = KEYS[event.key.toLowerCase()];
      if (event.ctrlKey || event.metaKey || event.altKey || !act || timeline.history.isEmpty) return;
      event.preventDefault();
      tip.hidden = true;
      act(timeline);
      timeline.redraw();
    });
    canvas.addEventListener("blur", () => { timeline.pointed = null; timeline.redraw(); });
  }

  /** A group of buttons of which one is on, with the arrow keys of a radio group. */
  function listenToChoice(group, choose) {
    const buttons = [...group.children];
    buttons.forEach((button) => button.addEventListener("click", () => choose(button)));
    group.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const button = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
      choose(button);
      button.focus();
    });
  }

  function drawChoice(group, isOn) {
    for (const button of group.children) {
      button.classList.toggle("wb-on", isOn(button));
      button.setAttribute("aria-checked", String(isOn(button)));
      button.tabIndex = isOn(button) ? 0 : -1;
    }
  }

  function listenToButtons(timeline) {
    const { parts, axis } = timeline;
    const on = (name, act) => parts[name].addEventListener("click", () => { if (!timeline.history.isEmpty) { act(); timeline.redraw(); } });
    listenToChoice(parts.axisModes, (button) => { axis.setWall(button.dataset.axis === "wall"); timeline.redraw(); });
    on("zoomIn", () => axis.zoom(1 / ZOOM_STEP));
    on("zoomOut", () => axis.zoom(ZOOM_STEP));
    on("showAll", () => axis.showAll());
    on("freeze", () => (timeline.isFrozen || !axis.follows ? timeline.followLive() : wb.store.freeze()));
    on("stepBack", () => timeline.seek(timeline.step - 1));
    on("stepOn", () => timeline.seek(timeline.step + 1));
    on("toMap", () => showOnMap(timeline));
    on("reasonsMore", () => parts.reasonsMore.setAttribute("aria-expanded", String(parts.reasonsMore.getAttribute("aria-expanded") !== "true")));
    parts.reasons.addEventListener("wb-request", (event) => timeline.selectKey(event.detail));
  }

  /** Go to the Blocks tab, with this step in front of everybody. */
  function showOnMap(timeline) {
    timeline.seek(timeline.step);
    const tab = document.querySelector('[role="tab"][data-tab-id="blocks"]');
    if (tab) tab.click();
  }

  function listenToFilters(timeline) {
    const { filter, parts } = timeline;
    const changed = () => { timeline.rowsBelow = null; timeline.redraw(); };
    listenToChoice(parts.states, (button) => { filter.state = button.dataset.state; changed(); });
    parts.find.addEventListener("input", () => { filter.text = parts.find.value; changed(); });
    parts.onlyMine.addEventListener("change", () => { filter.isMine = parts.onlyMine.checked; changed(); });
  }

  function listen(timeline) {
    new wb.timelineHands.Hands(timeline);
    listenToKeys(timeline);
    listenToButtons(timeline);
    listenToFilters(timeline);
  }

  /** Buttons, and how the window stands to live. */
  function draw(timeline) {
    const { parts, axis, filter, history } = timeline, words = wb.timelineWords, { count } = wb.format;
    drawChoice(parts.axisModes, (button) => (button.dataset.axis === "wall") === axis.isWall);
    drawChoice(parts.states, (button) => button.dataset.state === filter.state);
    const isAway = timeline.isFrozen || !axis.follows, isSaved = Boolean(wb.savedRun.facts());
    wb.dom.setText(parts.freeze, words(isSaved ? "timeline.to_end" : isAway ? "timeline.follow" : "timeline.freeze"));
    parts.freeze.disabled = isSaved && !isAway;
    parts.freeze.setAttribute("aria-pressed", String(timeline.isFrozen && !isSaved));
    const behind = history.isEmpty ? 0 : history.last - axis.visible()[1];
    const away = timeline.isFrozen ? words(isSaved ? "timeline.at_step" : "timeline.frozen", { step: count(timeline.cursor) }) : words(isSaved ? "timeline.before_end" : "timeline.not_following", { count: count(behind) });
    wb.dom.setText(parts.following, history.isEmpty ? "" : isAway ? away : words(isSaved ? "timeline.at_end" : "timeline.following"));
  }

  wb.timelineControls = { listen, draw };
})((window.wb = window.wb || {}));
