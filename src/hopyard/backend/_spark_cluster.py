"""Carries tasks to Spark: each is a job of one task, pinned to its worker's executor."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import Any, TypeAlias

import hopyard
from hopyard.backend._spark_executors import Executor, alive_ids, assign, list_executors
from hopyard.backend._spark_task import Said, carrier, closer
from hopyard.backend._task import Task
from hopyard.backend.agent import AgentSettings, Answer
from hopyard.backend.remote import Cluster
from hopyard.data.frames.spark_failures import LAST_FAILURE, is_full, is_unfit, without_stack
from hopyard.data.frames.spark_tasks import ENVIRONMENT
from hopyard.errors import StorageFullError, WorkerError, WorkerLostError, WorkerMismatchError
from hopyard.objects import pickles

BROADCAST_BYTES = 512 * 1024
"""Larger tasks travel by broadcast. Half of Spark's own limit for that, and far below ``spark.rpc.message.maxSize``."""

CLOSING_SECONDS = 2.0  # that stop gives executors to end idle workers
_POOL = "spark.scheduler.pool"

_Failure: TypeAlias = WorkerError | StorageFullError


class SparkCluster(Cluster):
    """The executors of a SparkContext. All jobs are in the scheduler pool of the thread that makes this object."""

    def __init__(self, context: Any, workers: int) -> None:
        self._context = context
        self._group = f"hopyard-{uuid.uuid4().hex[:12]}"
        self._pool: str | None = context.getLocalProperty(_POOL)
        self._lock = threading.Lock()
        self._places: dict[int, Executor | None] = dict.fromkeys(range(workers))
        self._known: frozenset[str] | None = None
        self._pins: dict[Executor | None, Any] = {}
        self._busy: set[int] = set()
        self._drivers: dict[int, str] = {}

    def start(self) -> None:
        self._settle()

    def place(self, worker: int) -> Executor | None:
        """Executor that the worker's tasks are pinned to now; None: none."""
        return self._places[worker]

    def call(self, settings: AgentSettings, worker: int, task: Task) -> Answer:
        unit = pickles.dumps((settings, worker, task.label, [bytes(part) for part in task.parts]))
        place, rows = self._pinned(worker)
        self._busy.add(worker)
        try:
            with self._travelling(unit) as ticket:
                self._begin_job(self._group, f"{task.label} on worker {worker}")
                said: Said = rows.mapPartitions(carrier(ticket, hopyard.__version__)).collect()[0]
        except Exception as error:
            raise self._failure(worker, place, task, error) from error
        finally:
            self._busy.discard(worker)
        self._drivers[worker] = settings.driver
        kind, stage, host, fields = said
        if kind == "repeated":
            raise self._first_failure(worker, stage, place, task)
        if kind == "unfit":
            where = f"executor {place.id} on {host}" if place is not None else host
            raise _mismatch(worker, where, fields[0])
        return Answer(*fields)

    def stop(self) -> None:
        scala = self._scala()
        if scala is None:
            return  # with its context, everything has ended
        with contextlib.suppress(Exception):  # Spark may be going away at the same time
            idle = [worker for worker in self._drivers if worker not in self._busy]
            scala.cancelJobGroupAndFutureJobs(self._group, "the backend was stopped")
            closing = threading.Thread(target=self._close, args=(idle,), daemon=True)
            closing.start()
            closing.join(CLOSING_SECONDS)
            if closing.is_alive():
                scala.cancelJobGroupAndFutureJobs(f"{self._group}-end", "it took too long")

    def _close(self, workers: list[int]) -> None:
        """End the processes of idle workers; Spark itself kills the Python of tasks that are cancelled."""
        with contextlib.suppress(Exception):
            self._begin_job(f"{self._group}-end", "end of Hopyard's workers")
            drivers = {self._drivers[worker] for worker in workers}
            places = [self._places[worker] for worker in workers]
            for driver in drivers:
                self._rows(places).mapPartitions(closer(driver)).collect()

    def _begin_job(self, group: str, description: str) -> None:
        """Name the group and description of the jobs that this thread submits next."""
        self._context.setJobGroup(group, description, True)
        self._context.setLocalProperty(_POOL, self._pool)

    # Places ----------------------------------------------------------------------------------

    def _scala(self) -> Any:
        """Java's SparkContext; None once it is stopped."""
        java = self._context._jsc
        return None if java is None or java.sc().isStopped() else java.sc()

    def _pinned(self, worker: int) -> tuple[Executor | None, Any]:
        """Executor of the worker, and a row that Spark prefers to have there."""
        if self._scala() is None:
            raise WorkerLostError(
                f"Worker {worker} is gone, because the SparkContext was stopped; make a new one, and a new backend."
            )
        self._settle()
        with self._lock:
            place = self._places[worker]
            if place not in self._pins:
                self._pins[place] = self._rows([place])
            return place, self._pins[place]

    def _settle(self) -> None:
        """Give workers of lost executors another place, and new executors workers that have none."""
        is_local = self._context._jsc.sc().isLocal()
        with self._lock:
            if self._known is not None and (is_local or self._known == alive_ids(self._context)):
                return
            executors = list_executors(self._context)
            self._known = frozenset(executor.id for executor in executors)
            self._places = assign(executors, self._places, self._places)
            self._pins = {place: rows for place, rows in self._pins.items() if place in executors}

    def _rows(self, places: list[Executor | None]) -> Any:
        """An RDD with one partition of one row for each place, where Spark prefers to run it."""
        from pyspark import RDD
        from pyspark.serializers import CPickleSerializer

        java, serializer = self._context._jvm, CPickleSerializer()
        nothing = pickles.dumps(None)
        rows = java.java.util.ArrayList()
        for place in places:
            hosts = java.java.util.ArrayList()
            if place is not None and place.id != "driver":
                hosts.add(f"executor_{place.host}_{place.id}")
            rows.add(java.scala.Tuple2(bytearray(nothing), _sequence(java, hosts)))
        array_of_bytes = java.scala.reflect.ClassTag.apply(java.java.lang.Class.forName("[B"))
        made = self._context._jsc.sc().makeRDD(_sequence(java, rows), array_of_bytes)
        return RDD(made.toJavaRDD(), self._context, serializer)

    @contextlib.contextmanager
    def _travelling(self, unit: bytes) -> Iterator[Any]:
        """A function that gives ``unit`` on an executor, and can be pickled."""
        if len(unit) <= BROADCAST_BYTES:
            yield lambda: unit
            return
        sent = self._context.broadcast(unit)
        try:
            yield lambda: sent.value
        finally:
            with contextlib.suppress(Exception):  # the context may be stopped meanwhile
                sent.destroy()

    # Failures --------------------------------------------------------------------------------

    def _failure(self, worker: int, place: Executor | None, task: Task, error: Exception) -> _Failure:
        """Failure of the worker whose job was given up with ``error``."""
        java = getattr(error, "java_exception", None)
        text = str(error) if java is None else str(java.getMessage())
        found = LAST_FAILURE.search(text)
        if found is None:
            return _full(worker, place, task, text) or _lost(worker, place, task, text)
        return self._verdict(worker, found["id"], found["host"], task, found["why"])

    def _first_failure(self, worker: int, stage: int, place: Executor | None, task: Task) -> _Failure:
        """Failure for which Spark had to repeat the task of that stage."""
        attempts = self._context._jsc.sc().statusStore().taskList(stage, 0, 10)
        for index in range(attempts.size()):
            attempt = attempts.apply(index)
            if attempt.attempt() == 0 and attempt.errorMessage().isDefined():
                why = attempt.errorMessage().get()
                return self._verdict(worker, attempt.executorId(), attempt.host(), task, why)
        return _lost(worker, place, task, "Spark does not say why")

    def _verdict(self, worker: int, executor: str, host: str, task: Task, why: str) -> _Failure:
        place = Executor(executor, host, 1)
        if is_unfit(why):
            return _mismatch(worker, str(place), without_stack(why))
        why = without_stack(why)
        return _full(worker, place, task, why) or _lost(worker, place, task, why)


def _sequence(java: Any, items: Any) -> Any:
    return java.scala.jdk.javaapi.CollectionConverters.asScala(items).toSeq()


def _lost(worker: int, place: Executor | None, task: Task, why: str) -> WorkerLostError:
    where = "" if place is None else f", {place},"
    return WorkerLostError(
        f"Worker {worker}{where} was lost while it ran the task {task.label!r}: {why}. The executor's log has more; "
        "if its memory ran out, give executors more (spark.executor.memoryOverhead is for Python), or use smaller "
        "batches."
    )


def _full(worker: int, place: Executor | None, task: Task, why: str) -> StorageFullError | None:
    if not is_full(why):
        return None
    where = "" if place is None else f", {place},"
    return StorageFullError(
        f"Spark found no space for the task {task.label!r} of worker {worker}{where} in its local folders "
        f"(SPARK_LOCAL_DIRS, spark.local.dir) on the executor or the driver: {why}. Make space there."
    )


def _mismatch(worker: int, where: str, why: str) -> WorkerMismatchError:
    return WorkerMismatchError(f"Worker {worker}, {where}, cannot run units: {why}. {ENVIRONMENT}")
