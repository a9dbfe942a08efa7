"""Texts as segments of a store's names, and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hopyard.stockroom.records.quoting import quoted, unquoted
from hopyard.storage.names import validate_name

TEXTS = st.text(min_size=1, max_size=15)


@given(TEXTS)
def test_any_text_is_a_valid_segment_and_comes_back(text: str) -> None:
    segment = quoted(text)
    assert validate_name(segment) == segment
    assert "/" not in segment
    assert unquoted(segment) == text


def test_what_stores_refuse_is_quoted() -> None:
    assert quoted("a/b") == "a=2Fb"
    assert quoted("a=b%c~d") == "a=3Db=25c=7Ed"
    assert quoted(".tmp-x") == "=2Etmp-x"
    assert quoted("v1.0_rc+2@x,y") == "v1.0_rc+2@x,y"
