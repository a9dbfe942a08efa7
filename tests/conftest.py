"""What every test shares: the same examples on every machine, and one rule for services that are missing."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests import arranging, durations, forked, ray_cluster
from tests.durations import pytest_runtest_setup, pytest_runtest_teardown  # noqa: F401
from tests.hdfs_cluster import hdfs_if_there  # noqa: F401
from tests.ray_cluster import cluster, cluster_if_there, spare, until  # noqa: F401
from tests.sampling import FORKS, LEVEL, SEED

# The same examples everywhere and every time, but for the level that looks for new ones; no deadline, since machines
# differ and some are busy. No test says how many examples it has.
for level, examples in {"quick": 10, "ci": 40, "exhaustive": 1000}.items():
    settings.register_profile(
        level,
        max_examples=examples,
        deadline=None,
        derandomize=level != "exhaustive",
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile(LEVEL)

SLOW = [Path(__file__).with_name(name) for name in ("services", "long")]
"""Folders of tests that are only collected, and imported, above the level ``quick``, or where a path names them."""


# What the suite starts, hundreds of times, is compiled once.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts into the background so, and all that the suite starts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Which PyTorch reads when it is imported: else its threads wait for each other busily, also for cores that others use.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if hasattr(os._exit, "__code__"):
    # The one by which coverage saves its data; tests send it to workers, as the one that it stands for.
    os._exit.__module__, os._exit.__name__, os._exit.__qualname__ = "os", "_exit", "_exit"

# A thread of Ray Data logs tracebacks every few seconds, whose text is made by parsing code. Before Python 3.11.10 that
# breaks whatever a test parses when Hypothesis is told of a garbage collection meanwhile (gh-106905). A filter, since
# Ray sets the level anew.
logging.getLogger("ray.data._internal.usage.util").addFilter(lambda record: record.levelno > logging.DEBUG)

# The frameworks that tests import are millions of objects, of which none becomes garbage.
gc.disable()

if FORKS:
    forked.install(forked.connect)


ROOM = 8 << 30
"""Bytes of memory that must be free for the directories of tests to lie there."""


def _memory_for_files() -> str | None:
    """A folder in memory: there a test that syncs hundreds of files, as many do, waits for no disk."""
    folder = Path("/dev/shm")
    if LEVEL == "exhaustive" or not os.access(folder, os.W_OK):
        return None
    free = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) * 1024
    return str(folder) if min(free, shutil.disk_usage(folder).free) > ROOM else None


def pytest_configure(config: pytest.Config) -> None:
    folder = _memory_for_files()
    if folder is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", folder)  # where pytest makes directories
    durations.register(config)
    if hasattr(config, "workerinput"):
        forked.count_apart()
    if getattr(config.option, "numprocesses", None) and FORKS:
        forked.start()  # one for all processes that run tests


def pytest_sessionfinish() -> None:
    forked.close()


def pytest_report_header() -> str:
    return f"level: {LEVEL} (HOPYARD_TESTS), samples by seed {SEED} (HOPYARD_SEED)"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if LEVEL != "quick" or collection_path not in SLOW:
        return None
    return None if _is_named(collection_path, config) else True


def _is_named(place: Path, config: pytest.Config) -> bool:
    """Whether an argument asks for the file or folder, or for what is in it."""
    named = (Path(argument.partition("::")[0]).absolute() for argument in config.args)
    return any(path.is_relative_to(place) for path in named)


def pytest_collection_finish() -> None:
    """From here garbage is collected as ever, but what was imported by now is no longer looked through."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # most of what tests make becomes no garbage either
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if LEVEL == "quick":
        left = {
            item for item in items if item.get_closest_marker("long") and not _is_named(item.path, config)
        }
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
    on_gpus = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpus and not _has_gpu():
        for item in on_gpus:
            item.add_marker(pytest.mark.skip(reason="a GPU is hardware that no installation brings"))
    items[:] = arranging.arranged(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _has_gpu() -> bool:
    import torch  # which modules with such tests have imported

    return torch.cuda.is_available()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, bool, bool]:
    done = yield
    after = None if nextitem is None else arranging.service(nextitem)
    if after != "ray":
        ray_cluster.stop()
    if after != arranging.service(item):  # has imported its framework
        gc.collect()
        gc.freeze()
    return done


