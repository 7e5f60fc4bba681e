"""How answers are drawn."""

from __future__ import annotations

from collections import Counter

from workbench.speculation.train.draws import sampling_for
from workbench.speculation.train.parts import Part


def test_sampling_is_a_function_of_part_prompt_turn_and_seed():
    params = sampling_for(Part.TRAIN, 7, 0, seed=0)

    assert params == sampling_for(Part.TRAIN, 7, 0, seed=0)
    assert params.seed not in {
        sampling_for(Part.HELD_OUT, 7, 0, seed=0).seed,
        sampling_for(Part.TRAIN, 8, 0, seed=0).seed,
        sampling_for(Part.TRAIN, 7, 1, seed=0).seed,
        sampling_for(Part.TRAIN, 7, 0, seed=1).seed,
    }


def test_sampling_keeps_one_temperature_through_a_conversation():
    for prompt_id in range(50):
        turns = [sampling_for(Part.TRAIN, prompt_id, turn, seed=0) for turn in range(3)]
        assert len({(params.temperature, params.top_p) for params in turns}) == 1


def test_sampling_mixes_temperatures_and_lengths():
    drawn = [sampling_for(Part.TRAIN, prompt_id, 0, seed=0) for prompt_id in range(4000)]
    temperatures = Counter(params.temperature for params in drawn)
    lengths = Counter(params.max_tokens for params in drawn)

    assert set(temperatures) == {0.0, 0.3, 0.7, 1.0}
    assert 0.37 < temperatures[0.0] / 4000 < 0.43
    assert all(0.17 < temperatures[t] / 4000 < 0.23 for t in (0.3, 0.7, 1.0))
    assert set(lengths) == {64, 128, 192, 256, 384}
    assert {params.top_p for params in drawn} == {1.0, 0.95}


def test_sampling_of_held_out_prompts_is_greedy_mostly():
    drawn = [sampling_for(Part.HELD_OUT, prompt_id, 0, seed=0) for prompt_id in range(400)]

    assert sum(params.temperature == 0 for params in drawn) > 240
