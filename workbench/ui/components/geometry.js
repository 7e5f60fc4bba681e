/* Where each physical block lies on the map. Whole pixels only; a block never moves while the width stays. */
(function (wb) {
  "use strict";

  const MIN_PITCH = 9;
  const MAX_PITCH = 16;
  const ROOMY_PITCH = 28;
  const ROOMY_HEIGHT = 300;
  const COLUMNS = [128, 64, 32, 16];
  /** Above this many blocks the whole pool is shown small, and a lens enlarges a part of it. */
  const BIG_POOL = 16384;
  const BIG = { gutter: 44, top: 14, mostHeight: 560 };
  const BIG_COMPACT = { gutter: 0, top: 0, mostHeight: 240 };

  /** The map's layout: `columns`, `pitch` (cell plus gap), `cell`, `gutter` and `top` for the axes. */
  function mapLayout(width, numBlocks, lens) {
    if (numBlocks > BIG_POOL) return bigLayout(width, numBlocks, BIG, lens);
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
    if (numBlocks > BIG_POOL) return bigLayout(width, numBlocks, BIG_COMPACT);
    const columns = [64, 32, 16].find((c) => Math.floor(width / c) >= 4 && (c === 16 || numBlocks >= c * 4)) || 16;
    const rows = Math.max(1, Math.ceil(numBlocks / columns));
    return make(columns, rows, Math.max(3, Math.min(8, Math.floor(width / columns))), 0, 0);
  }

  /** A pool of many blocks in a window of fixed height: multiples of 32 columns, cells from one pixel on. */
  function bigLayout(width, numBlocks, { gutter, top, mostHeight }, lens) {
    const columnsFor = (pitch) => Math.max(32, 32 * Math.floor((width - gutter) / pitch / 32));
    const fits = (pitch) => columnsFor(pitch) * pitch <= width - gutter && Math.ceil(numBlocks / columnsFor(pitch)) * pitch <= mostHeight;
    const base = [8, 7, 6, 5, 4, 3, 2].find(fits) || 1;
    const columns = columnsFor(base), rows = Math.ceil(numBlocks / columns);
    const { zoom = 1, x = 0, y = 0 } = lens || {};
    const window = { width: columns * base, height: rows * base };
    const shift = [x * window.width * zoom, y * window.height * zoom].map(Math.round);
    const layout = make(columns, rows, base * zoom, gutter - shift[0], top - shift[1]);
    const isCoarse = layout.pitch < MIN_PITCH - 1;
    return Object.assign(layout, { isBig: true, isCoarse, zoom, window, edge: { left: gutter, top }, width: gutter + window.width, height: top + window.height });
  }

  function make(columns, rows, pitch, left, top) {
    return {
      columns, rows, pitch, top, gutter: left,
      isBig: false,
      /** Too small for the details of a cell: one colour stands for it. */
      isCoarse: false,
      cell: pitch >= 3 ? pitch - 1 : pitch,
      width: left + columns * pitch,
      height: top + rows * pitch,
      /** Upper left corner of a block's cell. */
      at(block) { return [left + (block % columns) * pitch, top + Math.floor(block / columns) * pitch]; },
      center(block) { const [x, y] = this.at(block); return [x + this.cell / 2, y + this.cell / 2]; },
      /** Block under a point, -1 for none. */
      blockAt(x, y, numBlocks) {
        if (this.isBig && (x < this.edge.left || y < this.edge.top)) return -1;
        const column = Math.floor((x - left) / pitch), row = Math.floor((y - top) / pitch);
        const block = row * columns + column;
        return column >= 0 && column < columns && row >= 0 && block < numBlocks ? block : -1;
      },
      /** Whether any part of a block's cell is inside the window. */
      isVisible(block) {
        if (!this.isBig || this.zoom === 1) return true;
        const [x, y] = this.at(block);
        return x > this.edge.left - pitch && y > this.edge.top - pitch && x < this.width && y < this.height;
      },
      /** First and last (exclusive) column and row that are at least partly visible. */
      range() {
        if (!this.isBig) return { columns: [0, columns], rows: [0, rows] };
        const span = (low, high, origin, count) => [Math.max(0, Math.floor((low - origin) / pitch)), Math.min(count, Math.ceil((high - origin) / pitch))];
        return { columns: span(this.edge.left, this.width, left, columns), rows: span(this.edge.top, this.height, top, rows) };
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

  wb.geometry = { BIG_POOL, mapLayout, compactLayout, runsOf };
})((window.wb = window.wb || {}));