@pytest.fixture(autouse=True, scope="session")
def own_node_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests decode goes to a cache of theirs, not to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPYARD_CACHE", str(tmp_path_factory.mktemp("node-cache") / "cache"))
        yield


@pytest.fixture
def fresh_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python processes that a test starts are not forked off one that has imported everything."""
    monkeypatch.setenv(forked.FRESH, "1")


@pytest.fixture
def nothing_collected() -> Iterator[None]:
    """No garbage is collected: at the deepest moment of a recursion, Hypothesis' callback has no room to be called."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Records of the log, but for those of Ray's own threads, which report to the log whenever they like."""

    def told(record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] != "ray"

    caplog.handler.addFilter(told)
    yield caplog
    caplog.handler.removeFilter(told)


@pytest.fixture
def needs() -> Callable[[object, str], None]:
    """``needs(available, what)``: without ``what`` a test is skipped at home and fails where ``CI=true``."""

    def require(available: object, what: str) -> None:
        if available:
            return
        message = f"this test needs {what}, which is not available here"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)

    return require


class S3Server:
    """A server process on this machine that speaks S3 (``tests/s3_server.py``)."""

    def __init__(self, url: str) -> None:
        self.url = url

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        with urllib.request.urlopen(
            urllib.request.Request(self.url + path, body or None, method=method)
        ) as answer:
            return bytes(answer.read())

    def fail(self, *faults: str) -> None:
        """Make requests fail: lines ``pattern count status``; without any, none."""
        self.request("POST", "/faults", "\n".join(faults).encode() or b"\n")

    def requests(self) -> list[str]:
        return self.request("GET", "/requests").decode().splitlines()


@pytest.fixture(scope="session")
def s3_process() -> Iterator[S3Server | None]:
    """The server, started once; None where moto or obstore is missing."""
    if not all(importlib.util.find_spec(name) for name in ("moto", "flask", "obstore")):
        yield None
        return
    command = [sys.executable, str(Path(__file__).with_name("s3_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield S3Server(process.stdout.readline().strip())
        process.stdin.close()


@pytest.fixture
def s3(
    s3_process: S3Server | None, needs: Callable[[object, str], None], monkeypatch: pytest.MonkeyPatch
) -> Iterator[S3Server]:
    """The server, and an environment in which S3 is there, also for processes that the test starts."""
    needs(s3_process, "a server of S3 (the packages moto[s3], flask, flask-cors and obstore)")
    assert s3_process is not None
    settings = {"ENDPOINT_URL": s3_process.url, "ACCESS_KEY_ID": "AKIATEST", "SECRET_ACCESS_KEY": "hush-hush"}
    for name, value in {**settings, "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    yield s3_process
    s3_process.fail()


@pytest.fixture
def s3_url(s3: S3Server) -> str:
    """A prefix in a new bucket: ``s3://bucket/some/prefix``."""
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    s3.request("PUT", f"/{bucket}")
    return f"s3://{bucket}/some/prefix"


