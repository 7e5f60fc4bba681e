"""Shape of a decoder, read from a model file's own metadata."""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.models.rope import RopeScaling


@dataclass(frozen=True)
class LayerGroup:
    """Layers that attend equally far back, and so need the same blocks."""

    window: int | None
    """Tokens to which one attends, itself included; None where it attends to all before it."""
    layers: tuple[int, ...]
    """Their numbers, ascending."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What a Llama-family decoder is made of. All sizes count elements."""

    name: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_position_embeddings: int
    """Longest context in tokens: what the model was trained for, its rotary scaling included."""
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    """The head reuses the embedding matrix."""
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    """Every token that ends an answer: the tokenizer's own and the chat template's end of turn."""
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    qkv_bias: bool = False
    """The query, key and value projections have a bias (Qwen 2)."""
    output_bias: bool = False
    """So has attention's output projection (Llama's `attention_bias` sets both)."""
    mlp_bias: bool = False
    """So have gate, up and down."""
    sliding_windows: tuple[int | None, ...] = ()
    """Each layer's window as in `LayerGroup`; empty where no layer has one."""

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers by window, in order of first appearance; one group where all are alike.

        A KV block holds the layers of one group, so groups are cut to the size of the smallest: then a block
        of any group needs the same room, and they share one pool (as vLLM does).
        """
        windows = self.sliding_windows or (None,) * self.num_layers
        alike = [[n for n in range(self.num_layers) if windows[n] == window] for window in dict.fromkeys(windows)]
        size = min(map(len, alike))
        return tuple(
            LayerGroup(windows[layers[0]], tuple(layers[start : start + size]))
            for layers in alike
            for start in range(0, len(layers), size)
        )

    @property
    def layers_per_block(self) -> int:
        """Layers whose keys and values one KV block holds."""
        return len(self.layer_groups[0].layers)
