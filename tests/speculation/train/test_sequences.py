"""Files of generated sequences."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.errors import ConfigurationError
from workbench.speculation.train.sequences import (
    GeneratedSequence,
    pack,
    read_sequences,
    shard_path,
    shard_paths,
    write_sequences,
)

FIRST = GeneratedSequence((1, 49_151, 3, 4), 2, prompt_id=0, turn=0, temperature=0.7)
SECOND = GeneratedSequence((5, 6, 7), 1, prompt_id=1, turn=0, temperature=0.0)
THIRD = GeneratedSequence((65_535, 9), 1, prompt_id=1, turn=1, temperature=0.3)


@pytest.mark.parametrize("compressed", [False, True])
def test_sequences_come_back_as_they_were(tmp_path, compressed):
    path = tmp_path / "some.npz"
    write_sequences(path, [FIRST, SECOND, THIRD], compressed=compressed)

    assert list(read_sequences(path)) == [FIRST, SECOND, THIRD]


def test_file_holds_the_documented_arrays(tmp_path):
    path = tmp_path / "some.npz"
    write_sequences(path, [FIRST, SECOND])

    with np.load(path, allow_pickle=False) as file:
        found = {name: (str(file[name].dtype), file[name].tolist()) for name in file.files}
    temperatures = found.pop("temperatures")
    assert found == {
        "tokens": ("uint16", [1, 49_151, 3, 4, 5, 6, 7]),
        "lengths": ("int32", [4, 3]),
        "prompt_lengths": ("int32", [2, 1]),
        "prompt_ids": ("int32", [0, 1]),
        "turns": ("uint8", [0, 0]),
    }
    assert temperatures == ("float32", pytest.approx([0.7, 0.0]))


def test_file_is_refused_for_a_vocabulary_that_does_not_fit(tmp_path):
    with pytest.raises(ConfigurationError, match="65536 is above 65535"):
        write_sequences(tmp_path / "some.npz", [GeneratedSequence((65_536,), 0, 0, 0, 0.0)])

    assert list(tmp_path.iterdir()) == []


def test_file_of_a_killed_write_is_no_shard(tmp_path, monkeypatch):
    def die(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    write_sequences(shard_path(tmp_path, 0), [FIRST])
    monkeypatch.setattr(np, "savez", die)
    with pytest.raises(KeyboardInterrupt):
        write_sequences(shard_path(tmp_path, 1), [SECOND])

    assert [path.name for path in shard_paths(tmp_path)] == ["shard-0000.npz"]


def test_pack_gathers_shards_in_their_order(tmp_path):
    write_sequences(shard_path(tmp_path, 1), [SECOND, THIRD])
    write_sequences(shard_path(tmp_path, 0), [FIRST])

    assert pack(shard_paths(tmp_path), tmp_path / "train.npz") == 5
    assert list(read_sequences(tmp_path / "train.npz")) == [FIRST, SECOND, THIRD]
