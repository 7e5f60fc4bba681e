import numpy as np
import torch

from workbench.models.weight_memory import ALIGNMENT, CHUNK_ELEMENTS, WeightMemory


def test_matrices_are_contiguous_aligned_and_do_not_overlap():
    memory = WeightMemory()
    shapes = [(3, 5), (7, 576), (1, 1), (CHUNK_ELEMENTS // 64, 63), (100, 1000), (2, CHUNK_ELEMENTS)]
    matrices = [memory.empty(*shape) for shape in shapes]
    for number, matrix in enumerate(matrices):
        matrix.fill_(number)

    for number, (shape, matrix) in enumerate(zip(shapes, matrices, strict=True)):
        assert tuple(matrix.shape) == shape
        assert matrix.dtype == torch.float32
        assert matrix.is_contiguous()
        assert matrix.data_ptr() % (4 * ALIGNMENT) == 0
        assert bool((matrix == number).all())


def test_small_matrices_share_one_array():
    memory = WeightMemory()
    first, second = memory.empty(2, 16), memory.empty(2, 16)

    assert second.data_ptr() - first.data_ptr() == 2 * 16 * np.dtype(np.float32).itemsize
