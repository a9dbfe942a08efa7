"""SparkBackend keeps the rules of a backend, on two executor processes."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from tests import ancestors
from tests.ancestors import executor, keeper
from tests.forked import FRESH

from hopyard.backend import SparkBackend
from hopyard.backend._spark_executors import Executor, assign, expected_executors, wait_for
from hopyard.backend.testing import BackendSuite, result_of
from hopyard.errors import UsageError, WorkerLostError, WorkerMismatchError

cloudpickle.register_pickle_by_value(ancestors)

SESSION = """
import os, sys
os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"] = sys.executable, "127.0.0.1"
from pyspark import SparkConf, SparkContext
conf = SparkConf().setAppName("hopyard-tests").setAll([
    ("spark.ui.enabled", "false"), ("spark.scheduler.maxRegisteredResourcesWaitingTime", "200s"),
    ("spark.ui.showConsoleProgress", "false"),
])
from hopyard.backend import SparkBackend
"""
SETUP = (
    SESSION
    + """
context = SparkContext(master="local[2]", conf=conf)
backend = SparkBackend(num_workers=1)
"""
)


class TestSparkBackend(BackendSuite):
    setup = SETUP

    @pytest.fixture(autouse=True)
    def session(self, spark: Any) -> None:
        """Two executor processes with one slot each."""

    def make_backend(self, unit_timeout: float | None = None) -> SparkBackend:
        return SparkBackend(num_workers=2, unit_timeout=unit_timeout)


@pytest.fixture
def context(spark: Any) -> Any:
    return spark.sparkContext


@pytest.fixture
def configure(context: Any) -> Iterator[Callable[[str, str], None]]:
    """Change a setting of the running context, until the end of the test."""
    java = context._jsc.sc().conf()
    changed: dict[str, str | None] = {}

    def change(key: str, value: str) -> None:
        changed[key] = java.get(key, None)
        java.set(key, value)

    yield change
    for key, value in changed.items():
        java.remove(key) if value is None else java.set(key, value)


def run_script(text: str, *args: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SESSION + text, *map(str, args)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Who is where


def test_workers_spread_over_executors_and_stay_when_others_come_and_go() -> None:
    a, b, c = Executor("0", "here", 2), Executor("1", "there", 1), Executor("2", "here", 2)
    first = assign([a, b], range(4), {})
    assert first == {0: a, 1: a, 2: b, 3: None}
    assert assign([a, b, c], range(4), first) == {**first, 3: c}
    assert assign([a, c], range(4), first) == {0: a, 1: a, 2: c, 3: c}
    assert assign([b], range(4), first) == {0: None, 1: None, 2: b, 3: None}
    assert assign([], range(1), first) == {0: None}


@pytest.mark.parametrize(
    ("master", "instances", "expected"),
    [
        ("yarn", None, 2),
        ("yarn", "5", 5),
        ("k8s://https://10.0.0.1:6443", None, 2),
        ("local-cluster[3, 1, 1024]", None, 3),
        ("spark://host:7077", None, None),
        ("spark://host:7077", "5", None),
    ],
)
def test_how_many_executors_a_session_gets(master: str, instances: str | None, expected: int | None) -> None:
    assert expected_executors(master, instances) == expected


def test_where_nobody_knows_how_many_executors_there_will_be_all_are_awaited_that_come(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for(context, 2, 2)
    monkeypatch.setattr("hopyard.backend._spark_executors.SETTLED", 0.3)
    started = time.monotonic()
    assert len(wait_for(context, None, 1)) == 2
    assert time.monotonic() - started >= 0.3


def test_jobs_are_in_the_pool_of_the_thread_that_starts_the_backend(context: Any) -> None:
    context.setLocalProperty("spark.scheduler.pool", "nightly")
    with SparkBackend(num_workers=2) as backend:
        context.setLocalProperty("spark.scheduler.pool", None)
        assert [result_of(backend.submit(worker, abs, -worker)) for worker in range(2)] == [0, 1]
    store = context._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    descriptions = {jobs.apply(index).jobId(): jobs.apply(index) for index in range(jobs.size())}
    newest = [descriptions[job] for job in sorted(descriptions)[-3:]]
    assert [job.description().get() for job in newest][-1] == "end of Hopyard's workers"
    stages = [store.lastStageAttempt(job.stageIds().last()) for job in newest]
    assert [stage.schedulingPool() for stage in stages] == ["nightly"] * 3


def test_a_worker_whose_executor_is_killed_moves_to_the_one_that_replaces_it(context: Any) -> None:
    with SparkBackend(num_workers=2) as backend:
        before, other = backend.place(0), backend.place(1)
        assert before.startswith("worker 0, executor ")
        os.kill(result_of(backend.submit(0, executor)), signal.SIGKILL)
        lost = backend.submit(0, os.getpid).exception(timeout=60)  # unless Spark noticed before
        assert lost is None or isinstance(lost, WorkerLostError)
        ids = {there.id for there in wait_for(context, 2, 2)}
        result_of(backend.submit(0, abs, -1))
        assert backend.place(0) != before
        assert backend.place(1) == other
        assert {backend.place(n).split()[3] for n in range(2)} == ids
        pids = {result_of(backend.submit(worker, executor)) for worker in range(2)}
        assert len(pids) == 2


# What cannot be


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 0}, "num_workers=0, but it must be an integer of at least 1"),
        ({"threads_per_worker": 0}, "threads_per_worker=0, but it must be an integer of at least 1"),
        ({"unit_timeout": 0}, "unit_timeout=0, but it must be a number of seconds above 0"),
        (
            {"spark_context": "local[2]"},
            "spark_context='local\\[2\\]', but it must be a SparkContext, .*give spark.sparkContext",
        ),
    ],
)
def test_impossible_arguments_are_refused(context: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SparkBackend(**arguments)


def test_without_a_context_the_next_step_is_said(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(context), "_active_spark_context", None)
    with pytest.raises(
        UsageError,
        match=r"No active Spark context\. Make a session first, .*spark_context=spark.sparkContext",
    ):
        SparkBackend()


def test_spark_connect_is_refused_and_what_works_there_is_said(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(
        UsageError, match=r"needs a classic SparkContext, .*prepare, .* and model.transform work there too"
    ):
        SparkBackend()


def test_too_few_slots_are_refused_with_what_there_is(configure: Callable[[str, str], None]) -> None:
    configure("spark.scheduler.maxRegisteredResourcesWaitingTime", "1s")
    with pytest.raises(UsageError) as caught:
        SparkBackend(num_workers=5)
    for part in (
        "num_workers=5 was given, but Spark has 2 executors with 2 slots in all (executor ",
        " on 127.0.0.1: 1; spark.task.cpus=1). Ask for fewer workers, or start the session with more",
        "spark.executor.instances, spark.executor.cores, or spark.dynamicAllocation.minExecutors",
    ):
        assert part in str(caught.value)


def test_dynamic_allocation_needs_a_floor(configure: Callable[[str, str], None]) -> None:
    configure("spark.dynamicAllocation.enabled", "true")
    with pytest.raises(
        UsageError, match=r"minExecutors=0, .* of one worker per executor in the middle of a run"
    ):
        SparkBackend()
    configure("spark.dynamicAllocation.minExecutors", "2")
    with pytest.raises(
        UsageError,
        match=r"minExecutors=2, .* of num_workers=3 in .*spark.dynamicAllocation.minExecutors=3 or more",
    ):
        SparkBackend(num_workers=3)
    assert SparkBackend().num_workers == 2


def test_an_executor_without_our_package_is_named(
    context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    # Without its site-packages, and not forked off a process that has them.
    python.write_text(f'#!/bin/sh\nexport {FRESH}=1\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(context, "pythonExec", str(python))
    with pytest.raises(WorkerMismatchError) as caught:
        SparkBackend(num_workers=1).start()
    for part in (
        "Worker 0, executor ", "cannot run units: the package 'hopyard' cannot be imported by ",
        "No module named 'hopyard'", "spark.pyspark.python",
    ):  # fmt: skip
        assert part in str(caught.value)


def test_an_executor_without_python_is_named(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "pythonExec", "/nowhere/python")
    with pytest.raises(WorkerMismatchError) as caught:
        SparkBackend(num_workers=1).start()
    for part in (
        "Worker 0, executor ",
        " on 127.0.0.1, cannot run units",
        "/nowhere/python",
        "spark.archives",
    ):
        assert part in str(caught.value)


# Sessions of other kinds

LOCAL = (
    inspect.getsource(keeper)
    + """
