/* Drawing of single cells: what a block's status, owner, fill and references look like in each colour mode. */
(function (wb) {
  "use strict";

  const AGES = [0, 4, 16, 64, 256, Infinity];
  const AT_REST = 0.16, DIMMED = 0.74, UNFILLED = 0.68, UNFILLED_DIMMED = 0.88, FREE_LIT = 0.45;
  const OWNER = 0, REFERENCES = 1, AGE = 2, DEPTH = 3;

  /** Colour of an active block in a mode; `lit` is the request that is looked at. */
  function color(view, block, mode, lit) {
    const c = wb.palette.colors();
    if (mode === REFERENCES) return c.ramp[Math.min(5, view.refs[block] - 1)];
    if (mode === AGE) return age(view, block);
    if (mode === DEPTH) return c.ramp[Math.min(5, Math.floor(Math.log2(1 + view.logical[block] / 3)))];
    return wb.palette.request(lit || view.ownerOf(block));
  }

  /** Steps since allocation, or since the last use of a cached block, on the ramp. */
  function age(view, block) {
    const steps = Math.max(0, view.stepId - view.since[block]);
    return wb.palette.colors().ramp[5 - AGES.findIndex((limit) => steps <= limit)];
  }

  /** Whether a block belongs to those that the legend's filter asks for. */
  function isOfState(view, block, state) {
    if (state === "shared") return view.refs[block] > 1;
    return view.status[block] === { free: wb.store.FREE, cached: wb.store.CACHED, active: wb.store.ACTIVE }[state];
  }

  /** Whether a block steps back: the picture is stale, or something else is looked at. */
  function isDim(view, block, { stale, table, state }) {
    return stale || (table !== null && !table.has(block)) || (Boolean(state) && !isOfState(view, block, state));
  }

  /** Free blocks are the ground, unless the filter asks for them. */
  function freeColor({ state }) {
    const c = wb.palette.colors();
    return state === "free" ? wb.palette.mix(c.free, c.cursor, FREE_LIT) : c.free;
  }

  /** Draw one cell. `options`: layout, mode, compact, stale, state (filter), lit (request), table (Set of its blocks). */
  function draw(g, view, block, options) {
    const [x, y] = options.layout.at(block);
    const size = options.layout.cell;
    const isBack = isDim(view, block, options);
    if (view.status[block] === wb.store.FREE) {
      g.fillStyle = freeColor(options);
      g.fillRect(x, y, size, size);
    } else if (view.status[block] === wb.store.CACHED) drawCached(g, view, block, x, y, size, isBack, options);
    else drawActive(g, view, block, x, y, size, isBack, options);
  }

  function drawCached(g, view, block, x, y, size, isDim, options) {
    const c = wb.palette.colors();
    g.globalAlpha = isDim ? 0.5 : 1;
    g.fillStyle = options.compact ? wb.palette.mix(c.cached, c.canvas, 0.55) : g.createPattern(c.hatch, "repeat");
    g.fillRect(x, y, size, size);
    if (options.mode === AGE && !options.compact) {
      g.globalAlpha = 0.55;
      g.fillStyle = age(view, block);
      g.fillRect(x, y, size, size);
    }
    g.globalAlpha = 1;
  }

  function drawActive(g, view, block, x, y, size, isDim, options) {
    const c = wb.palette.colors();
    const hue = color(view, block, options.mode, isDim ? null : options.lit);
    const paleness = isDim ? DIMMED : options.table ? 0 : AT_REST;
    const height = Math.round((size * view.filled[block]) / view.blockSize);
    if (height < size) {
      g.fillStyle = wb.palette.mix(hue, c.canvas, isDim ? UNFILLED_DIMMED : UNFILLED);
      g.fillRect(x, y, size, size);
    }
    g.fillStyle = paleness ? wb.palette.mix(hue, c.canvas, paleness) : hue;
    g.fillRect(x, y + size - height, size, height);
    if (options.compact) return;
    const owner = view.ownerOf(block);
    if (options.mode === OWNER && view.refs[block] === 1 && owner && wb.palette.hasPip(owner.slot)) drawPip(g, x, y, size, c);
    if (view.refs[block] > 1) drawCorner(g, x, y, size, isDim, c);
  }

  /** Owners 13–24 repeat the hues with a pip. */
  function drawPip(g, x, y, size, c) {
    const pip = size > 9 ? 3 : 2;
    g.fillStyle = c.canvas;
    g.fillRect(x + Math.floor((size - pip) / 2), y + Math.floor((size - pip) / 2), pip, pip);
  }

  /** Shared: a corner triangle over half the cell. */
  function drawCorner(g, x, y, size, isDim, c) {
    const side = Math.round(size * 0.5);
    const triangle = (from, to) => {
      g.beginPath();
      g.moveTo(x + size - from, y);
      g.lineTo(x + size, y);
      g.lineTo(x + size, y + to);
      g.fill();
    };
    g.fillStyle = c.canvas;
    triangle(side + 1.5, side + 1.5);
    g.globalAlpha = isDim ? 0.45 : 1;
    g.fillStyle = c.shared;
    triangle(side - 0.5, side - 0.5);
    g.globalAlpha = 1;
  }

  wb.cells = { draw, color, isDim, freeColor };
})((window.wb = window.wb || {}));
