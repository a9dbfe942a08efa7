"""The example of forecasts, small: windows by time, a search over Keras networks, and a picture."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "timeseries"
BEGIN = datetime(2024, 1, 1)


@pytest.fixture(scope="module")
def forecast() -> Iterator[Any]:
    """The script, which imports the file beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        yield importlib.import_module("forecast")
        for path in EXAMPLE.glob("*.py"):
            del sys.modules[path.stem]


def test_series_have_gaps_and_are_the_same_each_time(forecast: Any, tmp_path: Path) -> None:
    first = pd.read_parquet(forecast.make_series(tmp_path / "a.parquet", stores=3, weeks=12))
    assert first.equals(pd.read_parquet(forecast.make_series(tmp_path / "b.parquet", stores=3, weeks=12)))
    assert 0.9 < len(first) / (3 * 12 * 7 * 24) < 1
    assert first.groupby("store")["time"].is_monotonic_increasing.all()
    evenings = first[first["time"].dt.hour == 17]["visitors"].mean()
    assert evenings > 10 * first[first["time"].dt.hour == 3]["visitors"].mean()


def test_no_hour_to_forecast_in_one_set_is_in_another(forecast: Any, tmp_path: Path) -> None:
    path = forecast.make_series(tmp_path / "visitors.parquet", stores=2, weeks=10)
    cut, end = BEGIN + timedelta(weeks=8), BEGIN + timedelta(weeks=10)
    train = forecast.windows(path, BEGIN + timedelta(weeks=1), cut, 5)[:]
    val = forecast.windows(path, cut, end, 24)[:]
    cut_at = np.datetime64(cut, "ns").astype("int64")
    assert train["time"].max() < cut_at <= val["time"].min()
    assert (np.diff(np.concatenate([train["time"], val["time"]])) == forecast.HOUR).all()
    hours = pd.read_parquet(path).set_index(["store", "time"])["visitors"]
    for place in (0, len(val["store"]) // 2, -1):
        first = pd.Timestamp(val["time"][place, 0])
        week = pd.date_range(first - timedelta(weeks=1), periods=8 * 24, freq="h")
        truth = hours.loc[[(val["store"][place], hour) for hour in week]].to_numpy()
        assert np.array_equal(val["past"][place], truth[: 7 * 24])
        assert np.array_equal(val["next"][place], truth[7 * 24 :])
        assert np.array_equal(forecast.last_week(val)[place], truth[:24])


def test_the_search_finds_a_network_that_is_better_than_last_week(forecast: Any, tmp_path: Path) -> None:
    small = "--stores 4 --weeks 20 --step 12 --models 2 --epochs 2 --workers 0"
    model, ours, naive = forecast.main(["--folder", str(tmp_path), *small.split()])
    assert ours < naive
    assert set(model.params) == {"kind", "width", "lr"}
    assert (tmp_path / "forecast.png").read_bytes().startswith(b"\x89PNG")
