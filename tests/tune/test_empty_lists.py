"""An empty list is an empty list, and null is null, whatever holds the rows and whichever rows are beside them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopyard.backend import InlineBackend
from hopyard.data import Ragged, open_dataset, prepare
from hopyard.data.sources.sources import as_source
from hopyard.errors import DataError, UsageError
from hopyard.storage import MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice
from hopyard.tune.run import Model

Rows = list[list[int] | None]
LENGTH = 4


class Told(torch.nn.Module):
    """One number a row that tells its tokens, their count and whether they are null."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, told: torch.Tensor) -> torch.Tensor:
        return self.scale * told


def telling(batch: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Kept lists and padded ones in the same form."""
    rows = batch["tokens"]
    lengths = batch["tokens_length"] if "tokens_length" in batch else torch.as_tensor(rows.lengths)
    told = 10.0**5 * lengths.double() + 10.0**6 * batch.get("tokens_mask", torch.zeros(len(rows))).double()
    for number, row in enumerate(rows):
        told[number] += (torch.as_tensor(row) * 10.0 ** torch.arange(len(row))).sum()
    return {**batch, "tokens": told.float()}


_models: dict[tuple[str, str], Model] = {}


def model_of(nulls: str, ragged: str) -> Model:
    """Trained once: rate 0, so that its outputs tell what it was given."""
    if (nulls, ragged) not in _models:

        def make(params: dict[str, Any]) -> TorchEstimator:
            return TorchEstimator(
                Told(), torch.optim.SGD, torch.nn.MSELoss(), optimizer_params=params, batch_size=8,
                inputs=["tokens"], transform=telling, val_transform=telling,
            )  # fmt: skip

        rows: Rows = [[1, 2, 3, 4], [5], [], None if nulls != "error" else []] * 8
        features = ["tokens", *(["tokens_length"] if ragged == "pad" else [])]
        features += ["tokens_mask"] if nulls == "mask" else []
        search = GridSearch(
            InlineBackend(), MemoryStore(), make, {"lr": hp_choice([0.0])}, num_epochs=1, nulls=nulls, ragged=ragged,
            feature_columns=features, label_columns=["label"], progress=False,
        )  # fmt: skip
        _models[nulls, ragged] = search.fit({"tokens": rows, "label": np.arange(32.0)})
    return _models[nulls, ragged]


def told(rows: Rows, nulls: str) -> list[float]:
    return [
        sum(token * 10.0**place for place, token in enumerate(row or ()))
        + 10.0**5 * len(row or ())
        + 10.0**6 * (row is None and nulls == "mask")
        for row in rows
    ]


def of_arrays(rows: Rows) -> Any:
    """A list of arrays; an empty one is of float64, as NumPy makes it."""
    return [None if row is None else np.array(row) for row in rows]


def with_labels(tokens: Any, rows: int) -> dict[str, Any]:
    return {"tokens": tokens, "label": np.zeros(rows)}


KINDS: dict[str, Callable[[Rows], Any]] = {
    "dict": lambda rows: with_labels(rows, len(rows)),
    "dicts": lambda rows: [{"tokens": row, "label": 0.0} for row in rows],
    "iterable": lambda rows: iter([{"tokens": row, "label": 0.0} for row in rows]),
    "arrays": lambda rows: with_labels(of_arrays(rows), len(rows)),
    "pandas": lambda rows: pd.DataFrame(with_labels(pd.Series(rows, dtype=object), len(rows))),
    "arrow": lambda rows: pa.table(with_labels(pa.array(rows), len(rows))),
    "typed arrow": lambda rows: pa.table(with_labels(pa.array(rows, pa.list_(pa.int64())), len(rows))),
    "large arrow": lambda rows: pa.table(with_labels(pa.array(rows, pa.large_list(pa.int32())), len(rows))),
    "reader": lambda rows: pa.table(with_labels(pa.array(rows), len(rows))).to_reader(),
    "polars": lambda rows: pl.DataFrame({"tokens": rows, "label": [0.0] * len(rows)}),
    "typed polars": lambda rows: pl.DataFrame(
        {"tokens": pl.Series(rows, dtype=pl.List(pl.Int64)), "label": [0.0] * len(rows)}
    ),
}
BARE: dict[str, Callable[[Rows], Any]] = {
    "list": lambda rows: rows,
    "list of arrays": of_arrays,
    "Arrow array": lambda rows: pa.array(rows),
    "pandas Series": lambda rows: pd.Series(rows, dtype=object),
    "polars Series": lambda rows: pl.Series("any", rows),
}


@pytest.mark.long
@pytest.mark.parametrize("nulls", ["error", "fill", "mask"])
@given(ragged=st.sampled_from(["keep", "pad"]), data=st.data())
def test_the_result_for_a_row_never_depends_on_the_rows_beside_it(nulls: str, ragged: str, data: Any) -> None:
    row = st.lists(st.integers(1, 9), max_size=LENGTH)
    rows: Rows = data.draw(st.lists(row if nulls == "error" else st.none() | row, min_size=1, max_size=5))
    model, expected = model_of(nulls, ragged), told(rows, nulls)
    kind = data.draw(st.sampled_from([*KINDS, *BARE]))
    of = (KINDS | BARE)[kind]
    np.testing.assert_allclose(model.predict(of(rows)), expected)
    np.testing.assert_allclose([model.predict(of([each]))[0] for each in rows], expected)
    if kind in BARE:
        return
    error = float(np.square(expected).mean())
    assert model.evaluate(of(rows))["loss"] == pytest.approx(error, rel=1e-5)
    if kind not in ("iterable", "reader"):
        found = model.transform(of(rows))
        outputs = [each["label__output"] for each in found] if kind == "dicts" else found["label__output"]
        np.testing.assert_allclose(np.asarray(outputs), expected)


@pytest.mark.long
@given(
    ragged=st.sampled_from(["keep", "pad"]),
    rows=st.lists(st.none() | st.lists(st.integers(1, 9), max_size=LENGTH), min_size=1, max_size=5),
    kind=st.sampled_from([*KINDS]),
)
def test_validation_rows_are_what_they_are_beside_any_others(ragged: str, rows: Rows, kind: str) -> None:
    train: Rows = [[1, 2, 3, 4], [5], [], None]
    whole = prepare(KINDS["dict"](train), MemoryStore(), KINDS["dict"](rows), nulls="mask", ragged=ragged)
    alike = prepare(KINDS[kind](train), MemoryStore(), KINDS[kind](rows), nulls="mask", ragged=ragged)
    if kind != "large arrow":
        assert whole.train.schema == alike.train.schema
    for ours, theirs in ((whole.val, alike.val), (whole.train, alike.train)):
        assert ours is not None
        assert theirs is not None
        found = [rows_of(each[:]) for each in (ours, theirs)]
        if kind == "large arrow":  # of another dtype, from which another order follows
            found = [sorted(each) for each in found]
        assert found[0] == found[1]
    assert whole.val is not None
    assert sorted(whole.val[:]["tokens_mask"].tolist()) == sorted(row is None for row in rows)


def rows_of(batch: Any) -> list[tuple[list[int], bool]]:
    return [
        (row.tolist(), mask) for row, mask in zip(batch["tokens"], batch["tokens_mask"].tolist(), strict=True)
    ]


def test_an_empty_list_is_no_null() -> None:
    for x in ([[]], [[], [5]], pd.DataFrame({"tokens": [[]]}), pl.DataFrame({"tokens": [[]]})):
        assert model_of("mask", "pad").predict(x)[0] == 0.0
        assert model_of("error", "keep").predict(x)[0] == 0.0
    with pytest.raises(DataError, match=r"column 'tokens' is null in 1 row \(row 1\)"):
        model_of("error", "pad").predict([[], None])


def test_a_null_within_a_list_is_no_null_row() -> None:
    for x in ([[None]], [[None], []], [[None, None]]):
        with pytest.raises(
            DataError, match=r"Column 'tokens' has \d nulls? inside its lists. `nulls` is about whole"
        ):
            model_of("mask", "pad").predict(x)


def test_batches_of_nothing_but_empty_lists_wait_for_others() -> None:
    """Rows come 4,096 at a time."""
    rows: list[list[int]] = [[]] * 5000 + [[1, 2]] + [[]] * 5000
    whole = as_source({"x": rows}).collect()
    for data in ([{"x": row} for row in rows], iter([{"x": row} for row in rows])):
        assert as_source(data).collect().fingerprint == whole.fingerprint
    arrays = [{"x": np.array(row, np.int64 if row else np.float64)} for row in rows]
    assert as_source(arrays).collect().fingerprint == whole.fingerprint


@pytest.mark.parametrize("kind", ["typed arrow", "typed polars", "arrays"])
def test_columns_of_nothing_but_empty_lists_are_kept_or_refused_in_words(kind: str, tmp_path: Any) -> None:
    data = KINDS[kind]([[]] * 4)
    kept = prepare(data, MemoryStore(), None, ragged="keep").train[:]["tokens"]
    assert isinstance(kept, Ragged)
    assert kept.lengths.tolist() == [0] * 4
    text = "Column 'tokens' holds nothing but empty lists, so that there is no length to give all rows. Leave it out"
    for ragged in ("pad", "error"):
        with pytest.raises(DataError, match=text):
            prepare(data, MemoryStore(), None, ragged=ragged)
    if isinstance(data, pa.Table):
        pa.parquet.write_table(data, tmp_path / "data.parquet")
        with pytest.raises(DataError, match=text):
            open_dataset(tmp_path / "data.parquet", ragged="pad")


def test_empty_lists_without_a_type_say_that_they_have_none() -> None:
    with pytest.raises(
        DataError,
        match=r"x \(nothing but empty lists, of no type: give it one, .*\); y \(nothing but nulls\)",
    ):
        prepare({"x": [[], None, []], "y": [None] * 3}, MemoryStore(), None, nulls="fill", ragged="keep")


@pytest.mark.parametrize("kind", ["dict", "dicts", "iterable", "pandas", "arrow", "reader", "polars"])
def test_a_validation_set_tells_no_types_of_training_data(kind: str) -> None:
    text = r"tokens \(nothing but empty lists, of no type: give it one, .*; training data does not take that of a val"
    of = KINDS[kind]
    with pytest.raises(DataError, match=text):
        prepare(of([[]] * 4), MemoryStore(), of([[1], [2, 3]]), ragged="keep")
    typed = KINDS["typed arrow"] if kind in ("arrow", "reader", "polars") else of
    rows: Any = [[]] * 4 if typed is not of else [np.empty(0, "int64")] * 4
    prepared = prepare(typed(rows), MemoryStore(), of([[1], [2, 3]]), ragged="keep")
    assert prepared.train.schema["tokens"] == prepared.val.schema["tokens"]


def test_rows_that_are_no_lists_are_refused_with_the_form_to_give() -> None:
    text = r"column 'tokens' has one value in each of its 3 rows .* Give a list for each row; a single row x as \[x\]"
    for nulls, ragged in (("error", "pad"), ("fill", "keep")):
        with pytest.raises(DataError, match=text):
            model_of(nulls, ragged).predict([1, 2, 3])


class Weighted(torch.nn.Module):
    """A sum with weights, which one value a row broadcasts to."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.reshape(len(x), -1) * self.weights).sum(1, keepdim=True)


def trained_on_arrays(module: torch.nn.Module, shape: tuple[int, ...]) -> Model:
    def make(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            copy.deepcopy(module), torch.optim.SGD, torch.nn.MSELoss(), optimizer_params=params
        )

    search = GridSearch(
        InlineBackend(), MemoryStore(), make, {"lr": hp_choice([0.0])}, num_epochs=1, progress=False,
        feature_columns=["x"], label_columns=["y"],
    )  # fmt: skip
    rows = np.random.default_rng(0).random((16, *shape), np.float32)
    return search.fit({"x": rows, "y": np.zeros((16, 1), np.float32)})


def test_rows_of_other_lengths_are_refused_where_training_had_one() -> None:
    """Several lengths were padded without a word, and one value a row was taken for three equal ones."""
    model = trained_on_arrays(Weighted(), (3,))
    text = r"'x' has rows of {}, but all that the .* have 3\. Give rows of that length, or train with ragged='pad'"
    for rows, said in (
        ([[1.0], [1.0, 2.0, 3.0]], "1 to 3 values"),
        ([[1.0, 2.0, 3.0], []], "0 to 3 values"),
        ([[]], "0 values"),
        ([[1.0], [2.0]], "1 value"),
        (np.ones((2, 1)), "1 value"),
        (np.ones((2, 4), np.float32), "4 values"),
    ):
        with pytest.raises(DataError, match=text.format(said)):
            model.predict(rows)
        with pytest.raises(DataError, match=text.format(said)):
            model.evaluate({"x": rows, "y": np.zeros(len(rows))})
    with pytest.raises(
        DataError, match=r"'x' has lists of arrays of shape \(3,\), but .* lists of single values"
    ):
        model.predict(np.ones((2, 4, 3)))
    with pytest.raises(
        DataError, match=r"'x' has one value in each of its 3 rows .* a single row x as \[x\]"
    ):
        model.predict(np.ones(3))
    assert model.predict(np.ones((2, 3))).tolist() == [[3.0], [3.0]]


def test_single_values_may_stand_for_vectors_of_one() -> None:
    """Keras takes them so."""
    assert trained_on_arrays(Weighted(), (1,)).predict(np.ones(2)).tolist() == [[3.0], [3.0]]


def test_arrays_of_another_size_are_left_to_the_model() -> None:
    """Convolutions take images of any size, encoders sequences of any length."""
    mean = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(1, 1))
    model = trained_on_arrays(mean, (1, 4, 4))
    assert model.predict(np.ones((2, 1, 6, 5))).tolist() == model.predict(np.ones((2, 1, 4, 4))).tolist()


