"""Spark's executors as places for workers: the executors there are, and the place of each worker."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.data.frames.spark_failures import executor_name

LOOK_AGAIN = 0.1  # seconds; Spark tells only listeners in Java of a new executor
SETTLED = 3.0  # seconds without a new executor, after which all are there that a cluster has room for
SPARKS_OWN = 2  # executors, where YARN and Kubernetes are not told how many


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


def expected_executors(master: str, instances: str | None) -> int | None:
    """Number of executors that a session gets at its start; None: as many as its cluster has room for.

    Args:
        instances: ``spark.executor.instances``, which only YARN and Kubernetes heed.
    """
    if master == "yarn" or master.startswith("k8s://"):
        return int(instances) if instances else SPARKS_OWN
    cluster = re.match(r"local-cluster\[\s*(\d+)", master)
    return int(cluster[1]) if cluster else None


def wait_for(context: Any, executors: int | None, slots: int) -> list[Executor]:
    """The executors, which register one after another after the session's start: once there are enough, or once
    Spark's own time for that (``spark.scheduler.maxRegisteredResourcesWaitingTime``, 30 s) is over.

    Args:
        executors: how many must be there; None: nobody knows, so all that come before none does for a while.
        slots: how many they must have in all.
    """
    key = "spark.scheduler.maxRegisteredResourcesWaitingTime"
    changed = time.monotonic()
    deadline = changed + context._jsc.sc().conf().getTimeAsSeconds(key, "30s")
    never = threading.Event()
    before = 0
    while True:
        found, now = list_executors(context), time.monotonic()
        if len(found) != before:
            before, changed = len(found), now
        are_all = now - changed >= SETTLED if executors is None else len(found) >= executors
        if found and are_all and sum(executor.slots for executor in found) >= slots:
            return found
        if context._jsc.sc().isLocal() or now >= deadline:
            return found
        never.wait(LOOK_AGAIN)


def assign(
    executors: Sequence[Executor], workers: Iterable[int], before: Mapping[int, Executor | None]
) -> dict[int, Executor | None]:
    """Executor of each worker: the same as before if that is still there, else one with the most free slots.

    None: there is no free slot for the worker, and Spark may run its tasks on any executor where one becomes free.
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
