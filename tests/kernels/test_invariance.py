"""Bitwise: on the cpu backend an element depends on its own row only (DESIGN.md, section 6)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numba
import pytest
import torch

from kernels.ops import AttentionMetadata, load_backend
from tests.kernels.oracle import PagedCase, paged_case, prepared, randn

ROW_COUNTS = [1, 2, 3, 4, 5, 16, 33, 900]
WINDOWS = [None, 1, 7, 36, 256, 300]


@pytest.fixture(scope="module")
def ops():
    return load_backend("cpu")


@pytest.fixture
def restore_threads():
    before = numba.get_num_threads(), torch.get_num_threads()
    yield
    numba.set_num_threads(before[0])
    torch.set_num_threads(before[1])


@pytest.mark.parametrize("num_rows", ROW_COUNTS)
@pytest.mark.parametrize(("out_size", "in_size"), [(1536, 576), (576, 1536), (61, 100), (960, 576)])
def test_linear_rows_do_not_depend_on_the_number_of_rows(ops, num_rows, out_size, in_size):
    x, weight = randn(900, in_size), prepared(ops, randn(out_size, in_size, seed=1))
    whole = ops.linear(x, weight)
    first = (900 - num_rows) // 2
    assert torch.equal(ops.linear(x[first : first + num_rows], weight), whole[first : first + num_rows])


@pytest.mark.parametrize("output", [0, 3, 57, 58, 60])
def test_linear_outputs_do_not_depend_on_their_neighbours(ops, output):
    """61 = 7 * 8 + 5 = 3 * 16 + 13: outputs of a narrow last panel are summed like those of full ones."""
    x, matrix = randn(7, 100), randn(61, 100, seed=1)
    alone = ops.linear(x, prepared(ops, matrix[output : output + 1]))
    assert torch.equal(alone[:, 0], ops.linear(x, prepared(ops, matrix))[:, output])


@pytest.mark.parametrize("num_rows", ROW_COUNTS)
def test_row_ops_do_not_depend_on_the_number_of_rows(ops, num_rows):
    x, residual, weight, gate_up = (
        randn(900, 576),
        randn(900, 576, seed=1),
        randn(576, seed=2),
        randn(900, 3072, seed=3),
    )
    rows = slice(450, 450 + num_rows) if num_rows < 450 else slice(0, num_rows)
    assert torch.equal(ops.rms_norm(x[rows], weight, 1e-5), ops.rms_norm(x, weight, 1e-5)[rows])
    added = ops.add_rms_norm(x[rows], residual[rows].clone(), weight, 1e-5)
    assert torch.equal(added, ops.add_rms_norm(x, residual.clone(), weight, 1e-5)[rows])
    assert torch.equal(ops.silu_and_mul(gate_up[rows]), ops.silu_and_mul(gate_up)[rows])


@pytest.mark.parametrize("num_rows", ROW_COUNTS)
def test_rotary_embedding_does_not_depend_on_the_number_of_rows(ops, num_rows):
    cos_sin, positions = randn(1000, 64), torch.arange(900)
    query, key = randn(900, 9, 64, seed=1), randn(900, 3, 64, seed=2)
    some_query, some_key = query[-num_rows:].clone(), key[-num_rows:].clone()
    ops.rotary_embedding(query, key, cos_sin, positions)
    ops.rotary_embedding(some_query, some_key, cos_sin, positions[-num_rows:])
    assert torch.equal(some_query, query[-num_rows:])
    assert torch.equal(some_key, key[-num_rows:])


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.usefixtures("restore_threads")
def test_ops_do_not_depend_on_the_number_of_threads(ops, num_threads):
    if num_threads > numba.config.NUMBA_NUM_THREADS:
        pytest.skip(f"this machine runs {numba.config.NUMBA_NUM_THREADS} threads")
    x, weight, norm = randn(33, 576), prepared(ops, randn(1536, 576, seed=1)), randn(576, seed=2)
    cases = [paged_case([200, 64, 90, 600], [70, 1, 1, 1], window=window) for window in WINDOWS]
    results = []
    for count in (numba.config.NUMBA_NUM_THREADS, num_threads):
        ops.set_num_threads(count)
        attended = [ops.paged_attention(*case.arguments) for case in cases]
        results.append((ops.linear(x, weight), ops.rms_norm(x, norm, 1e-5), *attended))
    for most, some in zip(*results, strict=True):
        assert torch.equal(most, some)


def only_request(case: PagedCase, request: int) -> AttentionMetadata:
    """Return metadata with one request of the case alone."""
    first, last = case.metadata.query_start[request : request + 2].tolist()
    return AttentionMetadata(
        query_start=torch.tensor([0, last - first], dtype=torch.int32),
        seq_lens=case.metadata.seq_lens[request : request + 1],
        block_tables=case.metadata.block_tables[request : request + 1],
        slot_mapping=case.metadata.slot_mapping[first:last],
        positions=case.metadata.positions[first:last],
    )


@pytest.mark.parametrize("window", WINDOWS)
def test_paged_attention_of_a_request_does_not_depend_on_the_others(ops, window):
    case = paged_case([1, 37, 50, 64, 300, 130], [1, 37, 11, 1, 40, 1], window=window)
    together = ops.paged_attention(*case.arguments)
    starts = case.metadata.query_start.tolist()
    for request, (first, last) in enumerate(pairwise(starts)):
        alone = replace(case, query=case.query[first:last], metadata=only_request(case, request))
        assert torch.equal(ops.paged_attention(*alone.arguments), together[first:last])


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", [255, 256, 257, 513, 1100])
def test_paged_attention_over_many_chunks_is_the_same_split_among_threads_or_not(ops, length, window):
    """One token alone has its context split; the same token in a long prompt does not."""
    # Enough tokens for groups of them, whose windows begin on both sides of a chunk's end.
    num_new = 100
    case = paged_case([length], [num_new], window=window)
    whole = ops.paged_attention(*case.arguments)
    for row in range(num_new):
        one = replace(case, query=case.query[row : row + 1])
        metadata = replace(
            case.metadata,
            query_start=torch.tensor([0, 1], dtype=torch.int32),
            seq_lens=torch.tensor([length - num_new + 1 + row], dtype=torch.int32),
            slot_mapping=case.metadata.slot_mapping[row : row + 1],
            positions=case.metadata.positions[row : row + 1],
        )
        alone = replace(one, metadata=metadata)
        assert torch.equal(ops.paged_attention(*alone.arguments), whole[row : row + 1])
    assert torch.allclose(whole.double(), torch.from_numpy(case.expected()), atol=1e-5)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
def test_paged_attention_of_a_prompt_does_not_depend_on_its_chunks(ops, chunk, window):
    length = 320
    case = paged_case([length], [length], window=window)
    whole = ops.paged_attention(*case.arguments)
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        metadata = replace(
            case.metadata,
            query_start=torch.tensor([0, end - start], dtype=torch.int32),
            seq_lens=torch.tensor([end], dtype=torch.int32),
            slot_mapping=case.metadata.slot_mapping[start:end],
            positions=case.metadata.positions[start:end],
        )
        part = replace(case, query=case.query[start:end], metadata=metadata)
        assert torch.equal(ops.paged_attention(*part.arguments), whole[start:end])


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("block_size", [8, 32])
def test_paged_attention_does_not_depend_on_the_block_size(ops, block_size, window):
    """More than is promised (equal tokens), and free: positions, not blocks, decide the order."""
    expected, other = (paged_case([77, 430], [5, 1], block_size=size, window=window) for size in (16, block_size))
    assert torch.equal(ops.paged_attention(*other.arguments), ops.paged_attention(*expected.arguments))
