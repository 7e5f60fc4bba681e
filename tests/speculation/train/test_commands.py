"""The command line around generation."""

from __future__ import annotations

import pytest

from workbench.errors import ConfigurationError
from workbench.speculation.train import __main__ as command_line
from workbench.speculation.train.generate import Progress
from workbench.speculation.train.generate_command import ProgressLine, claim_folder
from workbench.speculation.train.parts import Part
from workbench.speculation.train.prompts import Conversation
from workbench.speculation.train.sequences import GeneratedSequence, read_sequences, shard_path, write_sequences

MADE = [Conversation("a", None, ("one",))]


def test_folder_is_claimed_once_and_taken_again_by_the_same_run(tmp_path):
    claim_folder(tmp_path, Part.TRAIN, 0, MADE)
    before = (tmp_path / "run.json").read_bytes()
    claim_folder(tmp_path, Part.TRAIN, 0, MADE)

    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("part", "seed", "made"),
    [
        (Part.HELD_OUT, 0, MADE),
        (Part.TRAIN, 1, MADE),
        (Part.TRAIN, 0, [Conversation("a", None, ("two",))]),
    ],
)
def test_folder_of_another_run_is_refused(tmp_path, part, seed, made):
    claim_folder(tmp_path, Part.TRAIN, 0, MADE)

    with pytest.raises(ConfigurationError, match="name another --out"):
        claim_folder(tmp_path, part, seed, made)


def test_progress_line_tells_tokens_rate_and_time_left(capsys):
    line = ProgressLine(100_000)
    line(Progress(num_tokens=10_000, num_tokens_now=5_000, elapsed_s=50.0))
    line(Progress(num_tokens=11_000, num_tokens_now=6_000, elapsed_s=60.0))

    (only,) = capsys.readouterr().err.splitlines()
    assert only.endswith(" 10,000 / 100,000 tokens, 100 tok/s, 15 min left")


def test_pack_writes_one_file_of_all_shards(tmp_path, capsys):
    sequence = GeneratedSequence((1, 2, 3), 1, 0, 0, 0.0)
    write_sequences(shard_path(tmp_path, 0), [sequence])

    assert command_line.main(["pack", str(tmp_path), str(tmp_path / "train.npz")]) == 0
    assert list(read_sequences(tmp_path / "train.npz")) == [sequence]
    assert "2 generated tokens of 1 shards" in capsys.readouterr().err


def test_pack_of_a_folder_without_shards_says_what_is_missing(tmp_path, capsys):
    assert command_line.main(["pack", str(tmp_path), str(tmp_path / "train.npz")]) == 2
    assert f"pack: there are no shards in {tmp_path}" in capsys.readouterr().err
