"""Where partitions live."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopyard.hopper.orders import homes_of, matched


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


@st.composite
def clusters(draw: Any) -> tuple[list[str], list[dict[str, int]]]:
    """Nodes of workers, and the bytes of each partition that nodes have."""
    nodes = draw(
        st.lists(st.sampled_from("abc"), min_size=2, max_size=5).filter(lambda all: len(set(all)) > 1)
    )
    bytes_of = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), max_size=3)
    return nodes, draw(st.lists(bytes_of, min_size=1, max_size=6))


@given(clusters())
def test_partitions_live_where_most_bytes_are_and_everyone_has_as_much_as_before(
    cluster: tuple[list[str], list[dict[str, int]]],
) -> None:
    nodes, held = cluster
    before, homes = homes_of(nodes, len(held)), homes_of(nodes, len(held), held)
    assert before is not None
    assert homes is not None
    assert homes == homes_of(nodes, len(held), [dict(reversed(each.items())) for each in held])
    assert Counter(homes.values()) == Counter(before.values())
    if len(held) % len(nodes) == 0:  # each partition lives on one node

        def bytes_at_home(order: Any) -> int:
            return sum(
                each.get(nodes[min(before[place])], 0) for each, place in zip(held, order, strict=True)
            )

        found = sum(each.get(nodes[min(homes[number])], 0) for number, each in enumerate(held))
        assert found == max(map(bytes_at_home, permutations(range(len(held)))))


def test_partitions_stay_in_order_where_their_bytes_are_unknown_or_everywhere() -> None:
    nodes = ["a", "b", "a", "c"]
    plain = homes_of(nodes, 8)
    assert homes_of(nodes, 8, [{}] * 8) == homes_of(nodes, 8, [{"elsewhere": 5}] * 8) == plain
    assert homes_of(nodes, 8, [dict.fromkeys("abc", 1 << 50)] * 8) == plain


def test_a_node_reads_what_it_has_and_a_full_one_leaves_the_rest() -> None:
    ever_other = [{"ab"[number % 2]: 100} for number in range(4)]
    assert homes_of(["a", "b"], 4, ever_other) == {0: {0}, 1: {1}, 2: {0}, 3: {1}}
    assert homes_of(["a", "b"], 4, [{"b": 1}, {"b": 3}, {"b": 3}, {"b": 1}]) == {
        0: {0},
        1: {1},
        2: {1},
        3: {0},
    }
    assert homes_of(["a", "b"], 2, [{"b": 7}]) == {0: {1}, 1: {0}}


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_rows_and_columns_are_matched_by_the_largest_sum(square: list[list[int]]) -> None:
    gains, count = np.array(square, np.float64), len(square)
    columns = matched(gains)
    assert sorted(columns) == list(range(count))
    best = max(sum(gains[range(count), order]) for order in permutations(range(count)))
    assert sum(gains[range(count), columns]) == best
