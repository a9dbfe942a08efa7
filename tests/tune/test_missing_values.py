"""Nulls and rows of different lengths from training to prediction: what happened there happens here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from tests.tune import missing

from hopyard import load_model
from hopyard.backend import InlineBackend
from hopyard.data import Ragged, StandardScale, mix, open_dataset, prepare
from hopyard.errors import ColumnError, DataError, TrialError
from hopyard.storage import LocalStore, MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice
from hopyard.tune.run import Model

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 96


class Sum(torch.nn.Module):
    """Scalar features, summed up with one weight each."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(features, 1)

    def forward(self, *columns: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.stack([column.float() for column in columns], dim=1)).reshape(-1)


class MeanOfTokens(torch.nn.Module):
    """The mean embedding of the first ``lengths`` tokens of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        there = (torch.arange(tokens.shape[1]) < lengths[:, None]).float()[:, :, None]
        return self.head((self.embedding(tokens) * there).sum(1) / there.sum(1).clamp(min=1.0))


def regression(features: int) -> Callable[[dict[str, Any]], TorchEstimator]:
    def make(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            model=Sum(features), optimizer=torch.optim.SGD, optimizer_params={"lr": params["lr"]},
            loss=torch.nn.MSELoss(), metrics=["mae"], batch_size=16,
        )  # fmt: skip

    return make


def padded_inside(batch: Mapping[str, Any], rng: Any = None) -> dict[str, Any]:
    """Ragged tokens as a matrix, and their lengths."""
    offsets = torch.as_tensor(batch["tokens"].offsets)
    lengths = offsets[1:] - offsets[:-1]
    matrix = torch.zeros(len(lengths), 12, dtype=torch.int64)
    matrix[torch.arange(12) < lengths[:, None]] = torch.as_tensor(batch["tokens"].values)
    return {**batch, "tokens": matrix, "lengths": lengths}


class Matrix(MeanOfTokens):
    """Of tokens that are padded with zeros."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(tokens, (tokens > 0).sum(1))


def of_tokens(
    params: dict[str, Any], model: type[MeanOfTokens] = MeanOfTokens, **more: Any
) -> TorchEstimator:
    return TorchEstimator(
        model=model(), optimizer=torch.optim.Adam, optimizer_params={"lr": params["lr"]},
        loss=torch.nn.CrossEntropyLoss(), metrics=["accuracy"], batch_size=16, **more,
    )  # fmt: skip


def search(make: Any, features: list[str], label: str, **more: Any) -> GridSearch:
    given: dict[str, Any] = {
        "backend": InlineBackend(), "store": MemoryStore(), "estimator_gen_fn": make,
        "search_space": {"lr": hp_choice([0.01])}, "num_epochs": 1, "num_partitions": 2,
        "feature_columns": features, "label_columns": [label], "progress": False,
    }  # fmt: skip
    return GridSearch(**(given | more))


def people(null_ages: int = 10, rows: int = ROWS) -> pd.DataFrame:
    random = np.random.default_rng(0)
    age, height = random.normal(size=rows), random.normal(size=rows)
    frame = pd.DataFrame({"age": age, "height": height, "price": age + height})
    frame.loc[: null_ages - 1, "age"] = np.nan
    return frame


def sentences() -> dict[str, Any]:
    random = np.random.default_rng(0)
    tokens = [random.integers(1, 10, int(length)).tolist() for length in random.integers(1, 9, ROWS)]
    return {"tokens": tokens, "label": [int(row[0] > 4) for row in tokens]}


# Labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("nulls", ["error", "fill", "mask"])
def test_null_labels_are_never_filled(nulls: str) -> None:
    data = people(null_ages=0)
    data.loc[[4, 9, 17, 30], "price"] = np.nan
    text = r"label column 'price' is null in 4 rows \(the first are rows 4, 9, 17\). Labels are never filled"
    for given in (data, pl.from_pandas(data), pa.Table.from_pandas(data)):
        with pytest.raises(DataError, match=text):
            search(regression(2), ["age", "height"], "price", nulls=nulls).fit(given)
    with pytest.raises(DataError, match=text):
        prepare(data, MemoryStore(), nulls=nulls, feature_columns=["age"], label_columns=["price"])


