/* The guided first run: four steps, each of which makes the real engine do something and points at where it shows.
 *
 * It opens by itself at the first visit, and again with "?". What it says about the engine is read from the live state.
 * Over a saved run nothing can be driven: the steps can be read, and the first visit to an engine is still to come.
 */
(function (wb) {
  "use strict";

  const { text } = wb;
  const KEPT = "wb-guide";

  const living = () => [...wb.store.live.byId.values()];
  const own = () => living().filter((request) => wb.store.mine.has(request.id));
  const press = (selector) => { const node = document.querySelector(selector); if (node && !node.disabled) node.click(); };

  /** Send one of the prompts that the Chat tab offers; nothing while an answer is under way. */
  function send(place) {
    wb.dom.openTab("chat");
    const prompts = document.querySelectorAll("button.wb-suggestion");
    if (prompts[place] && !prompts[place].disabled) prompts[place].click();
  }

  /** A step: what it says, what its button does, where it points, and what the engine has to show for it. */
  const STEPS = [
    {
      title: text("A prompt becomes a request"),
      words: text("The engine computes your prompt in chunks (prefill), then one token a step (decode). The phase of your request stands beside the chat."),
      act: text("Send a prompt"),
      run: () => send(0),
      target: "#wb-compact-map",
      tell: () => {
        const [request] = own();
        if (!request) return null;
        return text("{id}: {computed} tokens computed, {output} of them its answer.", { id: request.id, computed: request.computed, output: request.output });
      },
    },
    {
      title: text("Its context lies in blocks"),
      words: text("Keys and values of a context are kept in blocks of a few tokens each, anywhere in the pool. Each cell of the map is one physical block; yours are lit."),
      act: text("Show its blocks"),
      run: () => {
        if (!own().length) send(2);
        wb.dom.openTab("blocks");
      },
      target: "#wb-block-map .wb-map",
      tell: () => {
        const [request] = own();
        if (!request) return null;
        if (wb.store.selection.request !== request.id) wb.store.select(request.id, -1);
        return text("{id} holds {count} blocks.", { id: request.id, count: wb.store.live.tableOf(request).length });
      },
    },
    {
      title: text("Requests that begin alike share blocks"),
      words: text("One request computes a long common beginning; the others find its blocks in the cache and point to the same ones. Shared blocks have a bright corner."),
      act: text("Start a shared-prefix burst"),
      run: () => { wb.dom.openTab("chat"); press("#wb-burst"); wb.dom.openTab("blocks"); },
      target: "#wb-block-map .wb-totals",
      tell: () => {
        const { shared, saved } = wb.store.live.totals();
        return shared ? text("{shared} blocks are shared: {saved} more would be needed without.", { shared, saved }) : null;
      },
    },
    {
      title: text("When memory is short, somebody makes room"),
      words: text("A preempted request gives its blocks back, waits in the queue, and goes on later with the very same tokens. The answer's figures count how often."),
      act: text("Preempt a request"),
      run: () => {
        if (!living().some((request) => request.status === "running")) { send(2); return "again"; }
        press("#wb-preempt");
        return null;
      },
      target: "#wb-background-note",
      tab: "chat",
      tell: () => {
        const [request] = living().filter((each) => each.preemptions > 0);
        if (!request) return null;
        return text("{id} made room {count}× and goes on.", { id: request.id, count: request.preemptions });
      },
    },
  ];

  const KEYS = [
    ["W A S D, ← ↑ ↓ →", text("move on the block map, pan the timeline")],
    [text("Space"), text("freeze the picture, or follow again")],
    [", .", text("one step back, one step on")],
    ["F", text("follow live")],
    ["Enter", text("pin a block, choose a step")],
    ["Esc", text("let go of what is chosen")],
    ["1 2 3 4", text("colour modes of the block map")],
    ["+ − 0", text("zoom the timeline, show all of it")],
    [text("Enter in the message box"), text("send; Shift+Enter breaks the line")],
  ];

  /** How far this browser has come: a step's place, or "done". */
  const kept = {
    read() { try { return localStorage.getItem(KEPT); } catch { return "done"; } },
    keep(value) { try { localStorage.setItem(KEPT, value); } catch { /* private window: asked again next time */ } },
  };

  class Guide {
    constructor(root, { canAct }) {
      this.canAct = canAct;
      this.root = root.querySelector(".wb-guide");
      this.parts = wb.dom.parts(root);
      this.place = 0;
      this.told = null;
      this.isWanted = false;
      this.isActing = false;
      this.parts.act.addEventListener("click", () => this.act());
      this.parts.next.addEventListener("click", () => this.go(this.place + 1));
      this.parts.back.addEventListener("click", () => this.go(this.place - 1));
      for (const part of ["skip", "close"]) this.parts[part].addEventListener("click", () => this.finish());
      this.root.addEventListener("keydown", (event) => { if (event.key === "Escape") this.finish(); });
      wb.dom.rows(this.parts.keyRows, KEYS);
      this.parts.why.hidden = canAct;
      if (!canAct) return;
      const seen = kept.read();
      if (seen !== "done") this.open(Number(seen) || 0, { hasFocus: false });
    }

    get step() { return STEPS[this.place]; }

    open(place, { hasFocus = true } = {}) {
      this.root.hidden = false;
      this.show(place);
      if (hasFocus) this.parts.title.focus();
    }

    toggle() {
      if (this.root.hidden) this.open(0);
      else this.finish();
    }

    go(place) {
      if (place >= STEPS.length) { this.finish(); return; }
      this.show(place);
      this.parts.title.focus();
    }

    show(place) {
      this.place = Math.max(0, Math.min(STEPS.length - 1, place));
      this.told = null;
      this.isWanted = false;
      this.isActing = false;
      if (this.canAct) kept.keep(String(this.place));
      const isLast = this.place === STEPS.length - 1;
      wb.dom.setText(this.parts.title, this.step.title);
      wb.dom.setText(this.parts.words, this.step.words);
      wb.dom.setText(this.parts.act, this.step.act);
      this.parts.act.disabled = !this.canAct;
      wb.dom.setText(this.parts.next, isLast ? text("Finish") : text("Next"));
      wb.dom.setText(this.parts.progress, `${this.place + 1} / ${STEPS.length}`);
      wb.dom.setText(this.parts.live, "");
      this.parts.back.disabled = this.place === 0;
      this.point(null);
    }

    act() {
      wb.savedRun.close();  // the steps drive the live engine
      if (this.step.tab) wb.dom.openTab(this.step.tab);
      this.told = null;
      this.isWanted = this.step.run() === "again";
      this.isActing = true;
      wb.store.notify("selection");
    }

    /** Skipped, closed or done: it comes back with "?" only. */
    finish() {
      if (this.canAct) kept.keep("done");
      this.point(null);
      this.root.hidden = true;
      const opener = document.getElementById("wb-help");
      if (opener) opener.focus();
    }

    /** Mark one widget of the page, and no other. */
    point(node) {
      for (const marked of document.querySelectorAll(".wb-pointed")) if (marked !== node) marked.classList.remove("wb-pointed");
      if (!node || node.classList.contains("wb-pointed")) return;
      node.classList.add("wb-pointed");
      node.scrollIntoView({ block: "nearest" });
    }

    /** After the step's button: point at where it shows, and tell what the engine has done. The last news stays. */
    update() {
      if (this.root.hidden || !this.isActing) return;
      if (this.isWanted && living().some((request) => request.status === "running" && request.output > 0)) {
        this.isWanted = false;
        this.step.run();
      }
      const target = document.querySelector(this.step.target);
      if (target && target.offsetParent !== null) this.point(target);
      const news = this.step.tell();
      if (news && news !== this.told) { this.told = news; this.say(news); }
    }

    /** A screen reader is told at most every two seconds. */
    say(news) {
      const now = performance.now();
      if (this.parts.live.textContent && now - (this.saidAt || 0) < 2000) return;
      this.saidAt = now;
      wb.dom.setText(this.parts.live, news);
    }
  }

  wb.define("guide", (root, { props }) => {
    const guide = new Guide(root, { canAct: !props.value });
    document.addEventListener("click", (event) => {
      if (event.target.id === "wb-help") guide.toggle();
    });
    return () => guide.update();
  });
})((window.wb = window.wb || {}));
