"""Model definition directories: listed, packed by content, unpacked."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import CorruptError, InvalidNameError, NotFoundError, StorageError, UsageError
from hopyard.experiment import definition
from hopyard.experiment.definition import MAX_BYTES, listing, pack, places_of, unpack
from hopyard.objects import digest, digest_json
from hopyard.storage import LocalStore, MemoryStore
from hopyard.storage.wrappers import CountingStore

# A file is (content, executable), a link its text, a directory a dict.
Tree: TypeAlias = Mapping[str, "tuple[bytes, bool] | str | Tree"]

EXAMPLE: Tree = {
    "model_def.py": (b"class Trial: ...\n", False),
    "data.csv": (b"a,b\n1,2\n", False),
    "run.sh": (b"#!/bin/sh\n", True),
    "package": {"__init__.py": (b"", False), "deep": {"é.txt": (b"\x00\xff", False)}, "up": "../data.csv"},
    "empty": {},
    "latest": "package/deep",
}
DIGEST = "30318fff24acc6fc"


def make(directory: Path, tree: Tree) -> Path:
    directory.mkdir(exist_ok=True)
    for name, child in tree.items():
        path = directory / name
        if isinstance(child, str):
            path.symlink_to(child)
        elif isinstance(child, tuple):
            content, executable = child
            path.write_bytes(content)
            path.chmod(0o755 if executable else 0o644)
        else:
            make(path, child)
    return directory


def read(directory: Path) -> dict[str, Any]:
    """What ``make`` was given, by path."""
    found: dict[str, Any] = {}
    for path in directory.rglob("*"):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_dir():
            found[name] = {}
        else:
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR))
    return found


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return make(tmp_path / "example", EXAMPLE)


def stored(store: MemoryStore) -> dict[str, bytes]:
    return {entry.name: store.get(entry.name) for entry in store.list()}


# Packing


names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=6
).filter(lambda name: name not in (".", ".."))
trees: st.SearchStrategy[Any] = st.recursive(
    st.tuples(st.binary(max_size=20), st.booleans()),
    lambda children: st.dictionaries(names, children, max_size=4),
    max_leaves=10,
)


@given(tree=st.dictionaries(names, trees, max_size=3), links=st.dictionaries(names, names, max_size=2))
def test_what_is_packed_is_unpacked_and_packs_to_the_same_again(
    tree: Tree, links: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, store = tmp_path_factory.mktemp("trees"), MemoryStore()
    directory = make(
        folder / "directory",
        {**links, **tree, "model_def.py": (b"", False), ".hopyardignore": (b"!*", False)},
    )
    made = pack(directory, store)
    unpacked = unpack(store, made.digest, folder / "trial")
    assert read(unpacked) == read(directory)
    assert pack(unpacked, store) == made
    assert len(stored(store)) == 1
    assert made.bytes == sum(
        path.stat().st_size for path in directory.rglob("*") if path.is_file() and not path.is_symlink()
    )
    shutil.rmtree(folder)


def test_bytes_depend_on_content_alone(example: Path, tmp_path: Path) -> None:
    store, other = MemoryStore(), MemoryStore()
    made = pack(example, store)
    again = make(tmp_path / "again", dict(reversed(list(EXAMPLE.items()))))
    for path in again.rglob("*"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)
    (again / "data.csv").chmod(0o600)
    assert pack(again, other) == made
    assert stored(store) == stored(other)
    assert made.files == 5


def test_the_digest_is_of_the_logical_content(tmp_path: Path) -> None:
    directory = make(tmp_path / "d", {"b": {"run": (b"x", True)}, "a.py": (b"", False), "z": "a.py"})
    content = [digest(data, "hopyard.definition") for data in (b"", b"x")]
    index = [["a.py", "file", False, content[0]], ["b", "directory", ""], ["b/run", "file", True, content[1]]]
    expected = digest_json([*index, ["z", "link", "a.py"]], "hopyard.definition")
    assert pack(directory, MemoryStore()).digest == expected
    assert expected.startswith(DIGEST), "stored definitions would not be found any more"


def test_the_same_directory_again_writes_nothing(example: Path) -> None:
    store = CountingStore(MemoryStore())
    first = pack(example, store)
    written = store.calls["put_new"]
    assert pack(example, store) == first
    assert (written, store.calls["put_new"], store.calls["put"]) == (1, 1, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda directory: (directory / "data.csv").write_bytes(b"a,b\n1,3\n"),
        lambda directory: (directory / "data.csv").rename(directory / "data2.csv"),
        lambda directory: (directory / "data.csv").chmod(0o755),
        lambda directory: (directory / "empty").rmdir(),
        lambda directory: (directory / "empty2").mkdir(),
        lambda directory: ((directory / "latest").unlink(), (directory / "latest").symlink_to("package")),
    ],
)  # fmt: skip
def test_every_change_is_another_definition(change: Callable[[Path], object], example: Path) -> None:
    before = pack(example, MemoryStore())
    change(example)
    assert pack(example, MemoryStore()).digest != before.digest


def test_the_stored_file_is_a_tar_file_without_owners_and_times(example: Path) -> None:
    store = MemoryStore()
    made = pack(example, store)
    with tarfile.open(fileobj=io.BytesIO(store.get(f"definition/{made.digest}.tar"))) as tar:
        headers = tar.getmembers()
    assert [header.name for header in headers] == sorted(read(example))
    assert {(header.uid, header.gid, header.uname, header.gname, header.mtime) for header in headers} == {
        (0, 0, "", "", 0)
    }


# Refusals


def refused(directory: Path | str) -> str:
    store = MemoryStore()
    with pytest.raises(UsageError) as caught:
        pack(directory, store)
    assert stored(store) == {}
    return str(caught.value)


def test_a_directory_that_is_not_there_or_is_a_file(example: Path) -> None:
    assert refused(example / "no") == (
        f"the model definition directory '{example}/no' cannot be read (No such file or directory). Give the directory "
        "that holds the code of the trial."
    )
    assert refused(example / "data.csv") == (
        f"the model definition directory '{example}/data.csv' is a file. Give the directory that holds it: '{example}'."
    )


def test_a_directory_of_which_nothing_is_left(tmp_path: Path) -> None:
    directory = make(tmp_path / "d", {"empty": {}, ".git": {"config": (b"", False)}})
    what = f"the model definition directory '{directory}' has no file that the default ignore rules"
    assert refused(directory) == f"{what} leave. Give the directory that holds the code of the trial."
    (directory / ".hopyardignore").write_text("*\n")
    assert f"{what} and .hopyardignore leave." in refused(directory)


def test_more_than_the_most_bytes_names_the_largest_files(tmp_path: Path) -> None:
    directory = make(tmp_path / "d", {"model_def.py": (b"x" * 10, False), "data": {}})
    for number in range(7):
        with (directory / "data" / f"part-{number}").open("wb") as file:
            file.truncate(number * 1000)
    with (directory / "data" / "large").open("wb") as file:
        file.truncate(MAX_BYTES - 10 - 21_000)
    assert listing(directory).bytes == MAX_BYTES == 100_663_296
    with (directory / "more").open("wb") as file:
        file.truncate(1)
    assert refused(directory) == (
        f"the model definition directory '{directory}' cannot be packed:\n"
        "  100,663,297 bytes are in 10 files, but at most 100,663,296 (96 x 2^20) may be; the largest are "
        "data/large (101 MB), data/part-6 (6 kB), data/part-5 (5 kB), data/part-4 (4 kB), data/part-3 (3 kB); trials "
        "reach other data by context.download, context.stream or bind_mounts\n"
        "Mend this, or name in .hopyardignore what trials do not need."
    )
    (directory / ".hopyardignore").write_text("/data/large\n")
    assert listing(directory).files == 10


def test_everything_that_cannot_be_packed_is_named_at_once(example: Path, tmp_path: Path) -> None:
    os.mkfifo(example / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(example / "socket"))
    Path(os.fsdecode(os.fsencode(example) + b"/bad\xff")).touch()
    (example / "away").symlink_to(tmp_path)
    (example / "package" / "above").symlink_to("../../other")
    (example / "absolute").symlink_to(example / "data.csv")
    (example / "dangling").symlink_to("not-yet")
    (example / "itself").symlink_to("itself")
    (example / "there").symlink_to("package/back")
    (example / "package" / "back").symlink_to("../there")
    (example / "package" / ".hopyardignore").symlink_to("__init__.py")
    first, *problems, advice = refused(example).split("\n")
    assert first == f"the model definition directory '{example}' cannot be packed:"
    other = "is a socket, pipe or device; only files, directories and links are packed"
    assert sorted(problems) == [
        f"  absolute is a link to {example}/data.csv, which is no place on other machines; make it relative (ln -sr)",
        f"  away is a link out of the directory, to {tmp_path}; put a copy there, or use bind_mounts",
        "  bad\\udcff has a name or target that is not UTF-8, which not all machines can show and store",
        "  itself is a link to itself, which leads back to it; remove it",
        "  package/.hopyardignore is an ignore file, and must be a regular file, as for git",
        "  package/above is a link out of the directory, to ../../other; put a copy there, or use bind_mounts",
        "  package/back is a link to ../there, which leads back to it; remove it",
        f"  pipe {other}",
        f"  socket {other}",
        "  there is a link to package/back, which leads back to it; remove it",
    ]
    assert advice == "Mend this, or name in .hopyardignore what trials do not need."
    (example / "package" / ".hopyardignore").unlink()
    (example / ".hopyardignore").write_text(
        "/itself\n/there\nback\n/pipe\n/socket\nbad?\n/away\n/package/above\n/absolute\n"
    )
    assert [member.path for member in listing(example).members if member.kind == "link"] == [
        "dangling",
        "latest",
        "package/up",
    ]


PACK_AS_SOMEBODY = """
import os, sys
from hopyard.errors import UsageError
from hopyard.experiment.definition import pack
from hopyard.storage import MemoryStore
if os.geteuid() == 0:
    os.setuid(65534)
