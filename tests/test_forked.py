"""Processes forked for tests are like those that Python starts: each program here is run both ways."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests import forked
from tests.sampling import LEVEL

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or LEVEL == "exhaustive",
    reason="processes are forked on Linux, below the level exhaustive",
)

PROGRAMS = {
    "ends": "import sys; print(__name__, sys.argv, sys.orig_argv)",
    "exit code": "import sys; print('out'); sys.exit(3)",
    "exit text": "import sys; sys.exit('no')",
    "exception": "def f():\n    raise ValueError('x')\nf()",
    "interrupted": "raise KeyboardInterrupt",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "at exit": "import atexit, threading; atexit.register(print, 'end'); threading.Timer(0.01, print).start()",
    "environment": "import os; print(os.environ.get('NAME'), os.getcwd(), os.getpgrp())",
    "input": "print(input())",
    "closed output": "import os; os.close(1)",
    "finaliser": "class A:\n    def __del__(self):\n        print('gone')\na = A()",
    "descriptors": "import os; print(os.path.realpath('/proc/self/fd/1') != os.path.realpath('/proc/self/fd/2'))",
    "another": "import subprocess as s, sys; print(s.call([sys.executable, '-c', 'exit(5)']))",
}


def run(*arguments: str, folder: Path, **variables: str) -> tuple[int, str, str]:
    environment = {**os.environ, "NAME": "value", **variables}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, input="line\n", capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same(name: str, tmp_path: Path) -> None:
    arguments = ("-c", PROGRAMS[name], "argument")
    forks = run(*arguments, folder=tmp_path)
    assert forks == run(*arguments, folder=tmp_path, **{forked.FRESH: "1"})


def test_modules_do_the_same(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = __name__")
    (tmp_path / "script.py").write_text("import sys, beside\nprint(sys.argv, beside.NAME, __file__)\n1 / 0")
    for arguments in (
        ("-m", "script", "a"),
        ("script.py", "b"),
        ("-W", "error", str(tmp_path / "script.py")),
    ):
        forks = run(*arguments, folder=tmp_path)
        code, out, text = run(*arguments, folder=tmp_path, **{forked.FRESH: "1"})
        assert (forks[0], forks[1]) == (code, out)
        assert forks[2].splitlines()[-1] == text.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_modules_are_found_where_the_environment_says_before_others(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "fractions.py").write_text(f"NAME = {name!r}")  # a module of Python, too
    paths = os.pathsep.join(str(tmp_path / name) for name in ("first", "second"))
    # Imported or not, it is to be looked for; `sys.modules` as such would keep the program from being forked.
    program = "import sys; vars(sys)['modules'].pop('fractions', 0); import fractions; print(fractions.NAME)"
    forks = run("-c", program, folder=tmp_path, PYTHONPATH=paths)
    assert forks == run("-c", program, folder=tmp_path, PYTHONPATH=paths, **{forked.FRESH: "1"})
    assert forks == (0, "first\n", "")


def test_what_an_import_sets_in_the_environment_makes_no_difference() -> None:
    code = "import sys; print('torch' in vars(sys)['mod' 'ules'])"
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": "anywhere"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n"


IMPORTED = """
import subprocess, sys, threading
print([name for name in ("keras", "ray") if name in vars(sys)["mod" "ules"]], threading.active_count(), flush=True)
if sys.argv[1:]:
    subprocess.run([sys.executable, *sys.argv[1:]])
