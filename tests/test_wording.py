"""How numbers and durations are written."""

from __future__ import annotations

import pytest

from hopyard.wording import describe_bytes, describe_seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0123, "0.0123 s"), (61.0, "61 s"), (119, "2 min"), (7500, "2 h 5 min")]
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert describe_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_340_000, "2.34 MB"), (5e13, "50 TB")],
)
def test_sizes_are_readable(count: float, text: str) -> None:
    assert describe_bytes(count) == text
