"""Whatever happens to the index, objects are found: it costs time only."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from hopyard.stockroom.packfiles import Objects
from hopyard.storage import LocalStore, temporary

Write = Callable[..., list[str]]


def other_format(index: Path) -> None:
    with sqlite3.connect(index) as db:
        db.execute("PRAGMA user_version = 99")
        db.execute("DROP TABLE objects")
    db.close()


def lost_table(index: Path) -> None:
    with sqlite3.connect(index) as db:
        db.execute("DROP TABLE packfiles")
    db.close()


def wrong_rows(index: Path) -> None:
    """What a flipped bit does where SQLite does not see it."""
    with sqlite3.connect(index) as db:
        db.execute("UPDATE objects SET start = start + 1, stop = stop + 1")
        db.execute(
            "UPDATE objects SET digest = zeroblob(32) WHERE digest = (SELECT max(digest) FROM objects)"
        )
    db.close()


def other_kinds(index: Path) -> None:
    with sqlite3.connect(index) as db:
        db.execute("UPDATE objects SET kind = 'json'")
    db.close()


def nonsense_in_rows(index: Path) -> None:
    with sqlite3.connect(index) as db:
        db.execute("UPDATE objects SET start = 'x', kind = x'ff', shape = 'y'")
    db.close()


def beyond_the_end(index: Path) -> None:
    with sqlite3.connect(index) as db:
        db.execute("UPDATE objects SET start = -5, stop = 1 << 40")
    db.close()


def only_zeros(index: Path) -> None:
    index.write_bytes(bytes(index.stat().st_size))


def text(index: Path) -> None:
    index.write_bytes(b"this is no database" * 1000)


def cut_off(index: Path) -> None:
    os.truncate(index, index.stat().st_size // 2)


def damaged_pages(index: Path) -> None:
    content = bytearray(index.read_bytes())
    content[4096:] = bytes(byte ^ 0x5A for byte in content[4096:])
    index.write_bytes(content)


def empty(index: Path) -> None:
    index.write_bytes(b"")


def gone(index: Path) -> None:
    index.unlink()


def directory(index: Path) -> None:
    index.unlink()
    index.mkdir()


DAMAGES = [
    other_format, lost_table, wrong_rows, other_kinds, nonsense_in_rows, beyond_the_end, only_zeros, text, cut_off,
    damaged_pages, empty, gone, directory,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_open", [False, True], ids=["opened later", "open"])
def test_a_damaged_index_is_made_anew(
    local: LocalStore, index: Path, write: Write, damage: Callable[[Path], None], is_open: bool
) -> None:
    objects = Objects(local, index)
    contents = [bytes([n]) * n for n in range(100)]
    names = write(objects, *contents) + write(objects, b"fragment", kind="fragment")
    damage(index)
    if not is_open:
        objects = Objects(local, index)
    found = objects.read_many(names)
    assert [found[name].tobytes() for name in names] == [*contents, b"fragment"]
    (new,) = write(objects, b"new")
    assert Objects(local, index).missing([*names, new]) == set()
    assert Objects(local, index).read(new).tobytes() == b"new"


def test_a_row_of_another_packfile_says_nothing(local: LocalStore, index: Path, write: Write) -> None:
    """After a crash of the machine old pages of the file may stand beside new ones."""
    objects = Objects(local, index)
    (lost,) = write(objects, b"lost")
    (here,) = write(objects, b"here")
    packfile = objects.locate(lost).packfile
    local.delete(packfile)
    with sqlite3.connect(index) as db:
        db.execute(
            "UPDATE objects SET packfile = (SELECT number FROM packfiles WHERE name != ?)", (packfile,)
        )
    db.close()
    assert Objects(local, index).packed([lost, here]).keys() == {here}
    assert Objects(local, index).missing([lost, here]) == {lost}


def test_many_lookups_open_no_headers(
    local: LocalStore, index: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write(Objects(local, index), *(n.to_bytes(4, "big") for n in range(3000)))
    monkeypatch.setattr("hopyard.stockroom.packfiles.objects.read_packfile", None)
    monkeypatch.setattr(LocalStore, "list", None)
    assert Objects(local, index).missing(names) == set()


def test_a_repository_that_is_read_only_is_read(
    local: LocalStore, index: Path, write: Write, tmp_path: Path
) -> None:
    (first,) = write(Objects(local, index), b"first")
    (second,) = write(Objects(local), b"second")  # not in the index
    if os.geteuid() == 0:  # root may write everywhere, but not into the null device's directory
        index = Path("/proc/self/index.sqlite")
    else:
        index.chmod(0o444)
        index.parent.chmod(0o555)
    try:
        objects = Objects(local, index)
        assert objects.read(first).tobytes() == b"first"
        assert objects.read(second).tobytes() == b"second"
        assert objects._index.path is None
    finally:
        local.path("x").parent.chmod(0o755)


def test_an_index_that_another_process_holds_is_done_without(
    local: LocalStore, index: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopyard.stockroom.packfiles.index._BUSY", 0.01)
    (first,) = write(Objects(local, index), b"first")
    holder = sqlite3.connect(index, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    objects = Objects(local, index)
    assert objects.read(first).tobytes() == b"first"
    (second,) = write(objects, b"second")
    holder.close()
    assert Objects(local, index).missing([first, second]) == set()


def add_many(store: LocalStore, index: Path, number: int) -> None:
    for n in range(10):
        with Objects(store, index).writing() as writer:
            names = [writer.add_json([number % 2, n]), writer.add("fragment", bytes([number, n]))]
        assert Objects(store, index).missing(names) == set()


@pytest.mark.parametrize(("method", "count"), [("fork", 4), ("spawn", 2)])
def test_many_processes_share_an_index(local: LocalStore, index: Path, method: str, count: int) -> None:
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=add_many, args=(local, index, number)) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * count
    objects, plain = Objects(local, index), Objects(local)
    plain.refresh()
    assert objects._index.packfiles() == plain._index.packfiles()
    assert objects._index.path == index
    with sqlite3.connect(index) as db:
        names = [key.hex() for (key,) in db.execute("SELECT DISTINCT digest FROM objects")]
    db.close()
    assert len(names) == 2 * 10 + count * 10
    assert len(objects.read_many(names)) == len(plain.read_many(names)) == len(names)


def test_any_mixture_of_old_and_new_pages_that_a_power_cut_leaves_is_found_out_after_the_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, index = LocalStore(tmp_path / "room"), tmp_path / "index.sqlite"
    objects = Objects(store, index)
    names: list[str] = []
    for number in range(3):
        with objects.writing() as writer:
            names.append(writer.add("json", b"%d" % number))
    before = index.read_bytes()
    data = {name: bytes(objects.read(name)) for name in names}
    old = [entry.name for entry in store.list("packfiles")]
    with objects.writing() as writer:
        for content in data.values():
            writer.add("page", content + b" again")
    with Objects(store).writing() as writer:
        for content in data.values():
            writer.add("json", content + b" ")
    moved = Objects(LocalStore(tmp_path / "other"))
    with moved.writing() as writer:
        for content in data.values():
            writer.add("json", content)
    for entry in list(moved.store.list("packfiles")):
        store.put(entry.name, moved.store.get(entry.name))
    for name in old:
        store.delete(name)
    objects.refresh()
    after = index.read_bytes()
    pages = range(0, len(after), 4096)
    monkeypatch.setattr(temporary, "machine", lambda: "00000001")
    for mixture in itertools.product([before, after], repeat=len(pages)):
        mixed = b"".join(part[page : page + 4096] for part, page in zip(mixture, pages, strict=True))
        index.write_bytes(mixed)
        found = Objects(store, index)
        assert {name: bytes(found.read(name)) for name in names} == data
