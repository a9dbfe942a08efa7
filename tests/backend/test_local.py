"""LocalBackend keeps the rules of a backend, with a fresh process per worker."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hopyard.backend import LocalBackend, devices
from hopyard.backend.testing import _DRIVER, BackendSuite, error_of, result_of
from hopyard.data.cache.durability import durability
from hopyard.errors import UsageError, WorkerLostError

SETUP = "from hopyard.backend import LocalBackend\nbackend = LocalBackend(num_workers=1, device='cpu')"


class TestLocalBackend(BackendSuite):
    setup = SETUP

    def make_backend(self, unit_timeout: float | None = None) -> LocalBackend:
        return LocalBackend(num_workers=2, device="cpu", unit_timeout=unit_timeout)


class TestLocalBackendWithoutProcessDescriptors(TestLocalBackend):
    """Systems other than Linux: the end of the channel tells of the end of the process."""

    @pytest.fixture(autouse=True)
    def no_process_descriptors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "pidfd_open")


@pytest.fixture
def one() -> Iterator[LocalBackend]:
    with LocalBackend(num_workers=1, device="cpu") as backend:
        yield backend


def run_script(text: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text, *map(str, args)], capture_output=True, text=True, timeout=60
    )


# What a worker starts with


def test_workers_have_the_environment_that_makes_results_repeat() -> None:
    names = (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "PYTHONHASHSEED",
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDA_VISIBLE_DEVICES",
    )
    with LocalBackend(num_workers=1, device="cpu", threads_per_worker=3) as backend:
        values = result_of(backend.submit(0, lambda: [os.environ[name] for name in names]))
    assert values == ["3", "3", "0", ":4096:8", ""]


def test_workers_start_without_frameworks_and_where_the_driver_is(
    fresh_processes: None, one: LocalBackend
) -> None:
    def look() -> tuple[bool, str, list[str], int]:
        return "torch" in sys.modules, str(Path.cwd()), sys.path, os.getppid()

    heavy, directory, path, parent = result_of(one.submit(0, look))
    assert not heavy
    assert directory == str(Path.cwd())
    assert path == [entry or directory for entry in sys.path]
    assert parent == os.getpid()


def test_logging_of_workers_has_the_level_of_the_driver() -> None:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.DEBUG)
    try:
        with LocalBackend(num_workers=1, device="cpu") as backend:
            assert result_of(backend.submit(0, lambda: logging.getLogger().level)) == logging.DEBUG
    finally:
        root.setLevel(before)


def test_one_worker_per_two_cores_by_default() -> None:
    assert LocalBackend(device="cpu").num_workers == max(1, devices.usable_cores() // 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 0}, "num_workers=0, but it must be an integer of at least 1"),
        ({"num_workers": 1.5}, "num_workers=1.5, but it must be"),
        ({"gpus_per_worker": 0}, "gpus_per_worker=0, but it must be an integer of at least 1"),
        ({"threads_per_worker": 0}, "threads_per_worker=0, but it must be an integer of at least 1"),
        (
            {"unit_timeout": 0},
            "unit_timeout=0, but it must be a number of seconds above 0, or None for no limit",
        ),
        ({"unit_timeout": "5"}, "unit_timeout='5', but it must be"),
        ({"device": "gpu"}, "device='gpu', but it must be one of auto, cpu, cuda"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LocalBackend(**arguments)  # type: ignore[arg-type]


def test_a_worker_that_ends_before_it_answers_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = LocalBackend(num_workers=2, device="cpu")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkerLostError, match=r"Worker 0 .* exit code 1 .* before it was up"):
        backend.start()
    assert isinstance(error_of(backend.submit(1, abs, 1)), WorkerLostError)
    monkeypatch.undo()
    assert result_of(backend.submit(1, abs, -1)) == 1
    backend.stop()


def test_an_interpreter_that_is_not_there_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerLostError, match=r"Worker 0 could not be started: .*/nowhere/python"):
        LocalBackend(num_workers=1, device="cpu").start()


# Who ends whom


def test_workers_outlive_the_thread_that_caused_their_start() -> None:
    # Linux sends the signal of a parent's death when the parent *thread* ends.
    backend = LocalBackend(num_workers=1, device="cpu")
    pids: list[int] = []
    thread = threading.Thread(target=lambda: pids.append(result_of(backend.submit(0, os.getpid))))
    thread.start()
    thread.join()
    assert [result_of(backend.submit(0, os.getpid))] == pids
    backend.stop()


def test_a_worker_that_holds_the_interpreter_dies_with_the_driver(
    fresh_processes: None, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    script = _DRIVER.format(setup=SETUP + "\nimport ctypes").replace(
        "signal.pause()", "ctypes.PyDLL(None).pause()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "pipe")]
    with subprocess.Popen(command) as driver, (tmp_path / "pipe").open() as answers:
        answers.readline()
        driver.kill()
        assert answers.read() == ""


def test_a_driver_that_forgets_to_stop_exits_silently() -> None:
    done = run_script(SETUP + "\nprint(backend.submit(0, abs, -5).result())")
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", "")


def test_a_driver_that_exits_in_the_middle_of_a_task_ends_the_worker(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    script = _DRIVER.format(setup=SETUP).replace("future.result()", "open(sys.argv[2]).read()")
    os.mkfifo(tmp_path / "go")
    command = [sys.executable, "-c", script, str(tmp_path / "pipe"), str(tmp_path / "go")]
    with subprocess.Popen(command) as driver, (tmp_path / "pipe").open() as answers:
        answers.readline()
        (tmp_path / "go").write_text("exit")
        assert answers.read() == ""
        assert driver.wait(timeout=60) == 0


def test_a_forgotten_backend_ends_its_workers(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    backend = LocalBackend(num_workers=1, device="cpu")

    def open_forever() -> None:
        global kept
        kept = (tmp_path / "pipe").open("w")

    future = backend.submit(0, open_forever)
    with (tmp_path / "pipe").open() as pipe:
        result_of(future)
        gone = weakref.ref(backend)
        del backend
        gc.collect()
        assert gone() is None
        assert pipe.read() == ""


def test_a_fork_of_the_driver_leaves_the_workers_alone() -> None:
    script = f"""{SETUP}
