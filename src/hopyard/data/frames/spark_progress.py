"""Spark jobs whose progress is told while they run."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from hopyard.data.frames.spark_failures import executor_name, explained

T = TypeVar("T")
_SECONDS = 0.25
_LISTENERS_MILLISECONDS = 5000  # what Spark may take to note down what it has told us


def run_watched(session: Any, what: str, report: Callable[[float], None], action: Callable[[], T]) -> T:
    """``action()``, with ``report`` told the share of its tasks that are done; over Spark Connect only the end.

    Raises:
        WorkerMismatchError: executors cannot run the tasks.
        WorkerLostError: executors were lost, again and again.
        WorkerError: a task failed, in words of Java alone.
        StorageFullError: Spark's own folders are full.
    """
    context = getattr(session, "_sc", None)
    group = f"hopyard-{uuid.uuid4().hex[:12]}"
    try:
        result = action() if context is None else _in_group(context, group, what, report, action)
    except Exception as error:  # of a classic session or of Spark Connect, which share no class
        if (ours := explained(error, what, _failed_on(context, group))) is None:
            raise
        raise ours from error
    report(1.0)
    return result


def _in_group(
    context: Any, group: str, what: str, report: Callable[[float], None], action: Callable[[], T]
) -> T:
    from pyspark import InheritableThread

    answer: Future[T] = Future()

    def run() -> None:
        context.setJobGroup(group, f"hopyard: {what}", interruptOnCancel=True)
        try:
            answer.set_result(action())
        except BaseException as error:
            answer.set_exception(error)

    thread = InheritableThread(target=run, name=f"hopyard-{what}", daemon=True)
    thread.start()
    try:
        return _await(context.statusTracker(), group, report, answer)
    except BaseException:
        # Also those to come: the thread may not have submitted its job yet.
        context._jsc.sc().cancelJobGroupAndFutureJobs(group, f"{what} was given up")
        raise
    finally:
        thread.join()


def _failed_on(context: Any, group: str) -> str | None:
    """The executor on which a task of the group failed last; None if that is not known."""
    found = None
    with contextlib.suppress(Exception):  # over Spark Connect there is no context; or it was stopped
        java, scala, tracker = context._jvm, context._jsc.sc(), context.statusTracker()
        scala.listenerBus().waitUntilEmpty(_LISTENERS_MILLISECONDS)
        status = java.org.apache.spark.status.api.v1
        failed = java.java.util.List.of(status.TaskStatus.FAILED)
        for stage in [
            stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds
        ]:
            attempt = scala.statusStore().lastStageAttempt(stage).attemptId()
            tasks = scala.statusStore().taskList(stage, attempt, 0, 1000, status.TaskSorting.ID, failed)
            if tasks.size():
                found = executor_name(tasks.last().executorId(), tasks.last().host())
    return found


def _await(tracker: Any, group: str, report: Callable[[float], None], answer: Future[T]) -> T:
    while True:
        wait([answer], _SECONDS)
        if answer.done():
            return answer.result()
        report(_share_done(tracker, group))


def _share_done(tracker: Any, group: str) -> float:
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
            if (info := tracker.getStageInfo(stage)) is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
    return done / total if total else 0.0
