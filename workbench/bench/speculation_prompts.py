"""What drafting is measured on: chat, code, summaries of a given text, and answers that copy most of one.

None of these texts occurs among the prompts that the trained head has seen; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from workbench.models.tokenizer import Tokenizer

KINDS: Final = ("chat", "code", "summary", "copy")

HARBOUR: Final = (
    "The ferry to Marrow Island was cancelled on Tuesday after its captain reported a crack in the loading ramp. "
    "About ninety passengers waited in the old customs house, where the harbour office handed out soup and blankets. "
    "A smaller boat brought those with doctor's appointments across in the afternoon. The ramp was welded overnight, "
    "and the first regular crossing left at half past six on Wednesday, eleven minutes late."
)
GREENHOUSE: Final = (
    "Our school greenhouse grew four kinds of pepper this year. The red ones were planted in March and ripened "
    "first. The yellow ones needed more light, so the pupils moved them to the south window in May. Slugs ate most "
    "of the purple plants before anyone noticed. The small green ones were so hot that only the caretaker would "
    "taste them twice. In total the class harvested thirty-one kilograms and sold half of it at the summer fair."
)
CLOCK: Final = (
    "Watchmaker Ilse Brandt spent nine winters on the tower clock of Oberfeld. The pendulum had been replaced by an "
    "electric motor in the seventies, and nobody knew where the original parts had gone. She found the escapement in "
    "a barn, under a tarpaulin with a rusty plough. Since last Sunday the clock has been running on its weights "
    "again. It loses about four seconds a day, which she calls an honest error."
)
TRAIL: Final = (
    "The new ridge trail starts behind the quarry and climbs for two hours through pine forest. Halfway up there is "
    "a spring with drinking water. The last section is steep and has steel cables, so children should be roped. From "
    "the top you see three lakes on a clear day. The way back over the meadows is longer but easy on the knees. Dogs "
    "must be kept on a lead between April and July because of ground-nesting birds."
)

COPY_CODE: Final = """def total_weight(parcels):
    total = 0
    for parcel in parcels:
        if parcel.is_fragile:
            total += parcel.weight * 1.2
        else:
            total += parcel.weight
    return total

def heaviest(parcels):
    best = None
    for parcel in parcels:
        if best is None or parcel.weight > best.weight:
            best = parcel
    return best"""
COPY_TABLE: Final = """station,arrival,departure,platform
Kirchau,08:02,08:04,3
Steinbruck,08:19,08:20,1
Alt Weiden,08:33,08:39,2
Weiden Nord,08:44,08:45,2
Lindental,09:01,09:03,5
Lindental Ost,09:08,09:09,1"""
COPY_LETTER: Final = (
    "Dear Mrs. Okafor, thank you for lending us the projector. Mr. Brown will return the projector on Friday. "
    "Mr. Brown has also repaired the remote control of the projector. With kind regards, the film club of Mill Road."
)

TEXTS: Final[dict[str, tuple[str, ...]]] = {
    "chat": (
        "My sourdough is flat and sour every time. What should I change first?",
        "I have two free days in a rainy port town. How would you spend them?",
        "Explain to a curious ten-year-old why ships made of steel float.",
        "What could be the reasons that my bicycle chain jumps under load?",
        "Give me four arguments for and four against letting pupils grade their teachers.",
        "How do migrating birds find the way back to the same nest?",
    ),
    "code": (
        "Write a Python function that turns a duration such as '2h15m' into minutes, with a few assertions.",
        "Write an SQL query that lists for each warehouse the three products with the lowest stock.",
        "Write a JavaScript function that debounces another function, and show how to use it for a search field.",
        "Write a shell script that renames all JPEG files in a folder to the date on which they were taken.",
        "Implement a queue with two stacks in Python and say what each operation costs.",
        "Write a C function that reverses the bits of a 32-bit number. Comment each step.",
    ),
    "summary": (
        f"Summarize this report in two sentences.\n\n{HARBOUR}",
        f"What are the main points of the following text?\n\n{GREENHOUSE}",
        f"Shorten this article to its essence.\n\n{CLOCK}",
        f"Write three bullet points for hikers from this description.\n\n{TRAIL}",
        f"Who did what in this text, and when?\n\n{HARBOUR}",
        f"Give this text a headline and a one-sentence teaser.\n\n{CLOCK}",
    ),
    "copy": (
        f"Repeat this code, with `parcel` renamed to `item`.\n\n```python\n{COPY_CODE}\n```",
        f"Copy this table and leave out nothing.\n\n{COPY_TABLE}",
        f"Repeat the following text word for word.\n\n{TRAIL}",
        f"Write this letter again with Mrs. Lind in place of Mr. Brown.\n\n{COPY_LETTER}",
        f"Repeat the following text, but write all numbers as digits.\n\n{GREENHOUSE}",
        f"Add a docstring to each function and give me the whole code.\n\n```python\n{COPY_CODE}\n```",
    ),
}


@dataclass(frozen=True)
class SpeculationPrompt:
    """One question as the model gets it."""

    name: str
    kind: str
    """One of `KINDS`."""
    token_ids: tuple[int, ...]


def speculation_prompts(tokenizer: Tokenizer, per_kind: int = 6) -> list[SpeculationPrompt]:
    """Return the first `per_kind` prompts of every kind, the kinds in turns: 24 in all."""
    return [
        SpeculationPrompt(f"{kind}_{number + 1}", kind, tuple(_encode(tokenizer, TEXTS[kind][number])))
        for number in range(per_kind)
        for kind in KINDS
    ]


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_chat([{"role": "user", "content": text}])
