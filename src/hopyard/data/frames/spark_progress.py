"""Spark jobs whose progress is told while they run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from typing import Any, TypeVar

T = TypeVar("T")
_SECONDS = 0.25


def run_watched(session: Any, what: str, report: Callable[[float], None], action: Callable[[], T]) -> T:
    """``action()``, with ``report`` told the share of its tasks that are done; over Spark Connect only the end."""
    context = getattr(session, "_sc", None)
    if context is None:
        result = action()
        report(1.0)
        return result
    from pyspark import InheritableThread

    answer: Future[T] = Future()
    group = f"hopyard-{id(answer)}"

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
        context.cancelJobGroup(group)
        raise
    finally:
        thread.join()


def _await(tracker: Any, group: str, report: Callable[[float], None], answer: Future[T]) -> T:
    while True:
        try:
            result = answer.result(_SECONDS)
        except TimeoutError:
            report(_share_done(tracker, group))
        else:
            report(1.0)
            return result


def _share_done(tracker: Any, group: str) -> float:
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
            if (info := tracker.getStageInfo(stage)) is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
    return done / total if total else 0.0
