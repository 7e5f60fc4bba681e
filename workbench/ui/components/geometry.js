/* Where each physical block lies on the map. Whole pixels only; a block never moves while the width stays. */
(function (wb) {
  "use strict";

  const MIN_PITCH = 9;
  const MAX_PITCH = 16;
  const ROOMY_PITCH = 28;
  const ROOMY_HEIGHT = 300;
  const COLUMNS = [128, 64, 32, 16];

  /** The map's layout: `columns`, `pitch` (cell plus gap), `cell`, `gutter` and `top` for the axes. */
  function mapLayout(width, numBlocks) {
    const gutter = 34, top = 14;
    // A small pool stays a rectangle: at least as many rows as a quarter of its columns.
    const fits = (c) => Math.floor((width - gutter) / c) >= MIN_PITCH && (c === 16 || Math.ceil(numBlocks / c) >= c / 4);
    const columns = COLUMNS.find(fits) || 16;
    const rows = Math.max(1, Math.ceil(numBlocks / columns));
    const fitting = Math.floor((width - gutter) / columns);
    const roomy = Math.min(ROOMY_PITCH, Math.floor(ROOMY_HEIGHT / rows));
    const pitch = Math.min(fitting, Math.max(MAX_PITCH, roomy));
    return make(columns, rows, pitch, gutter, top);
  }

  /** The compact map beside the chat: no axes, 64 columns where they fit. */
  function compactLayout(width, numBlocks) {
    const columns = [64, 32, 16].find((c) => Math.floor(width / c) >= 4 && (c === 16 || numBlocks >= c * 4)) || 16;
    const rows = Math.max(1, Math.ceil(numBlocks / columns));
    return make(columns, rows, Math.max(3, Math.min(8, Math.floor(width / columns))), 0, 0);
  }

  function make(columns, rows, pitch, gutter, top) {
    return {
      columns, rows, pitch, gutter, top,
      cell: pitch - 1,
      width: gutter + columns * pitch,
      height: top + rows * pitch,
      /** Upper left corner of a block's cell. */
      at(block) { return [gutter + (block % columns) * pitch, top + Math.floor(block / columns) * pitch]; },
      center(block) { const [x, y] = this.at(block); return [x + this.cell / 2, y + this.cell / 2]; },
      /** Block under a point, -1 for none. */
      blockAt(x, y, numBlocks) {
        const column = Math.floor((x - gutter) / pitch), row = Math.floor((y - top) / pitch);
        const block = row * columns + column;
        return column >= 0 && column < columns && row >= 0 && block < numBlocks ? block : -1;
      },
    };
  }

  /** Runs of consecutive physical blocks in a table: `{index, block, length}`. */
  function runsOf(table) {
    const runs = [];
    table.forEach((block, index) => {
      const last = runs.at(-1);
      if (last && block === last.block + last.length) last.length++;
      else runs.push({ index, block, length: 1 });
    });
    return runs;
  }

  wb.geometry = { mapLayout, compactLayout, runsOf };
})((window.wb = window.wb || {}));
