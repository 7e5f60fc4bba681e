"""The offline API: give prompts, get answers, with vLLM's names."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from workbench import errors
from workbench.config import DEFAULT_MODEL, EngineConfig, prepare_process
from workbench.engine.messages import Event, RequestFinished, TokenEvent, TokenLogprobs, answer_id
from workbench.engine.service import EngineService
from workbench.errors import ConfigurationError, EngineError, InvalidPromptError
from workbench.outputs import CompletionOutput, Logprob, Logprobs, RequestOutput
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import NO_SPECULATION, SpeculationParams
from workbench.telemetry.records import FinishReason

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, str]]

PROGRESS_FROM = 8
"""A progress bar is drawn for lists of at least this many prompts."""


@dataclass
class _Pending:
    """One answer that is still coming."""

    prompt_index: int
    answer_index: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None


@dataclass
class _Prompt:
    """One prompt and the answers that are there."""

    prompt: str | None
    token_ids: tuple[int, ...]
    num_answers: int
    request_id: str = ""
    answers: dict[int, CompletionOutput] = field(default_factory=dict)
    prompt_logprobs: tuple[dict[int, Logprob] | None, ...] | None = None

    @property
    def is_complete(self) -> bool:
        return len(self.answers) == self.num_answers


class LLM:
    """A model behind an engine of its own.

    ::

        with LLM("SmolLM2-135M-Instruct", block_size=16) as llm:
            for output in llm.generate(["Hello", "Once upon a time"], SamplingParams(temperature=0)):
                print(output.outputs[0].text)
    """

    def __init__(self, model: str = DEFAULT_MODEL, **settings: Any) -> None:
        """Load a model; blocks until it is ready.

        Args:
            model: name of the packaged model, path of a GGUF file or of a Hugging Face directory, or a hub id.
            settings: fields of `workbench.config.EngineConfig`.

        Raises:
            ConfigurationError, ModelLoadError, EngineStoppedError: it cannot be loaded.
        """
        prepare_process()
        self._service = EngineService(EngineConfig.from_mapping({"model": model, **settings}))
        self._service.start()
        try:
            self._service.wait_ready()
        except BaseException:
            self.close()
            raise

    @property
    def service(self) -> EngineService:
        """The engine's door, for everything beyond prompts and answers."""
        return self._service

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        speculation: SpeculationParams = NO_SPECULATION,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer prompts, all of them batched together; results come in the order of the prompts.

        Each has `n` answers, by index; those of a beam search best first, with their `beam_score`.

        Args:
            prompts: one prompt or a list; a prompt is a string or a list of token ids.
            sampling_params: one for all, or one per prompt.
            priority: one number per prompt; lower runs first, where the policy looks at it.
            speculation: how to draft tokens ahead; a greedy answer is the same whatever is drafted.
            use_tqdm: draw a progress bar for long lists.

        Raises:
            RequestRejectedError: a prompt or a parameter can never be served; nothing is left running.
            EngineError: a request failed inside the engine.
        """
        prompt_list: list[Prompt] = [prompts] if _is_one_prompt(prompts) else list(prompts)  # type: ignore[list-item, arg-type]
        if priority is not None and len(priority) != len(prompt_list):
            raise ConfigurationError(
                f"{len(priority)} priorities for {len(prompt_list)} prompts: give one per prompt, or none"
            )
        return self._run(prompt_list, _one_each(sampling_params, len(prompt_list)), priority, speculation, use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculation: SpeculationParams = NO_SPECULATION,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer conversations through the model's chat template. Errors as `generate`.

        Args:
            messages: one conversation or a list of them; a message is `{"role": …, "content": …}`.
            sampling_params: one for all, or one per conversation.
            speculation: how to draft tokens ahead.
            use_tqdm: draw a progress bar for long lists.
        """
        is_single = bool(messages) and isinstance(messages[0], Mapping)
        conversations: list[Messages] = [messages] if is_single else list(messages)  # type: ignore[list-item, arg-type]
        prompts: list[Prompt] = [self._service.tokenizer.encode_chat(conversation) for conversation in conversations]
        return self._run(prompts, _one_each(sampling_params, len(prompts)), None, speculation, use_tqdm)

    def close(self) -> None:
        """Stop the engine. Safe to call twice."""
        self._service.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(
        self,
        prompts: list[Prompt],
        params: list[SamplingParams],
        priorities: Sequence[int] | None,
        speculation: SpeculationParams,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        """Keep the engine full until every prompt is answered; on an error, abort what is left."""
        config = self._service.config
        most_open = config.max_num_seqs + config.max_num_waiting
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        entries = [self._entry(prompt, one.n) for prompt, one in zip(prompts, params, strict=True)]
        todo = enumerate(params)
        following = next(todo, None)
        pending: dict[str, _Pending] = {}
        bar = tqdm(total=len(prompts), unit="prompt", disable=not use_tqdm or len(prompts) < PROGRESS_FROM)
        try:
            while not all(entry.is_complete for entry in entries):
                while following is not None and (not pending or len(pending) + following[1].n <= most_open):
                    prompt_index, one = following
                    entry = entries[prompt_index]
                    priority = 0 if priorities is None else priorities[prompt_index]
                    entry.request_id = self._service.submit(
                        entry.token_ids, one, events.put, priority=priority, speculation=speculation
                    )
                    for index in range(one.n):
                        pending[answer_id(entry.request_id, index)] = _Pending(prompt_index, index)
                    following = next(todo, None)
                bar.update(self._take(events.get(), pending, entries))
        finally:
            bar.close()
            for request_id in pending:
                self._service.abort(request_id)
        return [_result(entry) for entry in entries]

    def _entry(self, prompt: Prompt, num_answers: int) -> _Prompt:
        if isinstance(prompt, str):
            return _Prompt(prompt, tuple(self._service.tokenizer.encode(prompt)), num_answers)
        return _Prompt(None, tuple(prompt), num_answers)

    def _take(self, event: Event, pending: dict[str, _Pending], entries: list[_Prompt]) -> int:
        """Add an event to its answer; return 1 when it completes a prompt, else 0."""
        answer = pending[event.request_id]
        answer.texts.append(event.text)
        if isinstance(event, TokenEvent):
            answer.token_ids.extend(event.token_ids)
            if event.logprobs is not None:
                answer.logprobs = [*(answer.logprobs or ()), *event.logprobs]
            return 0
        del pending[event.request_id]
        if event.finish_reason is FinishReason.ERROR:
            raise _as_exception(event)
        entry = entries[answer.prompt_index]
        entry.answers[answer.answer_index] = CompletionOutput(
            answer.answer_index,
            "".join(answer.texts),
            tuple(answer.token_ids),
            event.finish_reason,
            event.stop_reason,
            None if answer.logprobs is None else self._logprobs(answer.logprobs),
            event.metrics,
            event.beam_score,
        )
        if event.prompt_logprobs is not None:
            entry.prompt_logprobs = (None, *self._logprobs(event.prompt_logprobs))
        return int(entry.is_complete)

    def _logprobs(self, found: Iterable[TokenLogprobs]) -> Logprobs:
        """In vLLM's shape: the most likely tokens and the chosen one, by token id."""
        decode = self._service.tokenizer.decode

        def one(token_id: int, logprob: float, rank: int) -> Logprob:
            return Logprob(logprob, rank, decode([token_id], skip_special_tokens=False))

        return tuple(
            {token_id: one(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(position.top, start=1)}
            | {position.token_id: one(position.token_id, position.logprob, position.rank)}
            for position in found
        )


def _result(entry: _Prompt) -> RequestOutput:
    answers = tuple(entry.answers[index] for index in range(entry.num_answers))
    metrics = answers[0].metrics
    assert metrics is not None
    return RequestOutput(entry.request_id, entry.prompt, entry.token_ids, answers, metrics, entry.prompt_logprobs)


def _as_exception(event: RequestFinished) -> Exception:
    kind = getattr(errors, event.error_type or "", EngineError)
    return kind(event.error) if kind is not EngineError else EngineError(f"{event.error_type}: {event.error}")


def _is_one_prompt(prompts: Any) -> bool:
    """Whether this is one prompt: a string or a list of token ids, and not a list of prompts."""
    if isinstance(prompts, str):
        return True
    if not isinstance(prompts, Sequence):
        raise InvalidPromptError(f"a {type(prompts).__name__} is no prompt: give a string, token ids or a list of them")
    return bool(prompts) and all(isinstance(token_id, int) for token_id in prompts)


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise ConfigurationError(
            f"{len(params)} sampling_params for {count} prompts: give one for all or one per prompt"
        )
    return list(params)
