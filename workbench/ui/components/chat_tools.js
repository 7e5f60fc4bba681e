/* Copying and saving a conversation, and the buttons on its messages. All of it happens in the browser. */
(function (wb) {
  "use strict";

  const SAID_MS = 2500;
  const EXPLAINED_MS = 8000;

  /** Put text on the clipboard; where the page is not trusted with it (plain HTTP), by way of a selection. */
  async function copy(text) {
    if (navigator.clipboard && window.isSecureContext) {
      try {
        await navigator.clipboard.writeText(text);
        return true;
      } catch { /* refused by the browser or a person: the old way may still do */ }
    }
    const area = wb.dom.element("textarea", "wb-sr");
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    if (focused) focused.focus();
    return isCopied;
  }

  /** Hand a text to the browser as a file. */
  function save(name, type, text) {
    const link = wb.dom.element("a", "");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  /** `conversation-2025-04-01-1530.md`, in the visitor's own time. */
  function fileName(extension) {
    const now = new Date();
    const two = (n) => String(n).padStart(2, "0");
    const day = [now.getFullYear(), two(now.getMonth() + 1), two(now.getDate())].join("-");
    return `conversation-${day}-${two(now.getHours())}${two(now.getMinutes())}.${extension}`;
  }

  /** Show a request's row in the timeline, at its last step. Without a timeline there is nowhere to go. */
  function openTimeline(id, step) {
    if (!wb.dom.openTab("timeline")) return;
    wb.store.select(id, -1);
    wb.store.seek(step);
  }

  /** Place of the message that a node belongs to, and of the answer within it: null where there is only one. */
  function placeOf(node) {
    const message = node.closest(".wb-msg");
    const column = node.closest(".wb-answer");
    return {
      index: [...document.querySelectorAll("#wb-chatbot .wb-msg")].indexOf(message),
      answer: column ? [...message.querySelectorAll(".wb-answer")].indexOf(column) : null,
    };
  }

  class ChatTools {
    constructor(root, context) {
      this.root = root;
      this.context = context;
      this.parts = wb.dom.parts(root);
      this.timer = null;
      this.parts.copy.addEventListener("click", () => this.copyAll());
      this.parts.saveMarkdown.addEventListener("click", () => this.saveAs("md", "text/markdown", "markdown"));
      this.parts.saveJson.addEventListener("click", () => this.saveAs("json", "application/json", "json"));
      this.onClick = (event) => this.clicked(event);
      document.addEventListener("click", this.onClick);
      context.watch("value", () => this.show());
      this.show();
    }

    get conversation() { return this.context.props.value || null; }

    show() {
      this.keepSession();
      for (const name of ["copy", "saveMarkdown", "saveJson"]) this.parts[name].disabled = !this.conversation;
    }

    /** Keep the name of this tab's conversation, so that it comes back when the page is reloaded. */
    keepSession() {
      try {
        if (this.conversation) sessionStorage.setItem("wb-session", this.conversation.session);
        else if (this.hadConversation) sessionStorage.removeItem("wb-session");
      } catch { /* private window: it does not come back */ }
      this.hadConversation = Boolean(this.conversation);
    }

    /** What is known about a token that is shown, null when it has just gone. */
    tokenFacts(span) {
      const { index, answer } = placeOf(span);
      const shown = this.conversation && this.conversation.tokens[index];
      const tokens = shown && shown[answer || 0];
      const place = [...span.parentElement.querySelectorAll(".wb-token")].indexOf(span);
      return (tokens && tokens[place]) || null;
    }

    say(words, forMs = SAID_MS) {
      wb.dom.setText(this.parts.said, words);
      clearTimeout(this.timer);
      this.timer = setTimeout(() => wb.dom.setText(this.parts.said, ""), forMs);
    }

    async copyAll() {
      this.say((await copy(this.conversation.markdown)) ? wb.text("Copied.") : wb.text("The browser does not allow copying: save it instead."));
    }

    saveAs(extension, type, key) {
      const name = fileName(extension);
      save(name, type, this.conversation[key]);
      this.say(wb.text("Saved as {path}.", { path: name }));
    }

    /** A button on a message: its place among the messages is its place in the conversation. */
    clicked(event) {
      if (!this.root.isConnected) { document.removeEventListener("click", this.onClick); return; }
      if (!event.target.closest) return;
      const footer = event.target.closest("#wb-chatbot button.wb-foot");
      if (footer && wb.savedRun.isOpen()) this.say(wb.text("This answer is the live engine's: go back to it first, a saved run is open."), EXPLAINED_MS);
      else if (footer) openTimeline(footer.name, Number(footer.value));
      const button = event.target.closest("#wb-chatbot .wb-act");
      if (!button) return;
      const { index, answer } = placeOf(button);
      if (button.classList.contains("wb-act-edit")) this.context.trigger("select", { index, value: "edit" });
      else if (button.classList.contains("wb-act-tokens")) this.context.trigger("expand", { index, answer });
      else if (button.classList.contains("wb-act-choose")) this.context.trigger("option_select", { index, answer });
      else this.copyMessage(button, index, answer);
    }

    /** `answer` is the place among several answers, null where there is one text. */
    async copyMessage(button, index, answer) {
      const message = this.conversation && this.conversation.texts[index];
      const text = answer === null ? message : message && message[answer];
      const isCopied = typeof text === "string" && (await copy(text));
      button.textContent = isCopied ? wb.text("Copied") : wb.text("Not copied");
      setTimeout(() => { button.textContent = wb.text("Copy"); }, SAID_MS);
    }
  }

  wb.define("chatTools", (root, context) => {
    const tools = new ChatTools(root, context);
    wb.tokenFacts = (span) => tools.tokenFacts(span);
    return () => tools.show();
  });
})((window.wb = window.wb || {}));
