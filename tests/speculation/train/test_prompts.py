"""The prompts: many, mixed, the same on every machine, and none that anything is judged by."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from workbench.bench.prompts import CHATS, RAW, english_text
from workbench.bench.speculation_prompts import TEXTS
from workbench.bench.workloads import QUESTIONS
from workbench.speculation.train.parts import DIVIDED_FROM, Part, entries_of, is_training_topic
from workbench.speculation.train.prompts import (
    conversations,
    fingerprint_text,
    read_lists,
    read_templates,
)
from workbench.speculation.train.texts import read_texts, runs_of_words
from workbench.ui.suggestions import SUGGESTIONS

ROOT = Path(__file__).parents[3]


def turns_of(entry) -> list[str]:
    return [entry] if isinstance(entry, str) else list(entry)


def plain(text: str) -> str:
    """Words alone, so that neither case nor punctuation hides that two texts are one."""
    return f" {' '.join(re.findall(r'[a-z0-9]+', text.lower()))} "


@pytest.fixture(scope="module")
def made():
    """As many conversations as `generate` asks for."""
    return {Part.TRAIN: conversations(Part.TRAIN, 10_000), Part.HELD_OUT: conversations(Part.HELD_OUT, 400)}


@pytest.fixture(scope="module")
def texts():
    return read_texts()


def test_conversations_are_all_different(made):
    for part, count in ((Part.TRAIN, 10_000), (Part.HELD_OUT, 400)):
        assert len({(one.system, one.turns) for one in made[part]}) == count


def test_conversations_begin_with_a_round_of_every_kind(made):
    kinds = [one.kind for one in made[Part.TRAIN][:19]]

    assert kinds == list(read_templates(Part.TRAIN))
    assert made[Part.TRAIN][0].turns == ("Is time management hard to learn? How long does it take?",)


@pytest.mark.parametrize("count", [50, 1000, 5000, 10_000])
def test_conversations_are_balanced_however_many_are_taken(made, count):
    by_kind = Counter(one.kind for one in made[Part.TRAIN][:count])

    assert len(by_kind) == 19
    assert max(by_kind.values()) - min(by_kind.values()) <= 1


def test_conversations_use_every_template_before_one_comes_again(made):
    arithmetic = [one.turns[0] for one in made[Part.TRAIN] if one.kind == "arithmetic"][:18]
    first_words = Counter(re.sub(r"[A-Z]\w+ (?=has|reads)|\d+", "", text).split(" ")[0] for text in arithmetic)

    assert first_words["Convert"] == 1
    assert sum("prime number" in text for text in arithmetic) == 1


def test_conversations_do_not_depend_on_the_hash_seed(made):
    script = (
        "from workbench.speculation.train.prompts import *; import sys\n"
        "sys.stdout.write(fingerprint_text(conversations(Part.TRAIN, 300)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )

    assert ran.stdout == fingerprint_text(made[Part.TRAIN][:300])


def test_conversations_differ_with_the_seed(made):
    other = conversations(Part.TRAIN, 100, seed=1)

    assert len(set(other) & set(made[Part.TRAIN][:100])) < 10


def test_parts_share_no_template_and_have_the_same_kinds():
    train, held_out = read_templates(Part.TRAIN), read_templates(Part.HELD_OUT)

    def all_turns(templates):
        return {plain(turn) for entries in templates.values() for entry in entries for turn in turns_of(entry)}

    # A turn that is a slot and nothing else, such as a sentence to translate, is no template.
    shared = all_turns(train) & all_turns(held_out)
    assert list(train) == list(held_out)
    assert shared <= {plain("{paragraph}")}


def test_parts_share_no_given_text(texts):
    for field in ("passages", "docstrings", "functions"):
        train, held_out = (set(getattr(texts[part], field)) for part in Part)
        assert min(len(train), len(held_out)) >= 10
        assert train & held_out == set()


def test_parts_share_no_passage_in_their_prompts(made):
    train, held_out = (runs_of_words(turn for one in made[part] for turn in one.turns) for part in Part)

    assert len(held_out) > 3000
    assert train & held_out == set()


def test_long_lists_of_subjects_are_divided():
    for name, entries in read_lists().items():
        train, held_out = (set(entries_of(entries, part)) for part in Part)
        if len(entries) >= DIVIDED_FROM:
            assert train & held_out == set(), name
            assert train | held_out == set(entries), name
            assert len(held_out) == len(entries) // 8, name
        else:
            assert train == held_out == set(entries), name


def test_entries_of_a_list_are_all_different():
    for name, entries in read_lists().items():
        assert len(set(entries)) == len(entries), name


def test_no_passage_stands_in_a_topic_that_perplexity_is_measured_on(texts):
    others = [text for name, text in topics.items() if not is_training_topic(name)]

    assert 20 < len(others) < len(topics) - 20
    assert runs_of_words(text for part in Part for text in texts[part].passages) & runs_of_words(others) == set()


def test_no_prompt_of_the_benchmarks_or_of_the_page_occurs(made):
    judged = [*QUESTIONS, *RAW.values(), *(suggestion.text for suggestion in SUGGESTIONS)]
    judged += itertools.chain(*TEXTS.values())
    judged += [message["content"] for messages in CHATS.values() for message in messages]
    short = [text for text in map(plain, judged) if len(text.split()) < 3]
    every_turn = [plain(turn) for part in Part for one in made[part] for turn in (*one.turns, one.system or "")]

    for text in map(plain, judged):
        # "The" and "Hi!" stand in many a text; as a whole prompt they must not occur either.
        found = [turn for turn in every_turn if (turn == text if text in short else text in turn)]
        assert not [turn for turn in found if turn.strip()], text


def test_no_prompt_holds_a_passage_that_the_benchmarks_or_the_page_use(made):
    asked = [*QUESTIONS, *itertools.chain(*TEXTS.values()), *(one.text for one in SUGGESTIONS)]
    theirs = runs_of_words([english_text(), *asked])
    mine = runs_of_words(turn for part in Part for one in made[part] for turn in one.turns)

    assert len(theirs) > 1500
    assert mine & theirs == set()


def test_runs_of_words_see_through_case_and_punctuation():
    words = [f"word{index}" for index in range(13)]

    assert runs_of_words([" ".join(words[:11])]) == set()
    assert runs_of_words([", ".join(words).upper()]) == {tuple(words[:12]), tuple(words[1:])}


def test_no_slot_is_left_unfilled(made):
    names = {*read_lists(), "number", "small_number", "passage", "paragraph", "code", "code_name", "csv", "json"}
    slots = re.compile(r"\{(" + "|".join(names) + r")\d?\}")
    own_text = [
        turn
        for one in itertools.chain(*made.values())
        if not re.search("code|copy|dialogue|summarize", one.kind)
        for turn in one.turns
    ]

    assert [turn for turn in own_text if slots.search(turn)] == []


def test_articles_fit_what_follows_them(made):
    whole = "\n".join(turn for one in made[Part.TRAIN] if one.kind == "question" for turn in one.turns)

    assert "What does an electrician do all day?" in whole
    assert "What does a nurse do all day?" in whole
    assert not re.search(r"\b[Aa] (electrician|accountant|owl|otter|ant|octopus)\b", whole)
