"""What a model or a visitor wrote never becomes markup of ours."""

from __future__ import annotations

import dataclasses

import pytest

from workbench.telemetry.records import CacheMiss, FinishReason
from workbench.ui import markup
from workbench.ui.phases import Phase, PhaseKind
from workbench.ui.turns import Answer, AnswerStats, ChatError, Turn

STATS = AnswerStats(0.412, 0.0381, 0.0614, 24.6, 187, 20, 0, FinishReason.STOP)
DONE = Phase(PhaseKind.DONE)


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=http://evil.example/x.png onerror=alert(1)>",
        '</div></div><div class="wb-foot">forged</div>',
        "```\n</code></pre><script>x</script>\n```",
        "a `</code><b>` c",
    ],
)
def test_markup_of_a_model_is_shown_as_text(text: str):
    rendered = markup.markdown(text)
    for tag in ("<script", "<img", "<b>", '<div class="wb-foot"', "</div>"):
        assert tag not in rendered
    assert "&lt;" in rendered


def test_markup_loads_no_image():
    assert "<img" not in markup.markdown("![x](http://evil.example/x.png)")


@pytest.mark.parametrize("address", ["javascript:alert(1)", "data:text/html,x", "vbscript:x"])
def test_markup_makes_no_link_of_a_dangerous_address(address: str):
    assert "<a " not in markup.markdown(f"[click]({address})")


def test_markup_links_open_elsewhere_without_a_way_back():
    rendered = markup.markdown("[x](https://example.org)")
    assert '<a rel="noopener noreferrer" target="_blank" href="https://example.org">x</a>' in rendered


def test_markup_is_one_line_so_that_blank_lines_do_not_end_the_block():
    rendered = markup.markdown("a\n\n```\nx\n\n<y>\n```\n\nb")
    assert "\n" not in rendered
    assert "x&#10;&#10;&lt;y&gt;" in rendered


def test_markup_renders_lists_emphasis_and_code():
    rendered = markup.markdown("1. **a**\n2. `b`")
    assert "<ol>" in rendered
    assert "<strong>a</strong>" in rendered
    assert "<code>b</code>" in rendered


def test_user_message_keeps_its_line_breaks_and_no_markup():
    assert "a &lt;b&gt;<br>*c*" in markup.user_message(Turn("user", "a <b>\n*c*"))


def test_footer_gives_the_figures_by_the_number_rules():
    text = markup.answer_footer(STATS, DONE)
    for part in (
        "TTFT <b>412 ms</b>",
        "ITL p50 <b>38.1</b> / p95 <b>61.4 ms</b>",
        "<b>24.6</b> tok/s",
        "prompt <b>187</b>",
        "<span>stop</span>",
    ):
        assert part in text


def test_footer_says_that_the_answer_streams_and_shows_missing_figures_as_a_dash():
    text = markup.answer_footer(AnswerStats(num_prompt_tokens=3), Phase(PhaseKind.DECODE, num_done=1))
    assert "TTFT <b>–</b>" in text
    assert "<span>streaming</span>" in text


def test_answer_that_waits_says_its_phase():
    text = markup.assistant_message(Turn("assistant", "", AnswerStats()), "m", [Phase(PhaseKind.QUEUED, position=3)])
    assert "queued #3" in text


def test_answer_that_was_refused_shows_the_message_escaped_and_no_figures():
    turn = Turn("assistant", "", AnswerStats(finish_reason=FinishReason.ERROR), ChatError("a < b"))
    text = markup.assistant_message(turn, "m")
    assert 'role="alert">a &lt; b<' in text
    assert "wb-foot" not in text


def test_model_name_is_escaped():
    assert "&lt;i&gt;" in markup.assistant_message(Turn("assistant", "x"), "<i>")


def test_messages_offer_what_can_be_done_with_them():
    streaming = Phase(PhaseKind.DECODE, num_done=1)
    assert [w in markup.user_message(Turn("user", "x")) for w in (">Edit<", ">Copy<")] == [True, True]
    assert ">Copy<" in markup.assistant_message(Turn("assistant", "x", STATS), "m")
    assert ">Edit<" not in markup.assistant_message(Turn("assistant", "x", STATS), "m")
    assert ">Copy<" not in markup.assistant_message(Turn("assistant", "x", STATS), "m", [streaming])
    assert ">Copy<" not in markup.assistant_message(Turn("assistant", "", STATS, ChatError("no")), "m")


@pytest.mark.parametrize(
    ("stats", "words"),
    [
        (AnswerStats(num_prompt_tokens=327), "prompt 327"),
        (AnswerStats(num_prompt_tokens=327, num_cached_tokens=288), "prompt 327 (288 cached)"),
        (
            AnswerStats(num_prompt_tokens=327, num_cached_tokens=288, cache_miss=CacheMiss.DIFFERS, differs_at=290),
            "prompt 327 (288 cached; differs at token 290)",
        ),
        (
            AnswerStats(num_prompt_tokens=327, cache_miss=CacheMiss.EVICTED),
            "prompt 327 (none cached; the next block was evicted)",
        ),
        (
            AnswerStats(num_prompt_tokens=9, cache_miss=CacheMiss.SHORTER_THAN_BLOCK),
            "prompt 9 (none cached; shorter than a block)",
        ),
        (
            AnswerStats(num_prompt_tokens=9, cache_miss=CacheMiss.DIFFERS, differs_at=0),
            "prompt 9 (nothing cached begins like it)",
        ),
        (AnswerStats(num_prompt_tokens=9, cache_miss=CacheMiss.DISABLED), "prompt 9 (prefix cache off)"),
    ],
)
def test_footer_says_what_was_cached_of_the_prompt_and_why_no_more(stats: AnswerStats, words: str):
    assert words in markup.figures(stats, "")


