"""What dies while executors prepare a DataFrame: tasks, executors, the driver; and how long what they keep lives."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from tests import ancestors
from tests.ancestors import executor

from hopyard.data import prepare
from hopyard.data.frames import spark_exchange
from hopyard.data.frames.spark_exchange import KeptExchange, SpilledExchange
from hopyard.data.frames.spark_progress import run_watched
from hopyard.storage import LocalStore
from hopyard.storage.temporary import sweep

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def ids(prepared):
    return sorted([*prepared.train[:]["id"].tolist(), *prepared.val[:]["id"].tolist()])


def test_a_task_that_fails_in_the_middle_has_its_rows_there_once(spark, tmp_path, monkeypatch, request):
    folder = str(tmp_path)

    def fragile(batches):
        """Batches larger than the buffers on their way; once, the task fails when it has spilled some."""
        for _ in batches:
            pass
        for start in range(0, 60, 10):
            if start == 50 and not Path(folder, "failed").exists():
                tries = 0
                while not list(Path(folder).rglob("*.arrow")) and tries < 600:
                    threading.Event().wait(0.1)
                    tries += 1
                Path(folder, "failed").touch()
                raise ValueError("not today")
            yield pa.record_batch({"id": list(range(start, start + 10)), "text": ["x" * 50_000] * 10})

    spilled = []
    close = SpilledExchange.close
    monkeypatch.setattr(
        SpilledExchange, "close", lambda self: (spilled.extend(self._folder.iterdir()), close(self))
    )
    at_once = "spark.sql.execution.arrow.maxRecordsPerBatch"  # else rows are spilled when all are there
    before = spark.conf.get(at_once)
    spark.conf.set(at_once, 10)
    request.addfinalizer(lambda: spark.conf.set(at_once, before))
    frame = spark.range(0, 1, 1, 1).mapInArrow(fragile, "id long, text string")
    assert ids(prepare(frame, LocalStore(tmp_path / "store"))) == list(range(60))
    assert (tmp_path / "failed").exists()
    assert len(spilled) == 2
    assert not list(tmp_path.rglob("*.arrow"))


@pytest.mark.parametrize("kind", [SpilledExchange, KeptExchange])
def test_an_executor_that_dies_between_reading_and_writing_takes_no_row_along(
    spark, tmp_path, monkeypatch, kind
):
    import pyspark.cloudpickle

    for module in (sys.modules[__name__], ancestors):  # executors cannot import these files
        pyspark.cloudpickle.register_pickle_by_value(module)
    write, killed = kind.write, []

    def write_after_a_loss(self, writing, report):
        killed.extend(spark.sparkContext.parallelize([0], 1).map(lambda _: executor()).collect())
        os.kill(killed[0], signal.SIGKILL)
        return write(self, writing, report)

    monkeypatch.setattr(kind, "write", write_after_a_loss)
    if kind is KeptExchange:
        monkeypatch.setattr(LocalStore, "staging", lambda _: None)  # as stores that are no directory
    assert ids(prepare(spark.range(0, 400, 1, 8), LocalStore(tmp_path))) == list(range(400))
    assert len(killed) == 1


DRIVER = """
import os, signal, sys, threading
from pathlib import Path
os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"] = sys.executable, "127.0.0.1"
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
from hopyard.data import prepare
folder, driver = sys.argv[1], os.getpid()

def deadly(batches):
    import pyarrow as pa
    for _ in batches:
        pass
    for start in range(0, 40, 10):
        yield pa.record_batch({"id": list(range(start, start + 10)), "text": ["x" * 50_000] * 10})
    while not list(Path(folder).rglob("*.arrow")):
        threading.Event().wait(0.1)
    os.kill(driver, signal.SIGKILL)
    threading.Event().wait(60)

prepare(spark.range(0, 1, 1, 1).mapInArrow(deadly, "id long, text string"), folder)
"""


def test_what_a_killed_driver_leaves_is_swept_by_the_next_preparation(spark, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DRIVER, str(tmp_path)],
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    (spilled,) = tmp_path.rglob("*.arrow")
    assert spilled.relative_to(tmp_path).parts[0].startswith(".tmp-")
    assert ids(prepare(spark.range(40), LocalStore(tmp_path))) == list(range(40))
    assert not (tmp_path / spilled.relative_to(tmp_path).parts[0]).exists()


def test_a_folder_of_rows_stays_young_while_it_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(spark_exchange, "_TOUCH_SECONDS", 0.01)
    staging = tmp_path / ".tmp-00000000-1-staging"  # of a driver on another machine
    staging.mkdir()
    exchange = SpilledExchange([], staging)
    (folder,) = staging.iterdir()
    for path in (folder, staging):
        os.utime(path, (0, 0))
    while folder.stat().st_mtime == 0 or staging.stat().st_mtime == 0:
        threading.Event().wait(0.01)
    sweep(str(tmp_path))
    assert folder.exists()
    exchange.close()
    assert not folder.exists()


def test_an_interrupt_also_cancels_the_job_that_is_not_submitted_yet(spark):
    submit, said = threading.Event(), []

    def action():
        submit.wait()
        try:
            return spark.range(1).collect()
        except Exception as error:
            said.append(str(error))
            raise

    def interrupt(share):
        threading.Timer(1, submit.set).start()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_watched(spark, "reading rows", interrupt, action)
    assert "SPARK_JOB_CANCELLED" in said[0]


def test_an_action_that_times_out_is_over(spark):
    def action():
        raise TimeoutError("the driver waited for too long")

    with pytest.raises(TimeoutError, match="the driver waited for too long"):
        run_watched(spark, "reading rows", lambda _: None, action)


def test_jobs_are_in_the_pool_of_the_thread_that_prepares(spark, tmp_path):
    context = spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", "nightly")
    prepare(spark.range(20), LocalStore(tmp_path))
    context.setLocalProperty("spark.scheduler.pool", None)
    store = context._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    newest = max((jobs.apply(index) for index in range(jobs.size())), key=lambda job: job.jobId())
    assert newest.description().get() == "hopyard: writing files"
    assert store.lastStageAttempt(newest.stageIds().last()).schedulingPool() == "nightly"


def test_executors_write_to_a_bucket(spark, s3_url, tmp_path, monkeypatch):
    for name, value in os.environ.items():
        if name.startswith("AWS_"):  # executors were started before there was a bucket
            monkeypatch.setitem(spark.sparkContext.environment, name, value)
    frame = spark.range(0, 60, 1, 3).selectExpr("id", "array(id, -id) pair")
    there, here = prepare(frame, s3_url), prepare(frame, LocalStore(tmp_path))
    assert ids(there) == list(range(60))
    assert there.fingerprint == here.fingerprint
