from tests.engine.simulation import Simulation
from workbench.engine.batch import build_batch


def test_batch_lays_out_rows_positions_and_slots_of_prefill_and_decode_together():
    sim = Simulation(num_blocks=8, block_size=8, budget=16)
    sim.add("a", [11, 12, 13], max_tokens=9)
    sim.step()
    sim.add("b", list(range(20, 40)), max_tokens=1)

    batch = build_batch(sim.plan(), block_size=8)

    assert batch.request_ids == ("a", "b")
    assert batch.token_ids.tolist() == [100, *range(20, 35)]
    assert batch.metadata[0].query_start.tolist() == [0, 1, 16]
    assert batch.metadata[0].seq_lens.tolist() == [4, 15]
    assert batch.metadata[0].positions.tolist() == [3, *range(15)]
    assert batch.metadata[0].block_tables.tolist() == [[0, 0, 0], [1, 2, 3]]
    assert batch.metadata[0].slot_mapping.tolist() == [3, *range(8, 23)]
    assert batch.sampled_rows.tolist() == [0]
    assert [item.request_id for item in batch.sampled] == ["a"]


def test_batch_continues_a_chunked_prompt_where_it_stopped():
    sim = Simulation(num_blocks=8, block_size=8, budget=10)
    sim.add("a", 14)
    sim.step()

    batch = build_batch(sim.plan(), block_size=8)

    assert batch.metadata[0].positions.tolist() == [10, 11, 12, 13]
    assert batch.metadata[0].slot_mapping.tolist() == [10, 11, 12, 13]
    assert batch.sampled_rows.tolist() == [3]
