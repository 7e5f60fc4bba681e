/* Which methods of drafting the engine cannot offer: their choices are struck through and disabled, the reason stands below. */
(function (wb) {
  "use strict";

  const { text } = wb;

  const NAMES = { ngram: "ngram", draft_model: "draft", eagle: "eagle", hybrid: "hybrid" };

  const NO_HEAD = /^there is no trained head for (.*)$/;

  /** A reason of the engine's in the visitor's language, where the page has words for it. */
  function inWords(reason) {
    const headless = NO_HEAD.exec(reason);
    if (headless) return text("there is no trained head for {model}", { model: headless[1] });
    if (reason.endsWith("(draft_model)")) return text("this engine was started without a draft model (draft_model)");
    if (reason.endsWith("(eagle_head)")) return text("this engine was started without a trained head (eagle_head)");
    return reason;
  }

  /** [method, why it is not available], of those that are not. Nothing is known before an engine is loaded. */
  const missing = () => Object.entries((wb.store.service && wb.store.service.speculation) || {})
    .filter(([, reason]) => reason).map(([method, reason]) => [method, inWords(reason)]);

  /** All radio buttons of the page that choose a method. */
  function mark(reasons) {
    for (const input of document.querySelectorAll(".wb-choice input[type=radio]")) {
      if (!(input.value in NAMES)) continue;
      const reason = reasons.get(input.value) || "";
      if (input.disabled !== Boolean(reason)) input.disabled = Boolean(reason);
      const label = input.closest("label");
      if (label.title !== reason) label.title = reason;
      label.classList.toggle("wb-missing", Boolean(reason));
    }
  }

  /** One line for each reason: several methods may lack the same. */
  function lines(pairs) {
    const byReason = new Map();
    for (const [method, reason] of pairs) byReason.set(reason, [...(byReason.get(reason) || []), text(NAMES[method] || method)]);
    return [...byReason].map(([reason, names]) => text("{methods}: {reason}", { methods: names.join(", "), reason }));
  }

  wb.define("speculationNote", (root) => {
    const { reasons } = wb.dom.parts(root);
    return () => {
      const pairs = missing();
      mark(new Map(pairs));
      wb.dom.hide(reasons, !pairs.length);
      wb.dom.reconcile(reasons, lines(pairs), (line) => line, (line) => wb.dom.element("p", "wb-note", line), () => {});
    };
  });
})((window.wb = window.wb || {}));
