"""The door: what it refuses, what it promises, and what it survives. On a tiny random model."""

from __future__ import annotations

import asyncio
import queue
import threading
import time

import pytest

from kernels.ops import load_backend
from workbench.config import EngineConfig
from workbench.engine import loading
from workbench.engine.messages import RequestFinished, ServiceState, TokenEvent
from workbench.engine.service import EngineService
from workbench.errors import (
    BackendUnavailableError,
    ConfigurationError,
    EngineStoppedError,
    InvalidPromptError,
    InvalidSamplingParamsError,
    ModelLoadError,
    PromptTooLongError,
    QueueFullError,
)
from workbench.models.loader import LoadProgress
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import FinishReason, StepRecord

DEADLINE_S = 20
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)


class Listener:
    """Collects the events of one request."""

    def __init__(self):
        self.events = []
        self.first_token = threading.Event()
        self.finished = threading.Event()

    def __call__(self, event):
        self.events.append(event)
        if isinstance(event, TokenEvent):
            self.first_token.set()
        else:
            self.finished.set()

    @property
    def last(self) -> RequestFinished:
        assert self.finished.wait(DEADLINE_S), f"no end after {DEADLINE_S} s: {self.events}"
        return self.events[-1]

    @property
    def token_ids(self):
        return [token_id for event in self.events if isinstance(event, TokenEvent) for token_id in event.token_ids]


def num_active(service):
    return sum(block.ref_count > 0 for block in service.pool_snapshot().blocks)


def run_alone(service, prompt, params=GREEDY):
    listener = Listener()
    service.submit(prompt, params, listener)
    assert listener.last.finish_reason is FinishReason.LENGTH
    return listener.token_ids


def test_request_yields_its_tokens_and_then_one_terminal_event(make_service):
    service = make_service()
    listener = Listener()
    request_id = service.submit("hello", GREEDY, listener)
    last = listener.last

    assert request_id == "r1"
    assert {event.request_id for event in listener.events} == {"r1"}
    assert [type(event) for event in listener.events] == [TokenEvent] * 8 + [RequestFinished]
    assert [event.num_output_tokens for event in listener.events[:-1]] == list(range(1, 9))
    assert (last.finish_reason, last.metrics.num_prompt_tokens, last.metrics.num_output_tokens) == ("length", 5, 8)
    assert "".join(event.text for event in listener.events) == service.tokenizer.decode(listener.token_ids)
    assert num_active(service) == 0


def test_metrics_are_ordered_moments_of_one_clock(make_service):
    service = make_service()
    listener = Listener()
    service.submit("hello", GREEDY, listener)
    metrics = listener.last.metrics

    assert metrics.queue_time_s is not None and metrics.ttft_s is not None
    assert metrics.itl_p50_s is not None and metrics.itl_p95_s is not None
    assert 0 <= metrics.queue_time_s < metrics.ttft_s < metrics.e2e_s
    assert 0 < metrics.itl_p50_s <= metrics.itl_p95_s
    assert metrics.tpot_s == pytest.approx((metrics.e2e_s - metrics.ttft_s) / 7, rel=0.2)


def test_trap_01_prompt_larger_than_the_empty_pool_is_refused_and_blocks_nobody(make_service):
    service = make_service(num_blocks=4, block_size=16)
    with pytest.raises(PromptTooLongError) as caught:
        service.submit([5] * 65, GREEDY, Listener())

    assert str(caught.value) == (
        "the prompt has 65 tokens and needs 5 KV blocks of 16 tokens, the whole pool has 4: "
        "shorten it to 64 tokens or start the engine with num_blocks >= 5"
    )
    assert len(run_alone(service, [5] * 50)) == 8


