"""The head of `workbench.speculation.eagle` as something that torch can train: the same sums, over whole texts.

Rows are positions as in `EagleHead`: row p takes its token, those before and behind it and the target's hidden state
of p, and predicts the token behind those. In drafting, only the first token is predicted from the target's states. So
that training sees what drafting does (HASS, arXiv 2408.15766; EAGLE-3, arXiv 2503.01840), each row is
computed several times: in step 1 from the target's state, in step s from the head's own state of the row
before in step s - 1. Then it attends to step 1 of all rows that far back, and to one row of each later step:
those that a draft of s tokens that ends here would have written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn

from kernels.ops import DecoderLayerShape
from workbench.models.llama import LlamaForCausalLM

STREAM_SIZE: Final = 30.0
"""Root mean square of the stream that enters SmolLM2-135M's last layer (measured); a normed state's is about 1.

18 steps on 4,300 tokens left a held-out loss of 6.1, and 6.8 where the head began with the identity and the
layer as it is.
"""


@dataclass(frozen=True)
class Piece:
    """One text in a batch: its rows follow each other, and start at position 0."""

    num_rows: int
    first: int
    """First row that is drafted for; the rows before it are only attended to."""

    @property
    def num_drafted(self) -> int:
        """Rows that are drafted for."""
        return self.num_rows - self.first


@dataclass(frozen=True)
class StepOutput:
    """What one step computed, for the drafted rows that it could compute."""

    hidden: torch.Tensor
    """[S, C], after the final norm."""
    rows: torch.Tensor
    """int64 [S]: which of the batch's drafted rows these are; step s lacks the first s - 1 of each text."""


