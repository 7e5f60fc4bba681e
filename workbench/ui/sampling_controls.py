"""The controls of the visitor's form: sampling, drafting, and what is rarely needed in an accordion of its own."""

from __future__ import annotations

from typing import Any

import gradio as gr

from workbench.presets import Preset
from workbench.ui.localized import localized
from workbench.ui.sampling_form import EARLY_STOPPING, FEWEST_BEAMS, FIELDS, MAX_ANSWERS, MOST_BEAMS, form_values
from workbench.ui.sliders import slider
from workbench.ui.speculation_controls import drafting_details, speculation_section


def build_sampling_controls(preset: Preset) -> tuple[list[gr.components.Component], gr.Textbox]:
    """Lay out the accordions; return the controls in the order of `FIELDS`, and the system prompt."""
    shown = dict(zip(FIELDS, form_values(preset.sampling, preset.speculation), strict=True))
    with (
        gr.Accordion(localized("Sampling"), open=True, elem_classes="wb-section wb-yours"),
        gr.Row(elem_classes="wb-form"),
    ):
        controls = _usual_controls(shown)
        system_prompt = gr.Textbox(
            "",
            label=localized("System prompt"),
            placeholder=localized("none"),
            lines=2,
            max_lines=6,
            elem_classes="wb-field wb-full",
            elem_id="wb-system-prompt",
        )
    controls |= speculation_section(shown)
    advanced = gr.Accordion(
        localized("Advanced sampling"), open=False, elem_classes="wb-section wb-yours", elem_id="wb-advanced"
    )
    with advanced, gr.Row(elem_classes="wb-form wb-explained"):
        controls |= _advanced_controls(shown) | drafting_details(shown)
    return [controls[name] for name in FIELDS], system_prompt


def _usual_controls(shown: dict[str, Any]) -> dict[str, gr.components.Component]:
    return {
        "temperature": slider(0, 2, 0.05, shown["temperature"], "Temperature"),
        "top_p": slider(0.05, 1, 0.05, shown["top_p"], "Top-p"),
        "top_k": slider(0, 200, 1, shown["top_k"], "Top-k"),
        "min_p": slider(0, 1, 0.01, shown["min_p"], "Min-p", elem_id="wb-min-p"),
        "seed": _text(shown["seed"], "Seed", "random", "wb-seed"),
        "max_tokens": _whole_number(shown["max_tokens"], "Max tokens", "wb-max-tokens", placeholder="as many as fit"),
        "stop": _text(shown["stop"], "Stop", "one per line", "wb-stop-texts", lines=4, is_wide=True),
    }


def _advanced_controls(shown: dict[str, Any]) -> dict[str, gr.components.Component]:
    return {
        **_answer_controls(shown),
        "priority": _whole_number(
            0,
            "Priority",
            "wb-priority",
            info="Of your requests: lower runs first. It matters where the engine's policy is Priority.",
        ),
        "repetition_penalty": slider(
            0.5,
            2,
            0.05,
            shown["repetition_penalty"],
            "Repetition penalty",
            "Above 1, every token of the prompt and the answer becomes less likely to come again. 1 is off.",
            "wb-repetition-penalty",
        ),
        "presence_penalty": slider(
            -2,
            2,
            0.1,
            shown["presence_penalty"],
            "Presence penalty",
            "Taken once from each token that the answer holds already: above 0, it moves to new words. 0 is off.",
            "wb-presence-penalty",
        ),
        "frequency_penalty": slider(
            -2,
            2,
            0.1,
            shown["frequency_penalty"],
            "Frequency penalty",
            "Taken for each time that a token stands in the answer: above 0, it repeats itself less. 0 is off.",
            "wb-frequency-penalty",
        ),
        "min_tokens": _whole_number(
            shown["min_tokens"], "Min tokens", "wb-min-tokens", info="The answer cannot end before this many tokens."
        ),
        "bad_words": _text(
            shown["bad_words"],
            "Bad words",
            "one per line",
            "wb-bad-words",
            "Never generated: the token that would complete one is left out.",
            lines=6,
        ),
        "logit_bias": _text(
            shown["logit_bias"],
            "Logit bias",
            "token or id: number",
            "wb-logit-bias",
            "Added to the score of one token, from -100 (never) to 100 (always). A space before the token counts.",
            lines=6,
        ),
        "ignore_eos": _check(
            shown["ignore_eos"],
            "Ignore end of text",
            "The answer goes on past the model's own end, up to max tokens or a stop text.",
            "wb-ignore-eos",
        ),
        "logprobs": _check(
            False,
            "Log-probabilities",
            "Of each token of the answer: seen when the answer is shown as tokens. Beams have none.",
            "wb-logprobs",
        ),
    }


