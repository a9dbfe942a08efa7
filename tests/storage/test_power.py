"""What a directory holds after power cuts; that the record of a disk is whole, and finds what is not synced."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.power import SECTOR, Cuts, Disk, Tree, recording, scratch_disk

import hopyard
from hopyard.errors import NotFoundError
from hopyard.storage import LocalStore, Store, files

SOURCE = Path(hopyard.__file__).parent


# The states of a disk


def states(changes: list[tuple[Any, ...]]) -> list[Tree]:
    """All different states after these changes."""
    disk = Disk()
    for change in changes:
        disk.apply(change)
    found: list[Tree] = []
    for number in range(disk.count):
        if (state := disk.state(number)) not in found:
            found.append(state)
    return found


NEW = [("name", "a", 1), ("write", 1, 0, b"x" * 600)]


def test_of_a_file_that_was_not_synced_any_part_may_be_there() -> None:
    torn = b"x" * SECTOR
    assert sorted(map(repr, states([*NEW, ("sync directory", "")]))) == sorted(
        map(repr, [{"a": each} for each in (b"", b"x" * 600, bytes(600), torn, torn + bytes(88))])
    )


def test_of_a_synced_file_only_the_name_may_be_lost() -> None:
    assert states([*NEW, ("sync", 1)]) == [{}, {"a": b"x" * 600}]
    assert states([*NEW, ("sync", 1), ("sync directory", "")]) == [{"a": b"x" * 600}]


def test_names_are_kept_and_lost_apart_from_each_other() -> None:
    renamed = [*NEW, ("sync", 1), ("sync directory", ""), ("name", "b", 1), ("unname", "a")]
    data = b"x" * 600
    assert sorted(map(repr, states(renamed))) == sorted(
        map(repr, [{}, {"a": data}, {"b": data}, {"a": data, "b": data}])
    )
    assert states([*renamed, ("sync directory", "")]) == [{"b": data}]


def test_a_directory_whose_name_is_lost_takes_what_is_in_it_along() -> None:
    changes = [("directory", "d"), ("name", "d/a", 1), ("sync", 1), ("sync directory", "d")]
    assert states(changes) == [{}, {"d": {"a": b""}}]


def test_each_state_is_looked_at_and_none_twice() -> None:
    changes = [
        ("directory", "d"),
        *(("name", f"d/{n}", n) for n in range(4)),
        *(("sync", n) for n in range(4)),
    ]
    gone = [
        *changes,
        ("sync directory", "d"),
        ("sync directory", ""),
        *(("unname", f"d/{n}") for n in range(4)),
    ]
    assert len(states(gone)) == 16
    assert len(states([*gone, ("unname", "d")])) == 17


def test_a_directory_that_is_made_anew_has_nothing_of_the_old_one() -> None:
    changes = [("directory", "d"), ("name", "d/a", 1), ("sync", 1), ("unname", "d/a"), ("unname", "d")]
    found = states([*changes, ("sync directory", ""), ("directory", "d"), ("sync directory", "")])
    assert found == [{"d": {}}]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["write", "truncate", "sync"]), st.integers(0, 3000), st.binary(max_size=1500)
        ),
        max_size=6,
    ),
    st.integers(0, 1 << 30),
)
def test_each_sector_of_a_drawn_state_is_one_that_was_there_since_the_last_sync(
    changes: list[tuple[str, int, bytes]], seed: int
) -> None:
    disk, now = Disk(), bytearray()
    disk.apply(("name", "a", 1))
    disk.apply(("sync directory", ""))
    past = [b""]
    for action, place, data in changes:
        if action == "write":
            disk.apply(("write", 1, place, data))
            now[len(now) :] = bytes(max(0, place + len(data) - len(now)))
            now[place : place + len(data)] = data
        elif action == "truncate":
            disk.apply(("truncate", 1, place))
            now = now[:place] + bytes(max(0, place - len(now)))
        else:
            disk.apply(("sync", 1))
            past.clear()
        past.append(bytes(now))
    assert disk.newest() == {"a": bytes(now)}
    for number in range(20):
        [left] = disk.drawn(f"{seed} {number}").values()
        assert isinstance(left, bytes)
        for start in range(0, len(left), SECTOR):
            sector = left[start : start + SECTOR]
            allowed = {each[start : start + SECTOR].ljust(SECTOR, b"\0")[: len(sector)] for each in past}
            assert sector in allowed | {bytes(len(sector))}


# The layer


PAST_THE_LAYER = {
    "backend/_engine.py": "pipes", "backend/output.py": "pipes", "backend/testing.py": "a suite",
    "data/cache/files.py": "a file is opened to be locked, and only removed",
    "data/files/fetching.py": "memory that is a file, without a name",
    "data/frames/spark_exchange.py": "rows on their way from Spark, needed while the program runs",
    "data/preparing/write.py": "a temporary folder, from which files are sent to a store without directories",
    "data/sources/base.py": "the path of the temporary folder",
    "data/sources/collect.py": "rows that do not fit into memory, in a file without a name",
    "experiment/definition.py": "working folders of trials, unpacked anew after each boot",
    "experiment/downloads.py": "downloads, whose checksums are looked at after each boot",
    "cli/experiment.py": "a file for users",
    "experiment/checkpoints.py": "copies for users, outside of the store",
    "experiment/driver.py": "output of a driver in the background, which nothing relies upon",
    "experiment/mounts.py": "empty places for mounts, of one trial",
    "experiment/namespace.py": "places for mounts, which are there for one process alone",
    "objects/lease.py": "a file is opened to be locked",
    "stockroom/catalog/exporting.py": "copies for users, outside of the stockroom",
    "stockroom/catalog/replacing.py": "copies for users, outside of the stockroom",
    "stockroom/data/datasets.py": "a temporary copy that is read once",
    "stockroom/data/repacking.py": "a temporary store, from which a file is sent to a bucket",
    "stockroom/git/driver.py": "a line in the user's .gitattributes, which git keeps",
    "stockroom/history/locks.py": "a file is opened to be locked, and only removed",
    "stockroom/importers/arrays.py": "temporary files of an import, gone at its end",
    "stockroom/importers/base.py": "temporary files of an import, gone at its end",
    "stockroom/importers/download.py": "downloads, whose digests are looked at when they are used",
    "stockroom/importers/parcels.py": "temporary files of an import, gone at its end",
    "stockroom/importers/parts.py": "temporary files of an import, gone at its end",
    "stockroom/importers/run.py": "temporary files of an import, gone at its end",
    "stockroom/importers/testing.py": "a suite",
    "stockroom/models/safetensors.py": "a copy for users, outside of the stockroom",
    "stockroom/packfiles/index.py": "SQLite writes it; whatever happens to it, it is made anew",
    "stockroom/packfiles/writer.py": "a temporary folder, from which files are sent to a store without directories",
    "stockroom/remotes/transfer.py": "a temporary folder, from which files are sent to a store without directories",
    "storage/faults.py": "a mark of tests", "storage/testing.py": "a suite",
    "storage/hdfs.py": "the local file that was sent is removed",
    "storage/memory.py": "the local file that was taken is removed",
    "storage/object.py": "the local file that was sent is removed",
    "storage/files.py": "the layer",
    "training/torch/export.py": "a copy for users", "tune/export.py": "a copy for users",
    "tune/observers.py": "the folder of logs, which nothing relies upon",
    "tune/pictures.py": "pictures for users", "tune/registering.py": "a temporary folder",
    "tune/predicting/spark.py": "a temporary file that is sent to workers",
    "tune/reproduce.py": "a temporary folder", "tune/stock.py": "a temporary folder",
    "tune/tensorboard.py": "logs, which nothing relies upon", "web/export.py": "a page for users",
    "training/torch/base.py": "values of a base, in a file without a name",
}  # fmt: skip
"""Files of the package that change the file system themselves, and why nothing is lost by that."""

OF_OS = {
    "copy_file_range", "fdatasync", "fsync", "ftruncate", "link", "makedirs", "mkdir", "posix_fallocate", "pwrite",
    "pwritev", "remove", "removedirs", "rename", "renames", "replace", "rmdir", "sendfile", "symlink", "truncate",
    "unlink", "write", "writev",
}  # fmt: skip
OF_PATHS = {
    "hardlink_to", "mkdir", "rename", "rmdir", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
SUSPICIOUS = re.compile(
    rf"\b({'|'.join(sorted(OF_OS | OF_PATHS | {'open'}))})\s*\(|\b(shutil|tempfile)\.|ACCESS_WRITE"
)
READING = {"shutil.which", "shutil.disk_usage", "shutil.get_terminal_size"}
NO_PATHS = {"column", "log", "draft.column(name)", "dataclasses"}
"""What has a method ``replace`` and is no path."""


def changes_of(code: str) -> Iterator[str]:
    """The calls of a file that change the file system past the layer."""
    if not SUSPICIOUS.search(code):
        return  # two files of three, which need not be parsed
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            given = [ast.unparse(each) for each in (*node.args, *(each.value for each in node.keywords))]
            if _is_change(call, given, len(node.args)):
                yield f"{call}({', '.join(given)})"


def _is_change(call: str, given: list[str], count: int) -> bool:
    of, _, name = call.rpartition(".")
    if of in ("files", "cache_files") or call in READING:
        return False
    if of == "os":
        return name in OF_OS or (name == "open" and bool(re.search("O_WRONLY|O_RDWR|O_CREAT", given[1])))
    if of in ("shutil", "tempfile") or "ACCESS_WRITE" in " ".join(given):
        return True
    if name == "replace":
        return bool(of) and of not in NO_PATHS and count == len(given) == 1
    if name == "open":
        return any(re.fullmatch(r"'[rbt+]*[wax+][rwaxbt+]*'", each) for each in given)
    return bool(of) and name in OF_PATHS


@pytest.mark.parametrize(
    "code",
    [
        "os.fsync(fd)", "os.open(path, os.O_RDWR)", "path.replace(other)", "path.open('ab')", "open(path, mode='w')",
        "path.touch()", "shutil.rmtree(folder)", "tempfile.mkdtemp()", "Path(a).unlink(missing_ok=True)",
    ],
)  # fmt: skip
def test_a_call_that_changes_files_is_seen(code: str) -> None:
    assert len(list(changes_of(code))) == 1


@pytest.mark.parametrize(
    "code", ["files.rename(a, b)", "'a'.replace('a', 'b')", "path.open('rb')", "os.stat(path)"]
)
def test_other_calls_are_none(code: str) -> None:
    assert list(changes_of(code)) == []


def test_what_is_relied_upon_is_written_by_one_layer() -> None:
    found = {
        path.relative_to(SOURCE).as_posix(): [*changes_of(path.read_text())] for path in SOURCE.rglob("*.py")
    }
    past = {name: calls for name, calls in found.items() if calls and name not in PAST_THE_LAYER}
    assert past == {}, "write by hopyard.storage.files, or say in PAST_THE_LAYER why nobody relies upon it"
    assert [name for name in PAST_THE_LAYER if not found[name]] == []


def test_the_record_notices_what_was_written_past_it() -> None:
    with scratch_disk() as root, recording(root) as record:
        LocalStore(root / "s").put("a", b"1")
        (root / "s" / "b").write_bytes(b"2")
        with pytest.raises(AssertionError):
            Cuts("past", record, 1, 1, 1)


# A directory as a store


def put(store: LocalStore) -> None:
    store.put("a/b", b"n" * 700)


def put_new(store: LocalStore) -> None:
    assert store.put_new("a/new", b"n" * 700)


def put_file(store: LocalStore) -> None:
    folder = store.staging()
    assert folder is not None
    with files.created(folder / "made") as fd:
        files.write_pieces(fd, [b"n" * 400, b"n" * 300])
    store.put_file("a/b", folder / "made")


def put_linked(store: LocalStore) -> None:
    """As a file of a user's is stored: by a second name for it."""
    folder = store.staging()
    assert folder is not None
    users = Path(store.url).with_name("users")
    users.write_bytes(b"n" * 700)
    files.link(users, folder / "made")
    store.put_file("deep/in/it", folder / "made")


