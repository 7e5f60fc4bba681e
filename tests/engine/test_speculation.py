"""Speculation through the whole engine: greedy answers do not change, whatever drafts and whatever happens."""

import queue
from typing import Any

import pytest

from tests.models.tiny_gguf import write_tiny_gguf
from workbench.engine.messages import RequestFinished, TokenEvent
from workbench.errors import ConfigurationError, InvalidSpeculationParamsError
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import SpeculationParams
from workbench.telemetry.records import FinishReason, TransferKind

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
PROMPTS = ["the end and the beginning", "a", "in the other one " * 6, "on and on and on and on and on and on"]
METHODS = ("ngram", "draft_model")


@pytest.fixture(scope="module")
def other_tiny_model(tmp_path_factory):
    """A model that often disagrees with the tiny one."""
    path = tmp_path_factory.mktemp("draft") / "draft.gguf"
    write_tiny_gguf(path, num_layers=1, seed=5)
    return path


def run(service, prompts, speculation=None, together=True, **params):
    """Answers as (token ids, finish event), in order."""
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    wishes = SpeculationParams(method="none", draft_confidence=0.0) if speculation is None else speculation
    answers: dict[str, list[int]] = {}
    ends: dict[str, Any] = {}

    def submit(prompt):
        name = service.submit(prompt, SamplingParams(**{**GREEDY, **params}), events.put, speculation=wishes)
        answers[name] = []

    def take():
        event = events.get(timeout=60)
        if isinstance(event, TokenEvent):
            answers[event.request_id] += event.token_ids
        else:
            ends[event.request_id] = event

    for prompt in prompts:
        submit(prompt)
        while not together and len(ends) < len(answers):
            take()
    while len(ends) < len(answers):
        take()
    assert all(isinstance(end, RequestFinished) for end in ends.values())
    return [(tuple(answers[name]), ends[name]) for name in answers]


def tokens(answers):
    return [token_ids for token_ids, _ in answers]


@pytest.fixture
def speculating(make_service, other_tiny_model):
    """Services with a draft model."""

    def make(**settings):
        return make_service(**{"draft_model": str(other_tiny_model), "num_blocks": 64, **settings})

    return make


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_answers_are_the_same_with_and_without_drafts(speculating, method, count, together):
    service = speculating()
    plain = tokens(run(service, PROMPTS))
    wishes = SpeculationParams(method=method, num_speculative_tokens=count, draft_confidence=0.0)
    answers = run(service, PROMPTS, wishes, together)
    assert tokens(answers) == plain
    assert sum(end.metrics.num_draft_tokens for _, end in answers) > 0


def test_draft_model_that_is_the_target_is_always_right(make_service, tiny_model_path):
    service = make_service(draft_model=str(tiny_model_path), num_blocks=64)
    wishes = SpeculationParams(method="draft_model", num_speculative_tokens=4, draft_confidence=0.0)
    for token_ids, end in run(service, PROMPTS, wishes):
        assert len(token_ids) == 40
        assert end.metrics.num_accepted_tokens == end.metrics.num_draft_tokens == 31  # 1 + 7 x 5 + 4 accepted of 3 left
    for token_ids, end in run(service, PROMPTS, wishes, temperature=1.0, seed=3, top_k=0):
        assert len(token_ids) == 40
        assert end.metrics.num_accepted_tokens == end.metrics.num_draft_tokens


def test_drafts_of_the_target_itself_stay_right_through_preemption_prefix_hits_and_swapping(
    make_service, tiny_model_path
):
    """Its keys and values follow every copy of a block, so that it catches up with what is really there."""
    service = make_service(
        draft_model=str(tiny_model_path), num_blocks=12, block_size=8, preemption_mode="swap", swap_space=0.01
    )
    wishes = SpeculationParams(method="draft_model", num_speculative_tokens=3, draft_confidence=0.0)
    plain = tokens(run(service, PROMPTS[:3], together=False, max_tokens=24))
    moved: set[TransferKind] = set()
    service.subscribe(lambda record: moved.update(each.kind for each in record.transfers))
    answers = run(service, PROMPTS[:3], wishes, max_tokens=24)
    assert TransferKind.SWAP_IN in moved
    assert tokens(answers) == plain
    assert all(end.metrics.num_accepted_tokens == end.metrics.num_draft_tokens > 0 for _, end in answers)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_answers_are_the_same_when_drafting_requests_are_preempted(speculating, method, mode):
    service = speculating(preemption_mode=mode, swap_space=0.01)
    plain = tokens(run(service, PROMPTS))
    small = speculating(num_blocks=16, block_size=8, preemption_mode=mode, swap_space=0.01)
    answers = run(small, PROMPTS, SpeculationParams(method=method, num_speculative_tokens=5, draft_confidence=0.0))
    assert tokens(answers) == plain
    assert sum(end.metrics.num_preemptions for _, end in answers) > 0


