/* The buttons at the right of the tabs: language, help, theme. Each says what it leads to. */
(function (wb) {
  "use strict";

  wb.define("pageTools", (root) => {
    const parts = wb.dom.parts(root);
    const other = wb.language === "en" ? "zh" : "en";
    parts.language.textContent = other === "zh" ? "中文" : "EN";
    parts.language.lang = other === "zh" ? "zh-CN" : "en";
    parts.language.title = other === "zh" ? "切换为中文" : "Switch to English";
    parts.language.addEventListener("click", () => wb.speak(other));
    const showTheme = () => wb.dom.setText(parts.theme, wb.text(document.body.classList.contains("dark") ? "Light" : "Dark"));
    document.addEventListener("wb-theme", showTheme);
    showTheme();
    return () => {};
  });
})((window.wb = window.wb || {}));
