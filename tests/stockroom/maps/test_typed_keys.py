"""Keys as people type them."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.stockroom.maps.typed_keys import TypedKey, split_at_commas, typed


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("3", [3, "3"]),
        ("-1", [-1, "-1"]),
        ("0", [0, "0"]),
        ("003", ["003"]),
        ("-0", ["-0"]),
        ("+3", ["+3"]),
        ("٣", ["٣"]),
        ("--1", ["--1"]),
        ("9223372036854775808", ["9223372036854775808"]),
        ("'3'", ["3"]),
        ('"3"', ["3"]),
        ("'", ["'"]),
        ("a,1", ["a,1"]),
        ("", [""]),
    ],
)
def test_a_text_is_an_int_only_as_python_writes_it(text: str, keys: list[Any]) -> None:
    assert TypedKey(text).keys(nested=False) == keys


def test_of_nested_columns_two_parts_are_a_pair() -> None:
    assert TypedKey("a,1").keys(nested=True) == [("a", 1), ("a", "1")]
    assert TypedKey("'a,b',007").keys(nested=True) == [("a,b", "007")]
    assert TypedKey("a").keys(nested=True) == ["a"]
    assert split_at_commas("a,'b,c',,d") == ["a", "'b,c'", "", "d"]


@pytest.mark.parametrize(
    "key", [3, -1, "3", "003", "a b", "a,b", "it's", "it's, 3", "", ("a", 1), ("a,b", "1"), (2, "x")]
)
def test_a_key_is_offered_as_it_would_be_typed(key: Any) -> None:
    assert TypedKey(typed(key)).keys(nested=isinstance(key, tuple))[0] == key
