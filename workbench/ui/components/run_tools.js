/* Saving the recorded run and opening one: the same buttons under the map and over the timeline, and dropping a file on either. */
(function (wb) {
  "use strict";

  const { text } = wb;

  const LINKS = [
    {
      route: "history/save", label: text("Run"), name: text("Save the recorded run"),
      title: text("Save all recorded steps as a file that opens here later, or with “python app.py --replay”. It holds names of requests and no prompts."),
    },
    {
      route: "history/save", parameters: { redacted: 1 }, label: text("Run, redacted"), name: text("Save the run redacted"),
      title: text("The same file to give away: names of requests are replaced by numbers, and texts of errors are left out."),
    },
    {
      route: "history/trace", label: text("Trace"), name: text("Save the run as a trace"),
      title: text("Save all recorded steps as trace events for chrome://tracing and ui.perfetto.dev"),
    },
  ];

  function saveLink({ label, name, title }) {
    const link = wb.dom.element("a", "wb-button", label);
    link.download = "";
    link.title = title;
    link.setAttribute("aria-label", name);
    return link;
  }

  class RunTools {
    /** Fills `parts.runTools`, speaks in `parts.runSaid`; a file can be dropped anywhere on `root`. */
    constructor(root, parts) {
      this.parts = parts;
      this.root = null;
      this.links = LINKS.map(saveLink);
      this.button = wb.dom.element("button", "wb-button", text("Open a saved run…"));
      this.button.type = "button";
      this.button.title = text("Look at a run that was saved here or elsewhere, or drop its file here. The engine goes on.");
      this.input = wb.dom.element("input");
      Object.assign(this.input, { type: "file", accept: ".gz,application/gzip", hidden: true, tabIndex: -1 });
      this.input.setAttribute("aria-label", text("File of a saved run"));
      parts.runTools.append(...this.links, this.button, this.input);
      this.button.addEventListener("click", () => this.input.click());
      this.input.addEventListener("change", () => this.take(this.input.files));
      listenToDrops(root, (files) => this.take(files));
      const stop = wb.store.subscribe(() => (root.isConnected ? this.draw() : stop()));
      this.draw();
    }

    take(files) {
      if (files.length) wb.savedRun.open(files[0]);
      this.input.value = "";  // the same file can be chosen again
    }

    /** The links lead to what is looked at. */
    aim() {
      if (this.root === wb.runRoot) return;
      this.root = wb.runRoot;
      this.links.forEach((link, i) => { link.href = wb.address(LINKS[i].route, LINKS[i].parameters); });
    }

    draw() {
      const isAny = wb.store.range.last >= 0, { opening, refusal } = wb.savedRun;
      this.parts.saveLabel.hidden = !isAny;
      for (const link of this.links) link.hidden = !isAny;
      this.aim();
      this.button.disabled = opening !== null;
      const words = opening === null ? refusal : text("Opening {name}…", { name: opening });
      this.parts.runSaid.hidden = !words;
      this.parts.runSaid.classList.toggle("wb-note-error", Boolean(refusal));
      wb.dom.setText(this.parts.runSaid, words || "");
    }
  }

  /** Take files that are dropped on `root`, and say so while they are held over it. */
  function listenToDrops(root, take) {
    const hint = wb.dom.element("div", "wb-drop-here", text("Drop a saved run to open it"));
    hint.hidden = true;
    root.querySelector(".wb").append(hint);
    const holdsFiles = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
    root.addEventListener("dragover", (event) => {
      if (!holdsFiles(event)) return;
      event.preventDefault();
      hint.hidden = false;
    });
    root.addEventListener("dragleave", (event) => { if (!root.contains(event.relatedTarget)) hint.hidden = true; });
    root.addEventListener("drop", (event) => {
      if (!holdsFiles(event)) return;
      event.preventDefault();
      hint.hidden = true;
      take(event.dataTransfer.files);
    });
  }

  wb.runTools = { RunTools };
})((window.wb = window.wb || {}));
