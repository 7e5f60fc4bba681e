/* What is known about a token of an answer: on hover, on a tap, and with the arrow keys while the tokens have the focus. */
(function (wb) {
  "use strict";

  const { text } = wb;

  const WIDTH = 230;
  let tip = null;
  let shown = null;

  /** The one tip of the page; Gradio's messages come and go, so it stands outside of them. */
  function build() {
    tip = wb.dom.element("div", "wb wb-tip");
    tip.id = "wb-token-tip";
    tip.setAttribute("role", "status");
    tip.append(wb.dom.element("h4", ""), wb.dom.element("dl", "wb-kv"));
    (document.querySelector(".gradio-container") || document.body).append(tip);
  }

  /** Label / value rows of a token; a value that is not known is a dash. */
  function rowsOf({ id, position, logprob, rank, blocks, slot, source }) {
    const place = blocks.length ? `${blocks.join(", ")} / ${slot}` : "–";
    const rows = [[text("Token id"), String(id)], [text("Position"), wb.format.count(position)], [text("Block / slot"), place]];
    if (logprob !== null) rows.push([text("Log-probability"), logprob.toFixed(3).replace("-", "−")], [text("Rank"), wb.format.count(rank)]);
    return [...rows, [text("Source"), text(source)]];
  }

  function show(token) {
    const facts = wb.tokenFacts && wb.tokenFacts(token);
    if (!facts) return;
    if (!tip || !tip.isConnected) build();
    if (shown) shown.classList.remove("wb-on");
    shown = token;
    token.classList.add("wb-on");
    wb.dom.setText(tip.firstElementChild, token.textContent.trim() || "␣");
    wb.dom.rows(tip.lastElementChild, rowsOf(facts));
    tip.hidden = false;
    const box = token.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(window.innerWidth - WIDTH, box.left))}px`;
    const below = box.bottom + 6;
    const isRoomBelow = below + tip.offsetHeight < window.innerHeight - 30;
    tip.style.top = `${isRoomBelow ? below : Math.max(4, box.top - tip.offsetHeight - 6)}px`;
  }

  function hide() {
    if (shown) shown.classList.remove("wb-on");
    shown = null;
    if (tip) tip.hidden = true;
  }

  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

  /** Arrow keys go from token to token, Escape lets go. */
  function pressed(event) {
    const list = event.target.closest && event.target.closest(".wb-tokens");
    if (!list) return;
    if (event.key === "Escape") { hide(); return; }
    if (!(event.key in STEPS)) return;
    const tokens = [...list.querySelectorAll(".wb-token")];
    const at = tokens.indexOf(shown);
    const next = tokens[at < 0 ? 0 : Math.max(0, Math.min(tokens.length - 1, at + STEPS[event.key]))];
    if (!next) return;
    event.preventDefault();
    next.scrollIntoView({ block: "nearest" });
    show(next);
  }

  document.addEventListener("pointerover", (event) => {
    const token = event.target.closest && event.target.closest(".wb-token");
    if (token) show(token);
    else if (event.pointerType === "mouse") hide();
  });
  document.addEventListener("click", (event) => {
    const token = event.target.closest && event.target.closest(".wb-token");
    if (token) show(token);
    else hide();
  });
  document.addEventListener("keydown", pressed);
  document.addEventListener("focusout", (event) => {
    if (event.target.classList && event.target.classList.contains("wb-tokens")) hide();
  });
})((window.wb = window.wb || {}));
