"""Function of a Spark task in an executor's Python: checks that it can run, then has the agent run the unit.

It travels by value, so that it can report Hopyard itself as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

from hopyard.data.frames.spark_tasks import unfitness

Said: TypeAlias = tuple[Literal["answer", "repeated", "unfit"], int, str, tuple[Any, ...]]
"""What a task says: the kind, the number of its stage, the host's name, and

* ``"answer"``: the fields of an ``agent.Answer``;
* ``"repeated"``: nothing; an earlier attempt of this task died, and its unit is not done again unasked;
* ``"unfit"``: why units cannot run there.
"""


def carrier(unit: Callable[[], bytes], version: str) -> Callable[[Iterator[Any]], Iterator[Said]]:
    """The function for the one partition of a job.

    Args:
        unit: gives the pickled (settings, worker, name, parts), on the executor.
        version: of the driver's Hopyard.
    """

    unfit = unfitness(version)

    # A function inside a function is pickled by value, and what it imports is imported there.
    def carry(rows: Iterator[Any]) -> Iterator[Said]:
        import pickle
        import socket

        from pyspark import TaskContext

        for _ in rows:
            """Spark uses a Python process again only if its task has read all of its input."""
        context = TaskContext.get()
        assert context is not None
        stage, host = context.stageId(), socket.gethostname()
        if context.attemptNumber() > 0:
            yield "repeated", stage, host, ()
            return
        if (why := unfit()) is None:
            try:
                from hopyard.backend import agent
            except ImportError as error:
                why = unfit(error)
        if why is not None:
            yield "unfit", stage, host, (why,)
            return
        settings, worker, name, parts = pickle.loads(unit())
        resources = context.resources()
        if "gpu" in resources:
            settings.env["CUDA_VISIBLE_DEVICES"] = ",".join(resources["gpu"].addresses)
        answer = agent.run_here(settings, worker, name, parts)
        parts = [bytearray(part) for part in answer.parts]
        yield "answer", stage, host, (answer.kind, parts, answer.where, answer.lines)

    return carry


def closer(driver: str) -> Callable[[Iterator[Any]], Iterator[None]]:
    """The function that ends the worker's process that an executor's Python keeps for that driver."""

    def close(rows: Iterator[Any]) -> Iterator[None]:
        for _ in rows:
            """As above."""
        from hopyard.backend.agent import close_here

        close_here(driver)
        yield None

    return close
