"""Where partitions live."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from hopyard.hopper.orders import homes_of


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=9), st.integers(1, 12))
def test_partitions_live_on_whole_nodes_and_every_worker_can_have_its_share(
    nodes: list[str], partitions: int
) -> None:
    homes = homes_of(nodes, partitions)
    if len(set(nodes)) == 1:
        assert homes is None
        return
    assert homes is not None
    there = {partition: {nodes[worker] for worker in workers} for partition, workers in homes.items()}
    for partition, workers in homes.items():
        assert workers == {worker for worker, node in enumerate(nodes) if node in there[partition]}
    assert sum(len(each) for each in there.values()) < partitions + len(set(nodes))
    left = dict.fromkeys(nodes, Fraction(0))  # what workers can still take, of their equal shares
    for node in nodes:
        left[node] += Fraction(partitions, len(nodes))
    for partition in range(partitions):
        rest = Fraction(1)
        for node in sorted(there[partition]):
            part = min(rest, left[node])
            left[node], rest = left[node] - part, rest - part
        assert not rest


def test_nodes_get_partitions_by_their_workers() -> None:
    assert homes_of(["a", "b", "a"], 6) == {
        0: {0, 2}, 1: {0, 2}, 2: {0, 2}, 3: {0, 2}, 4: {1}, 5: {1},
    }  # fmt: skip
    assert homes_of(["a", "b", "c", "d"], 2) == {0: {0, 1}, 1: {2, 3}}
    assert homes_of(["a", "b", "c"], 4) == {0: {0}, 1: {0, 1}, 2: {1, 2}, 3: {2}}
    assert homes_of([*"aaaaaaaa", *"bbbbbbbb"], 4) == {
        0: set(range(8)), 1: set(range(8)), 2: set(range(8, 16)), 3: set(range(8, 16)),
    }  # fmt: skip