import os, sys
pid = backend.submit(0, os.getpid).result()
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
print(backend.submit(0, os.getpid).result() == pid)"""
    assert run_script(script).stdout == "True\n"


def test_a_fork_of_the_driver_gets_workers_of_its_own() -> None:
    script = f"""{SETUP}
import os
pid = backend.submit(0, os.getpid).result()
child = os.fork()
if child == 0:
    own = backend.submit(0, os.getpid).result()
    backend.stop()
    os._exit(own == pid)
print(os.waitpid(child, 0)[1], backend.submit(0, os.getpid).result() == pid)"""
    assert run_script(script).stdout == "0 True\n"


def test_ctrl_c_interrupts_the_driver_and_not_the_worker(tmp_path: Path) -> None:
    for name in ("begun", "go", "caught"):
        os.mkfifo(tmp_path / name)
    script = f"""{SETUP}
import sys, os
from pathlib import Path
folder = Path(sys.argv[1])
def wait():
    (folder / "begun").write_text("begun")
    return (folder / "go").read_text()
future = backend.submit(0, wait)
try:
    future.result()
except KeyboardInterrupt:
    (folder / "caught").write_text("caught")
    print(future.result())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as driver:
        assert (tmp_path / "begun").read_text() == "begun"
        os.killpg(driver.pid, signal.SIGINT)
        assert (tmp_path / "caught").read_text() == "caught"
        (tmp_path / "go").write_text("still there")
        assert driver.communicate(timeout=60)[0] == "still there\n"


def test_nothing_is_left_after_stop() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    gc.collect()
    durability.join()  # which an earlier test may have left at work
    threads, before = set(threading.enumerate()), descriptors()
    for _ in range(2):
        with LocalBackend(num_workers=2, device="cpu") as backend:
            lost = backend.submit(0, os._exit, 1)
            pids = [result_of(backend.submit(worker, os.getpid)) for worker in range(2)]
            error_of(lost)
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    assert descriptors() <= before
    assert set(threading.enumerate()) <= threads


