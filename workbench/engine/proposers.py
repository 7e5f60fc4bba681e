"""Which ways of drafting an engine can offer, and why not the others."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernels.ops import kv_cache_shapes
from workbench.config import EngineConfig
from workbench.engine.eagle_proposer import make_eagle_proposer
from workbench.errors import ConfigurationError
from workbench.models.loader import LoadedModel
from workbench.speculation.draft_model import DraftModel
from workbench.speculation.ngram import NgramProposer
from workbench.speculation.paged_proposer import PagedProposer, spare_blocks
from workbench.speculation.paged_store import PagedStore
from workbench.speculation.proposer import Proposer
from workbench.speculation_params import METHODS

PARTS = {"ngram": ("ngram",), "draft_model": ("draft_model",), "eagle": ("eagle",), "hybrid": ("ngram", "eagle")}
"""Of each method, the proposers that are asked in turn: the first that suggests anything is followed."""
FREE = ("ngram",)
"""Proposers that cost nothing, so that they are asked before it is known whether a draft pays."""


@dataclass
class Proposers:
    """The proposers of one engine by name, and the reasons of methods that are missing."""

    available: dict[str, Proposer] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)

    def parts_of(self, method: str) -> tuple[str, ...]:
        """Return the proposers that a method asks, none for `none` and for a method that is missing."""
        return () if method in self.unavailable else PARTS.get(method, ())

    @staticmethod
    def is_free(proposer: str) -> bool:
        """Whether asking costs nothing."""
        return proposer in FREE

    @property
    def reasons(self) -> dict[str, str]:
        """Every method, with the reason why it cannot be used, empty when it can."""
        return {method: self.unavailable.get(method, "") for method in METHODS}


def make_proposers(
    config: EngineConfig, target: LoadedModel, draft: LoadedModel | None, *, num_blocks: int, num_swap_blocks: int
) -> Proposers:
    """Make the proposers of an engine.

    Raises:
        ConfigurationError: the draft model has another tokenizer, or sliding windows.
        ModelLoadError: the head that `eagle_head` names is missing, damaged, or made for another model.
    """
    made = Proposers({"ngram": NgramProposer()})
    if draft is None:
        made.unavailable["draft_model"] = "this engine was started without a draft model (draft_model)"
    else:
        check_same_tokenizer(target, draft)
        made.available["draft_model"] = _draft_model(config, target, draft, num_blocks, num_swap_blocks)
    eagle = make_eagle_proposer(config, target, num_blocks=num_blocks, num_swap_blocks=num_swap_blocks)
    if isinstance(eagle, str):
        made.unavailable |= {"eagle": eagle, "hybrid": eagle}
    else:
        made.available["eagle"] = eagle
    return made


def _draft_model(
    config: EngineConfig, target: LoadedModel, draft: LoadedModel, num_blocks: int, num_swap_blocks: int
) -> PagedProposer:
    shape = draft.config
    for model in (target, draft):
        if any(group.window is not None for group in model.config.layer_groups):
            raise ConfigurationError(
                f"draft_model={config.draft_model!r}: {model.config.name} has sliding windows, whose blocks are given "
                "back while a draft still needs them: leave draft_model out"
            )
    if shape.max_position_embeddings < (config.max_model_len or target.config.max_position_embeddings):
        raise ConfigurationError(
            f"draft_model={config.draft_model!r} was trained for {shape.max_position_embeddings} positions, the engine "
            f"serves {config.max_model_len or target.config.max_position_embeddings}: give max_model_len of at most "
            f"{shape.max_position_embeddings}"
        )
    blocks = kv_cache_shapes(1, config.block_size, shape.num_kv_heads, shape.head_size)
    store = PagedStore(
        draft.model.ops,
        [(shape.num_layers, *block[1:]) for block in blocks],
        num_blocks=num_blocks,
        num_spare_blocks=spare_blocks(config.block_size),
        num_swap_blocks=num_swap_blocks,
        block_size=config.block_size,
    )
    return PagedProposer(DraftModel(draft.model), store, target.config.vocab_size)


def check_same_tokenizer(target: LoadedModel, draft: LoadedModel) -> None:
    """Raise ConfigurationError where a token id means one text to the target and another to the draft model."""
    names = f"the draft model {draft.config.name} and the target {target.config.name} have different tokenizers"
    remedy = "give a draft model of the same family"
    sizes = draft.config.vocab_size, target.config.vocab_size
    if sizes[0] != sizes[1]:
        raise ConfigurationError(f"{names}: vocabularies of {sizes[0]:,} and {sizes[1]:,} tokens; {remedy}")
    for token_id in range(sizes[0]):
        own, other = target.tokenizer.token_bytes(token_id), draft.tokenizer.token_bytes(token_id)
        if own != other:
            raise ConfigurationError(f"{names}: token {token_id} is {other!r} and {own!r}; {remedy}")