try:
    print(pack(sys.argv[1], MemoryStore()).files)
except UsageError as error:
    print(error)
"""


def test_files_and_directories_that_cannot_be_read_are_named() -> None:
    tree: Tree = {"model_def.py": (b"", False), "secret": (b"", False), "closed": {}, "open": {}}
    with tempfile.TemporaryDirectory() as folder:  # unlike pytest's own, which lets nobody else in
        Path(folder).chmod(0o755)
        directory = make(Path(folder) / "d", tree)
        (directory / "open" / ".hopyardignore").touch(mode=0)
        (directory / "secret").chmod(0)
        (directory / "closed").chmod(0)
        command = [sys.executable, "-c", PACK_AS_SOMEBODY, str(directory)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        (directory / "closed").chmod(0o700)
    assert lines[0] == f"the model definition directory '{directory}' cannot be packed:"
    assert sorted(lines[1:-1]) == [
        "  closed cannot be read (Permission denied)",
        "  open/.hopyardignore cannot be read (Permission denied)",
        "  open/.hopyardignore is an ignore file that cannot be read (Permission denied)",
        "  secret cannot be read (Permission denied)",
    ]


def _append(file: Path) -> None:
    """Let the file grow, with the time that it had."""
    status = file.stat()
    file.write_bytes(file.read_bytes() + b"3,4\n")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replace(file: Path) -> None:
    file.write_bytes(b"a,b\n3,4\n")
    os.utime(file, (1e9, 1e9))


@pytest.mark.parametrize("change", [_append, _replace])
def test_a_file_that_changes_while_it_is_read(
    change: Callable[[Path], None], example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(fd: int) -> os.stat_result:
        status = os.fstat(fd)
        change(example / "data.csv")
        return status

    class Os:
        fstat = staticmethod(changing)

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

    with monkeypatch.context() as patch:
        patch.setattr(definition, "os", Os())
        message = refused(example)
    assert message == (
        f"data.csv in the model definition directory '{example}' changed while it was read, so nothing was stored. Let "
        "nothing write there meanwhile, or name the file in .hopyardignore."
    )


def test_a_file_that_goes_before_it_is_read(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = listing(example)
    (example / "data.csv").unlink()
    monkeypatch.setattr(definition, "listing", lambda *_: listed)
    assert "data.csv" in (message := refused(example))
    assert "cannot be read any more (No such file or directory), so nothing was stored." in message


# Ignore files


def test_default_rules_can_be_taken_back(tmp_path: Path) -> None:
    tree: Tree = {
        "model_def.py": (b"", False),
        ".env": (b"", False),
        "__pycache__": {"a.pyc": (b"", False)},
        ".git": "x",
    }
    directory = make(tmp_path / "d", tree)
    listed = listing(directory)
    assert [member.path for member in listed.members] == ["model_def.py"]
    assert (listed.ignored, listed.ignore_files) == ((".env", ".git", "__pycache__/"), ())
    (directory / ".hopyardignore").write_text("!.env\n")
    listed = listing(directory)
    assert [member.path for member in listed.members] == [".env", ".hopyardignore", "model_def.py"]
    assert listed.ignore_files == (".hopyardignore",)


def test_ignore_files_are_read_in_every_directory_and_determineds_at_the_top_alone(tmp_path: Path) -> None:
    below: Tree = {"a.csv": (b"", False), "b.csv": (b"", False), ".detignore": (b"*\n", False)}
    tree: Tree = {"below": below, "c.csv": (b"", False), ".detignore": (b"*.csv\n", False)}
    directory = make(tmp_path / "d", tree)
    listed = listing(directory)
    assert (listed.ignored, listed.ignore_files) == (("below/a.csv", "below/b.csv", "c.csv"), (".detignore",))
    (directory / "below" / ".hopyardignore").write_text("!a.csv\n")
    listed = listing(directory)
    assert listed.ignored == ("below/b.csv", "c.csv")
    assert listed.ignore_files == (".detignore", "below/.hopyardignore")
    (directory / ".hopyardignore").write_text("below\n")
    listed = listing(directory)
    assert (listed.ignored, listed.ignore_files) == (("below/",), (".hopyardignore",))


def test_a_store_inside_is_left_out_and_must_not_be_the_directory(example: Path, tmp_path: Path) -> None:
    before = pack(example, MemoryStore())
    store = LocalStore(example / "package" / "store")
    assert pack(example, store) == before
    assert pack(example, store) == before
    assert listing(example, store).ignored == ("package/store/",)
    assert pack(example, LocalStore(tmp_path / "elsewhere")).digest != before.digest
    with pytest.raises(UsageError) as caught:
        pack(example, LocalStore(example))
    assert str(caught.value) == (
        f"the model definition directory '{example}' is the store {LocalStore(example).url} itself, so that every run "
        "would be part of the next definition. Use a directory of its own for the store; it may be inside."
    )


def test_files_of_the_configuration_are_left_out_unless_code_names_them(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = pack(example, MemoryStore())
    outside = tmp_path / "const.yaml"
    for path in (outside, example / "const.yaml", example / "package" / "base.yaml"):
        path.write_text("seed: 1\n")
    monkeypatch.chdir(example)
    files = [Path("const.yaml"), example / "package" / "base.yaml"]
    assert pack(example, MemoryStore(), files) == pack(".", MemoryStore(), files) == without
    assert listing(example, None, files).ignored == ("const.yaml", "package/base.yaml")
    assert listing(example, None, [outside]).ignored == ()
    (example / "model_def.py").write_text("open('const.yaml')\n")
    assert listing(example, None, files).ignored == ("package/base.yaml",)
    named = pack(example, MemoryStore(), files)
    (example / "const.yaml").write_text("seed: 1  # a comment\n")
    assert pack(example, MemoryStore(), files).digest != named.digest


# Unpacking


@pytest.fixture
def packed(example: Path) -> tuple[MemoryStore, str]:
    store = MemoryStore()
    return store, pack(example, store).digest


def test_trials_write_in_directories_of_their_own(packed: tuple[MemoryStore, str], tmp_path: Path) -> None:
    store, name = packed
    one, two = (unpack(store, name, tmp_path / "trials" / trial) for trial in ("1", "2"))
    (one / "data.csv").write_text("changed")
    (one / "new").touch()
    assert unpack(MemoryStore(), name, tmp_path / "trials" / "1") == one  # which asks the store for nothing
    assert (one / "data.csv").read_text() == "changed"
    assert (two / "data.csv").read_bytes() == b"a,b\n1,2\n"
    assert not (two / "new").exists()
    assert (
        two / "model_def.py"
    ).stat().st_mtime > 0  # else Python would take the code of another version for this


def test_files_have_the_rights_that_the_umask_leaves(packed: tuple[MemoryStore, str], tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        unpacked = unpack(*packed, tmp_path / "trial")
    finally:
        os.umask(before)
    paths = [unpacked, unpacked / "empty", unpacked / "data.csv", unpacked / "run.sh"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o750, 0o750, 0o640, 0o750]


def test_processes_that_unpack_at_once_get_one_whole_directory(example: Path, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    name = pack(example, store).digest
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: unpack(store, name, tmp_path / "trial"), range(16)))
    assert [read(path) for path in found] == [read(example)]
    assert [path.name for path in (tmp_path / "trial").iterdir()] == [path.name for path in found]


UNPACK_AND_DIE = """
import os, signal, sys
from pathlib import Path
from hopyard.experiment.definition import unpack
from hopyard.storage import LocalStore, files
left, write = int(sys.argv[4]), files.write_pieces

