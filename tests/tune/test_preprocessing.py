"""Preprocessing in searches: fitted on training rows, and what travels with the model."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from hopyard import StockRoom, load_model
from hopyard.backend import InlineBackend, LocalBackend
from hopyard.data import Apply, Category, Impute, StandardScale, fit_steps, open_dataset, prepare
from hopyard.errors import ColumnError, DataError, SettingsError, UsageError
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice
from hopyard.tune.reproduce import reproduce

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 240
NUMBERS = ["age", "fare", "age_missing"]
STEPS = [Impute("age", by="median", indicator=True), StandardScale("age", "fare"), Category("city", most=5)]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.city = torch.nn.Embedding(6, 2)
        self.linear = torch.nn.Linear(5, 1)

    def forward(self, numbers: torch.Tensor, city: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(torch.cat([numbers, self.city(city)], 1))
        return result


def make(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        model=Net(), optimizer=torch.optim.Adam, optimizer_params={"lr": params["lr"]}, loss=torch.nn.MSELoss(),
        batch_size=16, inputs={"numbers": NUMBERS, "city": "city"},
    )  # fmt: skip


def people(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    age = random.normal(40, 10, rows)
    label = (age / 10).astype(np.float32)
    age[::5] = np.nan
    return pd.DataFrame(
        {
            "age": age,
            "fare": random.integers(0, 100, rows),
            "city": random.choice(["Oslo", "Rome", "Lima"], rows),
            "label": label,
        }
    )


def search(store: Any, preprocess: Any = STEPS, backend: Any = None, **changes: Any) -> GridSearch:
    arguments: dict[str, Any] = {
        "num_epochs": 1,
        "feature_columns": [*NUMBERS, "city"],
        "num_partitions": 2,
        "progress": False,
    }
    return GridSearch(
        backend or InlineBackend(), store, make, {"lr": hp_choice([1e-2])}, preprocess=preprocess,
        **(arguments | changes),
    )  # fmt: skip


def state(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: value.numpy() for name, value in model.torch().state_dict().items()}


def test_validation_rows_are_never_seen(tmp_path: Any) -> None:
    """One validation row is an outlier, has a city of its own, and would be the median."""
    frame = people()
    frame["held"] = np.arange(ROWS) % 4 == 0
    clean = frame.copy()
    frame.loc[0, ["age", "fare", "city"]] = [1e30, 10**9, "Nowhere"]
    learned = [
        search(LocalStore(tmp_path / name), validation="held").fit(data)
        for name, data in (("outlier", frame), ("clean", clean))
    ]
    training = frame[~frame.held]
    for model in learned:
        imputed, scaled, _ = model.preprocessing.states  # type: ignore[union-attr]
        assert imputed.fills["age"] == training.age.median()  # type: ignore[attr-defined]
        assert scaled.means["fare"] == pytest.approx(training.fare.mean())  # type: ignore[attr-defined]
        assert model.preprocessing.categories("city") == ["Lima", "Oslo", "Rome"]  # type: ignore[union-attr]
    first, second = map(state, learned)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_training_equals_training_on_columns_that_were_made_by_hand(tmp_path: Any) -> None:
    frame = people()
    frame["held"] = np.arange(ROWS) % 4 == 0
    training = frame[~frame.held]
    by_hand = frame.assign(
        age_missing=frame.age.isna().astype(np.float32), age=frame.age.fillna(training.age.median())
    )

    def sets(data: pd.DataFrame, name: str) -> list[Any]:
        """As files, whose rows are trained on in the order that they have: else other rows have another one."""
        for split, held in (("train", False), ("val", True)):
            data[data.held == held].to_parquet(tmp_path / f"{name}-{split}.parquet")
        return [
            open_dataset(tmp_path / f"{name}-{split}.parquet", split, nulls="mask")
            for split in ("train", "val")
        ]

    model = search(LocalStore(tmp_path / "steps"), num_partitions=1).fit(*sets(frame, "steps"))
    by_hand = by_hand.assign(
        **{name: _scaled(model, name, by_hand[name].to_numpy(np.float64)) for name in ("age", "fare")},
        city=by_hand.city.map({"Lima": 1, "Oslo": 2, "Rome": 3}),
    )
    other = search(LocalStore(tmp_path / "hand"), None, num_partitions=1).fit(*sets(by_hand, "hand"))
    assert other.get_history() == model.get_history()
    first, second = state(model), state(other)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert model.evaluate(frame) == other.evaluate(by_hand)


def _scaled(model: Any, name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    scaled = model.preprocessing.states[1]
    result: np.ndarray[Any, Any] = (values - scaled.means[name]) / scaled.deviations[name]
    return result.astype(np.float32)


def test_the_model_takes_rows_as_they_come_in_every_kind_of_frame(tmp_path: Any) -> None:
    frame = people()
    model = search(LocalStore(tmp_path), backend=LocalBackend(num_workers=1)).fit(frame)
    new = people(9, seed=7).drop(columns="label")
    new.loc[1, "city"] = "Nowhere"
    expected = model.predict(new)
    as_dict = {name: new[name].to_numpy() for name in new}
    saved = load_model(model.save(tmp_path / "saved"))
    for given in (as_dict, pl.from_pandas(new)):
        assert np.array_equal(model.predict(given), expected)
        assert np.array_equal(saved.predict(given), expected)
    assert np.array_equal(
        saved.predict([as_dict["age"], as_dict["fare"], as_dict["city"].tolist()]), expected
    )
    added = model.set_output_columns(["p"]).transform(new)
    assert np.array_equal(added["p"].to_numpy(), expected[:, 0])
    with pytest.raises(
        AttributeError, match=r"'get_best_model'; Cerebro has it, here it is the model that fit"
    ):
        _ = model.get_best_model  # type: ignore[attr-defined]
    assert list(added.columns) == [*new.columns, "p"]
    with pytest.raises(ColumnError, match="the data lacks the columns"):
        model.predict(new.drop(columns="age"))


def test_an_unknown_category_is_an_error_where_that_was_asked_for(tmp_path: Any) -> None:
    steps = [*STEPS[:2], Category("city", most=5, unknown="error")]
    model = search(LocalStore(tmp_path), steps).fit(people())
    new = people(3)
    new.loc[1, "city"] = "Nowhere"
    with pytest.raises(DataError, match="Column 'city' holds 'Nowhere', a category that no training row has"):
        model.predict(new)


def test_nulls_of_columns_without_a_value_for_them_are_still_refused(tmp_path: Any) -> None:
    frame = people()
    frame["fare"] = frame.fare.astype(float)
    frame.loc[3, "fare"] = np.nan
    with pytest.raises(DataError, match="There are null values: column 'fare' in 1 row"):
        search(LocalStore(tmp_path)).fit(frame)
    model = search(LocalStore(tmp_path)).fit(people())
    with pytest.raises(DataError, match="column 'fare' is null in 1 row "):
        model.predict(frame)


def test_first_rows_without_a_value_do_not_stop_a_search(tmp_path: Any) -> None:
    frame = people(600)
    frame["held"] = False
    frame.loc[590:, "held"] = True
    frame.loc[:300, "age"] = np.nan
    frame["place"] = np.where(np.arange(600) < 300, None, "there")
    steps = [*STEPS[:2], Impute("place", by="most_frequent"), Category("place"), STEPS[2]]
    columns = [*NUMBERS, "city", "place"]
    model = search(LocalStore(tmp_path), steps, validation="held", feature_columns=columns).fit(frame)
    assert model.preprocessing.categories("place") == ["there"]  # type: ignore[union-attr]


def test_prepared_data_and_parquet_train_like_frames(tmp_path: Any) -> None:
    frame = people()
    store = LocalStore(tmp_path / "store")
    first = search(store).fit(frame)
    prepared = search(LocalStore(tmp_path / "prepared"))
    columns = ["age", "fare", "city"]
    prepare(frame, prepared.arguments.store, feature_columns=columns, label_columns="label", masked=["age"])
    second = prepared.fit_on_prepared_data()
    assert all(np.array_equal(state(first)[name], state(second)[name]) for name in state(first))

    frame.to_parquet(tmp_path / "rows.parquet")
    third = search(LocalStore(tmp_path / "read")).fit(str(tmp_path / "rows.parquet"))
    assert np.isfinite(third.evaluate(frame)["loss"])
    opened = [open_dataset(tmp_path / "rows.parquet", split, nulls="mask") for split in ("train", "val")]
    fourth = search(LocalStore(tmp_path / "opened"), num_partitions=1).fit(*opened)
    assert fourth.predict(frame).shape == (ROWS, 1)
    filled = [open_dataset(tmp_path / "rows.parquet", split, nulls="fill") for split in ("train", "val")]
    with pytest.raises(DataError, match="preprocess reads column 'age', but its nulls were filled"):
        search(LocalStore(tmp_path / "filled"), num_partitions=1).fit(*filled)


def test_a_run_is_found_by_its_steps(tmp_path: Any) -> None:
    store = LocalStore(tmp_path)
    first = search(store).fit(people())
    assert search(store).fit(people()).run_id == first.run_id
    others = [Impute("age", by="mean", indicator=True), *STEPS[1:]]
    assert search(store, others).fit(people()).run_id != first.run_id
    named = search(store, run_id="mine").fit(people())
    assert named.run_id == "mine"
    with pytest.raises(SettingsError, match="preprocess"):
        search(store, others, run_id="mine").fit(people())


def test_steps_can_be_fitted_before(tmp_path: Any) -> None:
    store = LocalStore(tmp_path)
    prepared = prepare(people(), store, masked=["age"])
    fitted = fit_steps(STEPS, prepared.train)
    assert fitted.categories("city") == ["Lima", "Oslo", "Rome"]
    model = search(store, fitted).fit_on_prepared_data()
    other = search(store, fresh=True).fit_on_prepared_data()
    assert np.array_equal(model.predict(people()), other.predict(people()))


def test_transformers_of_scikit_learn_travel(tmp_path: Any) -> None:
    steps = [STEPS[0], Apply(StandardScaler(), "age", "fare"), STEPS[2]]
    model = search(LocalStore(tmp_path), steps).fit(people())
    built_in = search(LocalStore(tmp_path)).fit(people())
    saved = load_model(model.save(tmp_path / "saved"))
    np.testing.assert_allclose(saved.predict(people()), built_in.predict(people()), rtol=1e-4, atol=1e-4)


def test_steps_apply_to_frames_as_they_are(tmp_path: Any) -> None:
    """With nulls and times, like prediction, whatever holds the rows."""
    frame = people().assign(at=pd.date_range("2024-01-01", periods=ROWS, freq="h"))
    frame.loc[3, "city"] = None
    steps = [*STEPS[:2], StandardScale("at"), STEPS[2]]
    model = search(LocalStore(tmp_path), steps, nulls="fill", feature_columns=["age", "fare", "at", "city"])
    fitted = fit_steps(
        steps, prepare(frame, model.arguments.store, nulls="mask", label_columns="label",
                       feature_columns=["age", "fare", "at", "city"]).train,
    )  # fmt: skip
    found = fitted.apply(frame)
    assert found["city"][3] == 0
    assert found["age_missing"].tolist() == frame.age.isna().astype(float).tolist()
    assert abs(found["at"].mean()) < 0.2
    for given in (pl.from_pandas(frame), {name: frame[name] for name in frame}):
        other = fitted.apply(given)
        assert all(np.array_equal(other[name], found[name]) for name in ("age", "at", "city", "age_missing"))


def test_numbers_beside_times_of_training_are_refused(tmp_path: Any) -> None:
    frame = people().assign(at=pd.date_range("2024-01-01", periods=ROWS, freq="h"))
    steps = [*STEPS[:2], StandardScale("at"), STEPS[2]]

    def timed(params: dict[str, Any]) -> TorchEstimator:
        given = {"numbers": ["age", "fare", "at"], "city": "city"}
        return TorchEstimator(Net(), torch.optim.Adam, torch.nn.MSELoss(), inputs=given)

    one = GridSearch(
        InlineBackend(), LocalStore(tmp_path), timed, {"lr": hp_choice([1])}, num_epochs=1, preprocess=steps,
        feature_columns=["age", "fare", "at", "city"], progress=False,
    )  # fmt: skip
    model = one.fit(frame)
    saved = load_model(model.save(tmp_path / "saved"))
    ints = frame.assign(at=frame["at"].astype("datetime64[us]").astype("int64"))
    for each in (model, saved):
        with pytest.raises(
            DataError, match=r"'at' holds numbers \(int64\), but held dates, times or durations"
        ):
            each.predict(ints)
        with pytest.raises(
            DataError, match=r"say the unit, for example pandas.to_datetime\(frame\['at'\], unit='us"
        ):
            each.evaluate(ints)
        dates = ints.assign(at=pd.to_datetime(ints["at"], unit="us"))
        assert np.array_equal(each.predict(dates), model.predict(frame))
    assert prepare(frame, LocalStore(tmp_path / "p"), nulls="fill").train.policies.times == {"at"}


@pytest.mark.parametrize(
    ("preprocess", "text"),
    [
        ([StandardScale("label")], "'label' is a label column. Labels are not preprocessed"),
        ([StandardScale("height")], "makes 'height', but no feature is made of it"),
        ([Apply(StandardScaler(), "age", output="scaled")], "makes 'scaled', but no feature"),
        ([StandardScaler()], r"which is no step.*Apply\(StandardScaler\(\), 'column'\)"),
        ("age", "preprocess='age', but it must be a list of steps"),
    ],
)
def test_steps_of_no_use_are_refused_at_once(tmp_path: Any, preprocess: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        search(LocalStore(tmp_path), preprocess, feature_columns=["age", "fare", "city"])


def test_a_search_with_steps_is_reproduced_from_its_commit(tmp_path: Any) -> None:
    stock = StockRoom.init(tmp_path / "repo")
    model = search(LocalStore(tmp_path / "store"), stock=stock).fit(people())
    found = reproduce(stock, trust=True, num_workers=0, progress=False)
    assert found.equal, str(found)
    assert found.run_id == model.run_id
