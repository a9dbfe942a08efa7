"""Bind mounts: what is checked, and processes that have them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy
import pytest

import hopyard
from hopyard.errors import UsageError
from hopyard.experiment import namespace
from hopyard.experiment.mounts import Mount, MountProblem, _not_mounted, check, command_prefix, enter

HOST = socket.gethostname()
SOMEBODY = 65534


def only(problems: Sequence[MountProblem]) -> str:
    (problem,) = problems
    assert problem.fatal
    assert problem.host == HOST
    return problem.message


def make_folder() -> Path:
    path = Path(tempfile.mkdtemp()).resolve()
    path.chmod(0o755)
    for name in ("source", "target"):
        (path / name).mkdir()
        (path / name / f"of-{name}").write_text(f"{name}\n")
        (path / name).chmod(0o777)
    return path


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that everybody may look into, and its owner alone write to, unlike ``tmp_path``."""
    path = make_folder()
    yield path
    shutil.rmtree(path)


# Runs code as another user, for whom nothing may be imported that only root can read: of the interpreter that the
# tests have, maybe, all. What it starts is Python of the system then.
AS_SOMEBODY = """
import ctypes, json, os, sys
from pathlib import Path
from hopyard.errors import UsageError
from hopyard.experiment import namespace
from hopyard.experiment.mounts import Mount, check, command_prefix, enter, private_tmp
sys.executable, namespace.__file__ = sys.argv[1:3]
libc = ctypes.CDLL(None)
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    libc.prctl(4, 1)  # dumpable, as a process is that this user starts
if "refused" in sys.argv:  # in a user namespace in which no further one may be made
    identity = f"{os.getuid()} {os.getuid()} 1"
    assert libc.unshare(0x10000000) == 0
    Path("/proc/self/uid_map").write_text(identity)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    assert libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
folder = Path(sys.argv[3])
os.chdir(folder)
exec(sys.argv[4])
"""


def as_somebody(folder: Path, code: str, *options: str, path: str | None = None) -> str:
    """What the code prints."""
    python = sys.executable
    if os.geteuid() == 0 and (system := shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin")):
        python = system
    elif os.geteuid() == 0:
        pytest.skip("as root, this test needs Python in /usr/bin, for other users")
    program = shutil.copy(namespace.__file__, tempfile.mkdtemp(dir=folder))
    for made in (Path(program), Path(program).parent):
        made.chmod(0o755)
    command = [sys.executable, "-c", AS_SOMEBODY, python, program, str(folder), code, *options]
    environment = {**os.environ, "LC_ALL": "C", "PATH": os.environ["PATH"] if path is None else path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def namespaces() -> None:
    """Skips where the kernel lets users have no mount namespace; without bubblewrap, which is not in the PATH."""
    folder = make_folder()
    mounts = [Mount(str(folder / "source"), str(folder / "target"))]
    found = as_somebody(folder, f"print(check({mounts!r}))", path="/nonexistent")
    shutil.rmtree(folder)
    if "no mount namespace can be made" in found:
        pytest.skip(f"the kernel lets users have no mount namespace here: {found}")
    assert found == "[]\n"


# Checks


def test_plain_access_needs_nothing(folder: Path) -> None:
    (folder / "link").symlink_to("source")
    paths = [
        (folder / "source", folder / "source"),
        (folder / "link", folder / "source"),
        (folder / "target",) * 2,
    ]
    mounts = [Mount(str(host), str(container)) for host, container in paths]
    for plain in (mounts[:1], mounts[1:], []):
        assert check(plain) == []
        assert command_prefix(plain) == []
        assert enter(plain) is False


def test_problems_name_host_path_rule_and_next_step(folder: Path) -> None:
    missing = f"{folder}/no"
    (problem,) = check([Mount(missing, missing)])
    assert problem == MountProblem(
        HOST,
        missing,
        f"on {HOST}, host_path '{missing}' of bind_mounts does not exist, but must, on every machine that runs trials. "
        "Mount the file system there, or correct the path.",
    )
    assert pickle.loads(pickle.dumps([problem])) == [problem]
    below_a_file = f"{folder}/source/of-source/x"
    problems = check(
        [Mount(missing, missing), Mount(str(folder / "source"), "data"), Mount(below_a_file, below_a_file)]
    )
    assert [problem.path for problem in problems] == [missing, "data", below_a_file]


RELATIVE = (
    "'data' of bind_mounts is relative, but it must be an absolute path, since trials have different working "
    "directories. Write it from / on."
)
ROOT = "container_path '/' of bind_mounts would hide all programs and files, so it must be a directory below. Name one."


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        (Mount("data", "/data"), f"host_path {RELATIVE}"),
        (Mount("/", "data"), f"container_path {RELATIVE}"),
        (Mount("/", "."), f"container_path {RELATIVE.replace('data', '.')}"),
        (Mount("/a\0b", "/a"), "host_path of bind_mounts: '/a\\x00b' is no path: it holds a null character"),
        (Mount("/", "/usr/.."), ROOT),
    ],
)
def test_paths_are_absolute_and_leave_the_root(mount: Mount, message: str) -> None:
    assert only(check([mount])).startswith(f"on {HOST}, {message}")