from hopyard.errors import HopyardError
context = SparkContext(master="local[2]", conf=conf)
backend = SparkBackend()
print([backend.submit(worker, abs, -worker).result() for worker in range(backend.num_workers)])
print(backend)
for call in (
    lambda: SparkBackend(num_workers=3),
    lambda: backend.submit(0, lambda: os.kill(keeper(), 9) or __import__("signal").pause()).result(),
    lambda: context.stop() or backend.submit(0, abs, 1).result(),
    lambda: SparkBackend(context),
):
    try:
        call()
    except (HopyardError, OSError) as error:
        print(type(error).__name__, error)
"""
)


def test_in_local_mode_workers_are_slots_of_the_driver(context: Any) -> None:
    lines = run_script(LOCAL)
    numbers, name, few, lost, gone, stopped = lines.splitlines()
    assert numbers == "[0, 1]"
    assert name == "SparkBackend(master='local[2]', num_workers=2, threads_per_worker=1, unit_timeout=None)"
    assert "num_workers=3 was given, but master 'local[2]' has 2 slots" in few
    assert "give at most 2, or start the session with local[3]" in few
    assert lost.startswith(
        "WorkerLostError Worker 0, the driver's own executor, was lost while it ran the task"
    )
    assert "Python worker exited unexpectedly" in lost
    assert gone.startswith("WorkerLostError Worker 0 is gone, because the SparkContext was stopped")
    assert stopped.startswith("UsageError The SparkContext given is stopped; make a new session")


GPUS = """
for owner in ("worker", "executor"):
    conf.set(f"spark.{owner}.resource.gpu.amount", "2")