def test_trap_02_request_that_outgrows_the_pool_ends_with_an_error_and_the_engine_goes_on(make_service):
    service = make_service(num_blocks=2, block_size=16)
    listener = Listener()
    service.submit([5] * 20, ENDLESS, listener)

    assert (listener.last.finish_reason, listener.last.error_type) == (FinishReason.ERROR, "KVCacheExhaustedError")
    assert "num_blocks >= 3" in str(listener.last.error)
    assert len(listener.token_ids) == 13  # 32 slots hold 20 prompt tokens and 12 outputs; the 13th needs no slot
    assert len(run_alone(service, [5] * 20)) == 8


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        ("", GREEDY, InvalidPromptError, "0 tokens"),
        ([], GREEDY, InvalidPromptError, "0 tokens"),
        ([10**6], GREEDY, InvalidPromptError, "token id 1000000 is not in the vocabulary"),
        ([-1], GREEDY, InvalidPromptError, "token id -1"),
        (["a"], GREEDY, InvalidPromptError, "token id 'a'"),
        ([5] * 512, GREEDY, PromptTooLongError, "the context holds 512"),
        ([5], SamplingParams(stop_token_ids=[10**6]), InvalidSamplingParamsError, "stop_token_ids=1000000"),
    ],
)
def test_bad_request_is_refused_at_the_door_and_neighbours_are_unharmed(make_service, prompt, params, error, message):
    service = make_service(num_blocks=64)
    neighbour = Listener()
    service.submit("neighbour", GREEDY, neighbour)
    with pytest.raises(error, match=message):
        service.submit(prompt, params, Listener())

    assert neighbour.last.finish_reason is FinishReason.LENGTH
    assert service.num_open_requests == 0


def test_queue_full_is_refused_with_the_limit_and_has_room_again_later(make_service):
    service = make_service(max_num_seqs=1, max_num_waiting=1)
    service.pause()
    listeners = [Listener(), Listener()]
    for listener in listeners:
        service.submit("x", GREEDY, listener)
    with pytest.raises(QueueFullError, match="2 requests are open and at most 2") as caught:
        service.submit("x", GREEDY, Listener())
    service.resume()

    assert caught.value.http_status == 429
    assert [listener.last.finish_reason for listener in listeners] == ["length", "length"]
    assert len(run_alone(service, "x")) == 8


def test_request_id_in_use_is_refused(make_service):
    service = make_service()
    service.submit("x", ENDLESS, Listener(), request_id="mine")
    with pytest.raises(ValueError, match="request_id='mine' is in use"):
        service.submit("x", GREEDY, Listener(), request_id="mine")


def test_trap_27_abort_frees_every_block_and_ends_with_abort(make_service):
    service = make_service()
    listeners = [Listener(), Listener()]
    ids = [service.submit("hello", ENDLESS, listener) for listener in listeners]
    assert all(listener.first_token.wait(DEADLINE_S) for listener in listeners)
    assert num_active(service) > 0
    for request_id in ids:
        service.abort(request_id)

    assert [listener.last.finish_reason for listener in listeners] == ["abort", "abort"]
    assert num_active(service) == 0
    service.abort("r1")
    service.abort("unknown")
    assert len(run_alone(service, "x")) == 8


def test_trap_27_leaving_a_stream_aborts_its_request(make_service):
    service = make_service()

    async def take_one():
        async with service.stream("hello", ENDLESS) as stream:
            return await anext(stream)

    assert isinstance(asyncio.run(take_one()), TokenEvent)
    deadline = time.monotonic() + DEADLINE_S
    while num_active(service) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert num_active(service) == 0
    assert service.num_open_requests == 0


def test_stream_yields_all_events_and_ends(make_service):
    service = make_service()

    async def collect():
        return [event async for event in service.stream("hello", GREEDY)]

    events = asyncio.run(collect())

    assert len(events) == 9
    assert isinstance(events[-1], RequestFinished)


