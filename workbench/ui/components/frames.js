/* Decoder of the live feed's binary frames, version 2; the layout is documented in telemetry/frames.py. */
(function (wb) {
  "use strict";

  const HEADER_BYTES = 44;
  const RECORD_BYTES = 20;
  const FORMAT_VERSION = 2;
  const DELTA = 1;

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

  /** Decode an ArrayBuffer; throws FrameError when it is foreign, truncated or inconsistent. */
  function decodeFrame(buffer) {
    if (buffer.byteLength < HEADER_BYTES) throw new FrameError(`${buffer.byteLength} bytes are shorter than a header`);
    const data = new DataView(buffer);
    if (data.getUint32(0, false) !== 0x57424c46) throw new FrameError("the bytes do not start with WBLF");
    const format = data.getUint16(4, true);
    if (format !== FORMAT_VERSION) throw new FrameError(`frame format ${format} is not ${FORMAT_VERSION}: reload the page`);
    const kind = data.getUint8(6);
    if (kind > DELTA) throw new FrameError(`kind ${kind} is neither full (0) nor delta (1)`);
    const isDelta = kind === DELTA;
    const numRecords = data.getUint32(36, true);
    const jsonBytes = data.getUint32(40, true);
    const stride = RECORD_BYTES + (isDelta ? 4 : 0);
    const jsonAt = HEADER_BYTES + numRecords * stride;
    if (buffer.byteLength !== jsonAt + jsonBytes) {
      throw new FrameError(`${buffer.byteLength} bytes where the header announces ${jsonAt + jsonBytes}`);
    }
    const frame = {
      isFull: !isDelta,
      instance: data.getUint32(8, true),
      epoch: data.getUint32(12, true),
      version: data.getUint32(16, true),
      baseVersion: data.getUint32(20, true),
      stepId: data.getInt32(24, true),
      numBlocks: data.getUint32(28, true),
      blockSize: data.getUint16(32, true),
      records: [],
      body: JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, jsonAt, jsonBytes))),
    };
    for (let i = 0; i < numRecords; i++) {
      const at = HEADER_BYTES + i * stride;
      const id = isDelta ? data.getUint32(at, true) : i;
      if (id >= frame.numBlocks) throw new FrameError(`block ${id} is outside the pool of ${frame.numBlocks}`);
      frame.records.push([id, readBlock(data, isDelta ? at + 4 : at)]);
    }
    return frame;
  }

  wb.FrameError = FrameError;
  wb.decodeFrame = decodeFrame;
})((window.wb = window.wb || {}));
