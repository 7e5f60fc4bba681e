/* How numbers are written: thousands separators, fixed decimals, and a dash for what is not known. */
(function (wb) {
  "use strict";

  const isKnown = (x) => x !== null && x !== undefined && Number.isFinite(x);
  wb.format = {
    count: (n) => (isKnown(n) ? wb.grouped(Math.round(n)) : "–"),
    fixed: (x, digits) => (isKnown(x) ? x.toFixed(digits) : "–"),
    percent: (share, digits = 1) => (isKnown(share) ? `${(100 * share).toFixed(digits)} %` : "–"),
    kib: (bytes) => (isKnown(bytes) ? `${wb.grouped(Math.round(bytes / 1024))} KiB` : "–"),
    megabytes: (bytes) => (isKnown(bytes) ? wb.grouped(Math.round(bytes / 1e6)) : "–"),
    /** "r1, r2, r3 +2": the first few of a list. */
    some: (names, most) => names.slice(0, most).join(", ") + (names.length > most ? ` +${names.length - most}` : ""),
    /** A count of things in words; both forms of the word are in the table. */
    plural: (n, word) => wb.text(n === 1 ? `{count} ${word}` : `{count} ${word}s`, { count: Math.round(n) }),
  };
})((window.wb = window.wb || {}));