@pytest.mark.parametrize("ragged", ["pad", "keep"])
def test_rows_of_another_nesting_are_refused(ragged: str) -> None:
    model = model_of("fill", ragged)
    with pytest.raises(
        DataError,
        match=r"'tokens' has lists of arrays of shape \(2,\), but those that the .* are lists of single values",
    ):
        model.predict([[[1, 2]], [[3, 4]]])


def test_lists_of_files_that_were_opened_before_are_not_padded_without_a_word(tmp_path: Any) -> None:
    for name, tokens in (("train", [[1], [1, 2]] * 8), ("val", [[3], [1, 2, 3]])):
        table = pa.table({"tokens": tokens, "label": np.zeros(len(tokens), np.float32)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    files = [str(tmp_path / f"{name}.parquet") for name in ("train", "val")]

    def make(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            Told(), torch.optim.SGD, torch.nn.MSELoss(), optimizer_params=params,
            transform=telling, val_transform=telling, inputs=["tokens"],
        )  # fmt: skip

    def search() -> GridSearch:
        return GridSearch(
            InlineBackend(), MemoryStore(), make, {"lr": hp_choice([0.0])}, 1, ragged="pad", progress=False,
            feature_columns=["tokens", "tokens_length"], label_columns=["label"], num_partitions=1,
        )  # fmt: skip

    with pytest.raises(
        UsageError,
        match=r"ragged='pad' holds for data that the search prepares, .* 'tokens' .*\.fit\('train.parquet'",
    ):
        search().fit_on_parquet(*files)
    found = search().fit(*files).predict([[1], [1, 2, 3]])
    assert found.ravel().tolist() == [100_001, 300_321]
