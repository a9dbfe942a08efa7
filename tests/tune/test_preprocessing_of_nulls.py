"""The law of nulls in preprocessing: later rows go through the steps exactly as the training rows did."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer

from hopyard import load_model
from hopyard.backend import InlineBackend
from hopyard.data import Apply, Category, Impute, StandardScale, fit_steps, open_dataset, prepare
from hopyard.errors import DataError
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, Model, hp_choice

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COLUMNS = ["x", "k", "city"]
OF_X: list[list[Any]] = [
    [StandardScale("x")],
    [Impute("x"), StandardScale("x")],
    [Apply(SimpleImputer(), "x")],
]
OF_K: list[list[Any]] = [[StandardScale("k")], [Category("k")], [Impute("k", by="most_frequent")]]
OF_CITY: list[list[Any]] = [
    [Category("city")],
    [Category("city", most=1)],
    [Impute("city", value="none"), Category("city")],
    [Impute("city", by="most_frequent"), Category("city", unknown="error")],
]
FRAMES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "dict": lambda frame: {name: pl.from_pandas(frame)[name].to_arrow() for name in frame},
}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.city = torch.nn.Embedding(8, 2)
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, k: torch.Tensor, city: torch.Tensor) -> torch.Tensor:
        numbers = torch.stack([x.float(), k.float()], 1)
        found: torch.Tensor = self.linear(torch.cat([numbers, self.city(city)], 1))[:, 0]
        return found


def make(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        model=Net(),
        optimizer=torch.optim.Adam,
        optimizer_params=params,
        loss=torch.nn.MSELoss(),
        metrics=["mae"],
    )


def people(seed: int, gaps: tuple[float, float, float] = (0.2, 0.2, 0.2), rows: int = 60) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "x": random.normal(3, 2, rows),
            "k": pd.array(random.integers(0, 4, rows), "Int64"),
            "city": random.choice(np.array(["", "Rome", "Oslo"], object), rows),
        }
    )
    for name, gap in zip(COLUMNS, gaps, strict=True):
        frame.loc[random.random(rows) < gap, name] = None
    return frame.assign(
        label=(frame.x.fillna(9) + (frame.city == "Rome")).astype("float32"), held=np.arange(rows) % 3 == 0
    )


@pytest.mark.long
@pytest.mark.parametrize("nulls", ["error", "fill", "mask"])
def test_nulls_of_data_that_was_opened_before_are_null_to_steps(nulls: str, tmp_path: Path) -> None:
    steps = [StandardScale("x"), Impute("k"), Category("city", values=["", "Rome", "Oslo"])]
    frame = people(0)
    frame.to_parquet(tmp_path / "all.parquet")
    wanted = search(tmp_path / "frame", steps, "fill").fit(frame)
    opened = open_dataset(tmp_path / "all.parquet", nulls="mask")
    model = search(tmp_path / "opened", steps, nulls).fit(opened)
    assert model.get_history()["val_mae"] == pytest.approx(wanted.get_history()["val_mae"], rel=1e-6)
    assert model.evaluate(opened)["mae"] == pytest.approx(wanted.evaluate(frame)["mae"], rel=1e-6)
    np.testing.assert_allclose(model.predict(frame), wanted.predict(frame), rtol=1e-5)
    lost = open_dataset(tmp_path / "all.parquet", nulls="fill")
    for call in (model.predict, model.evaluate, search(tmp_path / "lost", steps, nulls).fit):
        with pytest.raises(
            DataError, match=r"preprocess reads column 'x', but its nulls were filled .* nulls='mask'"
        ):
            call(lost)


def _fills(steps: list[Any]) -> bool:
    return bool(steps[0].fills)


def search(store: Any, steps: Any, nulls: str, **changes: Any) -> GridSearch:
    arguments = {"num_epochs": 1, "validation": "held", "evaluation_metric": "mae"} | changes
    return GridSearch(
        InlineBackend(), LocalStore(store), make, {"lr": hp_choice([0.05])}, feature_columns=COLUMNS,
        preprocess=steps, nulls=nulls, progress=False, **arguments,
    )  # fmt: skip


def of_training(model: Model) -> np.ndarray[Any, Any]:
    """What the trained module gives for the rows that it was trained on, as they were then; in no order."""
    program = model._weights.load_program()
    assert program.train is not None
    rows = program.seen(program.train)[0 : len(program.train)]
    with torch.no_grad():
        found = model.torch()(*(torch.as_tensor(np.asarray(rows[name])) for name in COLUMNS))
    return np.sort(found.numpy())


@pytest.mark.long
@given(
    st.integers(0, 99),
    st.sampled_from(["error", "fill", "mask"]),
    st.tuples(*map(st.sampled_from, (OF_X, OF_K, OF_CITY))),
    st.tuples(*[st.sampled_from([0.0, 0.2])] * 3),
    st.sampled_from(list(FRAMES)),
    st.booleans(),
)
def test_later_rows_go_through_the_steps_as_training_rows_did(
    seed: int, nulls: str, steps: Any, gaps: Any, kind: str, saved: bool
) -> None:
    frame, as_given = people(seed, gaps), FRAMES[kind]
    with TemporaryDirectory() as folder:
        one = search(folder, [*steps[0], *steps[1], *steps[2]], nulls)
        if nulls == "error" and not all(
            _fills(its) or not frame[its[0].columns[0]].isna().any() for its in steps
        ):
            with pytest.raises(DataError, match="There are null values: column"):
                one.fit(as_given(frame))
            return
        model = one.fit(as_given(frame))
        later = load_model(model.save(Path(folder, "saved"))) if saved else model
        measured, history = later.evaluate(as_given(frame[frame.held])), model.get_history()
        assert measured["mae"] == pytest.approx(history["val_mae"][-1], rel=1e-6)
        assert measured["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-6)
        predicted = np.sort(later.predict(as_given(frame[~frame.held])))
        np.testing.assert_allclose(predicted, of_training(model), rtol=1e-5, atol=1e-6)


def test_a_null_and_an_empty_text_are_two_things(tmp_path: Path) -> None:
    model = search(tmp_path, [Category("city")], "fill").fit(people(0))
    assert model.preprocessing is not None
    assert model.preprocessing.categories("city") == ["", "Oslo", "Rome"]
    same = {"x": [0.0] * 3, "k": [0] * 3}
    null, empty, unknown = model.predict({**same, "city": pd.Series([None, "", "Lima"], dtype=object)})
    assert null == unknown != empty


def test_nan_counts_as_null_where_nulls_may_be(tmp_path: Path) -> None:
    """A frame of pandas says null by NaN, arrays do not."""
    model = search(tmp_path, [StandardScale("x"), Category("city")], "fill").fit(people(0))
    assert model.preprocessing is not None
    mean = model.preprocessing.states[0].means["x"]  # type: ignore[attr-defined]
    frame = pd.DataFrame({"x": [np.nan], "k": [1], "city": ["Rome"]})
    expected = model.predict(frame)
    assert np.isfinite(expected).all()
    for value in (np.nan, mean):
        rows = {"x": np.array([value]), "k": np.array([1]), "city": np.array(["Rome"])}
        assert model.predict(rows) == expected


def test_the_masks_of_prepared_rows_are_read(tmp_path: Path) -> None:
    frame = people(0)
    steps = [Category("city"), StandardScale("x"), Impute("k", by="most_frequent")]
    prepared = prepare(
        frame,
        LocalStore(tmp_path),
        validation="held",
        feature_columns=COLUMNS,
        label_columns="label",
        nulls="mask",
    )
    model = search(tmp_path, steps, "error", validation=0.25).fit_on_prepared_data()
    assert prepared.val is not None
    for data in (prepared.val, frame[frame.held]):
        assert model.evaluate(data)["mae"] == pytest.approx(model.get_history()["val_mae"][-1], rel=1e-6)


def test_nulls_that_were_filled_before_are_refused_by_steps(tmp_path: Path) -> None:
    frame = people(0)
    filled = prepare(
        frame, LocalStore(tmp_path / "one"), nulls="fill", feature_columns=COLUMNS, label_columns="label"
    )
    with pytest.raises(
        DataError, match="preprocess reads column 'city', but its nulls were filled with zeros"
    ):
        fit_steps([Category("city")], filled.train)
    with pytest.raises(
        DataError, match=r"Prepare or open the data with nulls='mask', or prepare\(..., masked="
    ):
        search(tmp_path / "one", [Category("city")], "error").fit_on_prepared_data()
    frame.to_parquet(tmp_path / "rows.parquet")
    opened = open_dataset(tmp_path / "rows.parquet", nulls="fill")
    with pytest.raises(DataError, match="preprocess reads column 'x', but its nulls were filled"):
        search(tmp_path / "two", [StandardScale("x")], "error").fit(opened, opened)
