"""Saved runs: what is written is what is read, and every kind of damage has one clear message."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.telemetry.test_history import Run, assert_same, random_run
from workbench.errors import ReplayFileError
from workbench.telemetry.history import History
from workbench.telemetry.live_traffic import LiveTraffic
from workbench.telemetry.recorder import Recorder
from workbench.telemetry.run_file import SavedRun, read_run, write_run

STATUS = {"state": "ready", "model_name": "simulated", "error": "the prompt was: secret", "error_traceback": "secret"}


def saved(run: Run, path: Path, *, is_redacted: bool = False) -> Path:
    base, records = run.history.base_and_records()
    path.write_bytes(b"".join(write_run(base, records, STATUS, "paged", is_redacted=is_redacted)))
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def replayed(run: SavedRun) -> History:
    recorder = Recorder(len(run.records))
    state, history = run.base.copy(), History(recorder)
    history.begin(state)
    for record in run.records:
        recorder.record(record)
    for record in run.records:
        state.apply(record)
        history.note(record, state)
    return history


@pytest.mark.parametrize("capacity", [10_000, 70], ids=["whole-run", "its-end"])
def test_run_that_is_read_again_has_the_same_states_and_rows(tmp_path: Path, capacity: int) -> None:
    run = random_run(250, seed=3, capacity=capacity)
    read = read_run(saved(run, tmp_path / "run.jsonl.gz"))
    first = run.history.first_step
    assert (read.header.format, read.header.version, read.header.is_redacted) == ("workbench-run", 1, False)
    assert (read.header.first_step, read.header.num_steps, read.header.epoch) == (first, 250 - first, 1)
    assert (read.header.num_blocks, read.header.block_size, read.header.kv_layout) == (24, 16, "paged")
    assert read.header.status == STATUS
    assert read.records == run.source.recorder.since(first - 1)
    history = replayed(read)
    assert (history.first_step, history.last_step) == (first, 249)
    assert history.chunk(7, -1, 2000) == run.history.chunk(7, -1, 2000)
    for step_id in range(first, 250):
        ours, theirs = run.history.state_at(step_id), history.state_at(step_id)
        for request in (*ours.named, *theirs.named, *ours.request_list.ended, *theirs.request_list.ended):
            request.version = 0  # counts what one process folded
        ours.traffic, theirs.traffic = strip(ours.traffic, step_id), strip(theirs.traffic, step_id)
        assert_same(ours, theirs)


def strip(traffic: LiveTraffic, step_id: int) -> LiveTraffic:
    """The movements of one step, without the version that one process counted."""
    twin = LiveTraffic()
    twin.num_blocks = traffic.num_blocks
    twin._movements.extend(dataclasses.replace(each, version=1) for each in traffic.in_step(step_id))
    return twin


def test_redacted_run_has_no_name_and_no_text_of_an_error(tmp_path: Path) -> None:
    run = random_run(120, seed=5, capacity=60)
    plain = read_run(saved(run, tmp_path / "plain.gz"))
    hidden = saved(run, tmp_path / "hidden.gz", is_redacted=True)
    read = read_run(hidden)
    assert read.header.is_redacted
    assert "names of requests were replaced" in read.header.note
    text = gzip.decompress(hidden.read_bytes()).decode()
    assert "secret" not in text
    names = {request.request_id for record in plain.records for request in record.requests}
    assert {name for name in names if f'"{name}"' in text} == set()
    assert len({request.request_id for record in read.records for request in record.requests}) == len(names)
    for one, other in zip(plain.records, read.records, strict=True):
        assert len(one.explanations) == len(other.explanations)
        assert [b.block_id for b in one.block_changes] == [b.block_id for b in other.block_changes]
        for before, after in zip(one.requests, other.requests, strict=True):
            suffix = before.request_id.removeprefix(before.family)
            assert after.request_id == after.family + suffix
    assert replayed(read).state_at(119).blocks.tolist() == run.history.state_at(119).blocks.tolist()


@pytest.fixture(scope="module")
def good_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(random_run(20, seed=1), tmp_path_factory.mktemp("runs") / "good.jsonl.gz")


def changed(change: Callable[[list[dict[str, Any]]], None]) -> Callable[[bytes], bytes]:
    """A whole file with one thing wrong in its text."""

    def apply(data: bytes) -> bytes:
        lines = [json.loads(line) for line in gzip.decompress(data).splitlines()]
        change(lines)
        return gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode())

    return apply


def without_last_line(data: bytes) -> bytes:
    return gzip.compress(b"".join(gzip.decompress(data).splitlines(keepends=True)[:-1]))


def set_in(line: int, **values: Any) -> Callable[[bytes], bytes]:
    return changed(lambda lines: lines[line].update(values))


def set_block(index: int, value: int) -> Callable[[bytes], bytes]:
    def change(lines: list[dict[str, Any]]) -> None:
        step = next(line for line in lines[2:] if line["block_changes"])
        step["block_changes"][0][index] = value

    return changed(change)


def with_flipped_middle(data: bytes) -> bytes:
    """A byte among the steps: nearer to the front, the first line may be what is hit."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "is no saved run|ends too early|ends here"),
    "not-gzip": (lambda _: b"hello, this is text", "is damaged or no gzip file"),
    "truncated": (lambda data: data[: len(data) // 2], "ends too early: it was not saved or copied to its end"),
    "without-trailer": (lambda data: data[:-8], "ends too early"),
    "flipped": (with_flipped_middle, "is damaged"),
    "checksum": (lambda data: data[:-8] + b"\0\0\0\0" + data[-4:], "is damaged or no gzip file"),
    "other-format": (set_in(0, format="something"), "is no saved run: its first line does not say 'workbench-run'"),
    "no-json": (lambda _: gzip.compress(b"hello\n"), "is no saved run"),
    "newer": (set_in(0, version=2), "has version 2, this workbench reads 1: open it with the release that saved it"),
    "header-field": (set_in(0, num_steps="many"), "is damaged at line 1"),
    "no-steps": (set_in(0, num_steps=0), "damaged at line 1: num_steps=0 is outside 1 to 1000000"),
    "huge-pool": (set_in(0, num_blocks=1 << 40), "num_blocks=1099511627776 is outside 1 to"),
    "base-blocks": (set_in(0, num_blocks=25), "damaged at line 2: 24 blocks where the header announces 25"),
    "base-key": (set_in(1, next_key=0), "damaged at line 2: next_key=0"),
    "step-missing": (without_last_line, "damaged at line 22: the file ends here, but steps are missing"),
    "step-order": (set_in(5, step_id=9), "damaged at line 6: step 9 of epoch 1 where step 3 of epoch 1 comes next"),
    "step-epoch": (set_in(5, epoch=2), "damaged at line 6: step 3 of epoch 2"),
    "step-field": (set_in(5, requests=7), r"damaged at line 6: Expected `array`, got `int`"),
    "step-count": (set_in(5, num_running=-1), "damaged at line 6: a count is outside 0 to"),
    "step-time": (set_in(5, started_s=1e300), "damaged at line 6: a time is outside 0 to"),
    "block-id": (set_block(0, 24), "block 24 is outside the pool of 24"),
    "block-fill": (set_block(3, 17), "has a fill or a place that no block can have"),
    "more-steps": (changed(lambda lines: lines.append(lines[-1])), "more than the 20 steps"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_file_is_refused_with_one_message(good_file: Path, tmp_path: Path, kind: str) -> None:
    damage, message = DAMAGE[kind]
    path = tmp_path / "bad.gz"
    path.write_bytes(damage(good_file.read_bytes()))
    with pytest.raises(ReplayFileError, match=message) as caught:
        read_run(path)
    assert str(path) in str(caught.value)


def test_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ReplayFileError, match="No such file or directory; check the path"):
        read_run(tmp_path / "nowhere.gz")


def test_truncation_at_any_place_is_refused(good_file: Path, tmp_path: Path) -> None:
    data, path = good_file.read_bytes(), tmp_path / "cut.gz"
    for end in range(0, len(data), max(1, len(data) // 60)):
        path.write_bytes(data[:end])
        with pytest.raises(ReplayFileError):
            read_run(path)


@given(st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_text_is_refused_or_can_be_replayed(good_file: Path, tmp_path: Path, data: st.DataObject) -> None:
    text = bytearray(gzip.decompress(good_file.read_bytes()))
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from(b'0123456789-.eE"[]{},nrt \n'))
    path = tmp_path / "changed.gz"
    path.write_bytes(gzip.compress(bytes(text), 1))
    try:
        run = read_run(path)
    except ReplayFileError:
        return
    replayed(run).chunk(1, -1, 2000)
