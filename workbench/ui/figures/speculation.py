"""The charts of the Speculation tab. Marks are grey here: the stylesheet colours them, in light and in dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import plotly.graph_objects as go

from workbench.speculation.statistics import AcceptanceStatistics, predicted_speedup
from workbench.speculation_params import MAX_SPECULATIVE_TOKENS
from workbench.ui.comparison import Comparison, Side, StepCosts
from workbench.ui.draft_steps import DraftTotals
from workbench.ui.texts import ENGLISH, Texts

HEIGHT: Final = 210
GREY: Final = "#7f8a97"
"""Legible on both canvases where a stylesheet should be missing."""
FEWEST_BARS: Final = 4
"""Room on an axis of bars, so that a single one is no block."""
GRID: Final = "rgba(127, 138, 151, 0.25)"
VERIFY_STEPS_SHOWN: Final = 240
"""Newest steps in the chart of drafted tokens."""


@dataclass(frozen=True)
class MeasuredSpeedup:
    """One comparison of this browser tab, run in turn."""

    method: str
    num_speculative_tokens: int
    is_adaptive: bool
    speedup: float


def acceptance_by_position(statistics: AcceptanceStatistics, say: Texts = ENGLISH) -> go.Figure:
    """Bars: of the drafts that reached a position, the share whose token there was accepted."""
    shares = statistics.acceptance_by_position
    bars = go.Bar(
        x=list(range(1, len(shares) + 1)),
        y=shares,
        text=[f"{share:.2f}" for share in shares],
        textposition="outside",
        marker_color=GREY,
        hovertemplate="%{x}: %{y:.3f}<extra></extra>",
        cliponaxis=False,
    )
    figure = _figure(bars, say("draft position"))
    figure.update_yaxes(range=[0, 1.12], tickvals=[0, 0.25, 0.5, 0.75, 1])
    figure.update_xaxes(dtick=_whole_ticks(len(shares)), range=[0.4, max(len(shares), FEWEST_BARS) + 0.6])
    return figure


def accepted_lengths(statistics: AcceptanceStatistics, say: Texts = ENGLISH) -> go.Figure:
    """Bars: how many verified drafts had so many tokens accepted."""
    counts = statistics.accepted_lengths
    bars = go.Bar(
        x=list(range(len(counts))),
        y=counts,
        text=[f"{count:,}" for count in counts],
        textposition="outside",
        marker_color=GREY,
        hovertemplate="%{x}: %{y:,}<extra></extra>",
        cliponaxis=False,
    )
    figure = _figure(bars, say("drafted tokens accepted"))
    figure.update_yaxes(
        range=[0, 1.12 * max(counts, default=1)], tickformat=",d", dtick=_whole_ticks(max(counts, default=1), 5)
    )
    figure.update_xaxes(dtick=_whole_ticks(len(counts)), range=[-0.6, max(len(counts), FEWEST_BARS) - 0.4])
    return figure


def speedup_against_k(measured: Sequence[MeasuredSpeedup], costs: StepCosts | None, say: Texts = ENGLISH) -> go.Figure:
    """A line for what the formula predicts from the last run's costs, and a dot for each comparison."""
    figure = _figure(None, "K")
    lengths = list(range(MAX_SPECULATIVE_TOKENS + 1))
    if costs is not None:
        predicted = [predicted_speedup(costs.acceptance, k, costs.draft, costs.verify_of(k)) for k in lengths]
        figure.add_scatter(
            x=lengths,
            y=predicted,
            mode="lines",
            line={"color": GREY, "width": 1.5},
            hovertemplate="K = %{x}: %{y:.2f}×<extra></extra>",
        )
        figure.add_annotation(
            x=lengths[-1], y=predicted[-1], text=say("predicted"), showarrow=False, xanchor="right", yshift=14
        )
    figure.add_scatter(
        x=[each.num_speculative_tokens for each in measured],
        y=[each.speedup for each in measured],
        customdata=[_measured_words(each, say) for each in measured],
        mode="markers",
        marker={"color": GREY, "size": 8},
        hovertemplate="%{customdata}: %{y:.2f}×<extra></extra>",
    )
    if measured:
        last = measured[-1]
        figure.add_annotation(
            x=last.num_speculative_tokens, y=last.speedup, text=f"{last.speedup:.2f}×", showarrow=False, yshift=-12
        )
    figure.update_xaxes(range=[-0.5, MAX_SPECULATIVE_TOKENS + 0.5], dtick=4)
    figure.update_yaxes(ticksuffix="×", rangemode="tozero")
    return figure


