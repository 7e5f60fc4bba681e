import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.engine.detokenizer import IncrementalDetokenizer, OutputText, StopMatcher


class ByteTokenizer:
    """Token i is byte i; 256 is a special token."""

    special_token_ids = frozenset({256})

    def token_bytes(self, token_id):
        return b"<end>" if token_id == 256 else bytes([token_id])


class PieceTokenizer:
    """Token i is the i-th piece."""

    special_token_ids: frozenset[int] = frozenset()

    def __init__(self, *pieces):
        self.pieces = [piece.encode() for piece in pieces]

    def token_bytes(self, token_id):
        return self.pieces[token_id]


def stream(pieces, stops):
    text = OutputText(PieceTokenizer(*pieces), stops)
    out = []
    for index in range(len(pieces)):
        stop = text.push(index)
        out.append(text.take())
        if stop is not None:
            return out, stop
    text.flush()
    out.append(text.take())
    return out, None


def test_trap_23_character_split_over_tokens_appears_once_and_whole():
    detokenizer = IncrementalDetokenizer(ByteTokenizer())

    assert [detokenizer.push(byte) for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]
    assert detokenizer.flush() == ""


def test_trap_23_unfinished_character_becomes_one_replacement_mark_at_the_end():
    text = OutputText(ByteTokenizer())
    for byte in b"ok\xf0\x9f\x99":
        text.push(byte)

    assert text.take() == "ok"
    text.flush()
    assert text.take() == "\ufffd"


@given(st.lists(st.integers(0, 255), max_size=40))
def test_trap_23_pieces_joined_equal_one_decode_of_all_bytes(data):
    detokenizer = IncrementalDetokenizer(ByteTokenizer())
    pieces = [detokenizer.push(byte) for byte in data] + [detokenizer.flush()]

    assert "".join(pieces) == bytes(data).decode("utf-8", errors="replace")


def test_special_tokens_are_skipped_unless_asked_for():
    skipping, keeping = IncrementalDetokenizer(ByteTokenizer()), IncrementalDetokenizer(ByteTokenizer(), False)

    assert skipping.push(65) + skipping.push(256) == "A"
    assert keeping.push(65) + keeping.push(256) == "A<end>"


def test_trap_22_stop_text_across_token_boundaries_ends_the_output_before_it():
    assert stream(["Hello ", "##", "# more"], ["###"]) == (["Hello ", "", ""], "###")


def test_trap_22_held_back_prefix_is_released_as_soon_as_it_is_disproved():
    assert stream(["a#", "#", "b", "#"], ["###"]) == (["a", "", "##b", "", "#"], None)


def test_trap_22_held_back_prefix_is_flushed_at_the_end():
    assert stream(["answer", "\nUs"], ["\nUser:"]) == (["answer", "", "\nUs"], None)


def test_trap_22_overlapping_prefix_restarts_inside_what_is_held():
    assert stream(["aa", "aab"], ["aaab"]) == (["", "a"], "aaab")


def test_earliest_of_several_stop_texts_wins():
    assert stream(["one two three"], ["three", "two"]) == (["one "], "two")


def test_stop_text_inside_one_token_cuts_the_token():
    assert stream(["Hi\n\nthere"], ["\n\n"]) == (["Hi"], "\n\n")


def test_nothing_leaks_after_a_stop_text():
    text = OutputText(PieceTokenizer("a.", "b"), ["."])
    assert text.push(0) == "."
    text.flush()

    assert text.take() == "a"


@given(
    st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.randoms()
)
def test_trap_22_any_split_gives_the_text_before_the_first_stop(text, stops, random):
    matcher, out, hit, start = StopMatcher(stops), "", None, 0
    while start < len(text) and hit is None:
        end = random.randint(start + 1, len(text))
        released, hit = matcher.push(text[start:end])
        out, start = out + released, end
    if hit is None:
        out += matcher.flush()

    positions = [text.find(stop) for stop in stops if stop in text]
    if hit is None:
        assert not positions
        assert out == text
    else:
        assert out + hit == text[: len(out) + len(hit)]
        assert not any(stop in out for stop in stops)


@pytest.mark.model
@given(st.lists(st.integers(0, 49_151), max_size=30))
def test_trap_23_streamed_text_of_the_default_model_equals_its_decode(default_tokenizer, token_ids):
    text = OutputText(default_tokenizer)
    pieces = []
    for token_id in token_ids:
        text.push(token_id)
        pieces.append(text.take())
    text.flush()
    pieces.append(text.take())

    assert "".join(pieces) == default_tokenizer.decode(token_ids)
