"""The widgets of the Speculation tab that its handlers change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr
import plotly.graph_objects as go


@dataclass(frozen=True)
class Chart:
    """A chart under its name; the plot is shown once there is something in it."""

    head: gr.HTML
    plot: gr.Plot

    def filled(self, head: str, figure: go.Figure | None) -> dict[Any, Any]:
        """The chart with a figure, or empty."""
        return {self.head: head, self.plot: gr.Plot(figure, visible=figure is not None)}


@dataclass(frozen=True)
class ComparisonWidgets:
    """The widgets of the tab that its handlers change."""

    prompt: gr.Textbox
    method: gr.Radio
    count: gr.Slider
    adaptive: gr.Checkbox
    run: gr.Button
    race: gr.Button
    stop: gr.Button
    plain: gr.HTML
    drafted: gr.HTML
    verdict: gr.HTML
    by_position: Chart
    lengths: Chart
    speedup: Chart
    over_time: Chart
    tokens: Chart
    run_facts: gr.HTML
    totals: gr.HTML
    all_over_time: Chart
    table: gr.Dataframe
    refresh: gr.Button

    @property
    def asked(self) -> list[Any]:
        """What a comparison is asked for with, besides the visitor's form."""
        return [self.prompt, self.method, self.count, self.adaptive]

    @property
    def total_outputs(self) -> list[Any]:
        """What tells of all requests."""
        return [self.totals, self.all_over_time.head, self.all_over_time.plot, self.table]

    @property
    def outputs(self) -> list[Any]:
        """What a comparison changes."""
        charts = (self.by_position, self.lengths, self.speedup, self.over_time, self.tokens)
        parts = [part for chart in charts for part in (chart.head, chart.plot)]
        buttons = [self.run, self.race, self.stop]
        return [*buttons, self.plain, self.drafted, self.verdict, *parts, self.run_facts, *self.total_outputs]

    def busy(self, is_busy: bool) -> dict[Any, Any]:
        """The buttons while a comparison is under way, and between two."""
        return {
            self.run: gr.Button(interactive=not is_busy),
            self.race: gr.Button(interactive=not is_busy),
            self.stop: gr.Button(interactive=is_busy),
        }
