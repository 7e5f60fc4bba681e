"""The definition of right: every op in plain torch, one file each, nothing clever."""

from __future__ import annotations

import torch

from kernels.reference.copy_blocks import copy_blocks
from kernels.reference.decoder_layer import decoder_layer
from kernels.reference.linear import linear
from kernels.reference.paged_attention import paged_attention
from kernels.reference.rms_norm import add_rms_norm, rms_norm
from kernels.reference.rotary import rotary_embedding
from kernels.reference.silu_and_mul import silu_and_mul
from kernels.reference.write_kv import write_kv
from kernels.weights import LinearWeight, RowWeight


class ReferenceOps:
    """`kernels.ops.Ops` in plain torch. Not batch-invariant: torch picks its order by the number of rows."""

    name = "reference"
    is_batch_invariant = False

    linear = staticmethod(linear)
    rms_norm = staticmethod(rms_norm)
    add_rms_norm = staticmethod(add_rms_norm)
    rotary_embedding = staticmethod(rotary_embedding)
    silu_and_mul = staticmethod(silu_and_mul)
    write_kv = staticmethod(write_kv)
    copy_blocks = staticmethod(copy_blocks)
    paged_attention = staticmethod(paged_attention)

    decoder_layer = decoder_layer

    def describe(self) -> str:
        """Return what runs where, for people."""
        return f"torch reference, {torch.get_num_threads()} threads"

    def set_num_threads(self, num_threads: int) -> None:
        """Set torch's threads."""
        torch.set_num_threads(num_threads)

    def prepare_weight(self, weight: RowWeight) -> LinearWeight:
        """Return the weight as it is."""
        return weight

    def warm_up(self) -> None:
        """Do nothing: plain torch compiles nothing."""
