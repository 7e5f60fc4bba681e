"""The frame codec: literal layout, refusal of what is not a frame, and fuzzed input."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.telemetry.frames import Frame, FrameError, decode, encode
from workbench.telemetry.live_state import BLOCK_DTYPE

BLOCKS = np.array([(2, 16, 1, 7, 0, 3, 5), (0, 0, 0, 0, -1, 0, 0), (1, 16, 0, 0, 4, 2, 2)], BLOCK_DTYPE)


def make_frame(block_ids: list[int] | None = None, version: int = 9) -> Frame:
    return Frame(
        instance=0xDEADBEEF,
        epoch=2,
        version=version,
        base_version=0 if block_ids is None else 4,
        step_id=5,
        num_blocks=3,
        block_size=16,
        block_ids=None if block_ids is None else np.array(block_ids, np.uint32),
        blocks=BLOCKS if block_ids is None else BLOCKS[block_ids],
        body={"figures": {"running": 1}, "requests": [[7, "r1·é", "running", 0, 3, 2, 4, 1, False, 0]]},
    )


def test_frame_full_keeps_every_block_and_the_body() -> None:
    frame = decode(encode(make_frame()))
    assert frame.is_full
    assert (frame.instance, frame.epoch, frame.version, frame.base_version) == (0xDEADBEEF, 2, 9, 0)
    assert (frame.step_id, frame.num_blocks, frame.block_size) == (5, 3, 16)
    assert frame.blocks.tolist() == BLOCKS.tolist()
    assert frame.body == {"figures": {"running": 1}, "requests": [[7, "r1·é", "running", 0, 3, 2, 4, 1, False, 0]]}


def test_frame_delta_keeps_ids_and_records() -> None:
    frame = decode(encode(make_frame([2])))
    assert not frame.is_full
    assert frame.block_ids is not None
    assert frame.block_ids.tolist() == [2]
    assert frame.blocks.tolist() == [(1, 16, 0, 0, 4, 2, 2)]
    assert frame.base_version == 4


def test_frame_layout_is_the_documented_one() -> None:
    data = encode(make_frame([2]))
    assert data[:8] == b"WBLF\x02\x00\x01\x00"
    assert struct.unpack_from("<IIIIiIHHII", data, 8)[:9] == (0xDEADBEEF, 2, 9, 4, 5, 3, 16, 0, 1)
    assert struct.unpack_from("<IBBHIiII", data, 44) == (2, 1, 16, 0, 0, 4, 2, 2)
    assert data[68:].startswith(b'{"figures"')


def test_frame_before_the_first_step_has_step_minus_one_and_no_blocks() -> None:
    empty = Frame(1, 0, 1, 0, -1, 0, 0, None, np.zeros(0, BLOCK_DTYPE), {})
    frame = decode(encode(empty))
    assert (frame.step_id, frame.num_blocks, len(frame.blocks), frame.body) == (-1, 0, 0, {})


def corrupt(data: bytes, offset: int, value: bytes) -> bytes:
    return data[:offset] + value + data[offset + len(value) :]


FULL, DELTA = encode(make_frame()), encode(make_frame([2]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are shorter than the header of 44"),
        (FULL[:43], "43 bytes are shorter than the header of 44"),
        (corrupt(FULL, 0, b"HTTP"), "starts with b'HTTP'"),
        (corrupt(FULL, 4, b"\x01\x00"), "frame format 1 is not 2: reload the page"),
        (corrupt(FULL, 6, b"\x07"), "kind 7 is neither full"),
        (FULL[:-1], "where the header announces"),
        (FULL + b" ", "where the header announces"),
        (corrupt(FULL, 28, struct.pack("<I", 4)), "a full frame of 4 blocks holds 3 records"),
        (corrupt(DELTA, 44, struct.pack("<I", 3)), "block 3 is outside the pool of 3"),
        (corrupt(DELTA, 68, b"["), "the JSON part cannot be read"),
        (corrupt(DELTA, 68, b"\xff"), "the JSON part cannot be read"),
    ],
)
def test_decode_refuses_what_is_not_a_frame(data: bytes, message: str) -> None:
    with pytest.raises(FrameError, match=message.replace("(", r"\(")):
        decode(data)


def test_decode_refuses_a_body_that_is_not_an_object() -> None:
    data = FULL[:44] + FULL[44 : 44 + 60] + b"[]"
    with pytest.raises(FrameError, match="the JSON part is a list"):
        decode(corrupt(data, 40, struct.pack("<I", 2)))


def test_decode_refuses_every_truncation() -> None:
    for end in range(len(DELTA)):
        with pytest.raises(FrameError):
            decode(DELTA[:end])


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_decode_survives_random_bytes(data: bytes) -> None:
    for candidate in (data, b"WBLF\x02\x00" + data):
        try:
            frame = decode(candidate)
        except FrameError:
            continue
        assert isinstance(frame.body, dict)


@given(st.sampled_from([FULL, DELTA]), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=6))
@settings(max_examples=300, deadline=None)
def test_decode_survives_flipped_bytes(data: bytes, flips: list[tuple[int, int]]) -> None:
    mutated = bytearray(data)
    for offset, value in flips:
        mutated[offset % len(mutated)] = value
    try:
        frame = decode(bytes(mutated))
    except FrameError:
        return
    assert len(frame.blocks) in (1, 3)
