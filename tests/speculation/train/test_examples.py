"""Batches: which rows are drafted, and what they are to come close to."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from workbench.errors import ConfigurationError
from workbench.speculation.train.examples import Examples, read_data
from workbench.speculation.train.features import Features
from workbench.speculation.train.head_module import Piece
from workbench.speculation.train.sequences import GeneratedSequence, pack, shard_path, write_sequences


def text(num_prompt, num_generated, start=0, temperature=0.0):
    """Its tokens count up from `start`."""
    return GeneratedSequence(tuple(range(start, start + num_prompt + num_generated)), num_prompt, 0, 0, temperature)


def features_of(one):
    """Each position's state is its token; the best token is 100 more, the log total a tenth."""
    tokens = torch.tensor(one.token_ids)
    return Features(tokens.half().unsqueeze(1), (tokens + 100).int(), tokens / 10)


TEXTS = [text(3, 4), text(2, 1, 20), text(2, 3, 40, 0.7), text(1, 2, 60)]
FEATURES = [features_of(one) for one in TEXTS]


def test_batch_pairs_each_state_with_the_tokens_before_at_and_behind_it():
    batch = Examples(TEXTS, FEATURES).batch([0, 2])
    expected = [[max(first, n - 1), n, n + 1] for first, n in ((0, n) for n in range(5))]
    assert batch.token_ids.tolist() == [*expected, [40, 40, 41], [40, 41, 42], [41, 42, 43]]
    assert batch.features.flatten().tolist() == [0, 1, 2, 3, 4, 40, 41, 42]
    assert batch.features.dtype == torch.float32
    assert batch.pieces == (Piece(5, 2), Piece(3, 1))
    assert batch.is_greedy == (True, False)


def test_drafted_rows_are_to_say_what_the_target_says_one_position_on():
    batch = Examples(TEXTS, FEATURES).batch([0, 2])
    # Row 2 holds the state of position 2 and token 3, the answer's first; it drafts token 4 as position 3 does.
    assert batch.hidden.flatten().tolist() == [3, 4, 5, 42, 43]
    assert batch.best.tolist() == [103, 104, 105, 142, 143]
    assert torch.allclose(batch.log_total, torch.tensor([0.3, 0.4, 0.5, 4.2, 4.3]))
    assert batch.weights.tolist() == [1] * 5


def test_prompt_rows_are_drafted_where_they_have_a_weight():
    batch = Examples(TEXTS, FEATURES, prompt_weight=0.25).batch([0, 3])
    assert batch.pieces == (Piece(5, 0), Piece(1, 0))
    assert batch.hidden.flatten().tolist() == [1, 2, 3, 4, 5, 61]
    assert batch.weights.tolist() == [0.25, 0.25, 1, 1, 1, 1]


def test_order_holds_every_text_that_can_be_drafted_once_and_depends_on_seed_and_epoch():
    texts = [text(1, 1 + number % 5) for number in range(40)]
    examples = Examples(texts, [])
    order = examples.order(seed=0, epoch=0, batch_tokens=6)
    assert Counter(number for batch in order for number in batch) == Counter(n for n in range(40) if n % 5)
    assert all(sum(texts[n].num_generated - 1 for n in batch) >= 6 for batch in order[:-1])
    assert all(sum(texts[n].num_generated - 1 for n in batch[:-1]) < 6 for batch in order)
    assert examples.order(0, 0, 6) == order
    assert examples.order(0, 1, 6) != order != examples.order(1, 0, 6)


def test_in_order_stops_once_there_are_enough_tokens():
    examples = Examples([text(1, 3)] * 10, [])
    assert examples.in_order(4) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert examples.in_order(4, 5) == [[0, 1], [2, 3]]
    assert examples.in_order(4, 4) == [[0, 1]]


def test_data_is_read_from_shards_and_from_a_packed_file_alike(tmp_path):
    write_sequences(shard_path(tmp_path, 0), TEXTS[:1])
    write_sequences(shard_path(tmp_path, 1), TEXTS[1:2])
    pack([shard_path(tmp_path, number) for number in range(2)], tmp_path / "packed.npz")
    assert read_data(tmp_path) == read_data(tmp_path / "packed.npz") == TEXTS[:2]


@pytest.mark.parametrize("name", [".", "missing.npz"])
def test_data_that_is_not_there_is_an_error(tmp_path, name):
    with pytest.raises(ConfigurationError, match="there are no texts in"):
        read_data(tmp_path / name)