DAEMON = Path(__file__).with_name("executors")
"""Has what Spark's executors fork Python workers off."""

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# What a JVM of Spark loads, some ten thousand classes, is parsed and checked once and written to a file.
LOADING = """
import os, sys
os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"] = sys.executable, "127.0.0.1"
from pyspark import SparkContext
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.driver.extraJavaOptions", sys.argv[1]).getOrCreate()
frame = spark.createDataFrame([(i, Vectors.dense([i, 1.0])) for i in range(4)], ["id", "features"])
frame.repartition(2, "id").write.parquet("rows")
frame = spark.read.parquet("rows")
frame.mapInArrow(lambda batches: batches, frame.schema).where("id > 1").groupBy("id").count().collect()
gateway = SparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


@pytest.fixture(autouse=True, scope="session")
def spark_classes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path | None]:
    """The file of Spark's classes, which is there once a test above the level ``quick`` asked for
    ``spark_if_there``.

    All JVMs of Spark that tests start, also in other processes, use it, and live too short for a better compiler,
    for more than one thread that collects garbage, and for a web server. None without Java or PySpark.
    """
    java, pyspark = shutil.which("java"), importlib.util.find_spec("pyspark")
    if java is None or pyspark is None or pyspark.origin is None:
        yield None
        return
    of = [f"{file.resolve()} {file.stat().st_mtime_ns}" for file in (Path(java), Path(pyspark.origin))]
    digest = hashlib.sha256("\n".join(of).encode()).hexdigest()[:16]
    cache = getattr(request.config, "cache", None)  # not with -p no:cacheprovider
    name = "spark-classes"
    archive = (tmp_path_factory.mktemp(name) if cache is None else cache.mkdir(name)) / f"{digest}.jsa"
    # Where the file is not there or does not fit, classes are loaded as ever, without a word on standard output.
    options = f"{JVM_OPTIONS} -XX:SharedArchiveFile={archive} -Xlog:disable"
    file = tmp_path_factory.mktemp("spark-options") / "spark.conf"
    file.write_text(
        f"spark.driver.extraJavaOptions {options}\n"
        f"spark.executor.extraJavaOptions {options}\n"
        "spark.sql.shuffle.partitions 4\n"
        "spark.ui.enabled false\n"
    )
    if FORKS:
        inherited = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
        folders = os.pathsep.join(map(str, [DAEMON, *inherited]))
        with file.open("a") as lines:
            lines.write(f"spark.python.daemon.module spark_daemon\nspark.executorEnv.PYTHONPATH {folders}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {file} pyspark-shell")
        patch.setenv("SPARK_LAUNCHER_OPTS", JVM_OPTIONS)
        yield archive


def write_classes(archive: Path, folder: Path) -> None:
    """Write the file, if Java can, in place of those for another Java or PySpark."""
    part = archive.with_name(f"{archive.name}.{os.getpid()}")
    options = f"{JVM_OPTIONS} -XX:ArchiveClassesAtExit={part}"
    command = [sys.executable, "-W", "ignore", "-c", LOADING, options]
    subprocess.run(command, cwd=folder, capture_output=True, check=False)
    if part.exists():
        for old in archive.parent.glob("*.jsa"):
            old.unlink()
        part.rename(archive)


@pytest.fixture(scope="session")
def spark_if_there(
    spark_classes: Path | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[object | None]:
    """A session on a cluster of two executor processes with one slot each; None without Java or PySpark."""
    if spark_classes is None:
        yield None
        return
    if LEVEL != "quick" and not spark_classes.exists():  # which takes longer than one walk gains by it
        write_classes(spark_classes, tmp_path_factory.mktemp("spark-classes"))
    if FORKS:
        forked.connect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark of pandas
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        # Without it, executors leave theirs within PySpark's own folder.
        os.environ["SPARK_WORKER_DIR"] = str(tmp_path_factory.mktemp("executors"))
        session = (
            SparkSession.builder.master("local-cluster[2,1,1024]")
            .appName("hopyard-tests")
            .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "200s")  # busy machines start slowly
            .config("spark.local.dir", str(tmp_path_factory.mktemp("spark")))
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def spark(spark_if_there: Any, needs: Callable[[object, str], None]) -> Any:
    """A Spark session with two separate executors; see ``spark_if_there``."""
    needs(spark_if_there, "Spark (Java 17 or newer, and the package pyspark)")
    return spark_if_there
