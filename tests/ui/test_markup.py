"""What a model or a visitor wrote never becomes markup of ours."""

from __future__ import annotations

import pytest

from workbench.telemetry.records import FinishReason
from workbench.ui import markup
from workbench.ui.chat_session import Phase, PhaseKind
from workbench.ui.turns import AnswerStats, ChatError, Turn

STATS = AnswerStats(0.412, 0.0381, 0.0614, 24.6, 187, 20, 0, FinishReason.STOP)


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
    text = markup.answer_footer(STATS, None)
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
    text = markup.assistant_message(Turn("assistant", "", AnswerStats()), "m", Phase(PhaseKind.QUEUED, position=3))
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
    assert ">Copy<" not in markup.assistant_message(Turn("assistant", "x", STATS), "m", streaming)
    assert ">Copy<" not in markup.assistant_message(Turn("assistant", "", STATS, ChatError("no")), "m")
