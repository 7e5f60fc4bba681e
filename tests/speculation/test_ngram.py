from hypothesis import given
from hypothesis import strategies as st

from workbench.speculation.ngram import NgramIndex, NgramProposer, continuation
from workbench.speculation.proposer import DraftRequest


def ask(token_ids, num_tokens=4, lookup=(2, 4), request_id="r"):
    return DraftRequest(request_id, token_ids, num_tokens, lookup, ((),))


def propose(proposer, *requests):
    return [draft.token_ids for draft in proposer.propose(requests)]


def test_proposer_continues_as_after_the_same_tokens_before():
    assert propose(NgramProposer(), ask([1, 2, 3, 4, 5, 9, 1, 2])) == [(3, 4, 5, 9)]


def test_proposer_prefers_the_longest_run_and_of_equal_ones_the_latest():
    assert propose(NgramProposer(), ask([7, 1, 2, 50, 1, 2, 60, 7, 1, 2], num_tokens=1)) == [(50,)]
    assert propose(NgramProposer(), ask([1, 2, 50, 1, 2, 60, 7, 1, 2], num_tokens=1)) == [(60,)]


def test_proposer_suggests_nothing_where_the_run_is_new_or_shorter_than_wanted():
    assert propose(NgramProposer(), ask([1, 2, 3, 4])) == [()]
    assert propose(NgramProposer(), ask([5, 1, 5], lookup=(2, 3))) == [()]
    assert propose(NgramProposer(), ask([5, 1, 5], lookup=(1, 3), num_tokens=1)) == [(1,)]
    assert propose(NgramProposer(), ask([5])) == [()]


def test_proposer_reads_a_repetition_on_beyond_the_end_of_the_context():
    assert propose(NgramProposer(), ask([1, 2, 3, 1, 2, 3, 1, 2], num_tokens=5)) == [(3, 1, 2, 3, 1)]
    assert propose(NgramProposer(), ask([9, 8, 8, 8], num_tokens=3)) == [(8, 8, 8)]


def test_proposer_looks_only_into_the_context_of_the_request_itself():
    """TRAPS.md 18: neither another request, nor an earlier one of the same name."""
    proposer = NgramProposer()
    propose(proposer, ask([1, 2, 3, 4, 1, 2], request_id="a"))
    assert propose(proposer, ask([9, 1, 2], request_id="b")) == [()]
    proposer.forget("a")
    assert propose(proposer, ask([9, 1, 2], request_id="a")) == [()]


def test_proposer_looks_up_other_lengths_when_they_are_changed():
    proposer, context = NgramProposer(), [1, 2, 5, 2, 6, 1, 2]
    assert propose(proposer, ask(context, lookup=(2, 2), num_tokens=1)) == [(5,)]
    assert propose(proposer, ask(context, lookup=(1, 1), num_tokens=1)) == [(6,)]


def latest_match(token_ids, fewest, most):
    """The plain way: try every earlier place."""
    for length in range(min(most, len(token_ids) - 1), fewest - 1, -1):
        for start in range(len(token_ids) - 1, length - 1, -1):
            if token_ids[start - length : start] == token_ids[-length:]:
                return start
    return None


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 7),
    st.data(),
)
def test_growing_index_finds_what_a_search_from_scratch_finds(tokens, fewest, more, step, data):
    index, most = NgramIndex(fewest, fewest + more), fewest + more
    for end in range(1, len(tokens) + 1, step):
        context = tokens[:end]
        index.extend(context)
        assert index.find(context) == latest_match(context, fewest, most)


def test_continuation_takes_as_many_tokens_as_asked():
    assert continuation([1, 2, 3, 4], 1, 2) == (2, 3)
    assert continuation([1, 2, 3, 4], 3, 4) == (4, 4, 4, 4)
