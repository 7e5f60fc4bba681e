"""The tokens of an answer: what is known about each, and how the page is told."""

from __future__ import annotations

import pytest

from workbench.engine.messages import TokenEvent, TokenLogprobs
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import FinishReason
from workbench.ui import markup
from workbench.ui.answer_trace import AnswerToken, AnswerTrace, TokenSource, read_tokens
from workbench.ui.phases import Phase, PhaseKind
from workbench.ui.token_markup import shown_tokens, token_facts, token_spans
from workbench.ui.turns import Answer, AnswerSettings, AnswerStats, Turn, with_toggled_tokens

TOKENS = (AnswerToken(65, "A", -0.25, 1), AnswerToken(10, "\n<"), AnswerToken(66, "B"))
TRACE = AnswerTrace("r5", 42, TOKENS, first_position=30, block_size=16, blocks=((7,), (3, 9), (2,)))
ANSWER = Answer("A\n<B", AnswerStats(num_output_tokens=3, finish_reason=FinishReason.STOP), trace=TRACE)
DONE = Phase(PhaseKind.DONE)


def decode(ids: object) -> str:
    return f"<{ids}>"


def test_tokens_of_an_event_are_decoded_one_by_one():
    event = TokenEvent("r1", 3, (5, 6), "x", 2)
    assert read_tokens(event, decode) == [AnswerToken(5, "<[5]>"), AnswerToken(6, "<[6]>")]


def test_tokens_carry_log_probability_and_rank_when_the_request_asked():
    event = TokenEvent("r1", 3, (5,), "x", 1, (TokenLogprobs(5, -1.5, 4, ()),))
    assert read_tokens(event, decode) == [AnswerToken(5, "<[5]>", -1.5, 4, TokenSource.TARGET)]


def test_token_lies_in_the_block_of_its_place_and_the_last_one_nowhere():
    assert [TRACE.blocks_of(index) for index in range(3)] == [(3, 9), (3, 9), ()]
    assert [TRACE.slot_of(index) for index in range(3)] == [14, 15, 0]


def test_token_in_a_block_that_is_not_known_lies_nowhere():
    assert AnswerTrace("r5", 1, TOKENS, 30, 16).blocks_of(0) == ()


def test_spans_hold_no_markup_of_the_model():
    assert token_spans(TRACE) == (
        '<span class="wb-token wb-from-target">A</span>'
        '<span class="wb-token wb-from-target">↵&#10;&lt;</span>'
        '<span class="wb-token wb-from-target">B</span>'
    )


def test_facts_tell_what_is_known_about_each_token():
    first, _, last = token_facts(TRACE)
    assert first == {
        "id": 65,
        "position": 30,
        "blocks": [3, 9],
        "slot": 14,
        "logprob": -0.25,
        "rank": 1,
        "source": "target",
    }
    assert (last["position"], last["blocks"], last["logprob"]) == (32, [], None)


def test_facts_are_given_for_what_is_shown_and_nothing_else():
    two = Turn.of_answers([ANSWER, ANSWER])
    conversation = (Turn("user", "hi"), two.toggling_tokens(1), Turn("user", "more"), two)
    assert shown_tokens(conversation) == {"1": {"1": token_facts(TRACE)}}


def test_answer_is_shown_as_text_or_as_tokens_by_its_switch():
    turn = Turn.of_answers([ANSWER])
    text = markup.assistant_message(turn, "m")
    assert ">Tokens</button>" in text
    assert "wb-token " not in text
    tokens = markup.assistant_message(turn.toggling_tokens(0), "m")
    assert ">Text</button>" in tokens
    assert tokens.count('class="wb-token ') == 3
    assert turn.toggling_tokens(0).toggling_tokens(0) == turn


def test_answers_are_switched_each_by_itself_and_stay_so_when_another_is_chosen():
    turn = Turn.of_answers([ANSWER, ANSWER]).toggling_tokens(1)
    assert turn.shown_as_tokens == {1}
    assert turn.choosing(1).shown_as_tokens == {1}
    assert markup.assistant_message(turn, "m").count('class="wb-token ') == 3


def test_switch_is_missing_where_no_token_is_known_and_while_the_answer_streams():
    assert "Tokens" not in markup.assistant_message(Turn("assistant", "x", AnswerStats()), "m")
    streaming = markup.assistant_message(Turn.of_answers([ANSWER]), "m", [Phase(PhaseKind.DECODE, num_done=3)])
    assert "Tokens" not in streaming


def test_switch_of_an_answer_that_is_not_there_changes_nothing():
    conversation = (Turn("user", "hi"), Turn.of_answers([ANSWER]))
    assert with_toggled_tokens(conversation, 7, 0) == conversation
    assert with_toggled_tokens(conversation, 1, 3) == conversation
    assert with_toggled_tokens(conversation, 0, 0) == conversation
    assert with_toggled_tokens(conversation, 1, 0)[1].shown_as_tokens == {0}


def test_footer_leads_to_the_last_step_of_its_request():
    assert 'name="r5" value="42"' in markup.answer_footer(ANSWER.stats, DONE, trace=TRACE)
    assert "<button" not in markup.answer_footer(ANSWER.stats, DONE)


def test_settings_of_a_turn_outlive_the_switch():
    settings = AnswerSettings("m", "", SamplingParams())
    turn = Turn("assistant", "x", AnswerStats(), settings=settings, trace=TRACE)
    assert turn.toggling_tokens(0).settings is settings


@pytest.mark.parametrize(
    ("num_drafted", "num_accepted", "sources"),
    [
        (0, 0, ["target", "target", "target"]),
        (4, 2, ["accepted", "accepted", "recovered"]),
        (2, 2, ["accepted", "accepted", "bonus"]),
        (4, 3, ["accepted", "accepted", "accepted"]),  # it ended there
    ],
)
def test_token_knows_whether_it_was_drafted(num_drafted: int, num_accepted: int, sources: list[str]):
    logprobs = tuple(TokenLogprobs(token_id, -1.0, 1, ()) for token_id in (5, 6, 7))
    for told in (None, logprobs):
        event = TokenEvent("r1", 3, (5, 6, 7), "x", 9, told, 0, num_drafted, num_accepted)
        assert [token.source.value for token in read_tokens(event, decode)] == sources


def test_span_has_the_class_of_its_source():
    trace = AnswerTrace("r5", 42, (AnswerToken(65, "A", source=TokenSource.BONUS),), 30, 16)
    assert token_spans(trace) == '<span class="wb-token wb-from-bonus">A</span>'
