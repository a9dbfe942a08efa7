"""How numbers and durations are written."""

from __future__ import annotations

import pytest

from hopyard.wording import brief, describe_bytes, describe_seconds, unstyled


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


@pytest.mark.parametrize(
    "sequence",
    [
        "\x1b[1m",
        "\x1b[0m",
        "\x1b[38;5;34m",
        "\x1b[2K",
        "\x1b[?25l",
        "\x1b]8;;https://keras.io\x1b\\",
        "\x1b]0;t\x07",
    ],
)
def test_sequences_for_terminals_are_left_out_of_texts(sequence: str) -> None:
    assert unstyled(f"a [1] {sequence}shape{sequence}\n]8;") == "a [1] shape\n]8;"


def test_a_long_text_is_shown_shortened_and_another_value_by_its_type() -> None:
    assert brief("a" * 59) == "'" + "a" * 55 + "...'"
    assert brief("a" * 58) == "'" + "a" * 58 + "'"
    assert brief(list(range(100))) == "list(...)"