def test_two_mounts_of_one_path_are_refused(folder: Path) -> None:
    (folder / "link").symlink_to("target")
    mounts = [Mount(f"{folder}/source", f"{folder}/target"), Mount(f"{folder}/target", f"{folder}/./link")]
    assert only(check(mounts)) == (
        f"on {HOST}, container_path '{folder}/./link' of bind_mounts is the place of both '{folder}/source' and "
        f"'{folder}/target', but can be of one only. Give them different paths, or remove one."
    )


def test_files_are_mounted_over_files_and_directories_over_directories(folder: Path) -> None:
    file, directory = f"{folder}/source/of-source", f"{folder}/target"
    assert only(check([Mount(file, directory)])) == (
        f"on {HOST}, '{directory}', the place of container_path '{directory}', is a directory, but host_path '{file}' "
        "is no directory, and both must be alike. Use another container_path."
    )
    assert "is no directory, but host_path" in only(check([Mount(directory, file)]))


def test_a_place_that_is_not_there_is_to_be_made_where_the_user_may_write(folder: Path) -> None:
    place = f"{folder}/target/a/b"
    assert only(check([Mount(f"{folder}/source", place)])) == (
        f"on {HOST}, '{place}', the place of container_path '{place}', does not exist, but must, since a stand-in for "
        f"'{folder}/target' could hide something from trials. Make it there (mkdir -p {place}), or use another "
        "container_path."
    )
    message = only(check([Mount(f"{folder}/source/of-source", place)]))
    assert f"(mkdir -p {folder}/target/a && touch {place})" in message
    assert not (folder / "target" / "a").exists()
    with pytest.raises(UsageError, match=r"the bind mounts cannot be made: on .* does not exist, but must"):
        command_prefix([Mount(f"{folder}/source", place)])


def test_a_place_within_another_mount_must_be_in_its_host_path(folder: Path) -> None:
    mounts = [Mount(f"{folder}/target", f"{folder}/source/x"), Mount(f"{folder}/target", f"{folder}/source")]
    assert only(check(mounts)).startswith(
        f"on {HOST}, '{folder}/target/x', the place of container_path '{folder}/source/x', does not exist, but must"
    )


@pytest.mark.parametrize(
    ("place", "hidden"),
    [
        ("/proc", "/proc"),
        (str(Path(os.__file__).parent), "Python"),
        (str(Path(hopyard.__file__).parent), "Hopyard"),
        (str(Path(numpy.__file__).parent), "the packages of Python"),
    ],
)
def test_a_mount_that_would_hide_what_each_trial_needs_is_refused(
    place: str, hidden: str, folder: Path
) -> None:
    mounts = [Mount(str(folder / "source"), place)]
    expected = (
        f"on {HOST}, container_path '{place}' of bind_mounts would hide {hidden}, which each trial needs and host_path "
        f"'{folder}/source' does not have. Choose another container_path."
    )
    assert only(check(mounts)) == expected
    with pytest.raises(UsageError) as caught:
        command_prefix(mounts)
    assert str(caught.value) == f"the bind mounts cannot be made: {expected}"


def test_a_mount_that_has_what_it_hides_is_none_that_hides_it(folder: Path) -> None:
    (folder / "source" / "hopyard").symlink_to(Path(hopyard.__file__).parent)
    above = str(Path(hopyard.__file__).parents[1])
    assert not any("would hide" in each.message for each in check([Mount(f"{folder}/source", above)]))