def test_footer_tells_preemptions_and_swaps_where_there_were_any():
    assert markup.figures(AnswerStats(num_preemptions=2, num_swaps=1), "end")[-3:] == [
        "preempted 2×",
        "swapped 1×",
        "end",
    ]
    assert not any("×" in part for part in markup.figures(AnswerStats(), "end"))


def test_footer_of_a_beam_gives_its_whole_time_in_place_of_figures_that_tell_nothing():
    stats = AnswerStats(1.5, None, None, 400.0, 9, 20, finish_reason=FinishReason.LENGTH, e2e_s=1.5, beam_score=-0.4)
    assert markup.figures(stats, "") == ["1,500 ms in all", "prompt 9", "20 out", "length"]


def test_answer_that_waits_or_was_preempted_says_why_escaped():
    held = Phase(PhaseKind.PREEMPTED, why=("preempted: r<9 needed 3 blocks", "waiting: needs 12 blocks, 9 are free"))
    waiting = markup.assistant_message(Turn("assistant", "", AnswerStats()), "m", [held])
    assert '<div class="wb-why">preempted: r&lt;9 needed 3 blocks</div>' in waiting
    assert '<div class="wb-why">waiting: needs 12 blocks, 9 are free</div>' in waiting
    halfway = markup.assistant_message(Turn("assistant", "half", AnswerStats()), "m", [held])
    assert "<span>preempted</span>" in halfway
    assert halfway.count("wb-why") == 2


# ---------------------------------------------------------------------------- several answers

SECOND = AnswerStats(0.5, finish_reason=FinishReason.ERROR)
TWO = Turn.of_answers((Answer("*one*", STATS), Answer("two", SECOND, ChatError("a < b"))))


def test_answers_stand_side_by_side_each_with_its_name_text_figures_and_error():
    text = markup.assistant_message(TWO, "m")
    first, second = text.split('<div class="wb-answer')[2:]
    assert 'm · 2 answers<span class="wb-prompt">prompt 187</span>' in text
    assert "prompt <b>" not in text
    assert 'class="wb-answers wb-answers-2"' in text
    assert "Answer 1 of 2" in first
    assert "<em>one</em>" in first
    assert "TTFT <b>412 ms</b>" in first
    assert "Answer 2 of 2" in second
    assert 'role="alert">a &lt; b<' in second
    assert "TTFT <b>500 ms</b>" in second
    assert text.count(">Copy<") == 2


def test_answers_mark_the_chosen_one_and_offer_the_others_only_where_that_is_possible():
    first, second = markup.assistant_message(TWO.choosing(1), "m", can_choose=True).split('<div class="wb-answer')[2:]
    assert ("wb-chosen" in first, "wb-act-choose" in first) == (False, True)
    assert ("wb-chosen" in second, "wb-act-choose" in second) == (True, False)
    assert "wb-act-choose" not in markup.assistant_message(TWO, "m")


def test_answers_without_text_cannot_be_chosen():
    turn = Turn.of_answers((Answer("one", STATS), Answer("", SECOND, ChatError("no"))))
    assert "wb-act-choose" not in markup.assistant_message(turn, "m", can_choose=True)


def test_answers_under_way_have_no_mark_and_no_actions():
    phases = [Phase(PhaseKind.DECODE, num_done=1), DONE]
    text = markup.assistant_message(TWO, "m", phases, can_choose=True)
    assert text.count("wb-streaming") == 1
    assert ("wb-chosen" in text, ">Copy<" in text) == (False, False)


def test_answers_of_which_nothing_has_come_wait_in_one_line():
    turn = Turn.of_answers((Answer("", AnswerStats()), Answer("", AnswerStats())))
    text = markup.assistant_message(turn, "m", [Phase(PhaseKind.QUEUED, position=3)] * 2)
    assert text.count("queued #3") == 1
    assert "wb-answers" not in text


def test_only_beam_names_its_score_beside_the_model():
    turn = Turn("assistant", "x", AnswerStats(beam_score=-0.416))
    assert "m · beam search, score −0.42" in markup.assistant_message(turn, "m")


def test_footer_gives_accepted_of_drafted_tokens_where_there_were_any():
    drafted = dataclasses.replace(STATS, num_draft_tokens=1320, num_accepted_tokens=84)
    assert "<span>accepted <b>84</b> / 1,320</span>" in markup.answer_footer(drafted, DONE)
    assert "accepted" not in markup.answer_footer(STATS, DONE)
