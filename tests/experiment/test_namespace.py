"""Mount namespaces of the kernel, as root and as another user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from hopyard.experiment import namespace
from hopyard.experiment.namespace import FAILED, Plan

FILE = Path(namespace.__file__)
SOMEBODY = 65534

# As another user; all is imported by then, since the interpreter may be root's alone. Who gives up rights is not
# dumpable any more, and may not write to its own files in /proc.
AS_SOMEBODY = f"""
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
import namespace
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid({SOMEBODY}, {SOMEBODY}, {SOMEBODY})
    os.setresuid({SOMEBODY}, {SOMEBODY}, {SOMEBODY})
    ctypes.CDLL(None).prctl(4, 1)
namespace.main(sys.argv[2:])
"""
PROGRAMS = {
    "root": [sys.executable, "-I", "-S", str(FILE)],
    "somebody": [sys.executable, "-I", "-S", "-c", AS_SOMEBODY, str(FILE.parent)],
}

Run: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]


def program(user: str, plan: Plan, command: Sequence[str]) -> list[str]:
    return [*PROGRAMS[user], json.dumps(plan), *command]


@pytest.fixture(params=["root", "somebody"], scope="module")
def user(request: pytest.FixtureRequest) -> str:
    """Who runs a program. Skips where the kernel lets that user have no namespace."""
    name: str = request.param
    if name == "root" and os.geteuid() != 0:
        pytest.skip("this test needs root")
    tried = subprocess.run(program(name, Plan((), ()), ["true"]), capture_output=True, text=True, check=False)
    assert tried.returncode in (0, FAILED), tried.stderr
    if tried.returncode:
        pytest.skip(f"the kernel lets {name} have no mount namespace here: {tried.stderr.strip()}")
    return name


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that everybody may look into, and its owner alone write to, unlike ``tmp_path``."""
    path = Path(tempfile.mkdtemp()).resolve()
    path.chmod(0o755)
    for name in ("source", "target", "inner"):
        (path / name).mkdir()
        (path / name / f"of-{name}").write_text(f"{name}\n")
        (path / name).chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def run(user: str, folder: Path) -> Run:
    """Runs lines of a shell in ``folder`` with a plan; an error of one line does not stop the next."""

    def run_lines(plan: Plan, lines: str) -> subprocess.CompletedProcess[str]:
        command = program(user, plan, ["sh", "-c", f"exec 2>&1; {lines}"])
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
        )

    return run_lines


def test_a_bind_is_seen_in_the_namespace_alone_and_what_is_written_arrives(run: Run, folder: Path) -> None:
    plan = Plan((), ((f"{folder}/source", f"{folder}/target", False),))
    assert run(plan, "ls target; echo new > target/new").stdout == "of-source\n"
    assert [path.name for path in (folder / "target").iterdir()] == ["of-target"]
    assert (folder / "source" / "new").read_text() == "new\n"


def test_nothing_writes_through_a_read_only_bind(run: Run, folder: Path) -> None:
    target = f"{folder}/a b\\é\t"
    Path(target).mkdir()
    plan = Plan((), ((f"{folder}/source", target, True),))
    done = run(plan, f"cat '{target}/of-source'; touch '{target}/new' && echo written; touch source/other")
    assert done.stdout.startswith("source\n")
    assert "Read-only file system" in done.stdout
    assert sorted(path.name for path in (folder / "source").iterdir()) == ["of-source", "other"]


def test_read_only_holds_for_what_is_mounted_below_too(run: Run, folder: Path) -> None:
    if not os.path.ismount("/dev/shm"):
        pytest.skip("/dev/shm is no mount here")
    name = f"{folder.name}-written"
    done = run(Plan((), (("/dev", "/dev", True),)), f"touch /dev/shm/{name}; echo > /dev/null && echo device")
    assert "Read-only file system" in done.stdout
    assert done.stdout.endswith("device\n")
    assert not Path("/dev/shm", name).exists()