def test_python_that_does_not_start_is_no_lack_of_namespaces(folder: Path, namespaces: None) -> None:
    mounts = [Mount(f"{folder}/source", f"{folder}/target"), Mount(f"{folder}/source", "/usr/lib")]
    code = f"for problem in check({mounts!r}): print(problem.fatal, problem.path, problem.message)"
    code = f"from hopyard.experiment import mounts\nmounts._OF_ALL_TRIALS = {{}}\n{code}"
    printed = as_somebody(folder, code)
    assert printed.startswith(
        f"True /usr/lib on {HOST}, Python does not start where container_path '/usr/lib' of bind_mounts is host_path "
        f"'{folder}/source' ("
    )
    assert printed.endswith("), but each trial is a process of Python. Choose another container_path.\n")
    assert printed.count("\n") == 1


def test_read_only_that_cannot_be_made_is_a_warning_where_namespaces_can(folder: Path) -> None:
    mounts = [Mount(f"{folder}/source", f"{folder}/source", True)]
    [problem] = _not_mounted(mounts, ["the kernel: not permitted"], lambda plan: not plan.binds)
    assert not problem.fatal
    assert problem.message == (
        f"on {HOST}, read_only of '{folder}/source' in bind_mounts is not enforced, since the mount cannot be made "
        "(the kernel: not permitted): trials can write there if their user can. Have the file system mounted read-only."
    )


WRITE = "write there, or set read_only: true."


@pytest.mark.parametrize("place", ["/proc/hopyard", "/sys/hopyard", "/dev/hopyard"])
def test_file_systems_of_the_kernel_get_no_stand_in(place: str, folder: Path) -> None:
    mounts = [Mount(str(folder / "source"), place)]
    assert "does not exist, but must" in as_somebody(folder, f"print(check({mounts!r}))")


def test_rights_of_the_user_count(folder: Path) -> None:
    (folder / "source").chmod(0o700)
    (folder / "target").chmod(0o755)
    if os.geteuid() != 0:
        pytest.skip("directories of another user need root")
    mounts = [Mount(f"{folder}/{name}", f"{folder}/{name}") for name in ("source", "target")]
    code = f"for problem in check({mounts!r}): print(problem.fatal, problem.message)"
    right = f"Give this user (uid {SOMEBODY}) the right to"
    assert as_somebody(folder, code).splitlines() == [
        f"True on {HOST}, host_path '{folder}/{name}' of bind_mounts {text}"
        for name, text in [
            ("source", f"cannot be read (Permission denied), but must be readable. {right} read it."),
            (
                "target",
                f"cannot be written to, but must be writable, since read_only is not set. {right} {WRITE}",
            ),
        ]
    ]


# Where nobody may have namespaces


WHY = (
    "no mount namespace can be made (the kernel: [Errno 28] No space left on device: "
    "'/proc/sys/user/max_user_namespaces')"
)


def test_another_path_is_refused_without_namespaces(folder: Path, namespaces: None) -> None:
    mounts = [Mount(f"{folder}/source", f"{folder}/target")]
    code = f"for problem in check({mounts!r}): print(problem.fatal, problem.message)"
    expected = (
        f"on {HOST}, container_path '{folder}/target' of bind_mounts must be its host_path '{folder}/source', since "
        f"{WHY}. Install bubblewrap there, or allow user namespaces, or write the same path for both."
    )
    assert as_somebody(folder, code, "refused", path="/nonexistent") == f"True {expected}\n"
    for call in ("command_prefix", "enter"):
        code = f"try: {call}({mounts!r})\nexcept UsageError as error: print(error)"
        printed = as_somebody(folder, code, "refused", path="/nonexistent")
        assert printed == f"the bind mounts cannot be made: {expected}\n"