def write_or_die(fd, pieces):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    write(fd, pieces)

files.write_pieces = write_or_die
unpack(LocalStore(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
"""


@pytest.mark.parametrize("files_written", [0, 1, 4])
def test_a_process_killed_while_it_unpacks_leaves_nothing_that_is_believed(
    files_written: int, tmp_path: Path, example: Path
) -> None:
    store, folder = LocalStore(tmp_path / "store"), tmp_path / "trial"
    name = pack(example, store).digest
    arguments = map(str, (tmp_path / "store", name, folder, files_written))
    command = [sys.executable, "-c", UNPACK_AND_DIE, *arguments]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert [path.name[:5] for path in folder.iterdir()] == [".tmp-"]
    unpacked = unpack(store, name, folder)
    assert read(unpacked) == read(example)
    assert list(folder.iterdir()) == [unpacked]


def test_a_restarted_machine_unpacks_anew(
    packed: tuple[MemoryStore, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = unpack(*packed, tmp_path / "trial")
    (before / "data.csv").write_bytes(b"")  # as a power cut may leave it
    monkeypatch.setattr(definition, "machine", lambda: "0123abcd")
    assert (unpack(*packed, tmp_path / "trial") / "data.csv").read_bytes() == b"a,b\n1,2\n"


def test_a_definition_that_is_not_there_or_was_changed(
    packed: tuple[MemoryStore, str], example: Path, tmp_path: Path
) -> None:
    store, name = packed
    assert places_of("Trial", store, name) == ["model_def.py, line 1"]
    with pytest.raises(NotFoundError, match=re.escape(f"definition/{'0' * 64}.tar")):
        unpack(store, "0" * 64, tmp_path / "trial")
    whole = store.get(f"definition/{name}.tar")
    advice = (
        ": it was changed or cut off. Create the experiment again from its directory, which stores it anew."
    )
    where = f"{store.url}/definition/{name}.tar"
    for changed, problem in [
        (whole.replace(b"1,2", b"1,3"), "does not have the digest that names it"),
        (whole[: len(whole) // 2], "is no whole tar file of a model definition"),
        (whole[:512], ""),
        (b"no tar", "is no whole tar file of a model definition"),
        (b"", "is no whole tar file of a model definition"),
    ]:
        store.put(f"definition/{name}.tar", changed)
        for read in (
            lambda: unpack(store, name, tmp_path / "trial"),
            lambda: places_of("Trial", store, name),
        ):
            with pytest.raises(CorruptError) as caught:
                read()
            assert str(caught.value).startswith(f"{where} {problem}")
            assert str(caught.value).endswith(advice)
        assert list((tmp_path / "trial").iterdir()) == []
        # The advice, without deleting it.
        assert pack(example, store).digest == name
        assert store.get(f"definition/{name}.tar") == whole


def archive(*members: tuple[str, bytes, str]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, target in members:
            header = tarfile.TarInfo(name)
            header.type, header.linkname = kind, target
            tar.addfile(header)
    return file.getvalue()


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        (("../evil", tarfile.REGTYPE, ""), "'../evil' leaves the directory"),
        (("a/../../evil", tarfile.REGTYPE, ""), "'a/../../evil' leaves the directory"),
        (("/evil", tarfile.REGTYPE, ""), "'/evil' leaves the directory"),
        (("..", tarfile.DIRTYPE, ""), "'..' leaves the directory"),
        (("a", tarfile.SYMTYPE, "/etc"), "'/etc' leaves the directory"),
        (("a/b", tarfile.SYMTYPE, "../../c"), "leaves the directory"),
        (("a", tarfile.LNKTYPE, "../../etc/passwd"), "b'1'"),
        (("a", tarfile.CHRTYPE, ""), "b'3'"),
        (("a", tarfile.FIFOTYPE, ""), "b'6'"),
    ],
)
def test_no_member_leaves_the_directory(member: tuple[str, bytes, str], problem: str, tmp_path: Path) -> None:
    store = MemoryStore()
    store.put(f"definition/{'0' * 64}.tar", archive(member))
    with pytest.raises(CorruptError, match=re.escape(problem)):
        unpack(store, "0" * 64, tmp_path / "trial")
    assert [path.name for path in tmp_path.iterdir()] == ["trial"]
    assert list((tmp_path / "trial").iterdir()) == []


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    store = MemoryStore()
    evil = digest(b"", "hopyard.definition")
    index = [["b", "directory", ""], ["a", "link", "b"], ["a/evil", "file", False, evil]]
    name = digest_json(index, "hopyard.definition")
    members = (("b", tarfile.DIRTYPE, ""), ("a", tarfile.SYMTYPE, "b"), ("a/evil", tarfile.REGTYPE, ""))
    store.put(f"definition/{name}.tar", archive(*members))
    with pytest.raises(StorageError):
        unpack(store, name, tmp_path / "trial")
    assert list((tmp_path / "trial").iterdir()) == []


def test_names_that_a_file_system_takes_for_one_overwrite_nothing(tmp_path: Path) -> None:
    """The same name twice stands for ``Model.py`` and ``model.py`` where case does not count."""
    store, empty = MemoryStore(), digest(b"", "hopyard.definition")
    name = digest_json([["model.py", "file", False, empty]] * 2, "hopyard.definition")
    store.put(f"definition/{name}.tar", archive(*[("model.py", tarfile.REGTYPE, "")] * 2))
    with pytest.raises(UsageError) as caught:
        unpack(store, name, tmp_path / "trial")
    assert str(caught.value) == (
        f"the file system of {tmp_path}/trial takes 'model.py' and another name of the model definition for one, maybe "
        "since it does not tell upper from lower case. Rename one of them and create the experiment again, or have "
        "trials work in another file system."
    )
    assert list((tmp_path / "trial").iterdir()) == []


def test_a_folder_that_cannot_be_made(packed: tuple[MemoryStore, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidNameError, match=f"{tmp_path}/file is a file"):
        unpack(*packed, tmp_path / "file" / "trial")
