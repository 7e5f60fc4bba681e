/* Decoder of the live feed's binary frames, version 2; the layout is documented in telemetry/frames.py.
 *
 * Whatever the bytes are, it returns a frame whose parts have the announced shapes, or throws FrameError:
 * the views may rely on them without asking again.
 */
(function (wb) {
  "use strict";

  const HEADER_BYTES = 44;
  const RECORD_BYTES = 20;
  const FORMAT_VERSION = 2;
  const DELTA = 1;
  const MOST_STATUS = 2;
  const REQUEST_FIELDS = 19;

  /** Thrown for bytes that are not a frame this page understands. */
  class FrameError extends Error {}

  /** One record: where a block stands. `owner` is a request key, 0 for none. */
  function readBlock(data, at) {
    return {
      status: data.getUint8(at),
      filled: data.getUint8(at + 1),
      refs: data.getUint16(at + 2, true),
      owner: data.getUint32(at + 4, true),
      logical: data.getInt32(at + 8, true),
      since: data.getUint32(at + 12, true),
      changed: data.getUint32(at + 16, true),
    };
  }

  // ------------------------------------------------------------------ the JSON part

  const isText = (value) => typeof value === "string";
  const isCount = (value) => Number.isInteger(value) && value >= 0;
  const isNothing = (value) => value === null || value === undefined;
  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  const isNumbers = (value) => isObject(value) && Object.values(value).every(Number.isFinite);
  const isList = (value, isGood) => Array.isArray(value) && value.every(isGood);

  function isDecision(told) {
    if (told === null) return true;
    if (!Array.isArray(told) || told.length < 6) return false;
    const [decision, reason, numbers, cause, since, words] = told;
    return isText(decision) && isText(reason) && isNumbers(numbers) && (cause === null || isText(cause)) && Number.isInteger(since) && isText(words);
  }

  function isRequest(row) {
    if (!Array.isArray(row) || row.length < REQUEST_FIELDS) return false;
    const [key, id, status, slot, prompt, output, computed, blocks, isPrefill, preemptions,
      family, sequences, priority, cached, miss, swapped, most, decision, preemption] = row;
    return isCount(key) && [id, status, family, miss].every(isText) && (slot === null || isCount(slot))
      && [prompt, output, computed, blocks, preemptions, sequences, cached, swapped, most].every(isCount)
      && typeof isPrefill === "boolean" && Number.isFinite(priority) && isDecision(decision) && isDecision(preemption);
  }

  function isTransfer(row) {
    if (!Array.isArray(row) || row.length < 4) return false;
    const [step, kind, request, blocks] = row;
    return Number.isInteger(step) && isText(kind) && isText(request) && isList(blocks, isCount);
  }

  const isService = (told) => isObject(told) && (isNothing(told.notices) || isList(told.notices, isText));

  /** Throw when a part of the body has not the shape that frames.py documents. */
  function checkBody(body, numBlocks) {
    const isRun = (run) => isList(run, isCount) && run.length >= 2 && run[0] + run[1] <= numBlocks;
    const parts = {
      figures: isNumbers,
      requests: (value) => isList(value, isRequest),
      living: (value) => isList(value, isCount),
      shared: (value) => isList(value, isRun),
      transfers: (value) => isList(value, isTransfer),
      service: (value) => isNothing(value) || isService(value),
    };
    if (!isObject(body)) throw new FrameError("the JSON part is not an object");
    for (const [name, isGood] of Object.entries(parts)) {
      if (!isGood(body[name])) throw new FrameError(`the JSON part's ${name} are not what this page reads: reload it`);
    }
  }

  /** A full frame stands alone: every request that lives is described. */
  function checkNames({ requests, living }) {
    const described = new Set(requests.map(([key]) => key));
    const missing = living.find((key) => !described.has(key));
    if (missing !== undefined) throw new FrameError(`a full frame does not describe its request ${missing}`);
  }

  function readBody(buffer, at, length, numBlocks) {
    let body;
    try {
      body = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(buffer, at, length)));
    } catch (error) {
      throw new FrameError(`the JSON part cannot be read: ${error.message}`);
    }
    checkBody(body, numBlocks);
    return body;
  }

  // ------------------------------------------------------------------ the frame

  function readHeader(data) {
    if (data.byteLength < HEADER_BYTES) throw new FrameError(`${data.byteLength} bytes are shorter than a header`);
    if (data.getUint32(0, false) !== 0x57424c46) throw new FrameError("the bytes do not start with WBLF");
    const format = data.getUint16(4, true);
    if (format !== FORMAT_VERSION) throw new FrameError(`frame format ${format} is not ${FORMAT_VERSION}: reload the page`);
    const kind = data.getUint8(6);
    if (kind > DELTA) throw new FrameError(`kind ${kind} is neither full (0) nor delta (1)`);
    return {
      isFull: kind !== DELTA,
      instance: data.getUint32(8, true),
      epoch: data.getUint32(12, true),
      version: data.getUint32(16, true),
      baseVersion: data.getUint32(20, true),
      stepId: data.getInt32(24, true),
      numBlocks: data.getUint32(28, true),
      blockSize: data.getUint16(32, true),
      records: [],
      body: null,
    };
  }

  /** Decode an ArrayBuffer; throws FrameError when it is foreign, truncated or inconsistent. */
  function decodeFrame(buffer) {
    if (!(buffer instanceof ArrayBuffer)) throw new FrameError("a frame is binary");
    const data = new DataView(buffer);
    const frame = readHeader(data);
    const numRecords = data.getUint32(36, true), jsonBytes = data.getUint32(40, true);
    const stride = RECORD_BYTES + (frame.isFull ? 0 : 4);
    const jsonAt = HEADER_BYTES + numRecords * stride;
    if (buffer.byteLength !== jsonAt + jsonBytes) {
      throw new FrameError(`${buffer.byteLength} bytes where the header announces ${jsonAt + jsonBytes}`);
    }
    if (frame.isFull && numRecords !== frame.numBlocks) {
      throw new FrameError(`a full frame of ${frame.numBlocks} blocks holds ${numRecords} records`);
    }
    for (let i = 0; i < numRecords; i++) {
      const at = HEADER_BYTES + i * stride;
      const id = frame.isFull ? i : data.getUint32(at, true);
      if (id >= frame.numBlocks) throw new FrameError(`block ${id} is outside the pool of ${frame.numBlocks}`);
      const block = readBlock(data, frame.isFull ? at : at + 4);
      if (block.status > MOST_STATUS) throw new FrameError(`block ${id} has the unknown status ${block.status}`);
      frame.records.push([id, block]);
    }
    frame.body = readBody(buffer, jsonAt, jsonBytes, frame.numBlocks);
    if (frame.isFull) checkNames(frame.body);
    return frame;
  }

  wb.FrameError = FrameError;
  wb.decodeFrame = decodeFrame;
})((window.wb = window.wb || {}));