@pytest.mark.parametrize(
    "settings", [{"kv_layout": "contiguous"}, {"enable_prefix_caching": False}, {"max_num_batched_tokens": 16}]
)
def test_greedy_answers_are_the_same_in_every_layout_and_budget(speculating, settings):
    plain = tokens(run(speculating(), PROMPTS))
    service = speculating(**settings)
    for method in METHODS:
        assert tokens(run(service, PROMPTS, SpeculationParams(method=method, draft_confidence=0.0))) == plain


def test_several_answers_to_a_prompt_are_drafted_for_once_they_have_parted(speculating):
    service = speculating()
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    params = SamplingParams(**{**GREEDY, "n": 3, "max_tokens": 12})
    service.submit(PROMPTS[3], params, events.put, speculation=SpeculationParams(method="ngram", draft_confidence=0.0))
    answers: dict[int, list[int]] = {}
    num_ended = 0
    while num_ended < 3:
        event = events.get(timeout=60)
        if isinstance(event, TokenEvent):
            answers.setdefault(event.index, []).extend(event.token_ids)
        else:
            num_ended += 1
    (expected,) = tokens(run(service, [PROMPTS[3]], max_tokens=12))
    assert [tuple(answers[index]) for index in range(3)] == [expected] * 3


RULES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.4},
    "frequency": {"frequency_penalty": 0.7, "presence_penalty": 0.3},
    "bias": {"logit_bias": {10: 5.0, 40: -8.0}},
    "allowed": {"allowed_token_ids": list(range(60, 90))},
    "bad words": {"bad_words": ["the", " and"]},
    "min tokens": {"min_tokens": 30, "stop_token_ids": list(range(3, 140)), "ignore_eos": False},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", RULES)
def test_rules_apply_at_each_draft_position(speculating, name, method):
    """TRAPS.md 16."""
    service = speculating()
    plain = run(service, PROMPTS, **RULES[name])
    answers = run(
        service,
        PROMPTS,
        SpeculationParams(method=method, num_speculative_tokens=6, draft_confidence=0.0),
        **RULES[name],
    )
    assert tokens(answers) == tokens(plain)
    assert [end.finish_reason for _, end in answers] == [end.finish_reason for _, end in plain]
    if method == "draft_model":  # what rules forbid to repeat, a look-up may never find
        assert sum(end.metrics.num_draft_tokens for _, end in answers) > 0


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 17])
def test_drafts_are_capped_by_the_tokens_that_are_left(speculating, max_tokens):
    """TRAPS.md 17."""
    service = speculating()
    drafted: list[int] = []
    service.subscribe(lambda record: drafted.extend(each.num_draft_tokens for each in record.requests))
    wishes = SpeculationParams(method="draft_model", num_speculative_tokens=8, draft_confidence=0.0)
    for token_ids, end in run(service, PROMPTS, wishes, max_tokens=max_tokens):
        assert len(token_ids) == max_tokens and end.finish_reason is FinishReason.LENGTH
    assert max(drafted) <= max(0, max_tokens - 2)


def test_drafts_are_capped_by_the_context(speculating):
    """TRAPS.md 17."""
    service = speculating(max_model_len=80)
    plain = tokens(run(service, PROMPTS[2:3], max_tokens=None))
    answers = run(
        service,
        PROMPTS[2:3],
        SpeculationParams(method="ngram", num_speculative_tokens=16, draft_confidence=0.0),
        max_tokens=None,
    )
    assert tokens(answers) == plain
    assert answers[0][1].metrics.num_prompt_tokens + len(answers[0][0]) == 80


def test_events_say_how_many_tokens_were_drafted_and_accepted(make_service, tiny_model_path):
    service = make_service(draft_model=str(tiny_model_path))
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    wishes = SpeculationParams(method="draft_model", num_speculative_tokens=3, draft_confidence=0.0)
    service.submit(PROMPTS[0], SamplingParams(**{**GREEDY, "max_tokens": 10}), events.put, speculation=wishes)
    told = []
    while not isinstance(event := events.get(timeout=60), RequestFinished):
        told.append((len(event.token_ids), event.num_draft_tokens, event.num_accepted_tokens))
    assert told == [(1, 0, 0), (4, 3, 3), (4, 3, 3), (1, 0, 0)]