conf.set("spark.worker.resource.gpu.discoveryScript", sys.argv[1])
conf.set("spark.task.resource.gpu.amount", "1").set("spark.local.dir", sys.argv[2])
context = SparkContext(master="local-cluster[1,2,1024]", conf=conf)
meeting = os.path.join(sys.argv[2], "meeting")
os.mkfifo(meeting)
def gpu(mode):
    with open(meeting, mode):  # waits for the other worker
        return os.environ["CUDA_VISIBLE_DEVICES"]
with SparkBackend(num_workers=2) as backend:
    for _ in range(2):
        found = [backend.submit(worker, gpu, mode) for worker, mode in enumerate("rw")]
        print(sorted(each.result() for each in found))
from pyspark.sql import SparkSession
from hopyard.tune.predicting.spark import _device
print(SparkSession(context).range(1).rdd.map(lambda _: _device()).collect())
"""


def test_workers_that_share_an_executor_at_once_see_the_gpus_that_spark_gave_their_tasks(
    context: Any, tmp_path: Path
) -> None:
    script = tmp_path / "gpus"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["5", "7"]}'\n""")
    script.chmod(0o755)
    *seen, predicted = run_script(GPUS, script, tmp_path).splitlines()
    assert seen == ["['5', '7']"] * 2
    assert predicted in {"['cuda:5']", "['cuda:7']"}


FULL = """
os.environ["SPARK_LOCAL_DIRS"] = sys.argv[1]
context = SparkContext(master="local[1]", conf=conf)
ballast = os.path.join(sys.argv[1], "ballast")
with SparkBackend(num_workers=1) as backend:
    pid = backend.submit(0, os.getpid).result()
    with open(ballast, "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096) == 4096:
                pass
        except OSError:
            pass
    print(repr(backend.submit(0, len, os.urandom(2_000_000)).exception()))  # too large to travel without a file
    os.remove(ballast)
    assert backend.submit(0, len, os.urandom(2_000_000)).result() == 2_000_000
    assert backend.submit(0, os.getpid).result() == pid
context.stop()
"""


def test_a_full_local_folder_of_spark_is_no_loss_of_the_worker(context: Any, tmp_path: Path) -> None:
    """So a run pauses, and repeats the unit once there is space."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", str(tmp_path)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        said = run_script(FULL, tmp_path)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
    assert said.startswith("StorageFullError(")
    assert "Spark found no space for the task 'len' of worker 0, " in said
    assert "in its local folders (SPARK_LOCAL_DIRS, spark.local.dir) on the executor or the driver: " in said
    assert "No space left on device. Make space there." in said
