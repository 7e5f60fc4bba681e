"""Copying whole blocks, on every backend, against a copy block by block in numpy."""

from __future__ import annotations

import pytest
import torch

from kernels.ops import kv_cache_shapes, load_backend
from tests.kernels.oracle import randn


@pytest.fixture(scope="module", params=["reference", "cpu"])
def ops(request):
    return load_backend(request.param)


def naive(source: torch.Tensor, target: torch.Tensor, pairs: list[list[int]]) -> torch.Tensor:
    """Return what the target must be; `source is target` where both are one tensor."""
    result = target.numpy().copy()
    read = result if source is target else source.numpy()
    for source_block, target_block in pairs:
        for layer in range(result.shape[0]):
            result[layer, target_block] = read[layer, source_block].copy()
    return torch.from_numpy(result)


def ids(pairs: list[list[int]]) -> torch.Tensor:
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2)


@pytest.mark.parametrize("shape", kv_cache_shapes(6, 8, 3, 16))
@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [[0, 5]],
        [[5, 0]],
        [[3, 3]],
        [[0, 1], [0, 2], [0, 3]],
        [[0, 1], [1, 2], [2, 5], [5, 0]],
        [[4, 1], [3, 1]],
    ],
)
def test_copy_blocks_within_one_tensor_goes_in_order(ops, shape, pairs):
    cache = randn(5, *shape)
    expected = naive(cache, cache, pairs)
    ops.copy_blocks(cache, cache, ids(pairs))
    assert torch.equal(cache, expected)


def test_copy_blocks_lets_a_later_pair_read_what_an_earlier_one_wrote(ops):
    cache = randn(2, 4, 1, 8, 8)
    first, second = cache[:, 0].clone(), cache[:, 1].clone()
    ops.copy_blocks(cache, cache, ids([[0, 1], [1, 2]]))
    assert torch.equal(cache[:, 2], first)
    ops.copy_blocks(cache, cache, ids([[2, 3], [3, 1]]))
    assert torch.equal(cache[:, 1], first)
    assert not torch.equal(cache[:, 3], second)


@pytest.mark.parametrize(("num_source", "num_target"), [(6, 3), (3, 6)])
def test_copy_blocks_between_tensors_leaves_the_source_and_all_else_alone(ops, num_source, num_target):
    source, target = randn(4, num_source, 2, 16, 8), randn(4, num_target, 2, 16, 8, seed=1)
    kept = source.clone()
    pairs = [[num_source - 1, 0], [0, num_target - 1], [1, 1]]
    expected = naive(source, target, pairs)
    ops.copy_blocks(source, target, ids(pairs))
    assert torch.equal(target, expected)
    assert torch.equal(source, kept)


def test_copy_blocks_there_and_back_restores_every_bit(ops):
    """As a swap does; NaN and infinity are content like any other."""
    cache = randn(3, 5, 2, 16, 8)
    cache[1, 4, 0, 3, 2], cache[2, 2, 1, 0, 0] = float("nan"), float("-inf")
    host, before = torch.zeros(3, 2, 2, 16, 8), cache.clone()
    ops.copy_blocks(cache, host, ids([[4, 0], [2, 1]]))
    cache[:, [2, 4]] = 0.0
    ops.copy_blocks(host, cache, ids([[0, 4], [1, 2]]))
    assert torch.equal(cache.view(torch.int32), before.view(torch.int32))
