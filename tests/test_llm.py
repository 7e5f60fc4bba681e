"""The offline API on a tiny random model: shapes, order, errors."""

from __future__ import annotations

import pytest

from workbench import LLM, SamplingParams
from workbench.errors import (
    ConfigurationError,
    EngineStoppedError,
    InvalidPromptError,
    InvalidSamplingParamsError,
    KVCacheExhaustedError,
    ModelLoadError,
    PromptTooLongError,
)

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_model_path):
    with LLM(str(tiny_model_path), num_blocks=16, block_size=8, check_integrity=True) as llm:
        yield llm


def test_generate_answers_a_string(llm):
    (output,) = llm.generate("hello", GREEDY)

    assert output.prompt == "hello"
    assert list(output.prompt_token_ids) == llm.service.tokenizer.encode("hello")
    (answer,) = output.outputs
    assert (answer.index, len(answer.token_ids), answer.finish_reason) == (0, 6, "length")
    assert answer.text == llm.service.tokenizer.decode(answer.token_ids)
    assert output.finished
    assert output.metrics.num_output_tokens == 6


def test_generate_treats_a_list_of_numbers_as_one_prompt_of_token_ids(llm):
    ids = llm.service.tokenizer.encode("hello")
    (output,) = llm.generate(ids, GREEDY)

    assert (output.prompt, output.prompt_token_ids) == (None, tuple(ids))
    assert output.outputs == llm.generate("hello", GREEDY)[0].outputs


def test_generate_keeps_the_order_of_prompts_and_pairs_parameters(llm):
    prompts = ["one", [5, 6, 7], "three", "a longer prompt to chunk"]
    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (7, 1, 3, 5)]
    outputs = llm.generate(prompts, params)

    assert [output.prompt for output in outputs] == ["one", None, "three", "a longer prompt to chunk"]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [7, 1, 3, 5]


def test_generate_without_prompts_returns_nothing(llm):
    assert llm.generate([], GREEDY) == []


def test_generate_answers_more_prompts_than_may_be_open_at_once(tiny_model_path):
    with LLM(str(tiny_model_path), num_blocks=16, max_num_seqs=2, max_num_waiting=1) as small:
        outputs = small.generate([[5, 6]] * 10, GREEDY, use_tqdm=False)

    assert len({output.outputs[0].token_ids for output in outputs}) == 1
    assert len({output.request_id for output in outputs}) == 10


def test_long_lists_draw_a_progress_bar_and_short_ones_do_not(llm, capsys):
    llm.generate([[5]] * 3, GREEDY)
    assert capsys.readouterr().err == ""
    llm.generate([[5]] * 8, GREEDY)
    assert "8/8" in capsys.readouterr().err


def test_chat_renders_the_models_own_template(llm):
    messages = [{"role": "user", "content": "hi"}]
    (output,) = llm.chat(messages, GREEDY)
    rendered = llm.service.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)

    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    first, second = llm.chat([messages, messages], GREEDY)
    assert first.outputs == second.outputs == output.outputs


@pytest.mark.parametrize(
    ("prompts", "error"),
    [(["fine", [5] * 200], PromptTooLongError), (["fine", [10**9]], InvalidPromptError), (3, InvalidPromptError)],
)
def test_refused_prompt_raises_and_leaves_nothing_running(llm, prompts, error):
    with pytest.raises(error):
        llm.generate(prompts, GREEDY)
    llm.generate("drain", GREEDY)

    assert llm.service.num_open_requests == 0
    assert all(block.ref_count == 0 for block in llm.service.pool_snapshot().blocks)


def test_wrong_number_of_parameters_is_refused(llm):
    with pytest.raises(ConfigurationError, match="2 sampling_params for 1 prompts"):
        llm.generate("x", [GREEDY, GREEDY])


def test_error_inside_the_engine_is_raised_by_its_own_class(llm):
    with pytest.raises(KVCacheExhaustedError, match="num_blocks >= 17"):
        llm.generate([5] * 100, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))

    assert len(llm.generate("x", GREEDY)[0].outputs[0].token_ids) == 6


def test_stop_text_ends_the_answer_before_it(llm):
    whole = llm.generate("hello", SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))[0].outputs[0].text
    stop = whole[5:7]
    (output,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop=stop))
    (answer,) = output.outputs

    assert answer.text == whole[: whole.index(stop)]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)


