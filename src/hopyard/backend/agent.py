"""Agent on a machine of a cluster: keeps a worker's process for a driver that is elsewhere.

It is the process that ``LocalBackend`` has: started fresh, killed when a task takes too long, with all its output
caught. The cluster's own process (a Spark executor's Python, a Ray actor) keeps it and gives the driver one answer
per task, so that a task which crashes, or takes the memory, costs a worker and not an executor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from hopyard.backend._channel import MessagePart
from hopyard.backend._engine import Engine
from hopyard.backend._process import LaunchSettings
from hopyard.backend._task import Task
from hopyard.backend.output import Outlet
from hopyard.errors import UnitTimeoutError, WorkerLostError, WorkerMismatchError


@dataclass(frozen=True)
class AgentSettings:
    """Settings that a driver gives to its agents. Travels with every task; agents with equal settings share a process.

    Attributes:
        driver: a name for the backend's start, new for each: an agent ends the worker of another one.
        env: environment variables of the worker's process.
        unit_timeout: seconds that a task may take; None: no limit.
        paths: the driver's import path, which comes after the machine's own.
        log_level: of the worker's root logger.
        prefix: gives what the worker's command is started through, as in ``surroundings.Surroundings``.
    """

    driver: str
    env: Mapping[str, str]
    unit_timeout: float | None
    paths: tuple[str, ...]
    log_level: int
    prefix: bytes = b""


@dataclass(frozen=True)
class Answer:
    """Answer to a task.

    Attributes:
        kind: ``"done"``: ``parts`` are the pickled result; ``"failed"``: they are the exception as
            the worker packed it; ``"lost"``, ``"timeout"`` or ``"refused"``: ``where`` is the message.
        parts: a message's bytes, in memory that the arrays of a result may then use and write to.
        where: name of the worker's process, for messages.
        lines: (stream, tag, line) of all that the task printed and logged.
    """

    kind: Literal["done", "failed", "lost", "timeout", "refused"]
    parts: list[MessagePart] = field(default_factory=list)
    where: str = ""
    lines: list[tuple[str, str, str]] = field(default_factory=list)


class Agent:
    """Keeps one worker's process. Only one thread may call it."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self._outlet = _Kept()
        self._engine = self._started()

    def run(self, worker: int, name: str, parts: Sequence[MessagePart]) -> Answer:
        """Run the task of that worker, in a fresh process if the last one ended."""
        if self._engine.ended:
            self._engine = self._started()
        task = _Passed(worker, name, parts)
        self._engine.submit(0, task)
        try:
            answer = task.future.result()
        except WorkerLostError as error:
            answer = Answer("lost", where=str(error))
        except UnitTimeoutError as error:
            answer = Answer("timeout", where=str(error))
        except WorkerMismatchError as error:
            answer = Answer("refused", where=str(error))
        answer.lines.extend(self._outlet.taken())
        return answer

    def close(self) -> None:
        """End the process."""
        self._engine.stop()

    def _started(self) -> Engine:
        asked = self.settings
        launch = LaunchSettings(asked.env, asked.paths, asked.log_level, asked.prefix)
        return Engine([launch], self.settings.unit_timeout, self._outlet)


class _Kept(Outlet):
    """Keeps lines for the driver's outlet."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[tuple[str, str, str]] = []

    def emit(self, worker: int, stream: str, tag: str, line: str) -> None:
        self._lines.append((stream, tag, line))

    def taken(self) -> list[tuple[str, str, str]]:
        lines, self._lines = self._lines, []
        return lines


class _Passed(Task):
    """A task that the driver pickled, and whose answer the driver will unpickle."""

    def __init__(self, worker: int, name: str, parts: Sequence[MessagePart]) -> None:
        self.worker, self.name, self.label, self.parts = worker, name, name, list(parts)
        self.future: Future[Answer] = Future()

    def succeed(self, parts: Sequence[MessagePart]) -> None:
        self.future.set_result(Answer("done", list(parts)))

    def fail(self, parts: Sequence[MessagePart], where: str) -> None:
        self.future.set_result(Answer("failed", list(parts), where))


_agent: Agent | None = None
_pid = 0


def run_here(settings: AgentSettings, worker: int, name: str, parts: Sequence[MessagePart]) -> Answer:
    """Run a task by this process's agent, which is made if there is none with those settings.

    One process serves all workers whose tasks come here: where several share an executor, each of its
    processes would otherwise keep one worker's process for each of them.
    """
    global _agent, _pid
    if _agent is None or _pid != os.getpid() or _agent.settings != settings:
        if _agent is not None:
            _agent.close()  # in a fork of the process that made it: nothing
        _agent, _pid = Agent(settings), os.getpid()
    return _agent.run(worker, name, parts)


def close_here(driver: str) -> None:
    """End this process's worker if it is that driver's."""
    global _agent
    if _agent is not None and _agent.settings.driver == driver:
        _agent.close()
        _agent = None