class TrainingHead(nn.Module):
    """All weights of a head; those of the target are buffers, which are not trained."""

    def __init__(
        self,
        shape: DecoderLayerShape,
        intermediate_size: int,
        embedding: torch.Tensor,
        head: torch.Tensor,
        vocabulary: torch.Tensor,
        cos_sin: torch.Tensor,
    ) -> None:
        """Begin with zeros.

        Args:
            shape: of the layer.
            intermediate_size: of its MLP.
            embedding: the target's, float32 [vocab, C].
            head: rows of the target's head, float32 [V, C].
            vocabulary: their token ids, int64 [V].
            cos_sin: the target's rotary table.
        """
        super().__init__()
        self.shape = shape
        self.dropout = 0.0
        """Share of the numbers that enter and leave the layer's two branches which are left out while training."""
        hidden, heads = embedding.shape[1], shape.num_heads * shape.head_size
        self.token_norm = nn.Parameter(torch.ones(hidden))
        self.fuse = nn.Parameter(torch.zeros(hidden, 3 * hidden))
        self.input_norm = nn.Parameter(torch.ones(hidden))
        self.qkv = nn.Parameter(torch.zeros(heads + 2 * shape.num_kv_heads * shape.head_size, 3 * hidden))
        self.key_before = nn.Parameter(torch.zeros(shape.num_kv_heads * shape.head_size, hidden))
        self.output = nn.Parameter(torch.zeros(hidden, heads))
        self.post_attention_norm = nn.Parameter(torch.ones(hidden))
        self.gate_up = nn.Parameter(torch.zeros(2 * intermediate_size, hidden))
        self.down = nn.Parameter(torch.zeros(hidden, intermediate_size))
        self.final_norm = nn.Parameter(torch.ones(hidden))
        self.embedding: torch.Tensor
        self.head: torch.Tensor
        self.vocabulary: torch.Tensor
        self.cos_sin: torch.Tensor
        for name, value in (
            ("embedding", embedding),
            ("head", head),
            ("vocabulary", vocabulary),
            ("cos_sin", cos_sin),
        ):
            self.register_buffer(name, value, persistent=False)

    @classmethod
    def from_target(cls, target: LlamaForCausalLM, vocabulary: torch.Tensor) -> TrainingHead:
        """Return a head that begins as the target's last layer and final norm, and passes the hidden state through.

        The final norm's weights are taken out of the state, which leaves the target's stream but for its size.
        What the layer adds is made smaller by `STREAM_SIZE`, or it would drown what passes through. Biases of
        the target's layer are left out: a head has none.
        """
        config, weights = target.config, target.weights
        head = cls(
            DecoderLayerShape(config.num_heads, config.num_kv_heads, config.head_size, config.rms_norm_eps),
            config.intermediate_size,
            weights.embedding.dense(),
            weights.head.rows(vocabulary),
            vocabulary,
            target.cos_sin,
        )
        layer = weights.layers[-1]
        with torch.no_grad():
            head.fuse[:, 2 * config.hidden_size :] = torch.diag(1 / weights.final_norm)
            for name in ("input_norm", "post_attention_norm"):
                getattr(head, name).copy_(getattr(layer, name))
            head.qkv[:, : config.hidden_size] = layer.qkv.dense()
            for name in ("output", "gate_up", "down"):
                getattr(head, name).copy_(getattr(layer, name).dense())
            head.output.div_(STREAM_SIZE)
            head.down.div_(STREAM_SIZE)
            head.final_norm.copy_(weights.final_norm)
        return head

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [S, C] → logits [S, V]."""
        return F.linear(hidden, self.head)

    def forward(
        self, token_ids: torch.Tensor, features: torch.Tensor, pieces: Sequence[Piece], num_steps: int
    ) -> Iterator[StepOutput]:
        """Yield what each step computes.

        Args:
            token_ids: int64 [T, 3], those before, at and behind each row's position.
            features: float32 [T, C], the target's hidden states.
            pieces: the texts whose rows follow each other.
            num_steps: tokens drafted from every position.
        """
        rows, is_last = drafted_rows(pieces)
        positions = torch.cat([torch.arange(piece.num_rows) for piece in pieces])
        attention = _Attention(self.shape, pieces)
        residual, seen, before = self._enter(token_ids, features)
        attention.add(*self._keys_values(seen, before, positions))
        drafted = torch.arange(len(rows))
        hidden = self._layer(residual[rows], seen[rows], positions[rows], attention)
        yield StepOutput(hidden, drafted)
        for _ in range(1, num_steps):
            features, drafted = hidden[~is_last[drafted]], drafted[~is_last[drafted]] + 1
            residual, seen, before = self._enter(token_ids[rows[drafted]], features)
            attention.add(*self._keys_values(seen, before, positions[rows[drafted]]))
            hidden = self._layer(residual, seen, positions[rows[drafted]], attention)
            yield StepOutput(hidden, drafted)

    # --------------------------------------------------------------------------- the layer

    def inputs(self, token_ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Token ids int64 [S, 3] and states [S, C] → what `fuse` takes, [S, 3 * C]."""
        return torch.cat([self._tokens(token_ids[:, 1:]).flatten(1), features], dim=-1)

    def _tokens(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Token ids int64 → their normed embeddings, one more dimension."""
        return self._norm(self.embedding[token_ids], self.token_norm)

    def _enter(
        self, token_ids: torch.Tensor, features: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the stream [S, C], what attention sees (it, normed, and two tokens, [S, 3 * C]), and the token before.

        That one, [S, C], is for keys alone.
        """
        inputs = self.inputs(token_ids, features)
        residual = self._drop(F.linear(inputs, self.fuse))
        tokens = inputs[:, : -features.shape[1]]
        seen = torch.cat([self._norm(residual, self.input_norm), tokens], dim=-1)
        return residual, seen, self._tokens(token_ids[:, 0])

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, self.shape.eps)

    def _keys_values(
        self, seen: torch.Tensor, before: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys, rotated, and values, both [T, K, D]."""
        shape = self.shape
        key, value = F.linear(seen, self.qkv[shape.num_heads * shape.head_size :]).chunk(2, dim=-1)
        key = key + F.linear(before, self.key_before)
        per_head = (len(seen), shape.num_kv_heads, shape.head_size)
        return self._rotate(key.view(per_head), positions), value.view(per_head)

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cosine, sine = self.cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1)

    def _layer(
        self, residual: torch.Tensor, seen: torch.Tensor, positions: torch.Tensor, attention: _Attention
    ) -> torch.Tensor:
        """Return the hidden states [S, C] behind layer and final norm."""
        shape = self.shape
        query = F.linear(seen, self.qkv[: shape.num_heads * shape.head_size])
        query = self._rotate(query.view(len(seen), shape.num_heads, shape.head_size), positions)
        residual = residual + self._drop(F.linear(attention(query).flatten(1), self.output))
        gate, up = F.linear(self._norm(residual, self.post_attention_norm), self.gate_up).chunk(2, dim=-1)
        return self._norm(residual + self._drop(F.linear(F.silu(gate) * up, self.down)), self.final_norm)

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class _Attention:
    """Attention of the drafted rows to what they would find when drafted: see the module's docstring."""

    def __init__(self, shape: DecoderLayerShape, pieces: Sequence[Piece]) -> None:
        self._shape, self._pieces = shape, pieces
        self._steps: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
        """By step and piece: keys and values [rows, K, D]."""

    def add(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Take the keys and values of a step: of all rows in the first, later of the rows that it computes."""
        counts = [piece.num_rows for piece in self._pieces] if not self._steps else self._counts(len(self._steps))
        self._steps.append(list(zip(key.split(counts), value.split(counts), strict=True)))

    def _counts(self, num_before: int) -> list[int]:
        """Rows of each piece in the step that `num_before` steps precede."""
        return [max(0, piece.num_drafted - num_before) for piece in self._pieces]

    def __call__(self, query: torch.Tensor) -> torch.Tensor:
        """Queries [S, H, D] of the latest step → [S, H, D]."""
        parts = zip(
            query.split(self._counts(len(self._steps) - 1)), self._pieces, zip(*self._steps, strict=True), strict=True
        )
        return torch.cat([self._attend(one, piece.first, steps) for one, piece, steps in parts])

    def _attend(
        self, query: torch.Tensor, first: int, steps: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """One piece: row j sees the first step of rows 0 … first + j, and row j of each later step."""
        shape, count = self._shape, len(query)
        seen = first + count
        groups = (shape.num_kv_heads, shape.num_heads // shape.num_kv_heads, count)
        query = query.transpose(0, 1).reshape(shape.num_kv_heads, -1, shape.head_size) * shape.head_size**-0.5
        keys, values = (each[:seen].transpose(0, 1) for each in steps[0])
        scores = (query @ keys.transpose(1, 2)).view(*groups, seen)
        scores = scores.masked_fill(torch.ones(count, seen, dtype=torch.bool).triu(first + 1), -torch.inf)
        query = query.view(*groups, shape.head_size)
        later = [
            (key[:count].transpose(0, 1).unsqueeze(1), value[:count].transpose(0, 1).unsqueeze(1))
            for key, value in steps[1:]
        ]
        own = [(query * key).sum(-1, keepdim=True) for key, _ in later]
        weights = torch.cat([scores, *own], dim=-1).softmax(dim=-1)
        found = (weights[..., :seen].flatten(1, 2) @ values).view(*groups, shape.head_size)
        for number, (_, value) in enumerate(later, start=seen):
            found = found + weights[..., number : number + 1] * value
        return found.flatten(0, 1).transpose(0, 1)


def drafted_rows(pieces: Sequence[Piece]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows that are drafted for, int64 [A], and whether each is the last of its piece, bool [A]."""
    rows, is_last, start = [], [], 0
    for piece in pieces:
        rows.append(torch.arange(start + piece.first, start + piece.num_rows))
        is_last.append(torch.arange(piece.num_drafted) == piece.num_drafted - 1)
        start += piece.num_rows
    return torch.cat(rows), torch.cat(is_last)
