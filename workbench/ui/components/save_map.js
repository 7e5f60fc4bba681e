/* The map as a file, made in the browser: a picture of what is shown, or the state of all blocks as JSON. */
(function (wb) {
  "use strict";

  const { text } = wb;
  const EDGE = 12, TITLE_HEIGHT = 44;
  const STATUS = ["free", "cached", "active"];
  const KEEP_MS = 10000;

  function download(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), KEEP_MS);
  }

  const nameOf = (view, ending) => `workbench-map-step-${Math.max(0, view.stepId)}.${ending}`;
  const modelOf = () => (wb.store.service && wb.store.service.model_name) || "–";

  /** Model, step and counts above the picture. */
  function drawTitle(g, view) {
    const c = wb.palette.colors(), family = getComputedStyle(document.body).fontFamily;
    const { active, cached, free } = view.totals();
    g.textBaseline = "middle";
    g.fillStyle = c.text;
    g.font = `600 13px ${family}`;
    g.fillText(text("{model} · step {step}", { model: modelOf(), step: view.stepId }), EDGE, EDGE + 7);
    g.fillStyle = c.subdued;
    g.font = `400 12px ${family}`;
    g.fillText(text("{active} active, {cached} cached, {free} free of {total} blocks", { active, cached, free, total: view.numBlocks }), EDGE, EDGE + 25);
  }

  /** A canvas with the title and the map as it is shown. */
  function picture(view, options) {
    const map = document.createElement("canvas"), whole = document.createElement("canvas");
    wb.mapCanvas.drawAll(map, view, options);
    const { width, height } = options.layout;
    const g = wb.dom.fit(whole, width + 2 * EDGE, TITLE_HEIGHT + height + 2 * EDGE);
    g.fillStyle = wb.palette.colors().canvas;
    g.fillRect(0, 0, width + 2 * EDGE, TITLE_HEIGHT + height + 2 * EDGE);
    drawTitle(g, view);
    g.drawImage(map, EDGE, TITLE_HEIGHT + EDGE, width, height);
    return whole;
  }

  /** Save what the map shows as PNG. */
  function savePicture(view, options) {
    picture(view, options).toBlob((blob) => download(blob, nameOf(view, "png")), "image/png");
  }

  function describeRequest(request) {
    return {
      id: request.id, status: request.status, family: request.family, priority: request.priority,
      prompt_tokens: request.prompt, output_tokens: request.output, computed_tokens: request.computed,
      cached_tokens: request.cached, blocks: request.blocks, swapped_blocks: request.swapped, preemptions: request.preemptions,
    };
  }

  /** All blocks and requests of the shown step, as plain data. */
  function state(view) {
    const blocks = Array.from({ length: view.numBlocks }, (_, id) => ({
      id, status: STATUS[view.status[id]], filled: view.filled[id], references: view.refs[id],
      owners: view.ownersOf(id).map((owner) => owner.id), logical_index: view.logical[id], since_step: view.since[id],
    }));
    return {
      format: "workbench-map", version: 1, model: modelOf(), step: view.stepId,
      num_blocks: view.numBlocks, block_size: view.blockSize, figures: view.figures,
      requests: [...view.requests.values()].map(describeRequest), blocks,
    };
  }

  /** Save the shown step as JSON. */
  function saveState(view) {
    download(new Blob([JSON.stringify(state(view), null, 1)], { type: "application/json" }), nameOf(view, "json"));
  }

  wb.saveMap = { savePicture, saveState };
})((window.wb = window.wb || {}));