def test_trap_30_backend_that_fell_back_is_said_aloud(make_service, monkeypatch):
    real = load_backend

    def without_cpu(name):
        if name == "cpu":
            raise RuntimeError("libgomp is missing: install libgomp1")
        return real(name)

    monkeypatch.setattr(loading, "load_backend", without_cpu)
    service = make_service()

    (notice,) = service.status.notices
    assert "compiled CPU kernels are not active (libgomp is missing: install libgomp1)" in notice
    assert service.status.backend.startswith("torch reference")


def test_trap_30_backend_asked_for_by_name_is_an_error_when_it_cannot_run(tiny_model_path, monkeypatch):
    def broken(name):
        raise RuntimeError("no AVX2 here")

    monkeypatch.setattr(loading, "load_backend", broken)
    service = EngineService(EngineConfig(model=str(tiny_model_path), kernel_backend="cpu"))
    service.start()
    with pytest.raises(BackendUnavailableError, match="kernel_backend='cpu' cannot run here: no AVX2 here"):
        service.wait_ready(DEADLINE_S)
    service.shutdown()


def break_once(service, stage, error):
    """Let one stage of the next step raise `error`, then work again."""

    def install(core):
        owner = core.runner if stage == "execute" else core.scheduler
        real = getattr(owner, stage)

        def broken(*arguments):
            setattr(owner, stage, real)
            raise error

        setattr(owner, stage, broken)

    service._call(install)


@pytest.mark.parametrize("stage", ["execute", "schedule", "update_from_output"])
def test_exception_in_a_step_fails_only_what_was_in_flight(make_service, stage):
    service = make_service(max_num_seqs=1)
    expected = run_alone(service, "second")
    flying, waiting = Listener(), Listener()
    service.submit("first", ENDLESS, flying)
    assert flying.first_token.wait(DEADLINE_S)
    service.pause()
    service.submit("second", GREEDY, waiting)
    break_once(service, stage, ZeroDivisionError("a broken kernel"))
    service.resume()

    assert (flying.last.finish_reason, flying.last.error, flying.last.error_type) == (
        FinishReason.ERROR,
        "a broken kernel",
        "ZeroDivisionError",
    )
    assert waiting.last.finish_reason is FinishReason.LENGTH
    assert waiting.token_ids == expected
    assert num_active(service) == 0
    assert service.status.state is ServiceState.READY
    assert service.status.error == (
        "Unexpected ZeroDivisionError: a broken kernel. The requests in flight ended, the engine goes on."
    )
    assert "ZeroDivisionError" in service.status.error_traceback


def test_exception_without_anyone_in_flight_ends_the_waiting_instead_of_repeating_forever(make_service):
    service = make_service()
    service.pause()
    listener = Listener()
    service.submit("x", GREEDY, listener)
    break_once(service, "schedule", RuntimeError("cannot plan"))
    service.resume()

    assert (listener.last.finish_reason, listener.last.error) == (FinishReason.ERROR, "cannot plan")
    assert len(run_alone(service, "x")) == 8


def test_corrupted_books_are_replaced_and_the_engine_goes_on(make_service):
    service = make_service()
    listener = Listener()
    service.submit("hello", ENDLESS, listener)
    assert listener.first_token.wait(DEADLINE_S)
    service._call(lambda core: core.scheduler.kv_cache.pool.share([core.scheduler.kv_cache.block_table("r1")[0]]))

    assert listener.last.finish_reason is FinishReason.ERROR
    assert "references" in str(listener.last.error)
    assert num_active(service) == 0
    assert len(run_alone(service, "x")) == 8


def test_listener_that_raises_loses_its_request_and_nothing_else(make_service):
    service = make_service()

    def broken(event):
        raise RuntimeError("a broken listener")

    service.submit("x", ENDLESS, broken)
    assert len(run_alone(service, "x")) == 8
    deadline = time.monotonic() + DEADLINE_S
    while service.num_open_requests and time.monotonic() < deadline:
        time.sleep(0.01)
    assert service.num_open_requests == 0
    assert num_active(service) == 0