def test_read_only_is_a_warning_without_namespaces(folder: Path, namespaces: None) -> None:
    mounts = [Mount(f"{folder}/source", f"{folder}/source", True)]
    code = (
        f"mounts = {mounts!r}\nfor problem in check(mounts): print(problem.fatal, problem.message)\n"
        "print(command_prefix(mounts), enter(mounts))"
    )
    assert as_somebody(folder, code, "refused", path="/nonexistent") == (
        f"False on {HOST}, read_only of '{folder}/source' in bind_mounts is not enforced, since {WHY}: trials can "
        "write there if their user can. Install bubblewrap there, or allow user namespaces, or have the file system "
        "mounted read-only.\n[] False\n"
    )


def test_a_bubblewrap_that_does_not_work_is_named_beside_the_kernel(folder: Path, namespaces: None) -> None:
    programs = folder / "programs"
    programs.mkdir()
    (programs / "bwrap").write_text("#!/bin/sh\necho 'bwrap: not permitted' >&2\nexit 1\n")
    (programs / "bwrap").chmod(0o755)
    code = f"print(check([Mount('{folder}/source', '{folder}/target')])[0].message)"
    printed = as_somebody(folder, code, "refused", path=str(programs))
    assert "(bubblewrap: bwrap: not permitted; the kernel: [Errno 28] " in printed


def test_the_kernel_serves_where_bubblewrap_does_not_work(folder: Path, namespaces: None) -> None:
    (folder / "bwrap").write_text("#!/bin/sh\nexit 1\n")
    (folder / "bwrap").chmod(0o755)
    code = f"print(command_prefix([Mount('{folder}/source', '{folder}/target')])[3])"
    assert as_somebody(folder, code, path=str(folder)).endswith("namespace.py\n")


# Processes with mounts


@pytest.fixture(params=["bubblewrap", "the kernel"])
def programs(request: pytest.FixtureRequest, folder: Path) -> str:
    """The PATH with which one of them makes the namespaces. Skips where it cannot."""
    if request.param == "the kernel":
        request.getfixturevalue("namespaces")
        return "/nonexistent"
    program = shutil.which("bwrap")
    if program is None:
        pytest.skip("this test needs bubblewrap")
    tried = subprocess.run(
        [program, "--dev-bind", "/", "/", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"bubblewrap does not work here: {tried.stderr}")
    return str(Path(program).parent)


RUN = """
import subprocess
prefix = command_prefix(mounts)
assert ("bwrap" in prefix[0]) == (os.environ["PATH"] != "/nonexistent"), prefix
command = [*prefix, "/bin/sh", "-c", "exec 2>&1; PATH=/usr/bin:/bin; " + lines]
done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
print(done.stdout, end="")
"""


def run(folder: Path, mounts: Sequence[Mount], lines: str, programs: str) -> str:
    """What lines of a shell print that have the mounts."""
    code = f"mounts = {list(mounts)!r}\nassert check(mounts) == [], check(mounts)\nlines = {lines!r}\n{RUN}"
    return as_somebody(folder, code, path=programs)


def test_a_directory_is_seen_elsewhere_and_read_only(folder: Path, programs: str) -> None:
    mounts = [Mount(f"{folder}/source", f"{folder}/target", True)]
    printed = run(folder, mounts, "cat target/of-source; touch target/new; touch source/new; pwd", programs)
    assert printed.splitlines()[0] == "source"
    assert "cannot touch 'target/new': Read-only file system" in printed
    assert printed.endswith(f"\n{folder}\n")
    assert (folder / "source" / "new").exists()
    assert sorted(path.name for path in (folder / "target").iterdir()) == ["of-target"]


def test_one_path_is_made_read_only(folder: Path, programs: str) -> None:
    mounts = [
        Mount(f"{folder}/source", f"{folder}/source", True),
        Mount(f"{folder}/target", f"{folder}/target"),
    ]
    printed = run(folder, mounts, "cat source/of-source; touch source/new; touch target/new", programs)
    assert printed.startswith("source\n")
    assert "cannot touch 'source/new': Read-only file system" in printed
    assert (folder / "target" / "new").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="a directory that the user may not write to needs root")
