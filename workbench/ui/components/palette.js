/* Colours of the canvases: owner hues (checked for colour blindness), the sequential ramp, CSS variables. */
(function (wb) {
  "use strict";

  const OWNERS = {
    dark: ["#5e99fd", "#f7c15f", "#f45e96", "#65c6e4", "#c17429", "#89b559", "#ed9cb5", "#309d8b", "#8264e7", "#ae8aca", "#bb4cb5", "#a8db9d"],
    light: ["#225bb9", "#b5820c", "#ad115c", "#1988a3", "#6f441d", "#4f7715", "#aa6078", "#005e51", "#4d22a4", "#724f8b", "#760f72", "#6b9b60"],
  };
  const RAMP = {
    dark: ["#24405f", "#3c6080", "#6b8288", "#a5a77d", "#d9c466", "#fdea45"],
    light: ["#fbe36b", "#d9bd4c", "#9c9b6d", "#6a7c86", "#3a5a80", "#16305c"],
  };
  const VARIABLES = ["prefill", "decode", "preempted", "shared", "cached", "cached-bg", "free", "cursor", "grid", "canvas", "live", "error", "copied", "swapped", "accepted", "rejected"];

  let colors = null;
  /** A picture that was painted with colours of another `stamp` is out of date, and the fonts may have come since. */
  let numReads = 0;
  const mixes = new Map();

  function isDark() {
    return document.body.classList.contains("dark") || document.documentElement.classList.contains("dark");
  }

  /** "#rrggbb" or "rgb(r, g, b)" → [r, g, b]. */
  function channels(color) {
    if (color[0] === "#") return [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
    return color.match(/[\d.]+/g).slice(0, 3).map(Number);
  }

  /** `a` with a share `t` of `b`. */
  function mix(a, b, t) {
    const key = `${a}|${b}|${t}`;
    let mixed = mixes.get(key);
    if (!mixed) {
      const [x, y] = [channels(a), channels(b)];
      mixed = `rgb(${x.map((v, i) => Math.round(v * (1 - t) + y[i] * t)).join(", ")})`;
      mixes.set(key, mixed);
    }
    return mixed;
  }

  function read() {
    const style = getComputedStyle(document.body);
    const theme = isDark() ? "dark" : "light";
    const c = { theme, stamp: ++numReads, owners: OWNERS[theme], ramp: RAMP[theme] };
    for (const name of VARIABLES) c[name] = style.getPropertyValue(`--wb-${name}`).trim();
    c.text = style.getPropertyValue("--body-text-color").trim();
    c.subdued = style.getPropertyValue("--body-text-color-subdued").trim();
    c.line = style.getPropertyValue("--border-color-primary").trim();
    c.hatch = hatchTile(c);
    return c;
  }

  /** 45° hatch of period 4 px: cached but free. */
  function hatchTile(c) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 4;
    const g = tile.getContext("2d");
    g.fillStyle = c["cached-bg"];
    g.fillRect(0, 0, 4, 4);
    g.strokeStyle = c.cached;
    g.lineWidth = 1;
    g.beginPath();
    for (const offset of [-4, 0, 4]) { g.moveTo(offset, 4); g.lineTo(offset + 4, 0); }
    g.stroke();
    return tile;
  }

  const palette = {
    mix, channels,
    /** Colours of the present theme. */
    colors() { return colors || (colors = read()); },
    hasPip(slot) { return slot !== null && slot >= 12 && slot < 24; },
    /** Hue of a colour slot; neutral beyond 24 and for requests without one. */
    slot(slot) {
      const c = this.colors();
      return slot === null || slot === undefined || slot >= 24 ? c.decode : c.owners[slot % 12];
    },
    request(request) { return this.slot(request ? request.slot : null); },
    /** CSS background of a small owner square. */
    swatch(request) {
      const color = this.request(request);
      if (!request || !this.hasPip(request.slot)) return color;
      return `radial-gradient(circle, ${this.colors().canvas} 0 1.7px, ${color} 2px)`;
    },
  };

  function forget() {
    colors = null;
    wb.store.notify("theme");
  }
  const observer = new MutationObserver(forget);
  function observe() {
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["class", "style"] });
    observer.observe(document.body, { attributes: true, attributeFilter: ["class", "style"] });
    forget();
  }
  if (document.body) observe();
  else document.addEventListener("DOMContentLoaded", observe);
  // A canvas asks for a font when it first draws with it, which may be long after the page was ready.
  if (document.fonts) document.fonts.addEventListener("loadingdone", forget);

  wb.palette = palette;
})((window.wb = window.wb || {}));