def test_shutdown_ends_requests_in_flight_and_waiting(make_service):
    service = make_service(max_num_seqs=1)
    listeners = [Listener(), Listener()]
    for listener in listeners:
        service.submit("x", ENDLESS, listener)
    assert listeners[0].first_token.wait(DEADLINE_S)
    service.shutdown()
    service.shutdown()

    assert [listener.last.finish_reason for listener in listeners] == ["abort", "abort"]
    assert service.status.state is ServiceState.STOPPED
    with pytest.raises(EngineStoppedError, match="stopped: start a new engine"):
        service.submit("x", GREEDY, Listener())
    with pytest.raises(EngineStoppedError):
        service.pool_snapshot()
    service.abort("r1")


def test_shutdown_while_loading_does_not_wait_for_the_load(tiny_model_path, monkeypatch):
    entered = threading.Event()

    def slow_load(name, ops, progress):
        entered.set()
        while True:
            progress(LoadProgress("loading weights", 1, 100))
            time.sleep(0.01)

    monkeypatch.setattr(loading, "load_model", slow_load)
    service = EngineService(EngineConfig(model=str(tiny_model_path)))
    service.start()
    assert entered.wait(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while service.status.phase != "loading weights" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (service.status.state, service.status.done_bytes, service.status.total_bytes) == ("loading", 1, 100)
    with pytest.raises(EngineStoppedError, match="loading: wait until the model is loaded"):
        service.submit("x", GREEDY, Listener())
    service.shutdown()

    assert service.status.state is ServiceState.STOPPED


def test_shutdown_of_a_service_that_never_started():
    service = EngineService(EngineConfig())
    service.shutdown()

    assert service.status.state is ServiceState.STOPPED


def test_failed_load_is_shown_and_another_model_can_be_loaded(tiny_model_path, tmp_path):
    service = EngineService(EngineConfig(model=str(tmp_path / "missing.gguf")))
    service.start()
    with pytest.raises(ModelLoadError, match=r"missing\.gguf"):
        service.wait_ready(DEADLINE_S)
    with pytest.raises(EngineStoppedError, match=r"the engine is failed .*missing\.gguf"):
        service.submit("x", GREEDY, Listener())
    failed = service.status
    service.reload(EngineConfig(model=str(tiny_model_path), num_blocks=8))

    assert failed.state is ServiceState.FAILED
    assert service.status.state is ServiceState.READY
    assert service.status.error is None
    assert len(run_alone(service, "x")) == 8
    service.shutdown()


def test_restart_loads_what_was_missing_with_the_same_settings(tiny_model_path, tmp_path):
    path = tmp_path / "late.gguf"
    service = EngineService(EngineConfig(model=str(path), num_blocks=8))
    service.start()
    with pytest.raises(ModelLoadError):
        service.wait_ready(DEADLINE_S)
    with pytest.raises(ModelLoadError, match=r"late\.gguf"):
        service.restart()
    failed = service.status
    path.write_bytes(tiny_model_path.read_bytes())
    service.restart()

    assert (failed.state, service.status.state) == (ServiceState.FAILED, ServiceState.READY)
    assert (service.status.error, service.status.error_traceback) == (None, None)
    assert service.status.num_blocks == 8
    assert len(run_alone(service, "x")) == 8
    service.shutdown()


def test_restart_after_a_failed_step_builds_the_engine_anew(make_service):
    service = make_service()
    expected, before = run_alone(service, "hello"), service.status
    listener = Listener()
    service.pause()
    service.submit("x", GREEDY, listener)
    break_once(service, "execute", RuntimeError("a broken kernel"))
    service.resume()
    assert listener.last.finish_reason is FinishReason.ERROR
    assert num_active(service) == 0
    assert "a broken kernel" in service.status.error
    config = service.config
    service.restart()

    assert (service.status.state, service.status.error) == (ServiceState.READY, None)
    assert service.status.epoch > before.epoch
    assert service.config == config
    assert run_alone(service, "hello") == expected


def test_failure_between_two_steps_is_shown_and_a_restart_mends_it(make_service):
    service = make_service()
    expected = run_alone(service, "hello")

    def break_the_books(core):
        def broken():
            raise AssertionError("2 references, 1 owner")

        core.check_integrity = broken

    service._call(break_the_books)
    listener = Listener()
    service.submit("hello", GREEDY, listener)
    assert listener.finished.wait(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while service.status.state is not ServiceState.FAILED and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (service.status.state, service.status.error) == (ServiceState.FAILED, "2 references, 1 owner")
    assert "in broken" in service.status.error_traceback
    with pytest.raises(EngineStoppedError, match="2 references"):
        service.submit("x", GREEDY, Listener())
    service.restart()
    assert run_alone(service, "hello") == expected


def test_reload_whose_old_settings_fail_too_leaves_no_engine_until_a_restart(
    make_service, tiny_model_path, monkeypatch
):
    service = make_service(num_blocks=32)
    expected = run_alone(service, "hello")
    with monkeypatch.context() as patch:
        patch.setattr(loading, "load_engine", lambda *_: (_ for _ in ()).throw(MemoryError("no room")))
        with pytest.raises(MemoryError):
            service.reload(EngineConfig(model=str(tiny_model_path), num_blocks=16))
        assert (service.status.state, service.status.error) == (ServiceState.FAILED, "no room")
    service.restart()

    assert service.status.num_blocks == 32
    assert run_alone(service, "hello") == expected


def test_reload_takes_over_settings_and_starts_a_new_epoch(make_service, tiny_model_path):
    service = make_service(block_size=16, num_blocks=32)
    expected, before = run_alone(service, "hello"), service.status
    service.reload(EngineConfig(model=str(tiny_model_path), block_size=8, num_blocks=20))

    assert (service.status.block_size, service.status.num_blocks) == (8, 20)
    assert service.status.epoch > before.epoch
    assert len(service.pool_snapshot().blocks) == 20
    assert run_alone(service, "hello") == expected


def test_reload_ends_what_does_not_drain_in_time_with_engine_reload(make_service, tiny_model_path):
    service = make_service()
    listener = Listener()
    service.submit("hello", ENDLESS, listener)
    assert listener.first_token.wait(DEADLINE_S)
    service.reload(EngineConfig(model=str(tiny_model_path), num_blocks=16), drain_s=0)

    assert listener.last.finish_reason in (FinishReason.ENGINE_RELOAD, FinishReason.LENGTH)
    assert num_active(service) == 0


def test_reload_lets_running_requests_finish_and_refuses_new_ones_meanwhile(make_service, tiny_model_path):
    service = make_service()
    service.pause()
    listener = Listener()
    service.submit("hello", GREEDY, listener)
    service.resume()
    service.reload(EngineConfig(model=str(tiny_model_path), num_blocks=16), drain_s=DEADLINE_S)

    assert listener.last.finish_reason is FinishReason.LENGTH
    assert len(listener.token_ids) == 8


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"num_blocks": 10**9}, ConfigurationError), ({"model": "missing.gguf"}, ModelLoadError)],
)
def test_failed_reload_restores_the_old_engine(make_service, tiny_model_path, settings, error):
    service = make_service(num_blocks=32)
    expected, old = run_alone(service, "hello"), service.config
    with pytest.raises(error):
        service.reload(EngineConfig(**{"model": str(tiny_model_path), **settings}))

    assert service.status.state is ServiceState.READY
    assert service.status.error.startswith("The new settings failed, the old ones serve on: ")
    assert service.config == old
    assert run_alone(service, "hello") == expected


