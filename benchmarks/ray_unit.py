"""What a unit costs on Ray beyond its work: a task that does nothing, beside a bare actor's call of the same payload.

One JSON object a line: name, value, unit, peer, ratio (value / the peer's value). Both are waited for before the next
and take turns, on a Ray of this machine; medians of rounds. Goal: below 10 ms.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import cloudpickle
import ray

from _noop import nothing
from hopyard.backend import RayBackend
from hopyard.hopper.scheduler import Unit

ROUNDS = 5
TASKS = 200


class Bare:
    """A peer: an actor that unpickles and runs what it is sent, in its own process."""

    def run(self, pickled: bytes) -> bytes:
        fn, args = cloudpickle.loads(pickled)
        return cloudpickle.dumps(fn(*args))


def milliseconds(call: Callable[[], Any]) -> float:
    """Of one call, over many."""
    start = time.perf_counter()
    for _ in range(TASKS):
        call()
    return (time.perf_counter() - start) / TASKS * 1e3


def main() -> None:
    ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR")
    unit = Unit(trial=0, phase="train", epoch=0, partition=0, visit=0, trained=0, last=False)
    actor: Any = ray.remote(Bare).remote()

    def bare() -> Any:
        return cloudpickle.loads(ray.get(actor.run.remote(cloudpickle.dumps((nothing, (unit,))))))

    with RayBackend(num_workers=1) as backend:
        calls: dict[str, Callable[[], Any]] = {
            "ray": lambda: backend.submit(0, nothing, unit).result(),
            "Ray actor": bare,
        }
        assert calls["ray"]() == calls["Ray actor"]()
        rounds = [{name: milliseconds(call) for name, call in calls.items()} for _ in range(1 + ROUNDS)][1:]
    value, peer = (median(measured[name] for measured in rounds) for name in calls)
    figure = {"name": "backend ray: no-op unit", "value": round(value, 3), "unit": "ms"}
    print(json.dumps(figure | {"peer": "Ray actor", "ratio": round(value / peer, 3)}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
