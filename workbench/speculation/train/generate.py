"""Let the target model answer the prompts, many at a time, and keep what it wrote in shards.

Answers are written in the order of the prompts, not in that in which they end. As an answer depends
on its own context and seed only, a run that was killed and started again leaves the same shards as
one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from workbench.engine.core import EngineCore
from workbench.engine.messages import RequestFinished, Submit, TokenEvent
from workbench.errors import EngineError
from workbench.sampling_params import SamplingParams
from workbench.speculation.train.loops import LoopGuard
from workbench.speculation.train.prompts import Conversation
from workbench.speculation.train.sequences import (
    GeneratedSequence,
    read_sequences,
    shard_path,
    shard_paths,
    write_sequences,
)
from workbench.telemetry.records import FinishReason

SHARD_TOKENS: Final = 25_000
"""Generated tokens after which a shard is written."""

Sampling = Callable[[int, int], SamplingParams]
"""(prompt id, turn) → how to answer it."""


@dataclass
class _Open:
    """A conversation whose answers are coming."""

    prompt_id: int
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    messages: list[dict[str, str]]
    token_ids: list[int] = field(default_factory=list)
    guard: LoopGuard = field(default_factory=LoopGuard)
    done: list[GeneratedSequence] = field(default_factory=list)
    is_looping: bool = False


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    num_tokens: int
    """Generated tokens that are in shards or will be in the next."""
    num_tokens_now: int
    """Tokens generated since this process began, those of answers under way included."""
    elapsed_s: float


class Generation:
    """One run over a list of conversations, from where the shards in a folder end."""

    def __init__(
        self,
        core: EngineCore,
        conversations: Sequence[Conversation],
        sampling: Sampling,
        folder: Path,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        """core: used by this run alone, in the calling thread."""
        self._core, self._conversations, self._sampling = core, conversations, sampling
        self._folder, self._shard_tokens = folder, shard_tokens
        self._open: dict[str, _Open] = {}
        self._complete: dict[int, list[GeneratedSequence]] = {}
        self._shard: list[GeneratedSequence] = []
        self._num_shards, self._next_written, self.num_tokens = 0, 0, 0
        self._resume()
        self._next_asked = self._next_written
        self._num_tokens_now = 0

    def _resume(self) -> None:
        for path in shard_paths(self._folder):
            for sequence in read_sequences(path):
                self._next_written = sequence.prompt_id + 1
                self.num_tokens += sequence.num_generated
            self._num_shards += 1

    def run(self, num_tokens: int, on_progress: Callable[[Progress], None] = lambda _: None) -> None:
        """Generate until `num_tokens` tokens are kept or the conversations are used up.

        Raises:
            EngineError: a step failed; the shards that were written stay.
        """
        started = time.monotonic()
        while self.num_tokens < num_tokens and self._next_written < len(self._conversations):
            self._ask_more()
            outcome = self._core.step()
            if outcome.error is not None:
                raise EngineError(f"generation stopped: {outcome.error}") from outcome.error
            for event in outcome.events:
                self._take(event)
            self._keep_in_order(num_tokens)
            on_progress(Progress(self.num_tokens, self._num_tokens_now, time.monotonic() - started))
        self._write_shard()
        self._core.abort_all(FinishReason.ABORT)

    def _ask_more(self) -> None:
        """Begin conversations until the engine's batch is full."""
        while len(self._open) < self._core.config.max_num_seqs and self._next_asked < len(self._conversations):
            conversation = self._conversations[self._next_asked]
            messages = [] if conversation.system is None else [{"role": "system", "content": conversation.system}]
            self._ask(self._next_asked, messages, [])
            self._next_asked += 1

    def _ask(self, prompt_id: int, messages: list[dict[str, str]], done: list[GeneratedSequence]) -> None:
        turn = len(done)
        messages.append({"role": "user", "content": self._conversations[prompt_id].turns[turn]})
        prompt = tuple(self._core.loaded.tokenizer.encode_chat(messages))
        params = self._sampling(prompt_id, turn)
        name = f"{prompt_id}-{turn}"
        self._open[name] = _Open(prompt_id, prompt, params, messages, done=done)
        self._core.submit(Submit(name, prompt, params, time.monotonic()), seed=0)

    def _take(self, event: TokenEvent | RequestFinished) -> None:
        if event.request_id not in self._open:
            return
        answer = self._open[event.request_id]
        if isinstance(event, RequestFinished):
            if event.finish_reason is FinishReason.ERROR:
                raise EngineError(f"prompt {answer.prompt_id} failed: {event.error}")
            self._end(event.request_id)
            return
        for token_id in event.token_ids:
            if not answer.is_looping:
                answer.token_ids.append(token_id)
                self._num_tokens_now += 1
                answer.is_looping = answer.guard.add(token_id)
        if answer.is_looping:
            self._core.abort(event.request_id)
            self._end(event.request_id)

    def _end(self, name: str) -> None:
        """Keep an answer; go on with the conversation's next turn, unless the answer was a loop."""
        answer = self._open.pop(name)
        answer.done.append(
            GeneratedSequence(
                (*answer.prompt_token_ids, *answer.token_ids),
                len(answer.prompt_token_ids),
                answer.prompt_id,
                len(answer.done),
                answer.sampling_params.temperature,
            )
        )
        if answer.is_looping or len(answer.done) == len(self._conversations[answer.prompt_id].turns):
            self._complete[answer.prompt_id] = answer.done
            return
        text = self._core.loaded.tokenizer.decode(answer.token_ids).strip()
        self._ask(answer.prompt_id, [*answer.messages, {"role": "assistant", "content": text}], answer.done)

    def _keep_in_order(self, num_tokens: int) -> None:
        while self._next_written in self._complete and self.num_tokens < num_tokens:
            sequences = self._complete.pop(self._next_written)
            self._next_written += 1
            self._shard += sequences
            self.num_tokens += sum(one.num_generated for one in sequences)
            if sum(one.num_generated for one in self._shard) >= self._shard_tokens:
                self._write_shard()

    def _write_shard(self) -> None:
        if self._shard:
            write_sequences(shard_path(self._folder, self._num_shards), self._shard)
            self._num_shards += 1
            self._shard = []