def test_live_settings_change_without_interrupting_anyone(make_service):
    service = make_service(max_num_batched_tokens=64)
    listener = Listener()
    service.submit("hello", ENDLESS, listener)
    assert listener.first_token.wait(DEADLINE_S)
    epoch = service.status.epoch
    service.set_limits(max_num_batched_tokens=3, max_num_seqs=2)
    records: queue.SimpleQueue[StepRecord] = queue.SimpleQueue()
    service.subscribe(records.put)
    service.submit("a prompt of many tokens", GREEDY, Listener())
    deadline = time.monotonic() + DEADLINE_S
    while (record := records.get(timeout=DEADLINE_S)).max_num_batched_tokens != 3 and time.monotonic() < deadline:
        pass

    assert record.num_scheduled_tokens <= 3
    assert service.status.epoch == epoch
    assert service.config.max_num_batched_tokens == 3
    with pytest.raises(ConfigurationError, match="max_num_seqs=0"):
        service.set_limits(max_num_batched_tokens=3, max_num_seqs=0)


def test_records_rebuild_the_pool_exactly(make_service):
    service = make_service(num_blocks=6, block_size=8, max_num_batched_tokens=16)
    recorder = service.recorder
    listeners = [Listener() for _ in range(6)]
    for index, listener in enumerate(listeners):
        service.submit([5] * (4 + 3 * index), GREEDY, listener)
    preempted = 0
    for listener in listeners:
        preempted += listener.last.metrics.num_preemptions
        service.pause()
        expected = service.pool_snapshot()
        latest = recorder.latest
        assert latest is not None
        rebuilt = recorder.blocks_at(latest.step_id)
        assert tuple(rebuilt[block_id] for block_id in range(6)) == expected.blocks
        assert (latest.num_free_blocks, latest.num_active_blocks) == (6 - num_active(service), num_active(service))
        service.resume()
    assert preempted > 0


