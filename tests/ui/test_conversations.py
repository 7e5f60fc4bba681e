"""Conversations are kept by tab, and not without end."""

from workbench.ui.conversations import Conversations
from workbench.ui.turns import Turn

A, B, C = (Turn("user", "a"),), (Turn("user", "b"),), (Turn("user", "c"),)


def test_conversations_are_kept_apart_by_session():
    kept = Conversations()
    kept.keep("one", A)
    kept.keep("two", B)
    assert (kept.of("one"), kept.of("two"), kept.of("three")) == (A, B, ())


def test_conversations_forget_the_least_recently_used():
    kept = Conversations(capacity=2)
    kept.keep("one", A)
    kept.keep("two", B)
    kept.of("one")
    kept.keep("three", C)
    assert (kept.of("one"), kept.of("two"), kept.of("three")) == (A, (), C)


def test_conversations_drop_an_empty_one():
    kept = Conversations()
    kept.keep("one", A)
    kept.keep("one", ())
    assert len(kept) == 0
