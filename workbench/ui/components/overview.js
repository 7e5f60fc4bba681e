/* Many small cells at once: one colour for each block, written as pixels in a single pass. */
(function (wb) {
  "use strict";

  const AT_REST = 0.16, DIMMED = 0.74, UNFILLED = 0.68, UNFILLED_DIMMED = 0.88;
  const CACHED_SHARE = 0.55, SHARED_SHARE = 0.55;
  const FILL_LEVELS = 4;

  const surface = document.createElement("canvas");
  /** CSS colour → paleness → packed pixel; forgotten with the theme. */
  let shades = new Map(), theme = "";

  const pack = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

  /** `color` with a share of another one, as a packed pixel. */
  function shade(color, other, share) {
    let known = shades.get(color);
    if (!known) shades.set(color, (known = new Map()));
    const key = other === wb.palette.colors().canvas ? share : share - 2;
    let pixel = known.get(key);
    if (pixel === undefined) known.set(key, (pixel = pack(wb.palette.channels(wb.palette.mix(color, other, share)))));
    return pixel;
  }

  /** Packed colour of a block: the hue of its cell, the paler the less it is filled. */
  function pixelOf(view, block, options, c) {
    const isDim = wb.cells.isDim(view, block, options);
    const status = view.status[block];
    if (status === wb.store.FREE) return shade(wb.cells.freeColor(options), c.canvas, 0);
    if (status === wb.store.CACHED) return shade(c.cached, c.canvas, isDim ? DIMMED : CACHED_SHARE);
    const hue = wb.cells.color(view, block, options.mode, isDim ? null : options.lit);
    if (view.refs[block] > 1 && !isDim && options.mode === 0) return shade(hue, c.shared, SHARED_SHARE);
    const full = isDim ? DIMMED : options.table ? 0 : AT_REST, empty = isDim ? UNFILLED_DIMMED : UNFILLED;
    const level = Math.round((FILL_LEVELS * view.filled[block]) / view.blockSize) / FILL_LEVELS;
    return shade(hue, c.canvas, full + (empty - full) * (1 - level));
  }

  /** Draw all visible cells of a coarse layout. */
  function draw(g, view, options) {
    const { layout } = options, c = wb.palette.colors();
    if (theme !== c.theme) { shades = new Map(); theme = c.theme; }
    const range = layout.range();
    const [left, top] = [layout.gutter + range.columns[0] * layout.pitch, layout.top + range.rows[0] * layout.pitch];
    const width = (range.columns[1] - range.columns[0]) * layout.pitch, height = (range.rows[1] - range.rows[0]) * layout.pitch;
    if (width <= 0 || height <= 0) return;
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    for (let row = range.rows[0]; row < range.rows[1]; row++) {
      for (let column = range.columns[0]; column < range.columns[1]; column++) {
        const block = row * layout.columns + column;
        if (block >= view.numBlocks) break;
        const pixel = pixelOf(view, block, options, c);
        let at = (row - range.rows[0]) * layout.pitch * width + (column - range.columns[0]) * layout.pitch;
        for (let y = 0; y < layout.cell; y++, at += width) pixels.fill(pixel, at, at + layout.cell);
      }
    }
    surface.width = width;
    surface.height = height;
    surface.getContext("2d").putImageData(image, 0, 0);
    g.imageSmoothingEnabled = false;
    g.drawImage(surface, left, top);
  }

  /** Draw one cell again, with the same colour. */
  function drawCell(g, view, block, options) {
    const pixel = pixelOf(view, block, options, wb.palette.colors());
    const [x, y] = options.layout.at(block);
    g.fillStyle = `rgb(${pixel & 255}, ${(pixel >> 8) & 255}, ${(pixel >> 16) & 255})`;
    g.fillRect(x, y, options.layout.cell, options.layout.cell);
  }

  /** Column and block numbers beside the window of a big pool. */
  function drawAxes(g, layout) {
    const range = layout.range();
    const every = (span, least) => [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].find((n) => n * layout.pitch >= span && n >= least) || 1024;
    g.fillStyle = wb.palette.colors().subdued;
    g.textAlign = "left";
    const columnStep = every(48, 8);
    for (let column = range.columns[0]; column < range.columns[1]; column++) {
      const x = layout.gutter + column * layout.pitch;
      if (column % columnStep === 0 && x >= layout.edge.left && x < layout.width - 20) g.fillText(column, x + 1, 6);
    }
    g.textAlign = "right";
    const rowStep = every(40, 1);
    for (let row = range.rows[0]; row < range.rows[1]; row++) {
      const y = layout.top + row * layout.pitch + Math.max(layout.cell / 2, 5);
      if (row % rowStep === 0 && y > layout.edge.top && y < layout.height - 2) g.fillText(wb.format.count(row * layout.columns), layout.edge.left - 4, y);
    }
  }

  wb.overview = { draw, drawCell, drawAxes };
})((window.wb = window.wb || {}));
