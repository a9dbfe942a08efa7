"""Where partitions live."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hopyard.hopper.orders import homes_of


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=9), st.integers(1, 12))
def test_partitions_live_on_whole_nodes_and_no_node_is_left_out(nodes: list[str], partitions: int) -> None:
    homes = homes_of(nodes, partitions)
    if len(set(nodes)) == 1:
        assert homes is None
        return
    assert homes is not None
    assert list(homes) == list(range(partitions))
    for workers in homes.values():
        there = {nodes[worker] for worker in workers}
        assert workers == {worker for worker, node in enumerate(nodes) if node in there}
        assert len(there) == 1 or partitions < len(nodes)
    assert set().union(*homes.values()) == set(range(len(nodes)))


def test_nodes_get_partitions_by_their_workers() -> None:
    assert homes_of(["a", "a", "b"], 6) == {
        0: {0, 1}, 1: {0, 1}, 2: {2}, 3: {0, 1}, 4: {0, 1}, 5: {2},
    }  # fmt: skip
    assert homes_of(["a", "b", "c", "d"], 2) == {0: {0, 2}, 1: {1, 3}}
