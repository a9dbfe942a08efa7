"""Columns of windows that are parts of the dataset's: what they hold, in every order, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hopyard.data import Windows, open_dataset, prepare
from hopyard.errors import ColumnError, UsageError
from hopyard.storage import LocalStore

PARTS: dict[str, Any] = {
    "past": ("value", slice(0, 3)),
    "next": ("value", slice(3, None)),
    "last": ("value", -1),
    "some": ("image", [4, 0]),
    "all": "value",
    "again": "value",
    "name": ("name", 0),
}


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    """40 rows in row groups of 7: a value, an image of shape (2,), a name, and a list of any length."""
    frame = pd.DataFrame(
        {"value": np.arange(40, dtype="float32"), "name": [f"row {row}" for row in range(40)]}
    )
    frame["image"] = [[row, -row] for row in range(40)]
    frame["ragged"] = [[0] * (row % 3) for row in range(40)]
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=7)
    return open_dataset(tmp_path / "rows.parquet", cache=False)


def expected(starts: np.ndarray[Any, Any]) -> dict[str, Any]:
    window = starts[:, None] + np.arange(5)
    return {
        "past": window[:, :3], "next": window[:, 3:], "last": window[:, -1], "all": window, "again": window,
        "some": np.stack([window[:, [4, 0]], -window[:, [4, 0]]], axis=2),
        "name": np.array([f"row {row}" for row in starts], object),
    }  # fmt: skip


def check(batch: dict[str, Any], starts: np.ndarray[Any, Any]) -> None:
    wanted = expected(starts)
    assert list(batch) == list(PARTS)
    assert all(np.array_equal(batch[name], wanted[name]) for name in PARTS)


def fixed(rows: Any) -> Any:
    """The rows with images of one shape."""
    return open_dataset(rows, ragged="pad", columns=["value", "name", "image"])


def test_each_column_has_the_rows_of_the_window_that_it_names(rows: Any) -> None:
    windows = fixed(rows).windows(5, step=2, columns=PARTS)
    assert str(windows.schema.select(["past", "next", "last", "name"])) == (
        "past: float32[3], next: float32[2], last: float32, name: string"
    )
    check(windows[:], np.arange(0, 36, 2))
    check(windows[[3, 1]], np.array([6, 2]))
    for shuffle in (False, True):
        for batch in windows.loader(4, shuffle=shuffle, seed=1):
            check(batch, batch["all"][:, 0].astype(int))
    batch = next(iter(windows.loader(4)))
    batch["all"][:] = batch["past"][:] = -1
    assert (batch["next"] >= 0).all()
    assert (batch["again"] >= 0).all()


def test_scalar_columns_of_the_same_rows_stand_side_by_side(rows: Any) -> None:
    columns = {"a": ("value", [0, 1]), "b": ("value", [0, 1]), "c": ("value", 4)}
    windows = rows.windows(5, columns=columns)
    (batch,) = windows.loader(36, columns={"both": ["a", "b"], "c": "c"})
    assert batch["both"].shape == (36, 2, 2)
    assert batch["both"][3].tolist() == [[3, 3], [4, 4]]
    assert batch["c"].tolist() == list(range(4, 40))
    message = r"columns=\{'both': \[\.\.\.\]\} asks for a, c side by side, but they have different rows"
    with pytest.raises(ColumnError, match=message):
        next(iter(windows.loader(4, columns={"both": ["a", "c"]})))


def test_a_column_side_by_side_with_none_has_a_shape_of_its_own(rows: Any) -> None:
    windows = fixed(rows).windows(5, columns=PARTS)
    batch = next(iter(windows.loader(4, columns={"listed": ["past"], "next": "next", "last": ["last"]})))
    assert [batch[name].shape for name in ("listed", "next", "last")] == [(4, 3, 1), (4, 2), (4, 1)]
    assert np.array_equal(batch["next"], expected(np.arange(4))["next"])


def test_what_is_not_named_may_be_of_any_kind(rows: Any) -> None:
    assert rows.windows(3, columns=["value"]).schema.names == ["value"]
    with pytest.raises(ColumnError, match="differ in length"):
        rows.windows(3)
    with pytest.raises(ColumnError, match="differ in length"):
        rows.windows(3, columns={"list": ("ragged", 0)})


def test_they_are_part_of_what_the_windows_are(rows: Any, tmp_path: Path) -> None:
    plain, parts = rows.windows(3, columns=["value"]), rows.windows(3, columns={"value": ("value", 0)})
    assert plain.fingerprint != parts.fingerprint
    assert parts.describe()["windows"]["columns"] == {"value": ["value", 0]}
    again = pickle.loads(pickle.dumps(parts))
    assert isinstance(again, Windows)
    assert again.fingerprint == parts.fingerprint
    assert [part[:]["value"].tolist()[0] for part in parts.partitions(2)] == [0, 21]
    stored = prepare(parts, LocalStore(tmp_path / "store"), validation=None).train
    assert sorted(stored[:]["value"].tolist()) == list(range(38))


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"a": ("valu", 0)}, ColumnError, "'valu'; did you mean 'value'"),
        ([], UsageError, r"columns=\[\], but windows need at least one column"),
        (
            "value",
            UsageError,
            "columns='value', but windows need at least one column: a list of names, or a dict",
        ),
        (
            {"a": 3},
            UsageError,
            r"columns=\{'a': 3\}, but a column of windows is the name of a column, or that and",
        ),
        (
            {"a": ("value", 5)},
            UsageError,
            r"columns=\{'a': \('value', 5\)\}, but the rows .* and a window has the rows 0 to 4 \(-1 is the last\)",
        ),
        ({"a": ("value", slice(9, 12))}, UsageError, r"\('value', slice\(9, 12, None\)\)\}, but the rows"),
        ({"a": ("value", [0.5])}, UsageError, r"\('value', \[0.5\]\)\}, but the rows of a column are an int"),
        ({"a": ("value", [True, False])}, UsageError, r"\('value', \[True, False\]\)\}, but the rows"),
        ({"a": ("value", [[0]])}, UsageError, r"\('value', \[\[0\]\]\)\}, but the rows"),
        ({"a": ("value", "last")}, UsageError, r"\('value', 'last'\)\}, but the rows"),
    ],
)
def test_impossible_columns_are_refused(
    rows: Any, columns: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        rows.windows(5, columns=columns)