def test_null_labels_of_an_explicit_validation_set_are_refused() -> None:
    val = people(null_ages=0)
    val.loc[3, "price"] = np.nan
    with pytest.raises(DataError, match=r"label column 'price' is null in 1 row \(row 3\)"):
        search(regression(2), ["age", "height"], "price", nulls="fill").fit(people(0), val)


def test_labels_that_were_filled_before_anybody_called_them_labels_are_refused(tmp_path: Any) -> None:
    data = people(null_ages=0)
    data.loc[[4, 9], "price"] = np.nan
    store = LocalStore(tmp_path / "store")
    prepare(data, store, nulls="fill")
    with pytest.raises(DataError, match=r"label column 'price' is null in \d rows?"):
        search(regression(2), ["age", "height"], "price", store=store).fit_on_prepared_data()
    with pytest.raises(DataError, match=r"label column 'price' is null in"):
        prepare(data, store, nulls="fill", feature_columns=["age", "height"], label_columns=["price"])
    pl.from_pandas(data).write_parquet(tmp_path / "data.parquet")
    filled = open_dataset(tmp_path / "data.parquet", nulls="fill")
    with pytest.raises(DataError, match=r"label column 'price' is null in"):
        search(regression(2), ["age", "height"], "price").fit(filled)


def test_evaluate_refuses_null_labels() -> None:
    model = search(regression(2), ["age", "height"], "price", nulls="fill").fit(people())
    data = people()
    data.loc[[40, 41], "price"] = np.nan
    with pytest.raises(
        DataError, match=r"label column 'price' is null in 2 rows \(the first are rows 40, 41\)"
    ):
        model.evaluate(data)


@pytest.mark.parametrize("nulls", ["fill", "mask"])
@pytest.mark.parametrize("kind", ["opened", "mixed", "windows"])
def test_null_labels_that_were_filled_when_data_was_opened_are_not_evaluated(
    nulls: Any, kind: str, tmp_path: Any
) -> None:
    model = search(regression(2), ["age", "height"], "price", nulls="fill").fit(people())
    data = people()
    data.loc[[40, 41], "price"] = np.nan
    data.to_parquet(tmp_path / "a.parquet")
    opened: Any = open_dataset(tmp_path / "a.parquet", nulls=nulls)
    if kind == "mixed":
        opened = mix([opened, opened])
    elif kind == "windows":
        parts = {name: (name, 0) for name in ("age", "height")} | {"price": ("price", 1)}
        opened = opened.windows(2, columns=parts)
    with pytest.raises(
        DataError, match=r"label column 'price' is null in (2|some) rows.*Labels are never filled"
    ):
        model.evaluate(opened)
    assert len(model.predict(opened)) == len(opened)


# Features -------------------------------------------------------------------------------------


def weights_of(model: Model) -> tuple[np.ndarray[Any, Any], float]:
    linear = model.torch().linear
    return linear.weight.detach().numpy()[0], float(linear.bias.detach())


def with_a_null() -> list[Any]:
    frame = pd.DataFrame({"age": [1.0, np.nan], "height": [2.0, 3.0], "price": [1.0, 2.0]})
    return [
        frame,
        pl.from_pandas(frame),
        pa.Table.from_pandas(frame),
        {"age": [1.0, None], "height": [2.0, 3.0], "price": [1.0, 2.0]},
    ]


@pytest.mark.parametrize("saved", [False, True])
def test_a_null_feature_at_prediction_is_refused_where_training_had_none(saved: bool, tmp_path: Any) -> None:
    model = search(regression(2), ["age", "height"], "price").fit(people(null_ages=0))
    if saved:
        model.save(tmp_path / "model")
        model = load_model(tmp_path / "model")
    text = r"column 'age' is null in 1 row \(row 1\), and the model was trained with nulls='error'"
    for data in with_a_null():
        for call in (model.predict, model.transform, model.evaluate):
            with pytest.raises(DataError, match=text):
                call(data)