def test_what_hides_a_mount_in_a_read_only_one_keeps_its_rights(run: Run, folder: Path) -> None:
    if not os.path.ismount("/dev/shm"):
        pytest.skip("/dev/shm is no mount here")
    run(Plan((), (("/dev", "/dev", True), (f"{folder}/source", "/dev/shm", False))), "touch /dev/shm/new")
    assert (folder / "source" / "new").exists()


def test_read_only_mounts_keep_their_other_restrictions(user: str, folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a file system of its own needs root")
    plan = Plan((), ((f"{folder}/source", f"{folder}/target", True),))
    mounting = 'mount -t tmpfs -o nosuid,noatime none "$0" && exec "$@"'
    command = program(user, plan, ["grep", "/target ", "/proc/self/mountinfo"])
    command = ["unshare", "--mount", "sh", "-c", mounting, f"{folder}/source", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {"ro", "nosuid", "noatime"} <= set(done.stdout.split()[5].split(","))


@pytest.mark.parametrize("outer_is_read_only", [True, False])
def test_mounts_in_mounts_have_rights_of_their_own(outer_is_read_only: bool, run: Run, folder: Path) -> None:
    (folder / "source" / "point").mkdir()
    (folder / "source" / "point").chmod(0o777)
    binds = (
        (f"{folder}/source", f"{folder}/target", outer_is_read_only),
        (f"{folder}/inner", f"{folder}/target/point", not outer_is_read_only),
    )
    done = run(Plan((), binds), "ls target target/point; touch target/outer; touch target/point/inner")
    assert done.stdout.startswith("target:\nof-source\npoint\n\ntarget/point:\nof-inner\n")
    assert (folder / "source" / "outer").exists() is not outer_is_read_only
    assert (folder / "inner" / "inner").exists() is outer_is_read_only
    assert list((folder / "source" / "point").iterdir()) == []


def test_sources_are_found_where_a_mount_hides_them(run: Run, folder: Path) -> None:
    binds = ((f"{folder}/source", f"{folder}/target", False), (f"{folder}/target", f"{folder}/inner", False))
    assert run(Plan((), binds), "ls target inner").stdout == "inner:\nof-target\n\ntarget:\nof-source\n"
    around = ((f"{folder}/source", f"{folder}/target", False), ("/", f"{folder}/inner", False))
    done = run(Plan((), around), f"ls inner{folder}/target; ls -A inner")
    assert done.stdout.split() == ["of-target", *sorted(path.name for path in Path("/").iterdir())]
    hidden = (
        (f"{folder}/source", f"{folder}/target", False),
        (f"{folder}/target/of-target", f"{folder}/z", False),
    )
    assert run(Plan((str(folder),), hidden), "ls target; cat z").stdout == "of-source\ntarget\n"
    whole = ((f"{folder}/source", str(folder), False),)
    assert run(Plan((), whole), "pwd -P; ls").stdout == f"{folder}\nof-source\n"


def test_a_file_is_mounted_over_a_file(run: Run, folder: Path) -> None:
    plan = Plan((), ((f"{folder}/source/of-source", f"{folder}/target/of-target", True),))
    done = run(plan, "cat target/of-target; echo x > target/of-target")
    assert done.stdout.startswith("source\n")
    assert "Read-only file system" in done.stdout


def test_a_directory_that_is_replaced_has_the_same_entries_and_the_missing_ones(
    run: Run, folder: Path
) -> None:
    (folder / "link").symlink_to("inner")
    (folder / "file").write_text("file\n")
    before = sorted(path.name for path in folder.iterdir())
    binds = (
        (f"{folder}/source", f"{folder}/a/b", False),
        (f"{folder}/inner/of-inner", f"{folder}/a/file", True),
        (f"{folder}/target", f"{folder}/a/target", True),
    )
    done = run(
        Plan((str(folder),), binds),
        "ls; ls a a/b; cat file link/of-inner a/file; touch new; touch a/b/new inner/new",
    )
    expected = [
        *sorted(["a", *before]),
        "a:",
        "b",
        "file",
        "target",
        "",
        "a/b:",
        "of-source",
        "file",
        "inner",
        "inner",
    ]
    assert done.stdout.split("\n")[: len(expected)] == expected
    assert "touch: cannot touch 'new': Read-only file system" in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == before
    assert (folder / "source" / "new").exists()
    assert (folder / "inner" / "new").exists()


def test_the_root_can_be_replaced(run: Run, folder: Path) -> None:
    missing = f"/{folder.name}"
    plan = Plan(
        ("/", str(folder)),
        ((f"{folder}/source", f"{missing}/data", True), (f"{folder}/inner", f"{folder}/new", True)),
    )
    done = run(plan, f"ls -A /; ls {missing}/data new; pwd -P; touch {missing}/new")
    names = sorted([*(path.name for path in Path("/").iterdir()), folder.name])
    assert sorted(done.stdout.split("\n")[: len(names)]) == names
    assert f"\n{missing}/data:\nof-source\n\nnew:\nof-inner\n{folder}\n" in done.stdout
    assert "Read-only file system" in done.stdout
    assert not Path(missing).exists()


def test_the_command_keeps_process_descriptors_user_and_exit_status(user: str, folder: Path) -> None:
    reading, writing = os.pipe()
    command = program(
        user, Plan((), ()), ["bash", "-c", f"echo $$ $(id -u) >&{writing}; yes | head -n 1; kill -9 $$"]
    )
    with subprocess.Popen(
        command, pass_fds=[writing], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        os.close(writing)
        output, errors = process.communicate()
    with os.fdopen(reading) as pipe:
        uid = 0 if user == "root" else os.geteuid() or SOMEBODY
        assert pipe.read() == f"{process.pid} {uid}\n"
    assert (process.returncode, output, errors) == (
        -9,
        b"y\n",
        b"",
    )  # which also shows that SIGPIPE ends `yes`


def test_a_working_directory_that_is_hidden_is_the_root(user: str, folder: Path) -> None:
    (folder / "target" / "deep").mkdir()
    plan = Plan((), ((f"{folder}/source", f"{folder}/target", False),))
    done = subprocess.run(
        program(user, plan, ["pwd", "-P"]),
        cwd=folder / "target" / "deep",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "/\n"


def test_a_source_that_may_be_gone_is_left_out_then(run: Run, folder: Path) -> None:
    (folder / "private" / "source").mkdir(parents=True)
    (folder / "private").chmod(0o777)
    binds = (
        (f"{folder}/no", f"{folder}/target", True),
        (f"{folder}/private", f"{folder}/target", False),
        (f"{folder}/source", f"{folder}/target/source", False),
    )
    done = run(
        Plan((), binds, (f"{folder}/no", f"{folder}/source")), "ls target target/source; touch target/new"
    )
    assert (done.stdout, done.stderr) == ("target:\nsource\n\ntarget/source:\nof-source\n", "")
    assert (folder / "private" / "new").exists()


def test_what_the_kernel_refuses_is_said_and_the_command_is_not_run(run: Run, folder: Path) -> None:
    done = run(Plan((), ((f"{folder}/no", f"{folder}/target", False),)), "echo ran")
    assert (done.returncode, done.stdout) == (FAILED, "")
    assert done.stderr == f"[Errno 2] No such file or directory: '{folder}/no'\n"
    done = run(Plan((), ((f"{folder}/source", f"{folder}/new/x", False),)), "echo ran")
    assert (done.returncode, done.stdout) == (FAILED, "")
    assert done.stderr == f"[Errno 2] No such file or directory: '{folder}/new/x'\n"
    assert not (folder / "new").exists()


THREADED = """
import sys, threading
sys.path.insert(0, sys.argv[1])
import namespace
event = threading.Event()
thread = threading.Thread(target=event.wait)
thread.start()
try:
    namespace.enter(namespace.Plan((), ()))
except RuntimeError as error:
    print(error)
event.set()
thread.join()
"""


def test_a_process_with_threads_is_refused() -> None:
    command = [sys.executable, "-I", "-S", "-c", THREADED, str(FILE.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "a mount namespace must be entered before the process starts threads\n"