def _answer_controls(shown: dict[str, Any]) -> dict[str, gr.components.Component]:
    """How many answers there are, and beam search, which looks for the most likely ones."""
    return {
        "n": gr.Radio(
            [(str(count), count) for count in range(1, MAX_ANSWERS + 1)],
            value=shown["n"],
            label=localized("Answers"),
            info=localized(
                "Side by side, above the blocks of their prompt, which they share. "
                "At temperature 0 all answers are the same."
            ),
            elem_classes=["wb-choice", "wb-full"],
            elem_id="wb-n",
        ),
        "use_beam_search": _check(
            shown["use_beam_search"],
            "Beam search",
            "Follows the most likely continuations at once and shows the best of them, with their scores, at the end. "
            "Nothing is drawn at random.",
            "wb-use-beam-search",
        ),
        "beam_width": slider(
            FEWEST_BEAMS,
            MOST_BEAMS,
            1,
            shown["beam_width"],
            "Beams",
            "Continuations that beam search follows at once.",
            "wb-beam-width",
        ),
        "length_penalty": slider(
            -2,
            2,
            0.1,
            shown["length_penalty"],
            "Length penalty",
            "Of beams: the higher, the more longer answers gain. 1 compares log-probabilities per token, 0 their sums.",
            "wb-length-penalty",
        ),
        "early_stopping": gr.Dropdown(
            [(localized(name.capitalize()), name) for name in EARLY_STOPPING],
            value=shown["early_stopping"],
            label=localized("Stop early"),
            info=localized(
                "Yes: once there are as many complete answers as beams. No: once no beam can become better at its "
                "present length. Never: once none can at any length."
            ),
            elem_classes="wb-field wb-full",
            elem_id="wb-early-stopping",
            min_width=0,
        ),
    }


def _check(value: Any, label: str, info: str, elem_id: str) -> gr.Checkbox:
    return gr.Checkbox(
        value,
        label=localized(label),
        info=info and localized(info),
        elem_classes="wb-check wb-full",
        elem_id=elem_id,
        min_width=0,
    )


def _whole_number(
    value: Any, label: str, elem_id: str, placeholder: str | None = None, info: str | None = None
) -> gr.Number:
    return gr.Number(
        value,
        label=localized(label),
        info=info and localized(info),
        placeholder=placeholder and localized(placeholder),
        precision=0,
        elem_classes=["wb-field", "wb-mono", *(["wb-full"] if info else [])],
        elem_id=elem_id,
        min_width=0,
    )


def _text(
    value: Any,
    label: str,
    placeholder: str,
    elem_id: str,
    info: str | None = None,
    lines: int = 1,
    is_wide: bool = False,
) -> gr.Textbox:
    return gr.Textbox(
        value,
        label=localized(label),
        info=info and localized(info),
        placeholder=placeholder and localized(placeholder),
        lines=1,
        max_lines=lines,
        elem_classes=["wb-field", "wb-mono", *(["wb-full"] if info or is_wide else [])],
        elem_id=elem_id,
        min_width=0,
    )
