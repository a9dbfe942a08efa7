"""Searches on what clusters hold: frames of Spark, Ray Data and Dask, and converters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.errors import ColumnError, DataError, TrialError, UsageError
from hopyard.storage import LocalStore, MemoryStore

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

MakeSearch = Callable[..., Any]
MakeRows = Callable[..., dict[str, np.ndarray[Any, Any]]]


@pytest.fixture(scope="module")
def written(make_rows: MakeRows, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Parquet file of rows to train on."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    rows = make_rows()
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    write_table(pa.table({"features": rows["features"].tolist(), "label": rows["label"]}), path)
    return str(path)


def jobs_of(spark: Any) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def test_a_finished_run_on_a_frame_is_found_without_reading_it(
    spark: Any, search: MakeSearch, written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = spark.read.parquet(written)
    model = search(LocalStore(tmp_path), progress=True).fit(frame)
    assert [line for line in capsys.readouterr().out.splitlines() if "prepar" in line] == ["prepared 96 rows"]
    assert len(model.get_all_models()) == 3
    assert model.evaluate(frame)["accuracy"] > 0
    opened_again = spark.read.parquet(written)
    before = jobs_of(spark)
    again = search(LocalStore(tmp_path), progress=True).fit(opened_again)
    assert again.run_id == model.run_id
    assert jobs_of(spark) == before
    assert "is finished: its result is returned" in capsys.readouterr().out


def test_what_is_wrong_is_said_before_a_frame_is_prepared(
    spark: Any, search: MakeSearch, written: str, tmp_path: Path
) -> None:
    frame = spark.read.parquet(written)
    with pytest.raises(ColumnError, match=r"Unknown column: 'x'. The columns there are: features, label\."):
        search(LocalStore(tmp_path), feature_columns=["x"]).fit(frame)
    with pytest.raises(TrialError, match="trials fail alike on one batch, so nothing was prepared"):
        search(LocalStore(tmp_path), estimator_gen_fn=lambda params: 1 / 0).fit(frame)
    assert not (tmp_path / "train_data").exists()
    with pytest.raises(
        UsageError, match="is a store of this process alone, but the workers of Spark write the files"
    ):
        search(MemoryStore()).fit(frame)


def test_parameters_of_spark_ml_are_not_taken_for_rows(spark: Any, search: MakeSearch) -> None:
    frame = spark.range(1)
    with pytest.raises(UsageError, match=r"gives parameters as Spark ML does, .* val=, a DataFrame of rows"):
        search(MemoryStore()).fit(frame, {"lr": 0.1})
    with pytest.raises(ColumnError):  # an empty one is none: what comes next is the frame itself
        search(MemoryStore()).fit(frame, {})


def test_parquet_that_spark_wrote_is_searched_on_as_it_is(
    spark: Any, search: MakeSearch, make_rows: MakeRows, contents_of: Callable[[Any], Any], tmp_path: Path
) -> None:
    rows = make_rows(240)
    listed = list(zip(rows["features"].tolist(), rows["label"].tolist(), range(240), strict=True))
    frame = spark.createDataFrame(listed, "features array<float>, label long, number long")
    train, val = tmp_path / "train", tmp_path / "val"
    # Two levels of directories, several files in each, and what Spark leaves beside them.
    train_rows = frame.where("number % 4 > 0").selectExpr("*", "number % 2 as half", "number % 3 as third")
    train_rows.repartition(3).write.partitionBy("half", "third").parquet(str(train))
    frame.where("number % 4 = 0").repartition(2).write.parquet(str(val))
    assert len(list(train.glob("half=*/third=*/part-*.snappy.parquet"))) > 6
    assert all((folder / "_SUCCESS").exists() and list(folder.rglob(".*.crc")) for folder in (train, val))

    found = search(LocalStore(tmp_path / "a")).fit_on_parquet(train, val)
    assert (
        sum(
            unit["rows"]
            for unit in found.run.units()
            if 0 in unit["t"] and (unit["e"], unit["ph"]) == (0, "train")
        )
        == 180
    )
    assert (
        sum(
            unit["rows"]
            for unit in found.run.units()
            if 0 in unit["t"] and (unit["e"], unit["ph"]) == (0, "validate")
        )
        == 60
    )
    held = np.arange(240) % 4 == 0
    validated = {name: values[held] for name, values in rows.items()}
    best = max(found.get_history()["val_accuracy"])
    assert found.evaluate(validated)["accuracy"] == pytest.approx(best)

    store = LocalStore(tmp_path / "b", train_path=train, val_path=val)
    assert contents_of(search(store).fit_on_parquet().run) == contents_of(found.run)
    with pytest.raises(DataError, match="is Parquet without a manifest, which prepare\\(\\) did not write"):
        search(store).fit_on_prepared_data()
    assert {path.name for path in train.iterdir()} == {"half=0", "half=1", "_SUCCESS", "._SUCCESS.crc"}


def test_a_converter_is_searched_on(spark: Any, search: MakeSearch, written: str, tmp_path: Path) -> None:
    from hopyard.spark import SparkDatasetConverter, make_spark_converter

    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, (tmp_path / "cache").as_uri())
    converter = make_spark_converter(spark.read.parquet(written))
    with_share = search(LocalStore(tmp_path / "a")).fit(converter)
    assert len(with_share.get_all_models()) == 3
    with_frame = search(LocalStore(tmp_path / "b"), num_models=1, num_partitions=1).fit(
        converter, val=converter
    )
    assert with_frame.get_history()["val_loss"]
    assert not (
        tmp_path / "b" / "train_data"
    ).exists()  # two converters are two datasets: trained on where they are
    converter.delete()
    spark.conf.unset(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_dask_frames_are_searched_on_and_predicted(
    search: MakeSearch, make_rows: MakeRows, tmp_path: Path
) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    rows = make_rows()
    columns = {f"x{number}": rows["features"][:, number] for number in range(4)}
    plain = pd.DataFrame({**columns, "label": rows["label"]})
    frame = dd.from_pandas(plain, npartitions=3)

    def stacked(params: dict[str, Any]) -> Any:
        import torch

        from hopyard.torch import TorchEstimator

        return TorchEstimator(
            torch.nn.Sequential(torch.nn.Linear(4, 2)), torch.optim.SGD, torch.nn.CrossEntropyLoss(),
            optimizer_params={"lr": params["lr"]}, metrics=["accuracy"], inputs={"input": list(columns)},
            predict=lambda outputs: outputs.argmax(dim=1),
        )  # fmt: skip

    model = search(LocalStore(tmp_path), estimator_gen_fn=stacked, feature_columns=list(columns)).fit(frame)
    found = model.set_output_columns(["predicted"]).transform(frame)
    assert found.dtypes["predicted"] == np.int64
    expected = model.transform(plain)
    assert found.compute(scheduler="sync").equals(expected)
    assert len(model.transform(frame[frame["label"] > 5]).compute(scheduler="sync")) == 0
