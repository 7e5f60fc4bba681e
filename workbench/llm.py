"""The offline API: give prompts, get answers, with vLLM's names."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from workbench import errors
from workbench.config import DEFAULT_MODEL, EngineConfig, prepare_process
from workbench.engine.messages import Event, RequestFinished, TokenEvent
from workbench.engine.service import EngineService
from workbench.errors import ConfigurationError, EngineError, InvalidPromptError
from workbench.outputs import CompletionOutput, RequestOutput
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import FinishReason

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, str]]

PROGRESS_FROM = 8
"""A progress bar is drawn for lists of at least this many prompts."""


@dataclass
class _Pending:
    """One prompt whose answer is still coming."""

    index: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


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
            model: name of the packaged model, or path to a GGUF file.
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
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer prompts, all of them batched together; results come in the order of the prompts.

        Args:
            prompts: one prompt or a list; a prompt is a string or a list of token ids.
            sampling_params: one for all, or one per prompt.
            use_tqdm: draw a progress bar for long lists.

        Raises:
            RequestRejectedError: a prompt or a parameter can never be served; nothing is left running.
            EngineError: a request failed inside the engine.
        """
        prompt_list: list[Prompt] = [prompts] if _is_one_prompt(prompts) else list(prompts)  # type: ignore[list-item, arg-type]
        return self._run(prompt_list, _one_each(sampling_params, len(prompt_list)), use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer conversations through the model's chat template. Errors as `generate`.

        Args:
            messages: one conversation or a list of them; a message is `{"role": …, "content": …}`.
            sampling_params: one for all, or one per conversation.
            use_tqdm: draw a progress bar for long lists.
        """
        is_single = bool(messages) and isinstance(messages[0], Mapping)
        conversations: list[Messages] = [messages] if is_single else list(messages)  # type: ignore[list-item, arg-type]
        prompts: list[Prompt] = [self._service.tokenizer.encode_chat(conversation) for conversation in conversations]
        return self._run(prompts, _one_each(sampling_params, len(prompts)), use_tqdm)

    def close(self) -> None:
        """Stop the engine. Safe to call twice."""
        self._service.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, prompts: list[Prompt], params: list[SamplingParams], use_tqdm: bool) -> list[RequestOutput]:
        """Keep the engine full until every prompt is answered; on an error, abort what is left."""
        config = self._service.config
        most_open = config.max_num_seqs + config.max_num_waiting
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        pending: dict[str, _Pending] = {}
        results: dict[int, RequestOutput] = {}
        todo = iter(enumerate(zip(prompts, params, strict=True)))
        bar = tqdm(total=len(prompts), unit="prompt", disable=not use_tqdm or len(prompts) < PROGRESS_FROM)
        try:
            while len(results) < len(prompts):
                while len(pending) < most_open and (item := next(todo, None)) is not None:
                    index, (prompt, one) = item
                    entry = self._entry(index, prompt)
                    pending[self._service.submit(entry.prompt_token_ids, one, events.put)] = entry
                output = _take(events.get(), pending)
                if output is not None:
                    index, result = output
                    results[index] = result
                    bar.update()
        finally:
            bar.close()
            for request_id in pending:
                self._service.abort(request_id)
        return [results[index] for index in range(len(prompts))]

    def _entry(self, index: int, prompt: Prompt) -> _Pending:
        if isinstance(prompt, str):
            return _Pending(index, prompt, tuple(self._service.tokenizer.encode(prompt)))
        return _Pending(index, None, tuple(prompt))


def _take(event: Event, pending: dict[str, _Pending]) -> tuple[int, RequestOutput] | None:
    """Add an event to its prompt; return index and result when it was the last one."""
    entry = pending[event.request_id]
    entry.texts.append(event.text)
    if isinstance(event, TokenEvent):
        entry.token_ids.extend(event.token_ids)
        return None
    del pending[event.request_id]
    if event.finish_reason is FinishReason.ERROR:
        raise _as_exception(event)
    completion = CompletionOutput(
        0, "".join(entry.texts), tuple(entry.token_ids), event.finish_reason, event.stop_reason
    )
    result = RequestOutput(event.request_id, entry.prompt, entry.prompt_token_ids, (completion,), event.metrics)
    return entry.index, result


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
