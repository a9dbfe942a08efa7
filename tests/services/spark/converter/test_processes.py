"""Several processes: files are found again, deleted at exit if asked, never half-used after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopyard.data.converter.kept import MARKER
from hopyard.spark import make_spark_converter

SESSION = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"] = sys.executable, "127.0.0.1"
from pyspark.sql import SparkSession
from hopyard.spark import SparkDatasetConverter, make_spark_converter
builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
builder = builder.config(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, "file://" + os.path.abspath("cache"))
"""
CLASSIC = (
    SESSION
    + """
spark = builder.master("local[1]").getOrCreate()
rows = spark.read.parquet(os.path.abspath("rows")).where("id >= 10").selectExpr("id", "id / 4 as x")
"""
)
AGAIN = (
    CLASSIC
    + """
print(make_spark_converter(rows).cache_dir_url)
print(make_spark_converter(rows, dtype=None, delete_at_exit=True).cache_dir_url)
memory = spark.createDataFrame([(1, 2.0)], "a int, b double")
print(make_spark_converter(memory).cache_dir_url)
print(make_spark_converter(memory, dtype=None, delete_at_exit=False).cache_dir_url)
"""
)
KILLED = (
    CLASSIC
    + """
from hopyard.storage import LocalStore
LocalStore.put_new = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
make_spark_converter(rows, dtype="float64")
"""
)


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=200)


def directories(folder: Path) -> set[str]:
    return {f"file://{each}" for each in (folder / "cache").iterdir()}


def test_another_process_finds_the_files_and_deletes_those_that_are_to_go(
    spark: Any, cache: Path, tmp_path: Path
) -> None:
    spark.range(0, 50, 1, 2).write.parquet(f"{tmp_path}/rows")
    rows = spark.read.parquet(f"{tmp_path}/rows").where("id >= 10").selectExpr("id", "id / 4 as x")
    mine = make_spark_converter(rows)
    other = run(AGAIN, tmp_path)
    assert other.returncode == 0, other.stderr
    again, to_go, in_memory, to_stay = other.stdout.split()
    assert again == mine.cache_dir_url
    assert directories(tmp_path) == {mine.cache_dir_url, to_stay}
    assert len({to_go, in_memory, to_stay, again}) == 4
    spark.range(0, 60, 1, 2).write.mode("overwrite").parquet(f"{tmp_path}/rows")
    changed = spark.read.parquet(f"{tmp_path}/rows").where("id >= 10").selectExpr("id", "id / 4 as x")
    assert len(make_spark_converter(changed)) == 50
    assert len(mine.dataset()) == 40


def test_what_a_killed_process_has_written_is_written_again(spark: Any, cache: Path, tmp_path: Path) -> None:
    spark.range(0, 50, 1, 2).write.parquet(f"{tmp_path}/rows")
    assert run(KILLED, tmp_path).returncode == -signal.SIGKILL
    (left,) = (tmp_path / "cache").iterdir()
    before = {each.name for each in left.glob("part-*")}
    assert before
    assert not (left / MARKER).exists()
    rows = spark.read.parquet(f"{tmp_path}/rows").where("id >= 10").selectExpr("id", "id / 4 as x")
    converter = make_spark_converter(rows, dtype="float64")
    assert converter.cache_dir_url == f"file://{left}"
    assert before.isdisjoint(each.name for each in left.iterdir())
    assert sorted(converter.dataset()[:]["id"].tolist()) == list(range(10, 50))


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_plans_that_mean_nothing_to_others_have_no_digest(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions

    from hopyard.data.frames.spark_plan import plan_digest

    spark.range(0, 50, 1, 2).write.parquet(f"{tmp_path}/rows")
    rows = spark.read.parquet(f"{tmp_path}/rows")
    twice = functions.udf(lambda value: 2 * value, "long")
    nothing = [
        rows.select(twice("id")), rows.where(twice("id") > 3), rows.mapInArrow(lambda batches: batches, "id long"),
        rows.selectExpr("id", "current_timestamp() as now"), spark.createDataFrame([(1,)], "id int"),
    ]  # fmt: skip
    assert [plan_digest(each) for each in nothing] == [None] * len(nothing)
    csv = spark.read.schema("a string, b string")
    (tmp_path / "rows.csv").write_text("1,2\n3,4\n")
    numbers = list(range(100))
    told_apart = [
        rows, rows.where("id > 3"), rows.where("id > 4"), rows.withColumnRenamed("id", "i"), rows.limit(3),
        rows.where(rows.id.isin(numbers)), rows.where(rows.id.isin([*numbers[:-1], 1000])),
        rows.sample(0.5, seed=1), rows.sample(0.5, seed=2), rows.union(rows), rows.orderBy("id"),
        rows.orderBy(rows.id.desc()), rows.selectExpr("id", "'null' as t"), rows.selectExpr("id", "null as t"),
        csv.csv(f"{tmp_path}/rows.csv"), csv.option("header", "true").csv(f"{tmp_path}/rows.csv"),
        rows.where(f"id in (select id from parquet.`{tmp_path}/rows` where id > 7)"),
        rows.where(f"id in (select id from parquet.`{tmp_path}/rows` where id > 8)"),
    ]  # fmt: skip
    found = [plan_digest(each) for each in told_apart]
    assert None not in found
    assert len(set(found)) == len(found)
    assert plan_digest(spark.read.parquet(f"{tmp_path}/rows").where("id > 3")) == found[1]
