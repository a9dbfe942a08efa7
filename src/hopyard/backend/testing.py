"""Conformance suite of backends: inherit ``BackendSuite`` in a test module, and say how to make a backend.

Differences between backends follow from their attributes (``isolated``, ``num_workers``), so an
implementation cannot opt out of a rule. Tasks meet through named pipes, never through clocks.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.backend import output
from hopyard.backend.base import Backend
from hopyard.backend.surroundings import Prefix
from hopyard.errors import UnitTimeoutError, UsageError, WorkerLostError, WorkerMismatchError

__all__ = ["PATIENCE", "BackendSuite", "error_of", "result_of"]

_STARTED = pytest.StashKey[Backend]()
PATIENCE = 60.0  # seconds after which a future that never comes fails its test

_DRIVER = """
import os, signal, sys
{setup}
def wait(path):
    with open(path, "w") as pipe:
        print(os.getpid(), file=pipe, flush=True)
        signal.pause()
future = backend.submit(0, wait, sys.argv[1])
future.result()
"""

_SCRIPT = """
class Point:
    def __init__(self, x):
        self.x = x
OFFSET = 100
def shift(point):
    return Point(point.x + OFFSET)
{setup}
result = backend.submit(0, shift, Point(1)).result()
assert isinstance(result, Point)
print("result", result.x)
"""


def result_of(future: Future[Any]) -> Any:
    return future.result(timeout=PATIENCE)


def error_of(future: Future[Any]) -> BaseException:
    error = future.exception(timeout=PATIENCE)
    assert error is not None
    return error


class BackendSuite:
    """The rules of ``backend.base``, as tests.

    Attributes:
        setup: lines of a script that leave a backend of at least one worker in ``backend``.
    """

    setup: str

    def make_backend(self, unit_timeout: float | None = None) -> Backend:
        """A backend that is not started: of two workers if it can have as many."""
        raise NotImplementedError

    @pytest.fixture
    def backend(self, request: pytest.FixtureRequest) -> Iterator[Backend]:
        """One backend for all tests of the class, in any state that they leave: workers take long to start."""
        tests = request.node.getparent(pytest.Class)
        if _STARTED not in tests.stash:
            tests.stash[_STARTED] = made = self.make_backend()
            tests.addfinalizer(made.stop)
        backend = tests.stash[_STARTED]
        yield backend
        backend.on_output(None)

    @pytest.fixture
    def processes(self, backend: Backend) -> Backend:
        """The backend, for rules about workers that are processes of their own."""
        if not backend.isolated:
            pytest.skip("workers are not processes of their own")
        return backend

    @pytest.fixture
    def lines(self, processes: Backend) -> list[tuple[int, str, str]]:
        """The (worker, stream, line) triples that the listener has heard."""
        heard: list[tuple[int, str, str]] = []
        processes.on_output(lambda worker, stream, line: heard.append((worker, stream, line)))
        return heard

    # Tasks and results

    def test_every_worker_returns_results(self, backend: Backend) -> None:
        futures = [backend.submit(i % backend.num_workers, divmod, i, 7) for i in range(50)]
        assert [result_of(future) for future in futures] == [divmod(i, 7) for i in range(50)]

    def test_closures_lambdas_and_local_classes_work(self, backend: Backend) -> None:
        class Scale:
            def __init__(self, factor: int) -> None:
                self.factor = factor

            def __call__(self, x: int) -> int:
                return x * self.factor

        offset = 5
        assert result_of(backend.submit(0, lambda x: x + offset, 1)) == 6
        assert result_of(backend.submit(0, Scale(3), 7)) == 21
        assert isinstance(result_of(backend.submit(0, lambda: Scale(2))), Scale)

    def test_functions_of_a_script_without_main_guard_work(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(_SCRIPT.format(setup=self.setup))
        answer = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE)
        assert answer.stdout == "result 101\n", answer.stderr
        assert answer.returncode == 0

    def test_functions_typed_at_a_prompt_work(self, tmp_path: Path) -> None:
        answer = subprocess.run(
            [sys.executable, "-"], input=_SCRIPT.format(setup=self.setup), capture_output=True, text=True,
            cwd=tmp_path, timeout=PATIENCE,
        )  # fmt: skip
        assert answer.stdout == "result 101\n", answer.stderr

    def test_modules_beside_the_script_are_found(self, tmp_path: Path) -> None:
        (tmp_path / "beside.py").write_text("def double(x):\n    return 2 * x\n")
        script = tmp_path / "script.py"
        script.write_text(f"import beside\n{self.setup}\nprint(backend.submit(0, beside.double, 4).result())")
        answer = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, cwd="/", timeout=PATIENCE
        )
        assert answer.stdout == "8\n", answer.stderr

    def test_tasks_of_a_worker_run_in_the_order_submitted(self, backend: Backend, tmp_path: Path) -> None:
        record = tmp_path / "record"

        def note(number: int) -> None:
            with record.open("a") as file:
                file.write(f"{number} ")

        futures = [backend.submit(0, note, number) for number in range(50)]
        result_of(futures[-1])
        assert record.read_text().split() == [str(number) for number in range(50)]

    def test_workers_run_at_the_same_time(self, backend: Backend, tmp_path: Path) -> None:
        if backend.num_workers < 2:
            pytest.skip("there is one worker")
        os.mkfifo(tmp_path / "pipe")

        def meet(mode: str) -> str:
            with (tmp_path / "pipe").open(mode):  # blocks until the other worker opens it
                return "met"

        first, second = backend.submit(0, meet, "r"), backend.submit(1, meet, "w")
        assert (result_of(first), result_of(second)) == ("met", "met")

    def test_large_arrays_travel_both_ways(self, backend: Backend) -> None:
        array = np.random.default_rng(0).integers(0, 256, 50_000_000, np.uint8).reshape(100, -1)

        def increment(array: np.ndarray) -> tuple[np.ndarray, bool]:
            owned = array.copy()
            owned += 1
            return owned, array.flags.writeable

        result, writable = result_of(backend.submit(0, increment, array))
        assert np.array_equal(result, array + 1)
        assert writable
        result[0, 0] = 7

    def test_many_threads_may_submit(self, backend: Backend) -> None:
        results: list[int] = []

        def drive(start: int) -> None:
            worker = start % backend.num_workers
            futures = [backend.submit(worker, lambda x: x, start + i) for i in range(20)]
            results.extend(result_of(future) for future in futures)

        threads = [threading.Thread(target=drive, args=(1000 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == [1000 * i + j for i in range(4) for j in range(20)]

    def test_a_callback_may_submit(self, backend: Backend) -> None:
        last: Future[int] = Future()

        def again(future: Future[int]) -> None:
            if (count := future.result()) == 20:
                last.set_result(count)
            else:
                backend.submit(0, lambda x: x + 1, count).add_done_callback(again)

        backend.submit(0, lambda: 0).add_done_callback(again)
        assert result_of(last) == 20

    # Failures

    def test_an_exception_arrives_with_its_traceback(self, backend: Backend) -> None:
        def find_nothing() -> None:
            empty: dict[str, int] = {}
            empty["absent"]

        error = error_of(backend.submit(0, find_nothing))
        assert isinstance(error, KeyError)
        assert error.args == ("absent",)
        text = "".join(traceback.format_exception(error))
        assert "find_nothing" in text
        assert "testing.py" in text
        if backend.isolated:
            (note,) = error.__notes__
            assert note.startswith("Traceback on worker 0 (pid ")
        assert result_of(backend.submit(0, abs, -1)) == 1

    def test_system_exit_does_not_reach_the_driver(self, backend: Backend) -> None:
        error = error_of(backend.submit(0, sys.exit, 3))
        assert isinstance(error, RuntimeError)
        assert "The task raised SystemExit(3)" in str(error)
        assert result_of(backend.submit(0, abs, -1)) == 1

    def test_an_unknown_worker_is_refused(self, backend: Backend) -> None:
        with pytest.raises(
            UsageError, match=r"Worker 99 was asked for, but this backend has \d+, numbered from 0"
        ):
            backend.submit(99, abs, 1)
        with pytest.raises(UsageError, match="Worker -1"):
            backend.submit(-1, abs, 1)

    def test_what_cannot_be_pickled_is_refused_by_submit(self, processes: Backend) -> None:
        with pytest.raises(UsageError, match=r"The task 'abs' cannot be sent .*lock.*make those inside"):
            processes.submit(0, abs, threading.Lock())
        error = error_of(processes.submit(0, threading.Lock))
        assert "pickle" in str(error)

    def test_an_exception_that_does_not_pickle_keeps_its_text(self, processes: Backend) -> None:
        class DemandingError(Exception):
            def __init__(self, what: str, *, why: str) -> None:
                super().__init__(f"{what} because of {why}")

        def fail() -> None:
            raise DemandingError("no", why="rain")

        error = error_of(processes.submit(0, fail))
        assert "DemandingError: no because of rain" in "".join(traceback.format_exception(error))

    def test_an_exception_that_misbehaves_does_not_harm_the_worker(self, processes: Backend) -> None:
        class NastyError(Exception):
            def __str__(self) -> str:
                raise ValueError("no text")

            def __reduce__(self) -> tuple[Any, ...]:
                return int, (5,)

        def fail() -> None:
            raise NastyError

        before = result_of(processes.submit(0, os.getpid))
        error = error_of(processes.submit(0, fail))
        assert isinstance(error, RuntimeError)
        assert "NastyError" in str(error)
        assert result_of(processes.submit(0, os.getpid)) == before

    def test_later_changes_of_an_argument_do_not_reach_the_task(
        self, processes: Backend, tmp_path: Path
    ) -> None:
        os.mkfifo(tmp_path / "pipe")
        array = np.zeros(1_000_000)
        blocked = processes.submit(0, (tmp_path / "pipe").read_text)
        future = processes.submit(0, np.sum, array)
        array += 1
        (tmp_path / "pipe").write_text("go")
        assert result_of(blocked) == "go"
        assert result_of(future) == 0.0

    def test_a_dead_worker_is_reported_and_replaced(self, processes: Backend) -> None:
        def die() -> None:
            print("last words")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        before = result_of(processes.submit(0, os.getpid))
        lost, behind = processes.submit(0, die), processes.submit(0, os.getpid)
        error = error_of(lost)
        assert isinstance(error, WorkerLostError)
        for part in (f"Worker 0 (pid {before})", "SIGKILL", "out-of-memory", "last words", "die"):
            assert part in str(error)
        assert result_of(behind) != before

    def test_a_worker_that_exits_is_reported_with_its_code(self, processes: Backend) -> None:
        error = error_of(processes.submit(0, os._exit, 3))
        assert isinstance(error, WorkerLostError)
        assert "exit code 3" in str(error)

    def test_a_crash_shows_the_python_stack(self, processes: Backend) -> None:
        def crash_here() -> None:
            ctypes.string_at(0)

        error = error_of(processes.submit(0, crash_here))
        assert isinstance(error, WorkerLostError)
        assert "SIGSEGV" in str(error)
        assert "in crash_here" in str(error)

    def test_a_task_that_takes_too_long_is_killed(self, processes: Backend) -> None:
        with self.make_backend(unit_timeout=2) as backend:  # enough for the others, also on a busy machine
            before = result_of(backend.submit(0, os.getpid))
            stuck, behind = backend.submit(0, signal.pause), backend.submit(0, os.getpid)
            error = error_of(stuck)
            assert isinstance(error, UnitTimeoutError)
            assert "longer than unit_timeout=2 seconds on worker 0" in str(error)
            assert "larger unit_timeout, or None" in str(error)
            assert result_of(behind) != before

    # Surroundings

    @pytest.fixture
    def surrounded(self, backend: Backend) -> Iterator[Callable[..., Backend]]:
        """The backend within surroundings; ended after the test."""
        made: list[Backend] = []
        backend.stop()  # whose places it takes

        def surround(env: dict[str, str] | None = None, prefix: Prefix | None = None) -> Backend:
            made.append(backend.surrounded(env, prefix))
            return made[-1]

        yield surround
        for other in made:
            other.stop()

    def test_surroundings_have_environment_variables(
        self, backend: Backend, surrounded: Callable[..., Backend]
    ) -> None:
        def look() -> str | None:
            return os.environ.get("HOPYARD_SURROUNDINGS")

        other = surrounded({"HOPYARD_SURROUNDINGS": "here", "HOPYARD_OTHERS": "x=y"})
        assert type(other) is type(backend)
        assert other.num_workers == backend.num_workers
        assert [result_of(other.submit(worker, look)) for worker in range(other.num_workers)] == [
            "here"
        ] * other.num_workers
        again = other.surrounded({"HOPYARD_OTHERS": "z"})
        other.stop()
        names = ("HOPYARD_SURROUNDINGS", "HOPYARD_OTHERS")
        assert result_of(again.submit(0, lambda: [os.environ[name] for name in names])) == ["here", "z"]
        again.stop()
        assert result_of(backend.submit(0, look)) is None
        assert "HOPYARD_SURROUNDINGS" not in os.environ

    @pytest.mark.parametrize(
        ("env", "message"),
        [
            ({"A": 1}, "env has 'A': 1, but names and values of environment variables must be text"),
            ({"A=B": "1"}, "env has 'A=B': '1', but .* names neither empty nor with '='"),
            ({"": "1"}, "env has '': '1', but"),
            ({"A": "a\0b"}, "without null characters"),
            ({"CUDA_VISIBLE_DEVICES": "0"}, "but the backend gives each worker its own, .* Leave it out"),
        ],
    )
    def test_variables_that_cannot_be_set_are_refused(self, backend: Backend, env: Any, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            backend.surrounded(env)

    def test_variables_that_results_depend_on_are_refused(self, processes: Backend) -> None:
        threads = processes.threads_per_worker
        processes.surrounded({"OMP_NUM_THREADS": str(threads)})
        with pytest.raises(
            UsageError,
            match=rf"OMP_NUM_THREADS=64, but the backend sets OMP_NUM_THREADS={threads}, .* Leave it out of env",
        ):
            processes.surrounded({"OMP_NUM_THREADS": "64"})

    def test_a_prefix_is_made_in_the_process_of_each_worker(
        self, processes: Backend, surrounded: Callable[..., Backend]
    ) -> None:
        other = surrounded(
            {"HOPYARD_A": "a"}, lambda: ["env", f"HOPYARD_B={os.environ['HOPYARD_A']}{os.getpid()}"]
        )
        seen = [
            result_of(other.submit(worker, lambda: (os.environ["HOPYARD_B"], f"a{os.getpid()}")))
            for worker in range(other.num_workers)
        ]
        assert all(made == own for made, own in seen)
        assert len(set(seen)) == other.num_workers
        other.stop()
        assert result_of(surrounded(None, list).submit(0, abs, -1)) == 1  # no words

    def test_a_worker_may_be_the_child_of_its_prefix(
        self, processes: Backend, surrounded: Callable[..., Backend]
    ) -> None:
        other = surrounded(None, lambda: ["sh", "-c", '"$@"; exit $?', "sh"])
        before = result_of(other.submit(0, os.getpid))
        error = error_of(other.submit(0, os.kill, before, signal.SIGKILL))
        assert isinstance(error, WorkerLostError)
        assert f"Worker 0 (pid {before}) was killed by SIGKILL" in str(error)
        after = result_of(other.submit(0, os.getpid))
        assert after != before
        other.stop()

    def test_a_prefix_that_fails_is_one_error_with_its_text(
        self, processes: Backend, surrounded: Callable[..., Backend]
    ) -> None:
        def fail() -> list[str]:
            raise UsageError("the file system is not there. Mount it.")

        other = surrounded(None, fail)
        error = error_of(other.submit(0, abs, 1))
        assert isinstance(error, WorkerMismatchError)
        assert str(error).startswith("Worker 0 cannot be started on ")
        assert str(error).endswith(": the file system is not there. Mount it.")
        with pytest.raises(WorkerMismatchError, match=r"the file system is not there\. Mount it\."):
            other.start()

    def test_a_prefix_that_is_wrong_is_refused(
        self, processes: Backend, surrounded: Callable[..., Backend]
    ) -> None:
        def divide() -> list[str]:
            return [str(1 / 0)]

        for prefix, texts in (
            (divide, ["ZeroDivisionError: division by zero", "in divide"]),
            (lambda: "nice", ["is 'nice', but must be a list of texts. Return one from the function"]),
            (lambda: ["/nowhere/program"], ["FileNotFoundError"]),
        ):
            other = surrounded(None, prefix)
            error = error_of(other.submit(0, abs, 1))
            assert isinstance(error, WorkerMismatchError)
            assert all(text in str(error) for text in texts), error
            other.stop()  # the next one takes its places
        lock = threading.Lock()
        with pytest.raises(
            UsageError, match=r"cannot be sent to workers .*lock.* make those inside the function"
        ):
            processes.surrounded(None, lambda: [str(lock)])

    # Output

    def test_lines_reach_the_listener_before_the_future_is_done(
        self, processes: Backend, lines: list[tuple[int, str, str]]
    ) -> None:
        def talk() -> None:
            print("from print")
            os.write(1, b"from os.write\n")
            ctypes.CDLL(None).puts(b"from C")
            print("whole", file=sys.stderr)
            print("bar 1%\rbar 99%\r\nunfinished", end="")

        worker = processes.num_workers - 1
        result_of(processes.submit(worker, talk))
        said = [line for _, stream, line in lines if stream == "stdout"]
        expected = ["from print", "from os.write", "bar 99%", "unfinished", "from C"]
        assert sorted(said) == sorted(f"[worker {worker}] {text}" for text in expected)
        assert (worker, "stderr", f"[worker {worker}] whole") in lines

    def test_a_tag_marks_the_lines_of_its_task_only(
        self, processes: Backend, lines: list[tuple[int, str, str]]
    ) -> None:
        def talk() -> None:
            print("before")
            output.set_tag("trial 3")
            print("after")
            print("also", file=sys.stderr)

        result_of(processes.submit(0, talk))
        result_of(processes.submit(0, print, "next task"))
        assert [line for _, stream, line in lines if stream == "stdout"] == [
            "[worker 0] before",
            "[trial 3 · worker 0] after",
            "[worker 0] next task",
        ]
        assert [line for _, stream, line in lines if stream == "stderr"] == ["[trial 3 · worker 0] also"]

    def test_logging_follows_the_level_of_the_driver(
        self, processes: Backend, lines: list[tuple[int, str, str]]
    ) -> None:
        def log() -> None:
            logging.getLogger("model").info("quiet")
            logging.getLogger("model").error("loud")

        result_of(processes.submit(0, log))
        assert lines == [(0, "stderr", "[worker 0] ERROR model: loud")]

    def test_output_is_printed_by_the_driver(
        self, processes: Backend, capsys: pytest.CaptureFixture[str]
    ) -> None:
        result_of(processes.submit(0, print, "out"))
        result_of(processes.submit(0, lambda: print("err", file=sys.stderr)))
        assert capsys.readouterr() == ("[worker 0] out\n", "[worker 0] err\n")

    def test_a_task_can_ask_for_its_last_lines(
        self, processes: Backend, lines: list[tuple[int, str, str]]
    ) -> None:
        def look_back() -> list[str]:
            output.set_tag("trial 1")
            for number in range(60):
                print("line", number)
            os.write(1, b"the end\n")
            return output.last_lines()

        result_of(processes.submit(0, print, "another task"))
        for _ in range(2):  # the second time after an answer went the same way
            assert result_of(processes.submit(0, look_back)) == [f"line {n}" for n in range(11, 60)] + [
                "the end"
            ]

    def test_much_output_arrives_completely(
        self, processes: Backend, lines: list[tuple[int, str, str]]
    ) -> None:
        def shout() -> None:
            for number in range(20_000):
                print(number, "x" * 50)

        result_of(processes.submit(0, shout))
        assert len(lines) == 20_000
        assert lines[-1] == (0, "stdout", f"[worker 0] 19999 {'x' * 50}")

    # Life

    def test_stop_can_be_repeated_and_followed_by_a_start(self, backend: Backend) -> None:
        first = result_of(backend.submit(0, os.getpid))
        backend.stop()
        backend.stop()
        backend.start()
        assert (result_of(backend.submit(0, os.getpid)) != first) == backend.isolated
        backend.stop()
        assert result_of(backend.submit(0, abs, -2)) == 2

    def test_the_number_of_workers_is_known_before_the_start(self) -> None:
        backend = self.make_backend()
        count = backend.num_workers
        assert count >= 1
        with backend:
            pids = {result_of(backend.submit(worker, os.getpid)) for worker in range(count)}
        assert backend.num_workers == len(pids) == count

    def test_stop_abandons_what_is_under_way_and_cancels_the_rest(
        self, processes: Backend, tmp_path: Path
    ) -> None:
        os.mkfifo(tmp_path / "pipe")

        def begin_and_wait() -> None:
            (tmp_path / "pipe").write_text("begun")
            signal.pause()

        busy, waiting = processes.submit(0, begin_and_wait), processes.submit(0, abs, 1)
        assert (tmp_path / "pipe").read_text() == "begun"
        before = time.monotonic()
        processes.stop()
        assert time.monotonic() - before < 5.0
        assert "because the backend was stopped; submit the task again" in str(error_of(busy))
        with pytest.raises(CancelledError):
            result_of(waiting)

    def test_a_cancelled_task_does_not_run(self, processes: Backend, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        blocked = processes.submit(0, (tmp_path / "pipe").read_text)
        cancelled = processes.submit(0, (tmp_path / "file").write_text, "was here")
        assert cancelled.cancel()
        (tmp_path / "pipe").write_text("go")
        assert result_of(blocked) == "go"
        assert result_of(processes.submit(0, abs, -1)) == 1
        assert not (tmp_path / "file").exists()

    def test_workers_exit_when_the_driver_is_killed(self, processes: Backend, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        command = [sys.executable, "-c", _DRIVER.format(setup=self.setup), str(pipe)]
        with subprocess.Popen(command) as driver, pipe.open() as answers:
            assert int(answers.readline()) != driver.pid
            driver.kill()
            assert answers.read() == ""  # the end of the pipe: its only writer, the worker, is gone