def _measured_words(each: MeasuredSpeedup, say: Texts) -> str:
    words = "{method}, adaptive K up to {count}" if each.is_adaptive else "{method}, K = {count}"
    return say(words, method=each.method, count=each.num_speculative_tokens)


def drafted_over_time(side: Side, say: Texts = ENGLISH) -> go.Figure:
    """A line in steps: how many tokens were drafted for each step, 0 where none were."""
    steps = side.decoding[-VERIFY_STEPS_SHOWN:]
    first = len(side.decoding) - len(steps)
    figure = _figure(None, say("step of the answer"))
    figure.add_scatter(
        x=[first + place for place in range(1, len(steps) + 1)],
        y=[step.num_draft_tokens for step in steps],
        mode="lines",
        line={"color": GREY, "width": 1.5, "shape": "hv"},
        hovertemplate="%{x}: %{y}<extra></extra>",
    )
    most = max((step.num_draft_tokens for step in steps), default=1)
    figure.update_yaxes(range=[-0.2, most + 0.5], dtick=_whole_ticks(most))
    return figure


def tokens_over_time(comparison: Comparison, say: Texts = ENGLISH) -> go.Figure:
    """Two lines: tokens of each answer over the seconds since its first; the steeper, the more tokens per second."""
    figure = _figure(None, say("seconds since the first token"))
    sides = ((comparison.plain, say("without")), (comparison.drafted, say("with")))
    first_end = min((_cumulated(side)[0][-1] for side, _ in sides if side.steps), default=0.0)
    for side, words in sides:
        times, counts = _cumulated(side)
        figure.add_scatter(
            x=times,
            y=counts,
            mode="lines",
            line={"color": GREY, "width": 1.75, "shape": "hv"},
            name=words,
            hovertemplate="%{x:.2f} s: %{y:,}<extra></extra>",
        )
        if times:
            shift = 10 if times[-1] == first_end else -12  # above the line that ends first, below the other
            figure.add_annotation(x=times[-1], y=counts[-1], text=words, showarrow=False, xanchor="right", yshift=shift)
    figure.update_yaxes(rangemode="tozero", tickformat=",d")
    figure.update_xaxes(rangemode="tozero")
    return figure


def _cumulated(side: Side) -> tuple[list[float], list[int]]:
    times: list[float] = []
    counts: list[int] = []
    for step in side.steps:
        times.append(step.ended_s - side.steps[0].ended_s)
        counts.append((counts[-1] if counts else 0) + step.num_new_tokens)
    return times, counts


def acceptance_over_time(totals: DraftTotals, say: Texts = ENGLISH) -> go.Figure:
    """A line with dots: the share of drafted tokens that was accepted, of all requests."""
    figure = _figure(None, say("seconds before the newest step"))
    figure.add_scatter(
        x=[bucket.ended_s for bucket in totals.buckets],
        y=[bucket.num_accepted_tokens / bucket.num_draft_tokens for bucket in totals.buckets],
        customdata=[[bucket.num_accepted_tokens, bucket.num_draft_tokens] for bucket in totals.buckets],
        mode="lines+markers",
        line={"color": GREY, "width": 1.5},
        marker={"size": 4},
        hovertemplate="%{customdata[0]:,} / %{customdata[1]:,}<extra></extra>",
    )
    figure.update_yaxes(range=[0, 1.05], tickvals=[0, 0.25, 0.5, 0.75, 1])
    return figure


def _figure(trace: Any, x_title: str) -> go.Figure:
    """An empty chart in the page's manner: horizontal grid only, no legend, nothing to zoom."""
    figure = go.Figure(data=[] if trace is None else [trace])
    axis = {"fixedrange": True, "zeroline": False, "automargin": True, "linecolor": GRID, "color": GREY}
    figure.update_layout(
        template="none",
        height=HEIGHT,
        margin={"l": 36, "r": 12, "t": 12, "b": 36},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "IBM Plex Sans, sans-serif", "size": 11, "color": GREY},
        showlegend=False,
        dragmode=False,
        bargap=0.45,
        hoverlabel={"font": {"size": 11}},
        xaxis={**axis, "showgrid": False, "title": {"text": x_title, "standoff": 6, "font": {"size": 11}}},
        yaxis={**axis, "showgrid": True, "gridcolor": GRID, "showline": False},
    )
    return figure


def _whole_ticks(most: int, num_ticks: int = 10) -> int:
    """Distance of the ticks of a whole-numbered axis: at most about so many of them."""
    return max(1, -(-most // num_ticks))
