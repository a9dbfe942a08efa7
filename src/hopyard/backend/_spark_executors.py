"""Spark's executors as places for workers: which there are, and which worker is where."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LOOK_AGAIN = 0.1  # seconds; Spark tells only listeners in Java of a new executor
from hopyard.data.frames.spark_failures import executor_name



@dataclass(frozen=True)
class Executor:
    """A process of Spark's that runs tasks.

    Attributes:
        id: Spark's name for it; in local mode it is ``"driver"``.
        host: as Spark writes it.
        slots: tasks that it runs at a time, by its cores and other resources and what each task takes of them.
    """

    id: str
    host: str
    slots: int

    def __str__(self) -> str:
        return executor_name(self.id, self.host)


def list_executors(context: Any) -> list[Executor]:
    """The executors that are there now, the oldest first."""
    scala = context._jsc.sc()
    summaries = scala.statusStore().executorList(True)
    found = []
    for index in range(summaries.size()):
        summary = summaries.apply(index)
        if (slots := summary.maxTasks()) > 0:  # the driver of a cluster has none
            found.append(Executor(summary.id(), summary.hostPort().rpartition(":")[0], slots))
    if not scala.isLocal():
        alive = alive_ids(context)  # known at once; the store of summaries hears of it a little later
        found = [executor for executor in found if executor.id in alive]
    return sorted(found, key=lambda executor: (len(executor.id), executor.id))


def alive_ids(context: Any) -> frozenset[str]:
    """Names of the executors of a cluster, asked of its scheduler in a fraction of a millisecond."""
    return frozenset(context._jsc.sc().getExecutorIds().mkString(",").split(",")) - {""}


def wait_for(context: Any, executors: int, slots: int) -> list[Executor]:
    """The executors, once there are that many with that many slots in all, or once Spark's own time for that
    (``spark.scheduler.maxRegisteredResourcesWaitingTime``, 30 s) is over: they register after the session's start."""
    key = "spark.scheduler.maxRegisteredResourcesWaitingTime"
    deadline = time.monotonic() + context._jsc.sc().conf().getTimeAsSeconds(key, "30s")
    never = threading.Event()
    while True:
        found = list_executors(context)
        if len(found) >= executors and sum(executor.slots for executor in found) >= slots:
            return found
        if context._jsc.sc().isLocal() or time.monotonic() >= deadline:
            return found
        never.wait(LOOK_AGAIN)


def assign(
    executors: Sequence[Executor], workers: Iterable[int], before: Mapping[int, Executor | None]
) -> dict[int, Executor | None]:
    """Where each worker is: where it was if that is still there, else where most slots are free.

    None: there is no free slot for it, and Spark may run its tasks wherever one becomes free.
    """
    there = set(executors)
    places = {worker: executor if (executor := before.get(worker)) in there else None for worker in workers}
    taken = Counter(executor for executor in places.values() if executor is not None)
    for worker, place in places.items():
        free = [executor for executor in executors if executor.slots > taken[executor]]
        if place is None and free:
            places[worker] = freest = max(free, key=lambda executor: executor.slots - taken[executor])
            taken[freest] += 1
    return places