def sync_later(store: LocalStore) -> None:
    store.unsynced().put("a/b", b"n" * 700)
    store.sync(["a/b"])


def delete(store: LocalStore) -> None:
    store.delete("a/b")
    store.sync_deleted(["a/b"])


def delete_with_the_directory(store: LocalStore) -> None:
    store.delete("a/b")
    files.remove_directory(f"{store.url}/a")
    store.sync_deleted(["a/b"])


def held(store: Store) -> dict[str, bytes]:
    return {entry.name: store.get(entry.name) for entry in store.list()}


@pytest.mark.parametrize(
    "work", [put, put_new, put_file, put_linked, sync_later, delete, delete_with_the_directory]
)
def test_after_a_power_cut_there_is_the_old_or_the_new_and_after_the_call_the_new(
    work: Callable[[LocalStore], None],
) -> None:
    with scratch_disk() as root:
        store = LocalStore(root / "s")
        with recording(root) as record:
            store.put("a/b", b"o" * 300)
            record.done()
            before = held(store)
            work(store)
            record.done()
            after = held(store)
            users = root / "users"
            users.unlink(missing_ok=True)  # it is the user's, and no store's

        def look(done: list[None], cut: Any) -> None:
            # What is written later, by `unsynced`, may be anything until it is synced.
            left = held(LocalStore(root / "s")) if (root / "s").exists() else {}
            may = [{}, before, after][len(done) : len(done) + 2] or [after]
            assert left in may or (work is sync_later and len(done) == 1 and left.keys() == before.keys())

        Cuts(work.__name__, record, 1000, 200, 2000).check(root, look)


@pytest.mark.parametrize("step", ["sync_file", "sync"])
def test_without_a_sync_a_write_that_returned_is_lost(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, step, lambda what: None)
    lost = False
    with scratch_disk() as root:
        store = LocalStore(root / "s")
        with recording(root) as record:
            store.put("a", b"new")
            record.done()

        def look(done: list[None], cut: Any) -> None:
            nonlocal lost
            try:
                lost = lost or bool(done and LocalStore(root / "s").get("a") != b"new")
            except NotFoundError:
                lost = lost or bool(done)

        Cuts("lost", record, 1000, 1000, 1000).check(root, look)
    assert lost


def test_a_failure_names_the_cut_the_seed_and_what_was_left() -> None:
    def look(done: list[None], cut: Any) -> None:
        raise ValueError("wrong")

    with scratch_disk() as root:
        with recording(root) as record:
            LocalStore(root / "s").put("a", b"new")
        with pytest.raises(ValueError, match="wrong") as caught:
            Cuts("failing", record, 1, 1, 1).check(root, look)
    [note] = caught.value.__notes__
    assert re.match(r"failing: Cut\(at=\d+, number=0\) \(HOPYARD_SEED=\d+\), after:", note)
