from workbench.engine.block_key import BlockKey, common_length


def chain(*blocks, extra=(), hash_function=hash):
    key = None
    for tokens in blocks:
        key = BlockKey(key, tokens, extra, hash_function)
    return key


def test_keys_of_equal_chains_are_equal_and_found_in_a_dictionary():
    assert chain((1, 2), (3, 4)) == chain((1, 2), (3, 4))
    assert {chain((1, 2), (3, 4)): "found"}[chain((1, 2), (3, 4))] == "found"


def test_keys_differ_by_tokens_parents_depth_and_extras():
    key = chain((1, 2), (3, 4))
    assert key != chain((1, 2), (3, 5))
    assert key != chain((9, 2), (3, 4))
    assert key != chain((3, 4))
    assert key != chain((0, 0), (1, 2), (3, 4))
    assert key != chain((1, 2), (3, 4), extra=("adapter",))
    assert key != "something else"


def test_trap_11_keys_with_one_hash_are_told_apart_by_tokens_and_parents():
    def constant(_value):
        return 7

    keys = [
        chain(*blocks, hash_function=constant)
        for blocks in ([(1, 2)], [(1, 3)], [(1, 2), (3, 4)], [(1, 3), (3, 4)], [(3, 4)])
    ]
    assert {hash(key) for key in keys} == {7}
    assert len(dict.fromkeys(keys)) == 5


def test_common_length_counts_equal_tokens_at_the_beginning():
    assert common_length((1, 2, 3), (1, 2, 4)) == 2
    assert common_length((1, 2), (1, 2)) == 2
    assert common_length((5,), (1, 2)) == 0