@pytest.mark.parametrize("saved", [False, True])
def test_a_null_feature_at_prediction_is_filled_as_in_training(saved: bool, tmp_path: Any) -> None:
    model = search(regression(2), ["age", "height"], "price", nulls="fill").fit(people())
    weight, bias = weights_of(model)
    if saved:
        model.save(tmp_path / "model")
        model = load_model(tmp_path / "model")
    expected = np.array([[1.0, 2.0], [0.0, 3.0]]) @ weight + bias
    for data in with_a_null():
        np.testing.assert_allclose(model.predict(data), expected, rtol=1e-5)


@pytest.mark.parametrize("nulls", ["fill", "mask"])
def test_rows_whose_feature_is_null_in_all_of_them_are_filled_too(nulls: str) -> None:
    """As where one row is predicted: nothing in it says what the column is."""
    columns = ["age", "height"] if nulls == "fill" else ["age", "age_mask", "height"]
    model = search(regression(len(columns)), columns, "price", nulls=nulls).fit(people())
    weight, bias = weights_of(model)
    expected = [weight @ [0.0, *([1.0] if nulls == "mask" else []), 3.0] + bias]
    frame = pd.DataFrame({"age": [None], "height": [3.0]})
    rows = [
        frame,
        pl.from_pandas(frame),
        pa.table({"age": [None], "height": [3.0]}),
        {"age": [None], "height": [3.0]},
    ]
    for data in rows:
        np.testing.assert_allclose(model.predict(data), expected, rtol=1e-5)
    with pytest.raises(DataError, match=r"label column 'price' is null in 1 row \(row 0\)"):
        model.evaluate(frame.assign(age=[1.0], price=[None]))
    plain = search(regression(2), ["age", "height"], "price").fit(people(null_ages=0))
    for data in rows:
        with pytest.raises(
            DataError, match=r"column 'age' is null in 1 row \(row 0\), and the model was trained"
        ):
            plain.predict(data)


def test_null_lists_that_were_padded_are_empty_lists() -> None:
    data = sentences()
    data["tokens"][3] = None
    columns = ["tokens", "tokens_length"]
    model = search(of_tokens, columns, "label", ragged="pad", nulls="fill").fit(data)
    module = model.torch()
    expected = module(torch.zeros(2, 8, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)).detach()
    np.testing.assert_allclose(model.predict({"tokens": [None, None]}), expected, rtol=1e-5)


def test_nulls_are_counted_over_all_batches_and_rows_of_two_frames(tmp_path: Any) -> None:
    model = search(regression(2), ["age", "height"], "price").fit(people(null_ages=0))
    rows = people(null_ages=0, rows=5000)
    rows.loc[[7, 4000, 4999], "age"] = np.nan
    pl.from_pandas(rows, nan_to_null=True).write_parquet(tmp_path / "rows.parquet", row_group_size=1000)
    for data, first in ((rows, r"7, 4000, 4999"), (tmp_path / "rows.parquet", r"7(, 4000, 4999)?")):
        with pytest.raises(
            DataError, match=rf"column 'age' is null in 3 rows \(the first are rows {first}\), and"
        ):
            model.evaluate(data)
    val = people(null_ages=4, rows=40)
    with pytest.raises(
        DataError, match=r"column 'age' in 7 rows \(the first are rows 7, 4000, 4999\)\. Remove"
    ):
        prepare(rows, MemoryStore(), val)
    with pytest.raises(DataError, match=r"column 'age' in 1 of the first 256 rows \(row 7\)\. Remove"):
        search(regression(2), ["age", "height"], "price").fit(
            iter(pl.from_pandas(rows, nan_to_null=True).to_dicts())
        )


