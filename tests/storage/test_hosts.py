"""A machine is known by its short or its full name."""

from __future__ import annotations

import pytest

from hopyard.storage import MemoryStore
from hopyard.storage.hosts import bytes_at


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("a", 5),
        ("A.example.com", 5),
        ("a.example.com.", 5),
        ("a.other.com", 0),
        ("b", 7),
        ("b.example.com", 7),
        ("c", 0),
    ],
)
def test_short_and_full_names_are_one_machine(host: str, expected: int) -> None:
    assert bytes_at(host, {"a.example.com": 5, "b": 7}) == expected


def test_most_stores_are_on_no_machine_of_the_users() -> None:
    store = MemoryStore()
    store.put("a/b", b"1")
    assert store.hosts("a/b") == store.at("a").hosts("b") == {}