def test_block_details_decode_the_tokens_of_a_block(make_service):
    service = make_service(block_size=8)
    listener = Listener()
    service.submit("hello world", ENDLESS, listener)
    assert listener.first_token.wait(DEADLINE_S)
    service.pause()
    block = next(b for b in service.pool_snapshot().blocks if b.logical_index == 0)
    details = service.block_details(block.block_id)

    assert "".join(details.tokens) == "hello wo"
    assert (details.request_ids, details.logical_index, details.first_position) == (("r1",), 0, 0)
    with pytest.raises(IndexError, match="block_id=32 does not exist: blocks are 0 to 31"):
        service.block_details(32)


def test_two_engines_in_one_process_do_not_touch_each_other(make_service):
    alone = make_service(block_size=16)
    prompts = [f"prompt number {i} with some words" for i in range(6)]
    expected = [run_alone(alone, prompt) for prompt in prompts]
    first = make_service(block_size=8, num_blocks=20, max_num_batched_tokens=7, num_threads=1)
    second = make_service(block_size=32, num_blocks=9)
    listeners = {id(service): [Listener() for _ in prompts] for service in (first, second)}

    def feed(service):
        for prompt, listener in zip(prompts, listeners[id(service)], strict=True):
            service.submit(prompt, GREEDY, listener)

    threads = [threading.Thread(target=feed, args=(service,)) for service in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for service in (first, second):
        assert all(listener.last.finish_reason is FinishReason.LENGTH for listener in listeners[id(service)])
        assert [listener.token_ids for listener in listeners[id(service)]] == expected
    assert (first.status.block_size, second.status.block_size) == (8, 32)
    assert (len(first.pool_snapshot().blocks), len(second.pool_snapshot().blocks)) == (20, 9)


def test_seeded_request_gets_the_same_tokens_alone_and_among_others(make_service):
    service = make_service(num_blocks=64)
    seeded = SamplingParams(temperature=1.0, seed=42, max_tokens=12, ignore_eos=True)
    noise = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    expected = run_alone(service, "hello", seeded)
    listeners = [Listener() for _ in range(5)]
    for index, listener in enumerate(listeners):
        service.submit("hello" if index == 2 else f"other {index}", seeded if index == 2 else noise, listener)

    assert all(listener.last for listener in listeners)
    assert listeners[2].token_ids == expected
    assert run_alone(service, "hello", noise) != run_alone(service, "hello", noise)
