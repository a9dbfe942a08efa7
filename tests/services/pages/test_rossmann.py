"""The example of drugstores: its features by hand, and all of it on a few stores, on a real cluster."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_limits

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "rossmann"

# The second is of Keras, when it saves a model.
pytestmark = pytest.mark.filterwarnings(
    "ignore:PySpark does not yet fully support pandas:FutureWarning",
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",
)


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The example's files, which import each other as scripts do that lie beside each other."""
    names = [path.stem for path in EXAMPLE.glob("*.py")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for name in names:
            del sys.modules[name]


# Generated files ----------------------------------------------------------------------------


def test_generated_files_follow_from_the_seed(example: Any, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        example.generate.main(
            [str(tmp_path / name), f"--seed={seed}", "--stores=3", "--days=370", "--test-days=2"]
        )
    a, b, c = (
        {path.name: path.read_bytes() for path in sorted((tmp_path / name).iterdir())} for name in "abc"
    )
    assert a == b
    assert sorted(a) == sorted(f"{name}.csv" for name in example.features.TABLES)
    assert a["train.csv"] != c["train.csv"]
    assert (
        a["train.csv"].splitlines()[0]
        == b"Store,DayOfWeek,Date,Sales,Customers,Open,Promo,StateHoliday,SchoolHoliday"
    )
    assert a["test.csv"].splitlines()[0] == b"Id,Store,DayOfWeek,Date,Open,Promo,StateHoliday,SchoolHoliday"
    train = pd.read_csv(tmp_path / "a" / "train.csv")
    assert (len(train), train["Date"].max(), train["Date"].nunique()) == (3 * 370, "2015-07-31", 370)
    assert ((train["Sales"] == 0) == (train["Open"] == 0)).all()


def test_too_few_days_are_said(example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        example.generate.main([str(tmp_path / "no"), "--days=300"])
    assert (
        "days=300, test_days=48 were given, but the validation rows are those of the test's"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "no").exists()


# Features by hand ---------------------------------------------------------------------------


def tables_by_hand(spark: Any) -> dict[str, Any]:
    """Two stores. The days of training are six in August 2014, and three a year later are asked for."""
    trained = [date(2014, 8, 1) + timedelta(days) for days in range(6)]
    asked = [date(2015, 8, 1) + timedelta(days) for days in range(3)]
    promo = "001001"
    train = [
        (store, day.isoweekday(), day, "0" if place == 4 else 100 * int(store) + place, "0" if place == 4 else "1",
         flag, "a" if place == 1 else "0", "0")
        for store in "12"
        for place, (day, flag) in enumerate(zip(trained, promo, strict=True))
    ]  # fmt: skip
    test = [
        (number, 1, day.isoweekday(), day, None if number == 1 else "1", "0", "0", "1")
        for number, day in enumerate(asked, 1)
    ]
    weeks = [
        "2014-07-27 - 2014-08-02",
        "2014-08-03 - 2014-08-09",
        "2015-07-26 - 2015-08-01",
        "2015-08-02 - 2015-08-08",
    ]
    trend = [
        (f"Rossmann_DE{state}", week, base + place)
        for state, base in (("", 10), ("_NI", 20), ("_BE", 30))
        for place, week in enumerate(weeks)
    ]
    weather = [
        (name, day, *range(20, 29), "Rain" if day.day == 1 else None)
        for name in ("Niedersachsen", "Berlin")
        for day in trained + asked
    ]
    weather_columns = ["file", "Date", "Max_TemperatureC", "Mean_TemperatureC", "Min_TemperatureC", "Max_Humidity",
                       "Mean_Humidity", "Min_Humidity", "Max_Wind_SpeedKm_h", "Mean_Wind_SpeedKm_h", "CloudCover",
                       "Events"]  # fmt: skip
    stores = [("1", "a", "c", "570", "3", "2014", "1", "10", "2014", "Jan,Apr,Jul,Oct"),
              ("2", "b", "a", None, None, None, "0", None, None, None)]  # fmt: skip
    store_columns = ["Store", "StoreType", "Assortment", "CompetitionDistance", "CompetitionOpenSinceMonth",
                     "CompetitionOpenSinceYear", "Promo2", "Promo2SinceWeek", "Promo2SinceYear",
                     "PromoInterval"]  # fmt: skip
    flags = ["Open", "Promo", "StateHoliday", "SchoolHoliday"]
    rows: dict[str, tuple[list[Any], list[str]]] = {
        "train": (train, ["Store", "DayOfWeek", "Date", "Sales", *flags]),
        "test": (test, ["Id", "Store", "DayOfWeek", "Date", *flags]),
        "store": (stores, store_columns),
        "store_states": ([("1", "HB,NI"), ("2", "BE")], ["Store", "State"]),
        "state_names": ([("Niedersachsen", "HB,NI"), ("Berlin", "BE")], ["StateName", "State"]),
        "googletrend": (trend, ["file", "week", "trend"]),
        "weather": (weather, weather_columns),
    }
    return {
        name: spark.createDataFrame(
            [[None if value is None else str(value) for value in row] for row in values],
            ", ".join(f"{column} string" for column in columns),
        ).coalesce(1)
        for name, (values, columns) in rows.items()
    }


def test_features_of_rows_computed_by_hand(spark: Any, example: Any) -> None:
    made = example.features.make_features(tables_by_hand(spark))
    train, test = made.train.toArrow().to_pandas(), made.test.toArrow().to_pandas().sort_values("Id")
    made.cached.unpersist()

    def meant(table: pd.DataFrame, name: str) -> list[str]:
        return [made.vocabularies[name][number] for number in table[name]]

    first = train[[value == "1" for value in meant(train, "Store")]].sort_values("Date")
    assert [str(day) for day in first["Date"]] == [
        f"2014-08-0{day}" for day in (1, 2, 3, 4, 6)
    ]  # sold nothing on the 5th
    assert len(train) == 10
    assert np.exp(first["Sales"]).round().tolist() == [100, 101, 102, 103, 105]
    assert made.max_sales == 205
    assert first["Validation"].tolist() == [
        False,
        True,
        True,
        False,
        False,
    ]  # of 2015-08-01 to 03, a year before

    # Since 2014-03-15: 139, 140, 141, 142, 144 days.  Since 2014-03-05: 149, ..., 154 days.
    assert meant(first, "CompetitionMonthsOpen") == ["4", "4", "4", "4", "4"]
    assert meant(first, "Promo2Weeks") == ["21", "21", "21", "21", "22"]
    assert (meant(test, "CompetitionMonthsOpen"), meant(test, "Promo2Weeks")) == (["16"] * 3, ["25"] * 3)
    second = train[[value == "2" for value in meant(train, "Store")]]
    assert {*meant(second, "CompetitionMonthsOpen"), *meant(second, "Promo2Weeks")} == {"0"}
    assert {*meant(second, "PromoInterval"), *meant(second, "CompetitionOpenSinceYear")} == {"none", "1900"}
    assert set(second["CompetitionDistance"]) == {0.0}

    assert first["AfterPromo"].tolist() == [0, 1, 0, 1, 0]
    assert first["BeforePromo"].tolist() == [2, 1, 0, 2, 0]
    assert first["AfterStateHoliday"].tolist() == [0, 0, 1, 2, 4]
    assert first["BeforeStateHoliday"].tolist() == [
        1,
        0,
        365,
        364,
        362,
    ]  # none follows: to the last row, 2015-08-03
    assert (test["AfterPromo"].tolist(), test["BeforePromo"].tolist()) == ([360, 361, 362], [2, 1, 0])
    assert test["AfterSchoolHoliday"].tolist() == [0, 0, 0]

    assert (first["trend"].tolist(), first["trend_de"].tolist()) == (
        [20, 20, 21, 21, 21],
        [10, 10, 11, 11, 11],
    )
    assert (set(second["trend"]), test["trend"].tolist()) == ({30.0, 31.0}, [22, 23, 23])
    assert meant(first, "State") == ["HB,NI"] * 5
    assert meant(first, "Events") == ["Rain", "none", "none", "none", "none"]
    assert (test["Id"].tolist(), test["Open"].tolist()) == ([1, 2, 3], [True, True, True])


def test_rows_without_partners_are_said(spark: Any, example: Any) -> None:
    tables = tables_by_hand(spark)
    days = example.features.daily_rows(tables["train"], tables["test"])
    with pytest.raises(
        example.features.LostRowsError, match=r"Of 15 rows .*: 2 in weather\.csv\. Every store needs"
    ):
        example.features.joined(days, tables | {"weather": tables["weather"].where("Date != '2014-08-03'")})
    doubled = tables["store"].unionByName(tables["store"].where("Store = 2"))
    with pytest.raises(
        example.features.LostRowsError, match=r"The 15 rows of train\.csv and test\.csv became 21 by joining"
    ):
        example.features.joined(days, tables | {"store": doubled})


def test_missing_files_are_said(spark: Any, example: Any, tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"lacks train\.csv, .*weather\.csv\. Unpack rossmann\.tgz there, or"
    ):
        example.features.read_tables(spark, str(tmp_path))


# All of it ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(spark_if_there: Any, example: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The example's outcome on three stores, with its folder; None without Spark."""
    if spark_if_there is None:
        return None
    folder = tmp_path_factory.mktemp("rossmann")
    example.generate.generate(folder / "data", stores=3, days=400, test_days=10)
    places = [
        f"--data-dir={folder / 'data'}",
        f"--work-dir={folder / 'work'}",
        f"--plot={folder / 'plot.png'}",
    ]
    files = [f"--submission={folder / 'submission.csv'}", f"--checkpoint={folder / 'best.keras'}"]
    sizes = ["--num-models=2", "--epochs=1", "--num-partitions=1", "--hidden=8", "--num-workers=1"]
    options = example.train.parse([*places, *files, *sizes])
    options.progress = False
    with threadpool_limits(1):  # two threads of the trees would wait for each other busily
        return SimpleNamespace(folder=folder, outcome=example.train.run(spark_if_there, options))


def test_validation_rows_are_the_dates_of_the_test_a_year_before(spark: Any, done: Any) -> None:
    train = pd.read_csv(done.folder / "data" / "train.csv", dtype={"StateHoliday": str})
    held = train[
        train["Date"].between("2014-08-02", "2014-08-10") & (train["Sales"] > 0)
    ]  # of 2015-08-01 to 08-10
    val = done.outcome.val
    assert sorted(val["Date"].astype(str)) == sorted(held["Date"])
    assert sorted(np.exp(val["Sales"]).round()) == sorted(held["Sales"])
    units = done.outcome.model.run.units()
    visited = {
        phase: sum(each["rows"] for each in units if 0 in each["t"] and each["ph"] == phase)
        for phase in ("train", "validate")
    }
    assert visited == {"train": (train["Sales"] > 0).sum() - len(held), "validate": len(held)}


def test_the_error_of_the_history_is_that_of_the_predictions(spark: Any, example: Any, done: Any) -> None:
    import keras

    outcome = done.outcome
    assert len(outcome.model.get_all_models()) == 2
    assert outcome.network == pytest.approx(min(outcome.model.get_history()["val_exp_rmspe"]), rel=1e-4)
    assert 0 < outcome.trees < 1
    saved = keras.models.load_model(
        done.folder / "best.keras", custom_objects={"ExpRmspe": example.model.ExpRmspe}
    )
    inputs = {name: outcome.val[name].to_numpy() for name in example.train.FEATURES}
    assert np.allclose(saved.predict(inputs, verbose=0)[:, 0], outcome.val["network"], atol=1e-4)


def test_every_id_is_answered_in_order(spark: Any, done: Any) -> None:
    asked = pd.read_csv(done.folder / "data" / "test.csv", dtype={"StateHoliday": str}).sort_values("Id")
    answered = pd.read_csv(done.folder / "submission.csv")
    assert list(answered.columns) == ["Id", "Sales"]
    assert answered["Id"].tolist() == asked["Id"].tolist() == list(range(1, 31))
    assert (answered["Sales"].to_numpy() == 0).tolist() == (asked["Open"].to_numpy() == 0).tolist()
    assert (done.folder / "plot.png").read_bytes().startswith(b"\x89PNG")
