"""A head that begins by copying: it finds where the last tokens stood before, and says what followed them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels.ops import load_backend
from tests.models.tiny_gguf import write_tiny_gguf
from workbench.models.loader import load_model
from workbench.speculation.train.copying import begin_copying
from workbench.speculation.train.examples import neighbours
from workbench.speculation.train.head_module import Piece, TrainingHead

VOCAB_SIZE, LENGTH = 269, 120


@pytest.fixture(scope="module")
def head(tmp_path_factory) -> TrainingHead:
    """Of a model with heads as large as those of the real one, so that tokens can be told apart in them."""
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    write_tiny_gguf(path, num_layers=1, hidden_size=256, num_heads=4, num_kv_heads=2, intermediate_size=64)
    model = load_model(str(path), load_backend("reference"), lambda _: None).model
    made = TrainingHead.from_target(model, torch.arange(VOCAB_SIZE))
    with torch.no_grad():  # the stream, the other heads and the MLP say nothing
        for name in ("fuse", "output", "down"):
            getattr(made, name).zero_()
    begin_copying(made)
    return made


def drafted(head: TrainingHead, text: torch.Tensor) -> int:
    """The token that the head says stands behind a text."""
    with torch.no_grad():
        (output,) = head(neighbours(text.tolist()), torch.zeros(len(text) - 1, 256), [Piece(len(text) - 1, 0)], 1)
        return int(head.logits(output.hidden[-1]).argmax())


def num_right(head: TrainingHead, seed: int, arrange: Callable[[torch.Tensor, int], None]) -> int:
    """Of 40 texts of different tokens, in which something is repeated: how often the token behind it is drafted."""
    generator = torch.Generator().manual_seed(seed)
    right = 0
    for place in range(10, 90, 2):
        text = torch.randperm(VOCAB_SIZE, generator=generator)[:LENGTH]
        arrange(text, place)
        right += drafted(head, text) == int(text[place + 1])
    return right


def test_token_that_followed_the_last_one_before_is_drafted(head):
    """The last token stands once more somewhere in the text."""

    def repeat_one(text: torch.Tensor, place: int) -> None:
        text[-1] = text[place]

    assert num_right(head, 0, repeat_one) >= 28


def test_place_where_the_two_last_tokens_stood_is_preferred(head):
    """The last token stands three times, at one of them behind the one before it; the latest is another."""

    def repeat_two(text: torch.Tensor, place: int) -> None:
        text[-2:] = text[place - 1 : place + 1]
        text[5] = text[110] = text[-1]

    assert num_right(head, 1, repeat_two) >= 28


def test_nothing_is_copied_where_the_keys_do_not_see_their_own_token(head):
    """The same texts, with what the keys compare taken away: so the test above can fail."""
    keys = head.qkv[5 * 64 : 6 * 64]
    kept = keys.detach().clone()
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            keys.zero_()
        texts = [torch.randperm(VOCAB_SIZE, generator=generator)[:LENGTH] for _ in range(20)]
        right = 0
        for text in texts:
            text[-1] = text[40]
            right += drafted(head, text) == int(text[41])
        assert right <= 3
    finally:
        with torch.no_grad():
            keys.copy_(kept)


def test_the_other_heads_are_left_alone(head):
    assert torch.equal(head.qkv[: 2 * 64, 256:], torch.zeros(2 * 64, 512))
    assert torch.equal(head.qkv[4 * 64 : 5 * 64, 256:], torch.zeros(64, 512))
    assert torch.equal(head.key_before[:64], torch.zeros(64, 256))
    assert torch.equal(head.output[:, : 2 * 64], torch.zeros(256, 2 * 64))