@pytest.mark.long
def test_dask_frames_follow_the_rule_of_this_process(tmp_path: Any) -> None:
    pytest.importorskip("dask")
    dataframe = pytest.importorskip("dask.dataframe")

    def of(frame: pd.DataFrame) -> Any:
        return dataframe.from_pandas(frame, npartitions=max(len(frame) // 12, 2))

    with sys.modules["dask"].config.set({"scheduler": "synchronous", "dataframe.convert-string": False}):
        missing.check_fit(of, tmp_path)
        missing.check_predictions(of, lambda found: found.compute(), tmp_path)
        # Objects: a partition that holds nothing but None does not say what they are.
        missing.check_predictions(lambda frame: of(objects(frame)), lambda found: found.compute(), tmp_path)


def objects(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(age=[None if value != value else value for value in frame["age"]]).astype(
        {"age": object}
    )


def test_masked_values_are_nulls_in_every_form_of_an_array() -> None:
    given = np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32)
    rows = {"features": given, "price": given.sum(1)}

    def make(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            torch.nn.Linear(2, 1), torch.optim.SGD, torch.nn.MSELoss(), optimizer_params=params
        )

    model = search(make, ["features"], "price").fit(rows)
    masked = np.ma.masked_array(given, given > 1.5)
    for data in (masked, list(masked), (masked,), {"features": masked}, {"features": list(masked)}):
        with pytest.raises(DataError, match=r"column 'features' is null in \d+ rows? .*nulls='error'"):
            model.predict(data)
    unmasked = np.ma.masked_array(given, np.zeros_like(given, bool))
    for data in (unmasked, list(unmasked), {"features": unmasked}):
        assert np.array_equal(model.predict(data), model.predict(given))


@pytest.mark.parametrize("null_ages", [0, 10])
def test_a_mask_is_a_feature_that_is_made_of_rows_at_prediction(null_ages: int, tmp_path: Any) -> None:
    """Also where no row of the training data was null: the mask was asked for by name."""
    columns = ["age", "age_mask", "height"]
    model = search(regression(3), columns, "price", nulls="mask").fit(people(null_ages))
    weight, bias = weights_of(model)
    model.save(tmp_path / "model")
    expected = np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 3.0]]) @ weight + bias
    for each in (model, load_model(tmp_path / "model")):
        for data in with_a_null():
            np.testing.assert_allclose(each.predict(data), expected, rtol=1e-5)
            assert each.evaluate(data)["mae"] == pytest.approx(np.abs(expected - [1.0, 2.0]).mean(), rel=1e-5)
        assert "price__output" in each.transform(with_a_null()[0])
        np.testing.assert_allclose(each.predict((np.array([1.0]), np.array([2.0]))), expected[:1], rtol=1e-5)


def test_with_masks_a_null_in_a_column_that_has_none_is_refused() -> None:
    model = search(regression(2), ["age", "height"], "price", nulls="mask").fit(people(null_ages=0))
    with pytest.raises(DataError, match=r"nulls='mask', but no null in this column"):
        model.predict(with_a_null()[0])


def test_a_mask_without_its_policy_is_refused_with_the_policy() -> None:
    with pytest.raises(
        ColumnError, match=r"no column 'age_mask'. nulls='mask' makes it of 'age', but nulls is 'f"
    ):
        search(regression(2), ["age", "age_mask"], "price", nulls="fill").fit(people())


# Lists ----------------------------------------------------------------------------------------


def test_padded_tokens_and_their_lengths_from_lists_to_predictions(tmp_path: Any) -> None:
    data = sentences()
    columns = ["tokens", "tokens_length"]
    model = search(of_tokens, columns, "label", ragged="pad", evaluation_metric="accuracy").fit(data)
    module, lists = model.torch(), [[1, 2, 3], [4], [5, 6]]
    alone = [module(torch.tensor([row]), torch.tensor([len(row)])).detach().numpy()[0] for row in lists]
    model.save(tmp_path / "model")
    for each in (model, load_model(tmp_path / "model")):
        for x in (lists, {"tokens": lists}, Ragged.from_rows(lists), pl.DataFrame({"tokens": lists})):
            np.testing.assert_allclose(each.predict(x), alone, rtol=1e-5, atol=1e-6)
        # All of one length, shorter than the longest in training.
        np.testing.assert_allclose(each.predict([[4], [4]]), [alone[1]] * 2, rtol=1e-5, atol=1e-6)
        assert each.evaluate(data) == pytest.approx(model.evaluate(data))
        with pytest.raises(DataError, match=r"'tokens' has a row of 9 values, but .* at most 8"):
            each.predict([[1] * 9, [2]])
    outputs = model.predict(data["tokens"])
    accuracy = (outputs.argmax(axis=1) == data["label"]).mean()
    assert model.evaluate(data)["accuracy"] == pytest.approx(accuracy)
    frame = model.transform(pd.DataFrame(data))
    np.testing.assert_allclose(np.stack(frame["label__output"]), outputs, rtol=1e-5, atol=1e-6)


