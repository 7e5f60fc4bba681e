"""Drafting with a trained head through the whole engine: answers do not change, and a head that is missing says why."""

from __future__ import annotations

import pytest

from kernels.ops import load_backend
from tests.engine.test_speculation import PROMPTS, RULES, run, tokens
from tests.models.tiny_directory import write_tiny_directory
from tests.models.tiny_gguf import write_tiny_gguf
from tests.speculation.tiny_head import write_random_head
from workbench.config import EngineConfig
from workbench.engine.loading import load_engine
from workbench.errors import ConfigurationError, InvalidSpeculationParamsError, ModelLoadError
from workbench.models.loader import load_model
from workbench.sampling_params import SamplingParams
from workbench.speculation import eagle_file
from workbench.speculation_params import SpeculationParams
from workbench.telemetry.records import TransferKind

METHODS = ("eagle", "hybrid")


@pytest.fixture(scope="module")
def head_file(tiny_model_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("head") / "head.safetensors"
    write_random_head(path, load_model(str(tiny_model_path), load_backend("cpu"), lambda _: None))
    return path


@pytest.fixture
def drafting(make_service, head_file):
    """Services with a head."""

    def make(**settings):
        return make_service(**{"eagle_head": str(head_file), "num_blocks": 64, **settings})

    return make


def wishes_for(method, count=4):
    return SpeculationParams(method=method, num_speculative_tokens=count, draft_confidence=0.0)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_answers_are_the_same_with_and_without_a_head(drafting, method, count, together):
    service = drafting()
    answers = run(service, PROMPTS, wishes_for(method, count), together)
    assert tokens(answers) == tokens(run(service, PROMPTS))
    assert all(end.metrics.num_draft_tokens > 0 for _, end in answers)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_answers_are_the_same_through_preemption_and_swapping(drafting, method, mode):
    plain = tokens(run(drafting(), PROMPTS))
    small = drafting(num_blocks=16, block_size=8, preemption_mode=mode, swap_space=0.01)
    moved: set[TransferKind] = set()
    small.subscribe(lambda record: moved.update(each.kind for each in record.transfers))
    answers = run(small, PROMPTS, wishes_for(method))
    assert tokens(answers) == plain
    assert sum(end.metrics.num_preemptions for _, end in answers) > 0
    assert (TransferKind.SWAP_IN in moved) == (mode == "swap")


def test_drafts_are_the_same_alone_in_a_batch_behind_a_prefix_hit_and_after_swapping(drafting):
    """Its keys, values and states follow every block: what it drafts depends on the context alone."""

    def watched(**settings):
        service = drafting(block_size=8, **settings)
        seen: dict[tuple[int, ...], tuple[int, ...]] = {}

        def watch(core):
            proposer = core.proposers.available["eagle"]
            propose = proposer.propose

            def remember(requests):
                drafts = propose(requests)
                contexts = [tuple(request.token_ids) for request in requests]
                seen.update(zip(contexts, (draft.token_ids for draft in drafts), strict=True))
                return drafts

            proposer.propose = remember

        service._call(watch)
        return service, seen

    def drafted(service, seen, *, together):
        seen.clear()
        run(service, PROMPTS, wishes_for("eagle"), together)
        return dict(seen)

    service, seen = watched()
    alone = drafted(service, seen, together=False)
    assert len(alone) > 100
    assert drafted(service, seen, together=False) == alone  # prompts now lie in the prefix cache
    assert drafted(service, seen, together=True) == alone
    # Where memory is short, a draft may be cut short or be lost; it is never another one.
    small, seen = watched(num_blocks=16, preemption_mode="swap", swap_space=0.01)
    swapping = drafted(small, seen, together=True)
    common = [(draft, alone[context]) for context, draft in swapping.items() if context in alone]
    assert len(common) > 100
    assert [draft for draft, _ in common] == [whole[: len(draft)] for draft, whole in common]


@pytest.mark.parametrize(
    "settings", [{"kv_layout": "contiguous"}, {"enable_prefix_caching": False}, {"max_num_batched_tokens": 16}]
)
def test_greedy_answers_are_the_same_in_every_layout_and_budget(drafting, settings):
    plain = tokens(run(drafting(), PROMPTS))
    service = drafting(**settings)
    for method in METHODS:
        assert tokens(run(service, PROMPTS, wishes_for(method))) == plain


@pytest.mark.parametrize("name", RULES)
def test_rules_apply_at_each_draft_position(drafting, name):
    """TRAPS.md 16."""
    service = drafting()
    plain = tokens(run(service, PROMPTS, **RULES[name]))
    assert tokens(run(service, PROMPTS, wishes_for("eagle", 6), **RULES[name])) == plain


def test_seeded_answers_are_the_same_alone_and_in_a_batch(drafting):
    service = drafting()
    params = {"temperature": 0.9, "seed": 4}
    together = tokens(run(service, PROMPTS, wishes_for("eagle"), **params))
    assert tokens(run(service, PROMPTS, wishes_for("eagle"), together=False, **params)) == together


# ------------------------------------------------------------------------------ which head


def reason_of(service, method="eagle"):
    with pytest.raises(InvalidSpeculationParamsError) as caught:
        service.submit("a", SamplingParams(), print, speculation=SpeculationParams(method=method, draft_confidence=0.0))
    return str(caught.value)


@pytest.mark.parametrize("method", METHODS)
def test_model_without_a_head_says_so(make_service, method):
    assert "there is no trained head for tiny" in reason_of(make_service(), method)


def test_head_that_was_left_out_says_so(make_service):
    assert "started without a trained head (eagle_head)" in reason_of(make_service(eagle_head=None))


def test_head_that_comes_with_the_workbench_is_found_by_the_models_name(
    make_service, tiny_model_path, tmp_path, monkeypatch
):
    monkeypatch.setattr(eagle_file, "HEADS", tmp_path)
    write_random_head(
        tmp_path / "tiny.safetensors", load_model(str(tiny_model_path), load_backend("cpu"), lambda _: None)
    )
    answers = run(make_service(), PROMPTS, wishes_for("hybrid"))
    assert sum(end.metrics.num_draft_tokens for _, end in answers) > 0


def test_head_that_comes_with_the_workbench_is_left_out_with_the_reason_where_it_does_not_fit(
    make_service, head_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(eagle_file, "HEADS", tmp_path)
    (tmp_path / "stranger.safetensors").write_bytes(head_file.read_bytes())
    write_tiny_gguf(tmp_path / "stranger.gguf", seed=8)
    service = make_service(model=str(tmp_path / "stranger.gguf"))
    assert "it was trained for tiny with SHA-256" in reason_of(service)
    assert "the loaded model is stranger" in reason_of(service, "hybrid")


def load(model, head):
    return load_engine(EngineConfig(model=str(model), eagle_head=str(head), num_blocks=8), 0, lambda _: None)


def test_head_that_is_named_and_does_not_fit_is_an_error(head_file, tmp_path):
    write_tiny_gguf(tmp_path / "stranger.gguf", seed=8)
    with pytest.raises(ModelLoadError, match=r"trained for tiny .* the loaded model is stranger"):
        load(tmp_path / "stranger.gguf", head_file)


def test_head_beside_sliding_windows_is_refused(head_file, tmp_path):
    write_tiny_directory(tmp_path / "windows", "Mistral", sliding_window=8)
    with pytest.raises(ConfigurationError, match=r"windows has sliding windows, .* leave eagle_head out"):
        load(tmp_path / "windows", head_file)


def test_head_of_a_model_in_a_directory_belongs_to_its_weights(make_service, tmp_path):
    write_tiny_directory(tmp_path / "model", tie_word_embeddings=False)
    loaded = load_model(str(tmp_path / "model"), load_backend("cpu"), lambda _: None)
    write_random_head(tmp_path / "head.safetensors", loaded)
    service = make_service(model=str(tmp_path / "model"), eagle_head=str(tmp_path / "head.safetensors"))
    answers = run(service, PROMPTS[:1], wishes_for("eagle"))
    assert tokens(answers) == tokens(run(service, PROMPTS[:1]))
    assert answers[0][1].metrics.num_draft_tokens > 0
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + bytes(4))
    with pytest.raises(ModelLoadError, match="trained for model with SHA-256"):
        load(tmp_path / "model", tmp_path / "head.safetensors")


def test_head_that_is_named_and_missing_is_an_error(tiny_model_path, tmp_path):
    with pytest.raises(ModelLoadError, match="there is no head"):
        load(tiny_model_path, tmp_path / "none.safetensors")


@pytest.mark.parametrize("value", ["", 3, True])
def test_configuration_refuses_a_head_that_is_no_path(value):
    with pytest.raises(ConfigurationError, match=r"eagle_head=.* is not a path: give one, 'auto', or None"):
        EngineConfig(eagle_head=value)
