"""Executors that cannot run Hopyard, or die: which one, why, and what to do, in one sentence."""

import os
import re
import signal
import sys
import sysconfig
from pathlib import Path

import pyarrow as pa
import pytest
from tests.forked import FRESH

from hopyard.data import prepare
from hopyard.data.frames.spark_failures import explained
from hopyard.data.frames.spark_progress import run_watched
from hopyard.data.frames.spark_tasks import ENVIRONMENT, OnExecutors
from hopyard.errors import (
    NotWritableError,
    StorageFullError,
    WorkerError,
    WorkerLostError,
    WorkerMismatchError,
)
from hopyard.spark import SparkDatasetConverter, make_spark_converter
from hopyard.storage import LocalStore

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.fixture
def python(spark, tmp_path, monkeypatch):
    """``python(*folders)``: executors get a Python that finds packages nowhere but in these folders."""

    def use(*folders):
        script = tmp_path / "python"
        path = ":".join(map(str, folders))
        paths = f'PYTHONPATH="{path}:$PYTHONPATH" {FRESH}=1'
        script.write_text(f'#!/bin/sh\n{paths} exec "{sys.executable}" -S "$@"\n')
        script.chmod(0o755)
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(script))

    return use


@pytest.fixture
def packages(tmp_path):
    """A folder with all packages but ours."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.lower().startswith("hopyard"):
            (folder / package.name).symlink_to(package)
    return folder


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_an_executor_without_our_package_is_named(spark, tmp_path, python, packages):
    python(packages)
    with pytest.raises(WorkerMismatchError) as caught:
        prepare(spark.range(20), LocalStore(tmp_path / "store"))
    text = str(caught.value)
    assert text.startswith("Spark gave up reading rows: executor ")
    assert " on 127.0.0.1 cannot run it: the package 'hopyard' cannot be imported by " in text
    version = ".".join(map(str, sys.version_info[:3]))
    assert text.endswith(f", Python {version}: No module named 'hopyard'. {ENVIRONMENT}")
    assert "Traceback" in str(caught.value.__cause__)
    assert files_in(tmp_path / "store") == []


def test_an_executor_with_another_version_is_named(spark, tmp_path, python, packages):
    (tmp_path / "old" / "hopyard").mkdir(parents=True)
    (tmp_path / "old" / "hopyard" / "__init__.py").write_text('__version__ = "0.0.7"\n')
    python(tmp_path / "old", packages)
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{tmp_path}/cache")
    with pytest.raises(WorkerMismatchError) as caught:
        make_spark_converter(spark.range(20))
    spark.conf.unset(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF)
    text = str(caught.value)
    assert text.startswith("Spark gave up writing a converter's files: executor ")
    assert " has hopyard 0.0.7, and the driver has hopyard " in text
    assert text.endswith(ENVIRONMENT)
    assert files_in(tmp_path / "cache") == []


def test_an_executor_without_any_package_or_without_python_is_named(spark, tmp_path, python, monkeypatch):
    python()
    with pytest.raises(WorkerMismatchError, match=r": executor \d+ on 127\.0\.0\.1 cannot run it: .*pyarrow"):
        prepare(spark.range(20), LocalStore(tmp_path))
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python")
    with pytest.raises(
        WorkerMismatchError, match=r': executor \d+ on 127\.0\.0\.1 cannot run it: .*"/nowhere/python"'
    ):
        prepare(spark.range(20), LocalStore(tmp_path))


def test_an_executor_whose_python_dies_again_and_again_is_named(spark, tmp_path):
    from pyspark.sql.functions import udf

    frame = spark.range(20).withColumn("x", udf(lambda i: os.kill(os.getpid(), signal.SIGKILL), "int")("id"))
    with pytest.raises(WorkerLostError) as caught:
        prepare(frame, LocalStore(tmp_path))
    text = str(caught.value)
    assert text.startswith("Spark gave up reading rows, because executor ")
    assert " on 127.0.0.1 was lost again and again, the last time so: " in text
    assert "Python worker exited unexpectedly" in text
    assert "spark.executor.memoryOverhead is for Python" in text
    assert "\tat " not in text
    assert "java" in str(caught.value.__cause__)


class _Failing:
    def __init__(self, error):
        self.error = error

    def __call__(self, batches):
        yield from batches
        raise self.error


def failed(spark, error):
    """What the driver raises when executors raise ``error``."""
    import pyspark.cloudpickle

    pyspark.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors cannot import this file
    frame = spark.range(3).mapInArrow(OnExecutors(_Failing(error)), "id long")
    with pytest.raises(Exception, match=r".") as caught:
        run_watched(spark, "writing files", lambda _: None, frame.collect)
    return caught.value


def test_what_cannot_be_imported_later_is_told_too(spark):
    error = failed(spark, ImportError("libnothing.so.1: cannot open shared object file"))
    assert type(error) is WorkerMismatchError
    told = "cannot import all that is needed: libnothing.so.1: cannot open shared object file. Executors need"
    assert told in str(error)


def test_errors_of_stores_are_what_they_are_here(spark):
    error = failed(
        spark, NotWritableError("Cannot write /store/a.parquet: the disk is read-only. Mount it again.")
    )
    assert type(error) is NotWritableError
    said = r"Cannot write /store/a\.parquet: the disk is read-only\. Mount it again\. \(On executor \d+ on 127\.0\.0\.1"
    assert re.fullmatch(said + r", writing files\.\)", str(error))


def test_errors_of_the_rows_stay_what_they_are(spark):
    error = failed(spark, ValueError("row 3 is odd"))
    assert type(error).__name__ == "PythonException"
    chained = (
        "ModuleNotFoundError: No module named 'ujson'\n\nDuring handling of the above exception, another one"
    )
    for text in (
        f"{chained}\nValueError: no",
        "[DIVIDE_BY_ZERO] Division by zero.",
        "torch.OutOfMemoryError: CUDA",
    ):
        assert explained(RuntimeError(text), "writing files") is None


def test_here_a_task_is_itself():
    rows = pa.record_batch({"id": [1, 2]})
    with pytest.raises(ImportError, match="libnothing"):
        list(OnExecutors(_Failing(ImportError("libnothing")))(iter([rows])))


def test_what_spark_says_becomes_one_sentence():
    def said(why):
        return explained(
            RuntimeError(
                "Job aborted due to stage failure: Task 1 in stage 4.0 failed 4 times, most recent failure: Lost task "
                f"1.3 in stage 4.0 (TID 9) (10.0.0.7 executor 2): {why}\n\tat java.io.Some.where()\nDriver stacktrace:"
            ),
            "writing files",
        )

    lost = (
        "ExecutorLostFailure (executor 2 exited) Reason: Container killed by YARN for exceeding its memory."
    )
    error = said(lost)
    assert type(error) is WorkerLostError
    assert str(error) == (
        "Spark gave up writing files, because executor 2 on 10.0.0.7 was lost again and again, the last time so: "
        f"{lost} Its log has more. If its memory ran out, give executors more (spark.executor.memory; "
        "spark.executor.memoryOverhead is for Python), or the frame more partitions; then run it again."
    )
    error = said("java.io.IOException: No space left on device")
    assert type(error) is StorageFullError
    assert str(error) == (
        "Spark gave up writing files, because there was no space on executor 2 on 10.0.0.7: java.io.IOException: No "
        "space left on device. Make space there; where Spark's own folders are, SPARK_LOCAL_DIRS or spark.local.dir "
        "says."
    )
    why = (
        "ShuffleMapStage 5 has failed the maximum allowable number of times: 4. Most recent failure reason: "
        "org.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location for shuffle 2"
    )
    error = explained(
        RuntimeError(f"Job aborted due to stage failure: {why}\n\tat org.apache"), "writing files"
    )
    assert type(error) is WorkerLostError
    assert f"because an executor was lost again and again, the last time so: {why}. Its log has more." in str(
        error
    )
    error = said("java.io.InvalidClassException: local class incompatible")
    assert type(error) is WorkerError
    assert str(error) == (
        "Spark gave up writing files, because a task failed on executor 2 on 10.0.0.7: java.io.InvalidClassException: "
        "local class incompatible. Spark's logs have more; mend that, and run it again: nothing was half-written."
    )
