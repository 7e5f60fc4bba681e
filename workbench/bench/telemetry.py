"""What watching costs: the same run with and without recording and a live page, in turns; and looking back.

Every 100 steps the recorder and the feed of one page (10 frames a second) are switched on or off.
Building the step record itself belongs to the step and is on both sides.
"""

from __future__ import annotations

import argparse
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from workbench.bench.command_line import add_engine_arguments, as_settings, engine_config, log
from workbench.bench.past_frames import past_frame_figures
from workbench.bench.report import Report, describe_environment
from workbench.bench.throughput import start_service
from workbench.bench.workloads import chat_workload
from workbench.engine.messages import Event, RequestFinished
from workbench.errors import ConfigurationError, EngineError
from workbench.sampling_params import SamplingParams
from workbench.server.feed import LiveFeed
from workbench.telemetry.records import CacheMiss, Explanation, FinishReason, StepRecord

if TYPE_CHECKING:
    from workbench.engine.service import EngineService

SEGMENT_STEPS: Final = 100
SETTLING_STEPS: Final = 5
"""Left out after each switch."""
WARM_UP_STEPS: Final = 50
FRAME_INTERVAL_S: Final = 0.1
OUTPUT_TOKENS: Final = 256
MIN_PAIRS: Final = 20
STEP_TIMEOUT_S: Final = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--pairs", type=int, default=MIN_PAIRS, help=f"of 100 steps with and without ({MIN_PAIRS})")
    parser.add_argument("--requests", type=int, default=8, help="requests that decode at any time (default: 8)")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> Report:
    """Measure.

    Raises:
        ConfigurationError: an option is out of range.
        EngineError: a request did not finish.
    """
    if args.pairs < 2 or args.requests < 1:
        raise ConfigurationError("--pairs must be at least 2, --requests at least 1")
    config = engine_config(args)
    service = start_service(config)
    try:
        turns = Turns(service, num_segments=2 * args.pairs)
        load = Load(service, args.requests)
        turns.run(load)
        status = service.status
    finally:
        service.shutdown()
    settings = {
        "pairs": args.pairs,
        "steps_each": SEGMENT_STEPS,
        "requests": args.requests,
        "frames": turns.num_frames,
        "engine": as_settings(config),
        "backend": status.backend,
    }
    figures = overhead_figures(turns.segments) | past_frame_figures(_NoWords())
    return Report(figures, settings, describe_environment())


@dataclass
class Segment:
    """Steps that ran in the same way, and that only decoded."""

    is_watched: bool
    seconds: list[float] = field(default_factory=list)
    """From the beginning of each step to that of the next."""
    tokens: list[int] = field(default_factory=list)

    @property
    def tok_per_s(self) -> float:
        """Decoded tokens per second."""
        return sum(self.tokens) / sum(self.seconds)


def overhead_figures(segments: Sequence[Segment]) -> dict[str, float]:
    """Return how much slower watched segments are than the ones right after them."""
    pairs = [(one.tok_per_s, other.tok_per_s) for one, other in zip(segments[::2], segments[1::2], strict=True)]
    overheads = [1 - watched / alone for watched, alone in pairs]
    quarters = statistics.quantiles(overheads, n=4)
    return {
        "overhead_fraction": statistics.median(overheads),
        "overhead_fraction_p25": quarters[0],
        "overhead_fraction_p75": quarters[2],
        "overhead_fraction_min": min(overheads),
        "overhead_fraction_max": max(overheads),
        "watched_tok_per_s": statistics.median(watched for watched, _ in pairs),
        "alone_tok_per_s": statistics.median(alone for _, alone in pairs),
        "num_pairs": len(pairs),
    }


class Load:
    """Keeps a number of requests running: whenever one ends, another begins."""

    def __init__(self, service: EngineService, num_requests: int) -> None:
        self._service = service
        self._items = chat_workload(num_requests, 0, service.tokenizer)
        self.failure: str | None = None
        self.is_over = False

    def start(self) -> None:
        """Submit all, with outputs of different lengths at first, so that they do not end together."""
        for index in range(len(self._items)):
            self._submit(index, OUTPUT_TOKENS * (index + 1) // len(self._items))

    def _submit(self, index: int, max_tokens: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self._service.submit(self._items[index].prompt_token_ids, params, self._again(index))

    def _again(self, index: int) -> Callable[[Event], None]:
        def on_event(event: Event) -> None:
            if not isinstance(event, RequestFinished) or self.is_over:
                return
            if event.finish_reason is FinishReason.LENGTH:
                self._submit(index, OUTPUT_TOKENS)
            else:
                self.failure = f"request {event.request_id} ended early, {event.finish_reason}: {event.error}"

        return on_event


class Turns:
    """Switches watching on and off while the engine runs, and times the steps."""

    def __init__(self, service: EngineService, num_segments: int) -> None:
        self._service = service
        self._num_segments = num_segments
        self._is_watched = False
        self._num_steps = -WARM_UP_STEPS
        self._before: StepRecord | None = None
        self._is_done = threading.Event()
        self.segments: list[Segment] = []
        self.num_frames = 0

    def run(self, load: Load) -> None:
        """Run all segments. EngineError: a request failed, or the engine stands still."""
        unsubscribe = self._service.subscribe(self._on_step)
        page = threading.Thread(target=self._watch, name="page", daemon=True)
        page.start()
        try:
            load.start()
            done = -1
            while not self._is_done.wait(STEP_TIMEOUT_S):
                if load.failure is not None or len(self.segments) == done:
                    raise EngineError(load.failure or f"no {SEGMENT_STEPS} steps within {STEP_TIMEOUT_S} s")
                done = len(self.segments)
                log(f"{done} of {self._num_segments} segments")
        finally:
            load.is_over = True
            self._is_done.set()
            unsubscribe()
            page.join()

    def _on_step(self, record: StepRecord) -> None:
        """In the engine thread, on both sides alike."""
        if self._is_done.is_set():
            return
        before, self._before = self._before, record
        place = self._num_steps % SEGMENT_STEPS
        if self._num_steps >= 0 and place >= SETTLING_STEPS and before is not None and not before.num_prefill_tokens:
            segment = self.segments[-1]
            segment.seconds.append(record.started_s - before.started_s)
            segment.tokens.append(before.num_decode_tokens)
        self._num_steps += 1
        if self._num_steps >= 0 and self._num_steps % SEGMENT_STEPS == 0:
            self._switch()

    def _switch(self) -> None:
        if len(self.segments) == self._num_segments:
            self._is_done.set()
            return
        self._is_watched = len(self.segments) % 2 == 0
        self._service.recorder.switch(self._is_watched)
        self.segments.append(Segment(self._is_watched))

    def _watch(self) -> None:
        """What a server does for one page."""
        feed = LiveFeed(self._service, _NoWords())
        version = 0
        while not self._is_done.wait(FRAME_INTERVAL_S):
            if not self._is_watched:
                continue
            feed.drain()
            feed.frame(version)
            version = feed.state.version
            self.num_frames += 1


class _NoWords:
    """Sentences are for people; decisions that are told at all are few."""

    def explain(self, explanation: Explanation) -> str:
        return explanation.reason.value

    def explain_miss(self, miss: CacheMiss | None, differs_at: int | None = None) -> str:
        return ""