def test_ctrl_c_does_not_end_a_worker_that_is_just_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def state() -> tuple[bool, set[int]]:
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        return ignored, signal.pthread_sigmask(signal.SIG_BLOCK, set())

    with LocalBackend(num_workers=1, device="cpu") as backend:
        assert result_of(backend.submit(0, state)) == (True, set())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_ends_the_thread_of_the_backend_fails_its_tasks_and_not_the_next(
    one: LocalBackend, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    future = one.submit(0, (tmp_path / "pipe").read_text)
    behind = one.submit(0, signal.pause)
    future.add_done_callback(lambda _: sys.exit("on purpose"))
    (tmp_path / "pipe").write_text("go")
    assert "the backend's own thread failed with SystemExit: on purpose" in str(error_of(behind))
    assert result_of(one.submit(0, abs, -1)) == 1


# Workers that behave badly


def test_a_worker_that_dies_is_noticed_while_its_children_live(one: LocalBackend, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    def leave_a_child() -> None:
        if os.fork() == 0:
            (tmp_path / "pipe").read_text()  # holds copies of the worker's pipes and channel meanwhile
        os._exit(9)

    error = error_of(one.submit(0, leave_a_child))
    assert "exit code 9" in str(error)
    assert result_of(one.submit(0, abs, -1)) == 1
    (tmp_path / "pipe").write_text("end")


def test_a_task_that_closes_all_descriptors_loses_its_worker_only(one: LocalBackend) -> None:
    assert isinstance(error_of(one.submit(0, os.closerange, 0, 1 << 16)), WorkerLostError)
    assert result_of(one.submit(0, abs, -1)) == 1


def test_a_task_that_closes_its_stdout_does_no_harm(one: LocalBackend) -> None:
    result_of(one.submit(0, lambda: sys.stdout.close()))
    result_of(one.submit(0, os.close, 1))
    assert result_of(one.submit(0, abs, -1)) == 1


def test_a_stopped_worker_does_not_hold_up_the_others() -> None:
    with LocalBackend(num_workers=2, device="cpu") as backend:
        pid = result_of(backend.submit(0, os.getpid))
        os.kill(pid, signal.SIGSTOP)
        held = backend.submit(0, np.sum, np.ones(2_000_000))  # more than a socket holds
        assert result_of(backend.submit(1, abs, -1)) == 1
        os.kill(pid, signal.SIGCONT)
        assert result_of(held) == 2_000_000


def test_a_listener_that_fails_does_not_stop_the_tasks(
    one: LocalBackend, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(worker: int, stream: str, line: str) -> None:
        raise ValueError("full")

    one.on_output(fail)
    assert result_of(one.submit(0, lambda: print("hello") or 5)) == 5
    assert "a line of worker 0 could not be shown: hello" in caplog.text


def test_a_result_that_cannot_be_read_here_fails_its_task_only(one: LocalBackend) -> None:
    class Trap:
        def __reduce__(self) -> object:
            return (int, ("not a number",))

    error = error_of(one.submit(0, lambda: Trap()))
    assert isinstance(error, ValueError)
    assert "could not be unpickled by the driver" in error.__notes__[0]
    assert result_of(one.submit(0, abs, -1)) == 1


def test_a_process_that_a_task_forked_never_answers_for_the_worker(one: LocalBackend) -> None:
    def fork_and_raise() -> int:
        if (child := os.fork()) == 0:
            raise ValueError("in the child")
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def fork_and_return() -> int:
        return 7 if (child := os.fork()) == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    pid = result_of(one.submit(0, os.getpid))
    assert result_of(one.submit(0, fork_and_raise)) == 1
    assert result_of(one.submit(0, fork_and_return)) == 0
    assert result_of(one.submit(0, os.getpid)) == pid