"""


def test_more_is_imported_only_in_processes_that_are_to_have_it_and_what_they_start(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(IMPORTED)
    found = "['keras'] 1\n" if find_spec("keras") else "[] 1\n"
    before = forked.cpu()
    assert run("script.py", "script.py", folder=tmp_path, **{forked.WITH: "keras"}) == (0, found * 2, "")
    assert forked.cpu() > before
    assert run("script.py", folder=tmp_path) == (0, "[] 1\n", "")
    other = {forked.WITH: "keras", "KERAS_BACKEND": "torch"}
    assert run("script.py", folder=tmp_path, **other) == (0, "[] 1\n", "")


def test_a_forked_process_is_told_which_one_asked_for_it() -> None:
    code = f"import os; print(os.environ[{forked.PARENT!r}])"
    assert run("-c", code, folder=Path.cwd()) == (0, f"{os.getpid()}\n", "")


def test_options_of_warnings_hold(tmp_path: Path) -> None:
    code = "import sys, warnings; print(sys.warnoptions); warnings.warn('x')"
    for options in ((), ("-W", "ignore"), ("-W", "ignore", "-W", "error")):
        forks = run(*options, "-c", code, folder=tmp_path)
        assert forks == run(*options, "-c", code, folder=tmp_path, **{forked.FRESH: "1"})


SESSION = """
import os, signal, subprocess, sys
code = "import os, sys; print(os.getpgrp(), os.getsid(0), 'torch' in vars(sys)['mod' 'ules'], flush=True)"
code += "; os.read(0, 1)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
print(os.getpid(), child.stdout.readline().split(), flush=True)
signal.pause()
"""


def test_a_session_has_a_group_that_can_be_killed_with_all_that_it_started() -> None:
    command = [sys.executable, "-c", SESSION]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        pid = str(process.pid)
        said = process.stdout.readline()
        os.killpg(process.pid, signal.SIGKILL)
        assert said == f"{pid} {[pid, pid, 'True']}\n"
        assert process.wait() == -signal.SIGKILL
        assert process.stdout.read() == ""  # the child has ended, too
    assert os.getsid(0) != process.pid


def test_a_command_that_other_programs_start_is_forked(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys\nprint('torch' in vars(sys)['mod' 'ules'], sys.argv[1:])\nsys.exit(3)"
    )
    done = subprocess.run(
        f"{forked.COMMAND} script.py a", shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "True ['a']\n")


def test_a_forked_process_is_known_by_its_number_and_can_be_killed() -> None:
    code = "import os; print(os.getpid(), flush=True); import signal; signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.01)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_programs_that_see_how_they_start_are_started_from_nothing(fresh_processes: None) -> None:
    look = "import sys; print('torch' in sys.modules)"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"


def test_descriptors_are_handed_on(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as answers:
        code = f"import os; os.write({writing}, b'here')"
        subprocess.run([sys.executable, "-c", code], pass_fds=[writing], check=True)
        os.close(writing)
        assert answers.read() == "here"


def test_a_session_of_its_own_is_there_when_popen_returns() -> None:
    """Jupyter asks for the group of a kernel at once, and later interrupts all that is in it."""
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
        ) as process:
            found = os.getpgid(process.pid), os.getsid(process.pid)
            process.communicate(b"\n")
        assert found == (process.pid, process.pid)


def test_signals_are_blocked_as_in_the_thread_that_starts_the_process() -> None:
    program = "import signal; print(*sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
    said = []

    def start(blocked: list[int]) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        said.append(subprocess.check_output([sys.executable, "-c", program], text=True))

    for blocked in ([signal.SIGUSR1], []):
        thread = threading.Thread(target=start, args=(blocked,))
        thread.start()
        thread.join()
    assert said == [f"{int(signal.SIGUSR1)}\n", "\n"]


def _say_and_wait(pipe: Connection) -> None:
    pipe.send((os.getpid(), "torch" in sys.modules))
    if pipe.recv():
        sys.exit(5)
    signal.pause()


@pytest.mark.parametrize(("fresh", "ends"), [(False, True), (True, True), (False, False)])
def test_processes_of_multiprocessing_are_known_and_end_as_ever(
    fresh: bool, ends: bool, request: pytest.FixtureRequest
) -> None:
    if fresh:
        request.getfixturevalue("fresh_processes")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_say_and_wait, args=(theirs,))
    process.start()
    assert process.exitcode is None
    assert ours.recv() == (process.pid, not fresh)
    ours.send(ends)
    if not ends:
        process.kill()
    process.join()
    assert process.exitcode == (5 if ends else -signal.SIGKILL)
    assert process not in multiprocessing.active_children()