def test_lengths_are_features_also_where_all_rows_have_one_length() -> None:
    data = {"tokens": [[1, 2, 3]] * ROWS, "label": [0, 1] * (ROWS // 2)}
    model = search(of_tokens, ["tokens", "tokens_length"], "label", ragged="pad").fit(data)
    assert model.predict([[1], [2, 3]]).shape == (2, 2)


def test_a_length_without_its_policy_is_refused_with_the_policy() -> None:
    with pytest.raises(ColumnError, match=r"no column 'tokens_length'. ragged='pad' makes it of 'tokens'"):
        search(of_tokens, ["tokens", "tokens_length"], "label", ragged="keep").fit(sentences())


def test_kept_lists_are_padded_in_a_transform(tmp_path: Any) -> None:
    data = sentences()

    def of_matrix(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            model=Matrix(), optimizer=torch.optim.Adam, optimizer_params={"lr": params["lr"]},
            loss=torch.nn.CrossEntropyLoss(), metrics=["accuracy"], batch_size=16,
            transform=padded_inside, val_transform=padded_inside,
        )  # fmt: skip

    model = search(of_matrix, ["tokens"], "label", ragged="keep").fit(data)
    module = model.torch()
    lists = [[1, 2, 3], [4]]
    alone = [module(torch.tensor([row])).detach().numpy()[0] for row in lists]
    model.save(tmp_path / "model")
    for each in (model, load_model(tmp_path / "model")):
        np.testing.assert_allclose(each.predict(lists), alone, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(each.predict([[4], [4]]), [alone[1]] * 2, rtol=1e-5, atol=1e-6)
        assert set(each.evaluate(data)) == {"loss", "accuracy"}


class Weighted:
    """A search that weighs rows by a column."""

    def __init__(self, folder: Any, nulls: str) -> None:
        def make(params: dict[str, Any]) -> TorchEstimator:
            return TorchEstimator(
                Sum(1), torch.optim.SGD, torch.nn.MSELoss(), optimizer_params=params, sample_weight_column="w"
            )

        self.search = GridSearch(
            InlineBackend(), LocalStore(folder), make, {"lr": hp_choice([0.01])}, num_epochs=1, nulls=nulls,
            feature_columns=["age", "w"], label_columns=["price"], progress=False,
        )  # fmt: skip


@pytest.mark.parametrize("nulls", ["fill", "mask"])
def test_null_weights_are_never_filled(nulls: str, tmp_path: Any) -> None:
    whole = missing.people(rows=400).assign(w=1.0)
    gaps = whole.assign(w=np.where(np.arange(400) == 399, np.nan, 1.0))
    with pytest.raises(
        DataError, match=r"The weight column 'w' is null in 1 row. Weights are never filled, whatever"
    ):
        Weighted(tmp_path / "one", nulls).search.fit(gaps)
    prepare(
        gaps, LocalStore(tmp_path / "two"), feature_columns=["age", "w"], label_columns="price", nulls=nulls
    )
    with pytest.raises(DataError, match=r"The weight column 'w' is null in"):
        Weighted(tmp_path / "two", nulls).search.fit_on_prepared_data()
    model = Weighted(tmp_path / "three", nulls).search.fit(whole)
    with pytest.raises(
        DataError, match=r"The weight column 'w' is null in 1 row \(row 399\). Weights are never"
    ):
        model.evaluate(gaps)
    assert model.predict(gaps[["age"]]).shape == (400,)
    gaps.to_parquet(tmp_path / "gaps.parquet")
    opened = open_dataset(tmp_path / "gaps.parquet", nulls=nulls)
    with pytest.raises(DataError, match=r"The weight column 'w' is null in some rows. Weights are never"):
        Weighted(tmp_path / "four", nulls).search.fit(opened)
    with pytest.raises(DataError, match=r"The weight column 'w' is null in some rows. Weights are never"):
        model.evaluate(opened)


def test_an_auc_of_one_class_is_said_once(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    rows = pd.DataFrame({"age": np.arange(40.0), "price": np.zeros(40, np.float32)})

    def make(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(Sum(1), torch.optim.SGD, torch.nn.BCEWithLogitsLoss(), ["auc"])

    search = GridSearch(
        InlineBackend(), LocalStore(tmp_path), make, {"lr": hp_choice([0.01, 0.1])}, num_epochs=2,
        feature_columns=["age"], label_columns=["price"], progress=False,
    )  # fmt: skip
    model = search.fit(rows)
    said = [record.getMessage() for record in caplog.records if "nan" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("val_auc of run grid-")
    assert said[0].endswith(
        "An AUC is nan where all rows are of one class, or outputs are not finite: measure it on "
        "rows of each class."
    )
    caplog.clear()
    assert np.isnan(model.evaluate(rows)["auc"])
    assert "auc of these rows is nan, so that nothing can be ranked by it. An AUC is nan" in caplog.text


def test_a_search_whose_metric_is_undefined_everywhere_says_what_to_do(tmp_path: Any) -> None:
    rows = pd.DataFrame({"age": np.arange(40.0), "price": np.zeros(40, np.float32)})

    def make(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(Sum(1), torch.optim.SGD, torch.nn.BCEWithLogitsLoss(), ["auc"])

    with pytest.raises(TrialError) as raised:
        search(make, ["age"], "price", evaluation_metric="auc").fit(rows)
    assert str(raised.value).endswith(
        "has no model: 0 of 1 trial failed. val_auc was no number in any epoch. Rank by another metric "
        "(evaluation_metric=), or train and validate on rows for which it is defined."
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("age", r"numbers \(float64\) in training\. Give it as it was there, .* frame\['age'\]\.astype\("),
        ("at", r"dates, times or durations in training\. Give it as .* pandas\.to_datetime\(frame\['at'\]\)"),
    ],
)
def test_texts_where_training_had_none_are_refused(name: str, text: str, tmp_path: Any) -> None:
    rows = missing.people(rows=40).assign(at=pd.date_range("2024-01-01", periods=40))
    model = missing.search(tmp_path, features=("age", "at")).fit(rows)
    with pytest.raises(DataError, match=f"Column '{name}' holds texts, but held {text}"):
        model.predict(rows.assign(**{name: rows[name].astype(str)}))


def test_floats_where_training_had_integers_must_be_whole() -> None:
    rows = sentences()
    padded: dict[str, Any] = {"transform": padded_inside, "val_transform": padded_inside, "model": Matrix}
    model = search(lambda params: of_tokens(params, **padded), ["tokens"], "label", ragged="keep").fit(rows)
    wanted = model.predict(rows["tokens"])
    assert np.array_equal(model.predict([[float(token) for token in row] for row in rows["tokens"]]), wanted)
    for bad in ([[3.9, 4.0]], [[2.0**63]], [[2.0**70]], pd.DataFrame({"tokens": [[1.0, 2.5]]})):
        with pytest.raises(
            DataError,
            match=r"Column 'tokens' holds \S+ \(float64\), but held int64 in training\. Give whole numbers",
        ):
            model.predict(bad)


def test_a_transform_gets_lists_as_tensors_everywhere() -> None:
    rows, kinds = sentences(), set()

    def noted(batch: Mapping[str, Any], rng: Any = None) -> dict[str, Any]:
        tokens = batch["tokens"]
        kinds.update(map(type, (tokens.values, tokens.offsets, tokens.lengths, tokens[0])))
        return padded_inside(batch)

    model = search(
        lambda params: of_tokens(params, transform=noted, val_transform=noted, model=Matrix),
        ["tokens"],
        "label",
        ragged="keep",
    ).fit(rows)
    assert model.predict(rows["tokens"]).shape[0] == len(rows["label"])
    model.evaluate(rows)
    assert kinds == {torch.Tensor}


def test_a_column_of_numbers_is_no_mask_by_its_name() -> None:
    rows = people(0).assign(age_mask=np.arange(len(people(0))) % 3)
    steps: Any = [StandardScale("age")]
    model = search(regression(2), ["age", "age_mask"], "price", preprocess=steps).fit(rows)
    assert model.predict(rows).shape == (len(rows),)
    with pytest.raises(DataError, match="column 'age' is null in 1 row"):
        model.predict(rows.assign(age=rows["age"].where(rows.index != 3)))


@pytest.mark.parametrize("bad", ["no", 1000])
def test_a_mask_that_comes_with_rows_is_of_bools_and_hides_no_nulls(bad: Any) -> None:
    model = search(regression(3), ["age", "height", "age_mask"], "price", nulls="mask").fit(people())
    rows = people()[:20]
    wanted = model.predict(rows[["age", "height"]])
    assert np.array_equal(model.predict(rows.assign(age_mask=False)), wanted)
    with pytest.raises(
        DataError, match=r"Column 'age_mask' is .*, but must be bools without nulls: it says which rows"
    ):
        model.predict(rows.assign(age_mask=bad))


def test_times_are_told_from_numbers_also_in_parquet_as_it_is(tmp_path: Any) -> None:
    rows = missing.people(rows=80).assign(at=pd.date_range("2024-01-01", periods=80))
    rows[:60].to_parquet(tmp_path / "train.parquet")
    rows[60:].to_parquet(tmp_path / "val.parquet")
    splits = [open_dataset(tmp_path / f"{name}.parquet", name) for name in ("train", "val")]
    for data in (splits, [splits[0]]):
        scaled: Any = {
            "preprocess": [StandardScale("at")],
            "store": LocalStore(tmp_path / str(len(data))),
            "num_partitions": 1,
        }
        model = search(regression(2), ["age", "at"], "price", **scaled).fit(*data)
        assert model.predict(rows).shape[0] == 80
        with pytest.raises(DataError, match=r"'at' holds numbers \(int64\), but held dates"):
            model.predict(rows.assign(at=rows["at"].astype("int64")))
        with pytest.raises(
            DataError,
            match=r"'age' holds dates, times or durations, but held numbers \(float64\) in training\. Give",
        ):
            model.predict(rows.assign(age=rows["at"]))


def test_transform_of_a_series_is_refused_in_words(tmp_path: Any) -> None:
    rows = missing.people(rows=40)
    model = missing.search(tmp_path, features=("age",)).fit(rows)
    assert model.predict(rows["age"]).shape == (40,)
    with pytest.raises(
        DataError, match=r"was given Series; it takes .* For arrays and Series use predict\(x\)"
    ):
        model.transform(rows["age"])


def test_zero_rows_are_refused_in_words(tmp_path: Any) -> None:
    """Also columns of times, and masked arrays."""
    rows = missing.people(rows=40).assign(at=pd.date_range("2024-01-01", periods=40))
    model = missing.search(tmp_path, features=("age", "at")).fit(rows)
    masked = {"age": np.ma.masked_array(np.zeros(0)), "at": np.zeros(0, "M8[ns]"), "price": np.zeros(0)}
    for none in (rows[:0], pl.from_pandas(rows)[:0], pa.Table.from_pandas(rows)[:0], masked):
        for call in (model.predict, model.evaluate, model.transform):
            with pytest.raises(DataError, match=r"The data is empty: it has no rows, or no columns\. Give"):
                call(none)


def test_transform_of_columns_of_other_lengths_is_refused(tmp_path: Any) -> None:
    model = missing.search(tmp_path, features=("age",)).fit(missing.people(rows=40))
    with pytest.raises(
        DataError, match=r"Column 'note' has 3 rows, but .* model's inputs have 5. Give as many"
    ):
        model.transform({"age": np.zeros(5), "note": ["a", "b", "c"]})
