"""Backends beside the standard library's pools: tasks that do nothing, 50 MB arguments, starting.

One JSON object a line: name, value, unit, peer, ratio (value / the peer's value). All have two workers
and take turns; medians of rounds. The pools fork, their fastest way to start; for starting they also
spawn, which is what a fresh process per worker compares with.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from statistics import median
from typing import Any

import numpy as np

from hopyard.backend import Backend, InlineBackend, LocalBackend

WORKERS = 2
ROUNDS = 5
TASKS = 4000
LARGE = np.ones(50_000_000, np.uint8)

Submit = Callable[..., Future[Any]]


def tasks_per_second(submit: Submit) -> float:
    """Tasks submitted as fast as possible, so that the workers stay busy."""
    start = time.perf_counter()
    for future in [submit(abs, -1) for _ in range(TASKS)]:
        assert future.result() == 1
    return TASKS / (time.perf_counter() - start)


def round_trip(submit: Submit) -> float:
    """Microseconds of a task that is waited for before the next."""
    start = time.perf_counter()
    for _ in range(TASKS // 4):
        submit(abs, -1).result()
    return (time.perf_counter() - start) / (TASKS // 4) * 1e6


def large_argument(submit: Submit) -> float:
    """Megabytes per second of 50 MB arrays going to a worker and back."""
    start = time.perf_counter()
    assert submit(np.asarray, LARGE).result().nbytes == LARGE.nbytes
    return 2 * LARGE.nbytes / 1e6 / (time.perf_counter() - start)


def seconds_to_start(make: Callable[[], AbstractContextManager[Any]]) -> float:
    """Until each of two workers has answered."""
    start = time.perf_counter()
    with make() as pool:
        if isinstance(pool, ProcessPoolExecutor):
            for future in [pool.submit(abs, -1) for _ in range(WORKERS)]:
                future.result()
        return time.perf_counter() - start


def executor_of_both(context: Any) -> ProcessPoolExecutor:
    """A pool whose workers answer once both are up."""
    return ProcessPoolExecutor(WORKERS, mp_context=context, initializer=context.Barrier(WORKERS).wait)


def in_turn(backend: Backend) -> Submit:
    """Submit to one worker after the other."""
    turn = iter(range(10**9))
    return lambda fn, *args: backend.submit(next(turn) % backend.num_workers, fn, *args)


def through_pool(pool: Any) -> Submit:
    def submit(fn: Callable[..., Any], *args: Any) -> Any:
        result = pool.apply_async(fn, args)
        result.result = result.get
        return result

    return submit


def report(name: str, unit: str, own: str, values: dict[str, list[float]]) -> None:
    middle = {subject: median(measured) for subject, measured in values.items()}
    for peer, value in middle.items():
        if peer != own:
            figure = {"name": f"backend {own}: {name}", "value": round(middle[own], 3), "unit": unit}
            print(json.dumps(figure | {"peer": peer, "ratio": round(middle[own] / value, 3)}), flush=True)


def rounds(measure: Callable[[Any], float], subjects: dict[str, Any]) -> dict[str, list[float]]:
    """What each subject measures in every round, after one round that warms up."""
    values = [{name: measure(subject) for name, subject in subjects.items()} for _ in range(1 + ROUNDS)][1:]
    return {name: [measured[name] for measured in values] for name in subjects}


def main() -> None:
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        executor = stack.enter_context(ProcessPoolExecutor(WORKERS, mp_context=fork))
        executor.submit(abs, -1).result()  # forks before there are other threads
        pool = stack.enter_context(fork.Pool(WORKERS))
        local = stack.enter_context(LocalBackend(WORKERS, device="cpu"))
        peers = {"ProcessPoolExecutor": executor.submit, "multiprocessing.Pool": through_pool(pool)}
        submitters = {"local": in_turn(local), **peers}
        report("no-op tasks", "tasks/s", "local", rounds(tasks_per_second, submitters))
        report("no-op round trip", "us", "local", rounds(round_trip, submitters))
        report("50 MB there and back", "MB/s", "local", rounds(large_argument, submitters))
        inline = {"inline": in_turn(InlineBackend()), "ProcessPoolExecutor": executor.submit}
        report("no-op tasks", "tasks/s", "inline", rounds(tasks_per_second, inline))
    starters = {
        "local": lambda: LocalBackend(WORKERS, device="cpu"),
        "ProcessPoolExecutor (spawn)": lambda: executor_of_both(spawn),
        "ProcessPoolExecutor (fork)": lambda: executor_of_both(fork),
    }
    report("start", "s", "local", rounds(seconds_to_start, starters))


if __name__ == "__main__":
    main()