def test_a_place_that_is_not_there_appears_for_the_trial_alone(folder: Path, programs: str) -> None:
    missing = f"/{folder.name}/data"
    mounts = [
        Mount(f"{folder}/source", missing),
        Mount(f"{folder}/source/of-source", f"{folder}/a/file", True),
        Mount(f"{folder}/target", f"{folder}/a/b", True),
    ]
    lines = f"ls {missing} a/b; cat a/file; touch {missing}/new; touch a/new; ls -A / | wc -l; cat target/of-target"
    printed = run(folder, mounts, lines, programs).splitlines()
    assert sorted(printed[:6]) == sorted([f"{missing}:", "of-source", "", "a/b:", "of-target", "source"])
    assert printed[6:] == [
        "touch: cannot touch 'a/new': Read-only file system",
        str(len(list(Path("/").iterdir())) + 1),
        "target",
    ]
    assert (folder / "source" / "new").exists()
    assert not Path(missing).parent.exists()
    assert not (folder / "a").exists()


def test_mounts_within_mounts_in_any_order(folder: Path, programs: str) -> None:
    (folder / "source" / "point").mkdir()
    (folder / "source" / "point").chmod(0o777)
    mounts = [
        Mount(f"{folder}/target", f"{folder}/target/point"),
        Mount(f"{folder}/source", f"{folder}/target", True),
    ]
    printed = run(
        folder, mounts, "ls target target/point; touch target/new; touch target/point/new", programs
    )
    assert printed.startswith("target:\nof-source\npoint\n\ntarget/point:\nof-target\n")
    assert "cannot touch 'target/new': Read-only file system" in printed
    assert (folder / "target" / "new").exists()


KILL = """
command = [*command_prefix(mounts), "/bin/sh", "-c", "echo started; read line"]
import subprocess
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    print(process.stdout.readline().decode(), end="")
    process.kill()
    print(process.stdout.read())  # ends when nothing holds the pipe
"""


def test_nothing_outlives_a_process_that_is_killed(folder: Path, programs: str) -> None:
    mounts = [Mount(f"{folder}/source", f"{folder}/target")]
    assert as_somebody(folder, f"mounts = {mounts!r}\n{KILL}", path=programs) == "started\nb''\n"


def test_trials_have_temporary_files_of_their_own(folder: Path, programs: str) -> None:
    if not folder.is_relative_to("/tmp"):
        pytest.skip("the tests' temporary files are not in /tmp")
    (folder / "trials").mkdir()
    (folder / "trials").chmod(0o777)
    used = [Path(place).resolve() for place in (sys.prefix, __file__)]  # a checkout may lie in /tmp itself
    own = {place.relative_to("/tmp").parts[0] for place in used if place.is_relative_to("/tmp")}
    for trial in ("1", "2"):
        kept = ["/usr", *(f"/tmp/{name}" for name in sorted(own))]
        made = (
            f"private_tmp(folder / 'trials' / '{trial}', [folder, folder / 'source', *map(Path, {kept!r})])"
        )
        fields = json.loads(as_somebody(folder, f"print(json.dumps([vars(each) for each in {made}]))"))
        name = f"data-of-{folder.name}"
        lines = f"ls /tmp; echo {trial} > /tmp/{name}; cat /tmp/{name}; ls source; pwd"
        printed = run(folder, [Mount(**each) for each in fields], lines, programs)
        listed = "".join(f"{each}\n" for each in sorted({folder.name, *own}))
        assert printed == f"{listed}{trial}\nof-source\n{folder}\n"
        assert (folder / "trials" / trial / name).read_text() == f"{trial}\n"
        assert not Path("/tmp", name).exists()


ENTER = """
assert enter(mounts)
print(os.listdir(folder / "target"), os.getuid())
try:
    (folder / "target" / "new").touch()
except OSError as error:
    print(error.strerror)
"""


def test_a_process_enters_before_it_starts_threads(folder: Path, namespaces: None) -> None:
    mounts = [Mount(f"{folder}/source", f"{folder}/target", True)]
    uid = os.geteuid() or SOMEBODY
    printed = as_somebody(folder, f"mounts = {mounts!r}\n{ENTER}")
    assert printed == f"['of-source'] {uid}\nRead-only file system\n"
    code = (
        "import threading\nevent = threading.Event()\nthreading.Thread(target=event.wait).start()\n"
        f"try: enter({mounts!r})\nexcept UsageError as error: print(error)\nevent.set()"
    )
    assert as_somebody(folder, code) == (
        "the bind mounts cannot be made: a mount namespace must be entered before the process starts threads. Call "
        "enter first, or use command_prefix.\n"
    )
