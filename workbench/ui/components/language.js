/* The visitor's language: what was chosen last, else the browser's. Texts come from the table that Python reads, too.
 *
 * A text's key is its English; `wb.text("queued #{place}", { place: 3 })` fills the placeholders in.
 */
(function (wb) {
  "use strict";

  const COOKIE = "wb-language";
  const LANGUAGES = ["en", "zh"];
  const YEAR_S = 31536000;
  const GROUPED = new Intl.NumberFormat("en-US");

  function chosen() {
    const found = document.cookie.split("; ").find((each) => each.startsWith(`${COOKIE}=`));
    const language = found && found.slice(COOKIE.length + 1);
    return language in wb.tables ? language : null;
  }

  function keep(language) {
    document.cookie = `${COOKIE}=${language}; path=/; max-age=${YEAR_S}; SameSite=Lax`;
  }

  wb.language = chosen() || (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");
  keep(wb.language);
  document.documentElement.lang = wb.language === "zh" ? "zh-CN" : "en";
  const table = wb.tables[wb.language];

  /** A whole number with thousands separators. Most are small, and formatting one takes a hundred times as long. */
  wb.grouped = (n) => (Math.abs(n) < 1000 ? String(n) : GROUPED.format(n));

  /** A text in the visitor's language, its placeholders filled in; whole numbers get thousands separators. */
  wb.text = (english, values = {}) => {
    const text = Object.hasOwn(table, english) ? table[english] : english;
    return text.replace(/\{(\w+)\}/g, (whole, name) => {
      const value = values[name];
      if (typeof value === "number") return Number.isInteger(value) ? wb.grouped(value) : String(value);
      return value === undefined ? whole : String(value);
    });
  };

  /** What the server says in every language, one to a line; where there is one line only, that. */
  wb.ownLine = (lines) => {
    const all = lines.split("\n");
    return all[LANGUAGES.indexOf(wb.language)] ?? all[0];
  };

  const ATTRIBUTES = ["title", "aria-label", "placeholder"];

  /** Put a component's template, which is written in English, into the visitor's language. */
  wb.translate = (root) => {
    if (wb.language === "en") return;
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const english = node.nodeValue.trim();
      if (english && Object.hasOwn(table, english)) node.nodeValue = node.nodeValue.replace(english, () => table[english]);
    }
    for (const name of ATTRIBUTES) {
      for (const node of root.querySelectorAll(`[${name}]`)) {
        const english = node.getAttribute(name);
        if (Object.hasOwn(table, english)) node.setAttribute(name, table[english]);
      }
    }
  };

  /** Change the language. The page begins anew in it; the conversation comes back. */
  wb.speak = (language) => {
    keep(language);
    location.reload();
  };
})((window.wb = window.wb || {}));
