"""A conversation as plain data: how it is cut, and when it fills the context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.ui.scripted_service import ScriptedService
from workbench.config import EngineConfig
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import FinishReason
from workbench.ui.turns import (
    Answer,
    AnswerSettings,
    AnswerStats,
    ChatError,
    Turn,
    chat_messages,
    context_full_note,
    drop_oldest_turns,
    with_chosen_answer,
    with_edited_message,
    without_last_answer,
)

TWO_EXCHANGES = (Turn("user", "a"), Turn("assistant", "A"), Turn("user", "b"), Turn("assistant", "B"))


def test_conversation_becomes_messages_without_empty_turns():
    conversation = (Turn("user", "a"), Turn("assistant", ""), Turn("user", "b"))
    assert chat_messages(conversation, "  be brief ") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]


def test_conversation_for_regenerate_ends_with_the_last_user_message():
    conversation = (Turn("user", "a"), Turn("assistant", "A"), Turn("user", "b"), Turn("assistant", "B"))
    assert without_last_answer(conversation) == conversation[:3]
    assert without_last_answer(()) == ()


def test_conversation_drops_its_oldest_turns_until_prompt_and_answer_fit():
    service = ScriptedService(max_model_len=100)
    old = (Turn("user", "x" * 40), Turn("assistant", "y" * 40))
    asked = (*old, Turn("user", "z" * 30), Turn("assistant", "w" * 10), Turn("user", "q" * 10))
    kept = drop_oldest_turns(service, asked, "", max_tokens=20)  # type: ignore[arg-type]
    assert kept == asked[2:]


def test_conversation_drops_one_exchange_even_when_all_of_it_fits():
    service: Any = ScriptedService(max_model_len=100)
    assert drop_oldest_turns(service, TWO_EXCHANGES[:3], "", max_tokens=1) == TWO_EXCHANGES[2:3]


def test_conversation_always_keeps_the_last_user_message():
    service = ScriptedService(max_model_len=10)
    asked = (Turn("user", "x" * 40), Turn("assistant", "y"), Turn("user", "z" * 90))
    assert drop_oldest_turns(service, asked, "", None) == asked[2:]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("index", "kept"),
    [
        (0, ()),
        (2, TWO_EXCHANGES[:2]),
        (None, TWO_EXCHANGES),
        (1, TWO_EXCHANGES),
        (4, TWO_EXCHANGES),
        (-1, TWO_EXCHANGES),
    ],
)
def test_edited_message_cuts_the_conversation_at_its_place_and_only_there(index: int | None, kept: Any):
    assert with_edited_message(TWO_EXCHANGES, index, "new") == (*kept, Turn("user", "new"))


def ended(num_prompt: int, num_output: int, reason: FinishReason, error: ChatError | None = None) -> Turn:
    stats = AnswerStats(num_prompt_tokens=num_prompt, num_output_tokens=num_output, finish_reason=reason)
    return Turn("assistant", "x", stats, error)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ended(90, 10, FinishReason.LENGTH), "The context is full: the answer ended at 100 of 100 tokens. Shorten"),
        (ended(90, 9, FinishReason.LENGTH), ""),
        (ended(90, 10, FinishReason.STOP), ""),
        (ended(0, 0, FinishReason.ERROR, ChatError("full", is_context_full=True)), "The context is full: it holds 100"),
        (ended(0, 0, FinishReason.ERROR, ChatError("boom")), ""),
    ],
)
def test_full_context_is_told_from_an_answer_that_ended_otherwise(answer: Turn, words: str):
    service: Any = ScriptedService(max_model_len=100)
    note = context_full_note(service, (Turn("user", "a"), answer))
    assert note.startswith(words)
    assert bool(note) == bool(words)


def test_full_context_offers_to_drop_turns_only_where_there_are_older_ones():
    service: Any = ScriptedService(max_model_len=100)
    full = ended(90, 10, FinishReason.LENGTH)
    assert "Shorten the message, or start a new chat." in context_full_note(service, (Turn("user", "a"), full))
    assert "Drop the oldest turns" in context_full_note(service, (*TWO_EXCHANGES, Turn("user", "c"), full))


def test_context_is_limited_by_the_pool_when_that_is_smaller():
    service: Any = ScriptedService(EngineConfig(num_blocks=2, block_size=16), max_model_len=100)
    assert "32 of 32 tokens" in context_full_note(service, (Turn("user", "a"), ended(30, 2, FinishReason.LENGTH)))


# ---------------------------------------------------------------------------- several answers

STATS = tuple(AnswerStats(num_output_tokens=count) for count in (1, 2))
ANSWERS = (Answer("A", STATS[0]), Answer("B", STATS[1], ChatError("boom")))
SETTINGS = AnswerSettings("m", "", SamplingParams(n=2))
BOTH = replace(Turn.of_answers(ANSWERS), settings=SETTINGS)


def test_turn_of_several_answers_speaks_for_the_chosen_one():
    assert (BOTH.text, BOTH.stats, BOTH.error, BOTH.chosen) == ("A", STATS[0], None, 0)
    second = BOTH.choosing(1)
    assert (second.text, second.stats, second.error, second.chosen) == ("B", STATS[1], ChatError("boom"), 1)
    assert (second.answers, second.settings) == (ANSWERS, SETTINGS)


@pytest.mark.parametrize("index", [-1, 2])
def test_turn_keeps_its_answer_when_the_chosen_one_does_not_exist(index: int):
    assert BOTH.choosing(index) == BOTH


def test_turn_of_one_answer_is_a_plain_turn():
    assert Turn.of_answers(ANSWERS[:1]) == Turn("assistant", "A", STATS[0])
    assert Turn("assistant", "A").choosing(0) == Turn("assistant", "A")


def test_chosen_answer_is_what_the_next_prompt_contains():
    chosen = with_chosen_answer((Turn("user", "a"), BOTH), 1, 1)
    assert chat_messages((*chosen, Turn("user", "b")), "")[1] == {"role": "assistant", "content": "B"}


@pytest.mark.parametrize("index", [-1, 0, 1, 4])
def test_answer_is_chosen_in_the_last_turn_only(index: int):
    conversation = (Turn("user", "a"), BOTH, Turn("user", "b"), BOTH)
    assert with_chosen_answer(conversation, index, 1) == conversation
    assert with_chosen_answer((), index, 1) == ()


def test_answers_and_beams_have_names():
    beams = tuple(Answer("x", AnswerStats(beam_score=score)) for score in (-0.416, 0.5))
    turn = Turn.of_answers(beams)
    assert [BOTH.label(index) for index in range(2)] == ["Answer 1 of 2", "Answer 2 of 2"]
    assert [turn.label(index) for index in range(2)] == ["Beam 1 · score −0.42", "Beam 2 · score 0.50"]