def test_unknown_setting_is_refused_by_name(tiny_model_path):
    with pytest.raises(ConfigurationError, match="unknown engine setting 'num_block'"):
        LLM(str(tiny_model_path), num_block=3)


def test_context_manager_closes_the_engine(tiny_model_path):
    with LLM(str(tiny_model_path), num_blocks=8) as closed:
        pass
    closed.close()

    with pytest.raises(EngineStoppedError):
        closed.generate("x")


def test_missing_model_raises_with_the_path(tmp_path):
    with pytest.raises(ModelLoadError, match=r"nothing\.gguf"):
        LLM(str(tmp_path / "nothing.gguf"))


def test_n_answers_come_in_the_order_of_their_seeds(llm):
    (output,) = llm.generate("hello", SamplingParams(n=3, temperature=1, seed=7, max_tokens=6, ignore_eos=True))
    singles = [SamplingParams(temperature=1, seed=7 + i, max_tokens=6, ignore_eos=True) for i in range(3)]
    alone = [single.outputs[0].token_ids for single in llm.generate(["hello"] * 3, singles)]

    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert [answer.token_ids for answer in output.outputs] == alone
    assert len(set(alone)) == 3
    assert [answer.beam_score for answer in output.outputs] == [None] * 3
    assert all(answer.text == llm.service.tokenizer.decode(answer.token_ids) for answer in output.outputs)


def test_n_answers_stay_with_their_prompts(llm):
    params = [SamplingParams(temperature=0, max_tokens=2 + n, ignore_eos=True, n=n) for n in (1, 3, 2)]
    outputs = llm.generate(["one", "two", "three"], params)

    assert [[len(answer.token_ids) for answer in output.outputs] for output in outputs] == [[3], [5] * 3, [4] * 2]
    assert [[answer.index for answer in output.outputs] for output in outputs] == [[0], [0, 1, 2], [0, 1]]


def test_beams_come_best_first_with_their_scores(llm):
    params = SamplingParams(use_beam_search=True, beam_width=4, n=3, max_tokens=6, ignore_eos=True)
    (output,) = llm.generate("hello", params)
    scores = [answer.beam_score for answer in output.outputs]

    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert len({answer.token_ids for answer in output.outputs}) == 3
    assert None not in scores and scores == sorted(scores, reverse=True)
    assert [answer.finish_reason for answer in output.outputs] == ["length"] * 3
    assert all(answer.text == llm.service.tokenizer.decode(answer.token_ids) for answer in output.outputs)
    greedy = llm.generate("hello", GREEDY)[0].outputs[0]
    (one_beam,) = llm.generate(
        "hello", SamplingParams(use_beam_search=True, beam_width=1, max_tokens=6, ignore_eos=True)
    )
    assert one_beam.outputs[0].token_ids == greedy.token_ids


def test_more_answers_than_may_run_together_are_refused_with_the_limit(tiny_model_path):
    with LLM(str(tiny_model_path), num_blocks=16, max_num_seqs=2) as small:
        with pytest.raises(InvalidSamplingParamsError) as caught:
            small.generate("hello", SamplingParams(n=3))
        with pytest.raises(InvalidSamplingParamsError, match="give beam_width of at most 2, or raise max_num_seqs"):
            small.generate("hello", SamplingParams(use_beam_search=True, beam_width=4))
        assert small.service.num_open_requests == 0

    assert str(caught.value) == (
        "n=3 sequences of one request run together and at most max_num_seqs=2 may: "
        "give n of at most 2, or raise max_num_seqs"
    )


def test_beams_are_refused_where_blocks_cannot_be_shared(tiny_model_path):
    with LLM(str(tiny_model_path), num_blocks=32, kv_layout="contiguous") as contiguous:
        with pytest.raises(InvalidSamplingParamsError) as caught:
            contiguous.generate("hello", SamplingParams(use_beam_search=True, max_tokens=4))
        (output,) = contiguous.generate("hello", SamplingParams(n=2, temperature=0, max_tokens=4, ignore_eos=True))

    assert str(caught.value) == (
        "use_beam_search=True needs beams that share blocks, which kv_layout='contiguous' cannot: "
        "start the engine with kv_layout='paged', or ask without beams"
    )
    assert [len(answer.token_ids) for answer in output.outputs] == [4, 4]