def test_logprobs_are_the_targets_with_one_for_each_token(speculating):
    service = speculating()

    def reported(speculation):
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        params = SamplingParams(**{**GREEDY, "logprobs": 3})
        service.submit(PROMPTS[3], params, events.put, speculation=speculation)
        found = []
        while not isinstance(event := events.get(timeout=60), RequestFinished):
            assert len(event.logprobs) == len(event.token_ids)
            found += event.logprobs
        return found

    assert reported(SpeculationParams(method="ngram", draft_confidence=0.0)) == reported(
        SpeculationParams(method="none", draft_confidence=0.0)
    )


def test_sampled_answers_with_sure_drafts_are_those_without(speculating):
    """Prompt lookup is sure of its tokens: the model's own draw decides, with the same random numbers."""
    service = speculating()
    params: dict[str, Any] = {"temperature": 0.8, "top_k": 5, "seed": 11}
    plain = tokens(run(service, PROMPTS, **params))
    assert tokens(run(service, PROMPTS, SpeculationParams(method="ngram", draft_confidence=0.0), **params)) == plain


def test_seeded_answers_with_drawn_drafts_are_the_same_alone_and_in_a_batch(speculating):
    service = speculating()
    wishes = SpeculationParams(method="draft_model", num_speculative_tokens=3, draft_confidence=0.0)
    params: dict[str, Any] = {"temperature": 0.9, "seed": 4}
    assert tokens(run(service, PROMPTS, wishes, **params)) == tokens(run(service, PROMPTS, wishes, False, **params))


def test_method_that_the_engine_cannot_offer_is_refused_with_the_reason(make_service):
    service = make_service()
    with pytest.raises(InvalidSpeculationParamsError) as caught:
        service.submit(
            "a", SamplingParams(), print, speculation=SpeculationParams(method="draft_model", draft_confidence=0.0)
        )
    assert str(caught.value) == (
        "method='draft_model' is not available: this engine was started without a draft model (draft_model); "
        "give one of none, ngram"
    )
    assert service.num_open_requests == 0


def test_beams_with_drafts_are_refused(make_service):
    service = make_service()
    params = SamplingParams(use_beam_search=True, beam_width=2)
    with pytest.raises(InvalidSpeculationParamsError, match="beams are not drafted, give method='none'"):
        service.submit("a", params, print, speculation=SpeculationParams(method="ngram", draft_confidence=0.0))


def test_draft_model_with_another_tokenizer_is_refused_with_both_names(make_service, tmp_path):
    """TRAPS.md 19."""
    path = tmp_path / "stranger.gguf"
    write_tiny_gguf(path, merges=("t h", "th e", "Ġ the", "i n", "e r", "a n", "an d", "Ġ and", "o n", "o f"))
    with pytest.raises(ConfigurationError) as caught:
        make_service(draft_model=str(path))
    assert "the draft model stranger and the target tiny have different tokenizers" in str(caught.value)


@pytest.mark.parametrize("method", METHODS)
def test_adaptive_drafts_never_change_greedy_answers(speculating, method):
    service = speculating()
    wishes = SpeculationParams(method=method, num_speculative_tokens=6, speculative_adaptive=True, draft_confidence=0.0)
    assert tokens(run(service, PROMPTS, wishes)) == tokens(run(service, PROMPTS))


def test_adaptive_drafts_stop_where_they_cost_more_than_they_bring(make_service, tiny_model_path):
    """Beside a draft model as large as the target, a drafted token costs as much as one of the target's own."""
    service = make_service(draft_model=str(tiny_model_path), num_blocks=64)
    wishes = SpeculationParams(
        method="draft_model", num_speculative_tokens=8, speculative_adaptive=True, draft_confidence=0.0
    )
    service._call(
        lambda core: setattr(core._drafter._economy, "_measure_step_s", lambda counts: dict.fromkeys(counts, 1.0))
    )
    eager = sum(end.metrics.num_draft_tokens for _, end in run(service, PROMPTS, wishes))
    service._call(lambda core: core._drafter._economy._draft_costs["draft_model"].__init__())
    service._call(lambda core: core._drafter._economy._cost_of("draft_model").observe(1, 1e9))
    assert eager > 100
    assert sum(end.metrics.num_draft_tokens for _, end in run(service, PROMPTS, wishes)) == 0
