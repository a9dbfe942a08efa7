"""One worker per executor of a Spark application."""

from __future__ import annotations

from typing import Any

from hopyard.backend._spark_cluster import SparkCluster
from hopyard.backend._spark_executors import Executor, expected_executors, wait_for
from hopyard.backend.base import check_timeout
from hopyard.backend.remote import RemoteBackend
from hopyard.checks import integer
from hopyard.errors import UsageError
from hopyard.missing import missing_extra

CONNECT = (
    "hopyard.data.prepare, make_spark_converter and model.transform work there too. Run the search in a driver with a "
    "classic session (master('yarn'), 'k8s://...', 'spark://...' or 'local[*]', without SPARK_REMOTE), or on "
    "LocalBackend over data that was prepared through Spark Connect."
)


class SparkBackend(RemoteBackend):
    """Workers are executors of a Spark application: each unit is a job of one task, pinned to its worker's executor.

    On the executor a process of its own does the work, as with ``LocalBackend``; GPUs are the ones that Spark gives to
    the task. An executor that is lost is a lost worker: its unit is done again where there is room.

    Args:
        spark_context: a classic SparkContext; None: the active one.
        num_workers: how many; None: one per executor, in local mode one per core. Several share an executor that has
            several slots.
        threads_per_worker: CPU threads that the mathematics of a task may use.
        unit_timeout: seconds that a task may take before its worker is killed; None for no limit.

    Raises:
        UsageError: there is no such SparkContext, it has too few slots, or may give them up.
        MissingExtraError: PySpark is not installed.
    """

    name = "spark"

    def __init__(
        self,
        spark_context: Any = None,
        num_workers: int | None = None,
        threads_per_worker: int = 1,
        unit_timeout: float | None = None,
    ) -> None:
        if num_workers is not None:
            integer("num_workers", num_workers, 1)
        integer("threads_per_worker", threads_per_worker, 1)
        check_timeout(unit_timeout)
        self._context = _classic_context(spark_context)
        floor = _floor_of_dynamic_allocation(self._context, num_workers)
        self._num_workers = _count_slots(self._context, num_workers or floor)
        super().__init__(threads_per_worker, unit_timeout)

    @property
    def num_workers(self) -> int:
        return self._num_workers

    def place(self, worker: int) -> str:
        place = None if self._carries is None else self._carries.place(worker)
        return f"worker {worker}" if place is None else f"worker {worker}, {place}"

    def _begin(self) -> None:
        super()._begin()
        self._carries: SparkCluster | None = None

    def _cluster(self) -> SparkCluster:
        self._carries = SparkCluster(self._context, self._num_workers)
        return self._carries

    def __repr__(self) -> str:
        return (
            f"SparkBackend(master={self._context.master!r}, num_workers={self.num_workers}, "
            f"threads_per_worker={self.threads_per_worker}, unit_timeout={self.unit_timeout})"
        )


def _classic_context(given: Any) -> Any:
    """The SparkContext that was given, or the active one."""
    try:
        from pyspark import SparkContext
        from pyspark.sql.utils import is_remote
    except ImportError as error:
        raise missing_extra("pyspark", "spark", "SparkBackend") from error
    if type(given).__module__.startswith("pyspark.sql.connect") or (given is None and is_remote()):
        raise UsageError(
            f"SparkBackend needs a classic SparkContext, which Spark Connect does not have. {CONNECT}"
        )
    context = SparkContext._active_spark_context if given is None else given
    if context is None:
        raise UsageError(
            "No active Spark context. Make a session first, spark = SparkSession.builder.getOrCreate(), or give "
            "spark_context=spark.sparkContext."
        )
    if not isinstance(context, SparkContext):
        raise UsageError(
            f"spark_context={given!r}, but it must be a SparkContext, or None for the active one; of a "
            "session, give spark.sparkContext."
        )
    if context._jsc is None:
        raise UsageError("The SparkContext given is stopped; make a new session, and give its sparkContext.")
    return context


def _floor_of_dynamic_allocation(context: Any, num_workers: int | None) -> int | None:
    """Number of executors that Spark keeps at least; None where it keeps all."""
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") != "true":
        return None
    floor = int(conf.get("spark.dynamicAllocation.minExecutors", "0"))
    if floor < (num_workers or 1):
        wanted = "one worker per executor" if num_workers is None else f"num_workers={num_workers}"
        raise UsageError(
            f"spark.dynamicAllocation.enabled is true with minExecutors={floor}, so that Spark may take away the "
            f"executors of {wanted} in the middle of a run. Start the session with "
            f"spark.dynamicAllocation.minExecutors={num_workers or 'the number of workers'} or more, or without "
            "dynamic allocation."
        )
    return floor


def _count_slots(context: Any, num_workers: int | None) -> int:
    """``num_workers`` if there are as many slots, or the number of executors (local mode: of slots)."""
    if num_workers:
        executors = wait_for(context, 1, num_workers)
    else:
        instances = context.getConf().get("spark.executor.instances")
        executors = wait_for(context, expected_executors(context.master, instances), 1)
    slots = sum(executor.slots for executor in executors)
    if slots == 0 or slots < (num_workers or 1):
        raise UsageError(_too_few(context, num_workers, executors, slots))
    if num_workers is not None:
        return num_workers
    return slots if context._jsc.sc().isLocal() else len(executors)


def _too_few(context: Any, num_workers: int | None, executors: list[Executor], slots: int) -> str:
    asked = (
        "One worker per executor was asked for"
        if num_workers is None
        else f"num_workers={num_workers} was given"
    )
    if context._jsc.sc().isLocal():
        return (
            f"{asked}, but master {context.master!r} has {slots} {'slot' if slots == 1 else 'slots'}, one for each "
            f"of its cores by spark.task.cpus; give at most {slots}, or start the session with local[{num_workers}]."
        )
    cpus = context.getConf().get("spark.task.cpus", "1")
    there = (
        "; ".join(f"{executor}: {executor.slots}" for executor in executors[:8]) or "none registered in time"
    )
    more = f" and {len(executors) - 8} more" if len(executors) > 8 else ""
    return (
        f"{asked}, but Spark has {len(executors)} executors with {slots} slots in all ({there}{more}; "
        f"spark.task.cpus={cpus}). Ask for fewer workers, or start the session with more: "
        "spark.executor.instances, spark.executor.cores, or spark.dynamicAllocation.minExecutors."
    )
