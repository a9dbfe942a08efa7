"""JSON as commands print it."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.cli.terminal import show_json, show_json_line
from hopyard.documents.values import to_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


class Side(StrEnum):
    ours = "ours"


class Level(Enum):
    high = 3


@dataclass
class Run:
    place: Path
    best: float
    _cache: int = 0


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        (np.float32(0.5), 0.5),
        (np.float64("inf"), None),
        (np.int64(2**62), 2**62),
        (np.bool_(True), True),
        (np.array([[1.0, np.nan]]), [[1.0, None]]),
        (np.datetime64("2026-01-31T10:00:00"), "2026-01-31T10:00:00Z"),
        (datetime(2026, 1, 31, 10, 0, 0, 999_999, UTC), "2026-01-31T10:00:00Z"),
        (datetime(2026, 1, 31, 10, tzinfo=timezone(timedelta(hours=2))), "2026-01-31T08:00:00Z"),
        (date(2026, 1, 31), "2026-01-31"),
        (timedelta(milliseconds=1500), 1.5),
        (Side.ours, "ours"),
        (Level.high, 3),
        (Path("a/b"), "a/b"),
        ({1: (2, None)}, {"1": [2, None]}),
        ({"b", "a"}, ["a", "b"]),
        (Run(Path("x"), float("nan")), {"place": "x", "best": None}),
    ],
)
def test_values_have_one_form_in_json(value: Any, wanted: Any) -> None:
    found = to_json(value)
    assert found == wanted
    assert type(found) is type(wanted)


def test_what_has_no_form_in_json_is_refused_and_nothing_is_printed(capfdbinary: Any) -> None:
    with pytest.raises(
        TypeError, match=r"^bytes has no form in JSON that to_json knows\. Give it a value of those"
    ):
        show_json([1, b"x"])
    assert capfdbinary.readouterr() == (b"", b"")


def _printed(show: Any, value: object, capture: Any) -> bytes:
    show(value)
    out: bytes = capture.readouterr().out
    return out


def test_texts_of_others_cannot_steer_a_terminal(capfdbinary: Any) -> None:
    hostile = "Zürich 名前 \x1b[2J \x9b1m \u202e \udcff \U000e0041 \u2028"
    out = _printed(show_json, {"name": hostile}, capfdbinary)
    assert b"\\u001b[2J \\u009b1m \\u202e \\udcff \\udb40\\udc41 \\u2028" in out
    assert "Zürich 名前".encode() in out
    assert json.loads(out) == {"name": hostile}


@given(value=JSON)
def test_any_value_is_one_document_which_reads_back(value: Any) -> None:
    for show in (show_json, show_json_line):
        with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="latin-1")) as stdout:
            show(value)
            text = stdout.buffer.getvalue().decode("utf-8")
        assert json.loads(text, parse_constant=pytest.fail) == to_json(value)
    assert text.count("\n") == 1
