"""A conversation to take away: Markdown for people, JSON for programs."""

from __future__ import annotations

import json
from typing import Any

from tests.ui.scripted_service import ScriptedService
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import FinishReason
from workbench.ui.transcript import as_json, as_markdown, engine_facts, take_away
from workbench.ui.turns import Answer, AnswerSettings, AnswerStats, ChatError, Turn

STATS = AnswerStats(0.412, 0.0381, 0.0614, 24.6, 187, 20, 0, FinishReason.STOP)
SETTINGS = AnswerSettings("SmolLM2", "be brief", SamplingParams(temperature=0.5, seed=3, logit_bias={7: -5.0}), -2)
CONVERSATION = (
    Turn("user", "a <b>\n*c*"),
    Turn("assistant", "**yes**\n\n- 1 é", STATS, settings=SETTINGS),
    Turn("user", "more"),
    Turn("assistant", "", AnswerStats(finish_reason=FinishReason.ERROR), ChatError("boom")),
)


def test_markdown_holds_the_texts_as_they_were_written_and_the_figures():
    assert as_markdown(CONVERSATION) == (
        "## You\n\na <b>\n*c*\n\n"
        "## SmolLM2\n\n**yes**\n\n- 1 é\n\n"
        "*TTFT 412 ms · ITL p50 38.1 / p95 61.4 ms · 24.6 tok/s · prompt 187 · 20 out · stop*\n\n"
        "## You\n\nmore\n\n## Model\n\n> boom\n"
    )


def test_json_holds_messages_settings_and_metrics():
    document = json.loads(as_json(CONVERSATION, {"model": "SmolLM2"}))
    question, answer, _, failed = document["messages"]
    assert (document["format"], document["version"]) == ("inference-workbench-conversation", 1)
    assert document["engine"] == {"model": "SmolLM2"}
    assert question == {"role": "user", "content": "a <b>\n*c*"}
    assert (answer["role"], answer["content"], answer["model"]) == ("assistant", "**yes**\n\n- 1 é", "SmolLM2")
    assert (answer["system_prompt"], answer["sampling"]["temperature"]) == ("be brief", 0.5)
    assert (answer["sampling"]["seed"], answer["sampling"]["logit_bias"]) == (3, {"7": -5.0})
    assert answer["priority"] == -2
    assert (answer["metrics"]["ttft_s"], answer["metrics"]["finish_reason"]) == (0.412, "stop")
    assert (failed["error"], failed["content"]) == ("boom", "")


def test_engine_facts_name_no_path_of_the_machine():
    service: Any = ScriptedService()
    facts = engine_facts(service)
    assert (facts["model"], facts["num_blocks"], facts["block_size"]) == ("scripted", 100, 16)
    assert "/" not in json.dumps(facts)


def test_nothing_is_there_to_take_away_before_the_first_message():
    service: Any = ScriptedService()
    assert take_away(service, ()) is None
    taken = take_away(service, CONVERSATION)
    assert taken is not None
    assert taken["texts"] == ["a <b>\n*c*", "**yes**\n\n- 1 é", "more", ""]


ANSWERS = (Answer("one", STATS), Answer("two", AnswerStats(finish_reason=FinishReason.ERROR), ChatError("boom")))
SEVERAL = (Turn("user", "a"), Turn.of_answers(ANSWERS, 1))
BEAM = Turn("assistant", "x", AnswerStats(beam_score=-0.416, finish_reason=FinishReason.STOP))


def test_markdown_holds_all_answers_with_the_chosen_one_marked():
    text = as_markdown(SEVERAL)
    assert "## Model\n\n### Answer 1 of 2\n\none\n\n*TTFT" in text
    assert "### Answer 2 of 2, chosen\n\ntwo\n\n> boom\n\n*TTFT" in text
    assert as_markdown((BEAM,)).startswith("## Model (beam search, score −0.42)\n\nx\n\n")


def test_json_holds_all_answers_and_the_chosen_one_as_the_message():
    answer = json.loads(as_json(SEVERAL, {}))["messages"][1]
    assert (answer["content"], answer["chosen"], answer["error"]) == ("two", 1, "boom")
    assert [each["content"] for each in answer["answers"]] == ["one", "two"]
    assert answer["answers"][0]["metrics"]["ttft_s"] == 0.412
    assert (answer["answers"][1]["error"], "error" in answer["answers"][0]) == ("boom", False)


def test_texts_to_copy_are_one_for_each_answer():
    service: Any = ScriptedService()
    taken = take_away(service, SEVERAL)
    assert taken is not None
    assert taken["texts"] == ["a", ["one", "two"]]
