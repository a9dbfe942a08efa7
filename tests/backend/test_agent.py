"""An agent runs the tasks of a driver that is elsewhere, in a process of its own."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.backend import agent, output
from hopyard.backend._channel import loads
from hopyard.backend._task import Task
from hopyard.backend.agent import Agent, AgentSettings, Answer, close_here, run_here
from hopyard.backend.testing import error_of

Run = Callable[..., Answer]


def settings(driver: str = "one", **changes: Any) -> AgentSettings:
    arguments = {"env": {}, "unit_timeout": None, "paths": (), "log_level": logging.WARNING}
    return AgentSettings(driver, **(arguments | changes))


def asked(run: Callable[[int, str, list[Any]], Answer], fn: Any, *args: Any, worker: int = 3) -> Answer:
    """What the agent answers to a task as a driver sends it."""
    task = Task(fn, args)
    return run(worker, task.name, task.parts)


def value_of(answer: Answer) -> Any:
    assert answer.kind == "done", answer
    return loads(answer.parts)


@pytest.fixture
def run() -> Iterator[Run]:
    agent = Agent(settings(log_level=logging.INFO))
    yield lambda fn, *args: asked(agent.run, fn, *args)
    agent.close()


@pytest.fixture
def here() -> Iterator[None]:
    """Ends what this process's agent has left."""
    yield
    if agent._agent is not None:
        close_here(agent._agent.settings.driver)


def test_a_result_comes_back_pickled_in_memory_that_may_be_written(run: Run) -> None:
    array = value_of(run(np.arange, 100_000))
    array += 1
    assert array.tolist() == list(range(1, 100_001))


def test_an_exception_comes_back_with_its_notes(run: Run) -> None:
    def fail() -> None:
        error = KeyError("absent")
        error.add_note("noted on the way")
        raise error

    answer = run(fail)
    assert answer.kind == "failed"
    task = Task(fail, ())
    task.fail(answer.parts, answer.where)
    error = error_of(task.future)
    assert isinstance(error, KeyError)
    assert error.args == ("absent",)
    own, where = error.__notes__
    assert own == "noted on the way"
    assert where.startswith("Traceback on worker 3 (pid ")
    assert "in fail" in where


def test_a_crash_loses_the_worker_with_its_last_words_and_the_next_task_has_a_fresh_one(run: Run) -> None:
    def die() -> None:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    before = value_of(run(os.getpid))
    answer = run(die)
    assert answer.kind == "lost"
    for part in (f"Worker 3 (pid {before}) was killed by SIGKILL", "last words", "die"):
        assert part in answer.where
    assert answer.lines == [("stdout", "", "last words")]
    assert value_of(run(os.getpid)) not in (before, os.getpid())


def test_a_task_that_takes_too_long_is_killed() -> None:
    agent = Agent(settings(unit_timeout=2))
    before = value_of(asked(agent.run, os.getpid))
    answer = asked(agent.run, signal.pause)
    assert answer.kind == "timeout"
    assert "longer than unit_timeout=2 seconds on worker 3" in answer.where
    assert value_of(asked(agent.run, os.getpid)) != before
    agent.close()


def test_lines_come_with_the_answer_of_their_task(run: Run) -> None:
    def talk(tag: str) -> None:
        output.set_tag(tag)
        print("printed")
        logging.getLogger("model").info("logged")

    for tag in ("trial 1", "trial 2"):
        lines = run(talk, tag).lines
        assert sorted(lines) == [("stderr", tag, "INFO model: logged"), ("stdout", tag, "printed")]
    assert run(abs, -1).lines == []


def test_the_import_path_of_the_driver_comes_after_the_own_one(tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "json.py").write_text("raise ImportError('the wrong json')\n")

    def look() -> tuple[int, list[str]]:
        import json

        import only_there  # type: ignore[import-not-found]

        return only_there.double(len(json.dumps([]))), sys.path

    before = list(sys.path)
    agent = Agent(settings(paths=(str(tmp_path), *before)))
    doubled, paths = value_of(asked(agent.run, look))
    agent.close()
    assert doubled == 4
    assert paths == [*before, str(tmp_path)]
    assert sys.path == before


def test_the_environment_and_the_level_of_logging_are_those_of_the_driver() -> None:
    before = logging.getLogger().level
    agent = Agent(settings(env={"OMP_NUM_THREADS": "3"}, log_level=logging.DEBUG))
    look = asked(agent.run, lambda: (os.environ["OMP_NUM_THREADS"], logging.getLogger().level))
    agent.close()
    assert value_of(look) == ("3", logging.DEBUG)
    assert logging.getLogger().level == before


def test_a_worker_that_cannot_be_started_is_lost_under_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(settings())
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    answer = asked(agent.run, abs, -1)
    assert answer.kind == "lost"
    assert answer.where.startswith("Worker 3 could not be started: ")
    monkeypatch.undo()
    assert value_of(asked(agent.run, abs, -1)) == 1
    agent.close()


@pytest.mark.usefixtures("here")
def test_a_second_driver_ends_the_worker_of_the_first(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    def open_forever() -> int:
        global kept
        kept = (tmp_path / "pipe").open("w")
        return os.getpid()

    first, second = settings("first"), settings("second")

    def tasks() -> list[int]:
        opened = asked(lambda *task: run_here(first, *task), open_forever)
        again = asked(lambda *task: run_here(first, *task), os.getpid)
        other = asked(lambda *task: run_here(second, *task), os.getpid)
        return [value_of(answer) for answer in (opened, again, other)]

    pids: list[int] = []
    thread = threading.Thread(target=lambda: pids.extend(tasks()))
    thread.start()
    with (tmp_path / "pipe").open() as pipe:
        assert pipe.read() == ""  # its only writer is gone
    thread.join()
    opened, again, other = pids
    assert opened == again != other


@pytest.mark.usefixtures("here")
def test_only_its_own_driver_ends_a_worker() -> None:
    pid = value_of(asked(lambda *task: run_here(settings("one"), *task), os.getpid))
    close_here("another")
    assert value_of(asked(lambda *task: run_here(settings("one"), *task), os.getpid)) == pid
    close_here("one")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    close_here("one")


@pytest.mark.usefixtures("here")
def test_a_fork_has_a_worker_of_its_own_and_leaves_the_other_alone() -> None:
    pid = value_of(asked(lambda *task: run_here(settings(), *task), os.getpid))
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            own = value_of(asked(lambda *task: run_here(settings(), *task), os.getpid))
            close_here("one")
            os.write(write, str(own).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        own = answers.read()
    os.waitpid(child, 0)
    assert own not in ("", str(pid))
    assert value_of(asked(lambda *task: run_here(settings(), *task), os.getpid)) == pid


def test_a_closed_agent_may_be_used_again() -> None:
    agent = Agent(settings())
    for number in (1, 2):
        assert value_of(asked(agent.run, abs, -number)) == number
        agent.close()
