"""Verify: finds all that is wrong, says what needs it, and repairs it from a remote."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tests.stockroom.maintenance.histories import begun, full, reopened
from tests.stockroom.remotes.repositories import at, commit, content, root_of, samples, tip

from hopyard import StockRoom
from hopyard.errors import CorruptError, FormatError, NotFoundError, NotWritableError
from hopyard.stockroom.history.commits import write_commit
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.stockroom.history.stage import Stage
from hopyard.stockroom.maintenance import Verified, gc, verify
from hopyard.stockroom.maintenance.problems import Problem
from hopyard.stockroom.maintenance.roots import roots_of_store
from hopyard.stockroom.packfiles.layout import read_packfile
from hopyard.stockroom.records import ModelRecord
from hopyard.stockroom.remotes import (
    FetchSelection,
    KnownRemote,
    Repository,
    bring,
    fetch,
    needs,
    push,
    remember,
    select,
)
from hopyard.stockroom.views.view import Snapshot
from hopyard.storage import LocalStore, MemoryStore
from hopyard.storage.format import format_header, root_format


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that is copied before it is damaged."""
    folder = tmp_path_factory.mktemp("original")
    full(folder / "store", folder)
    return folder / "store"


@pytest.fixture
def repository(original: Path, tmp_path: Path) -> Repository:
    return at(Path(shutil.copytree(original, tmp_path / "copy")))


def folder_of(repository: Repository) -> Path:
    path = repository.store.path("packfiles")
    assert path is not None
    return path.parent


def packfiles(repository: Repository, group: str = "") -> list[Path]:
    return sorted((folder_of(repository) / "packfiles").glob(f"{group}*"))


def flip(file: Path, position: int) -> None:
    file.chmod(0o644)
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.unlink()  # not in place: what others linked stays
    file.write_bytes(data)


def check_repaired(repository: Repository, original: Path) -> None:
    """That it is repaired, and all that could be read can be read again."""
    report = verify(at(repository.store), repair_from=at(original, "origin"))
    assert report.problems
    assert report.ok, str(report)
    assert not verify(reopened(repository)).problems
    for branch in ("main", "dev"):
        assert content(reopened(repository), tip(repository, branch)) == content(
            at(original), tip(at(original), branch)
        )


def test_a_sound_repository_has_no_problems(repository: Repository) -> None:
    told: list[tuple[int, int]] = []
    report = verify(repository, progress=lambda done, total: told.append((done, total)))
    assert report.ok
    assert not report.problems
    assert report.commits == 5
    assert report.objects > 20
    assert told[-1][0] == told[-1][1] > 1_000_000
    assert "5 commits are whole; no problems" in str(report)


def test_a_walk_reaches_what_a_transfer_needs(repository: Repository) -> None:
    roots = roots_of_store(repository.store)
    walk = roots.walk(repository.objects)
    named = {need.digest: (need.kind, need.thing) for need in needs(repository.objects, roots.commits)}
    assert {digest: (one.kind, one.thing) for digest, one in walk.found.items()} == named
    assert not walk.failures
    (image,) = [
        name for name, one in walk.found.items() if one.thing == "data/image" and one.kind == "fragment"
    ][:1]
    assert walk.needed_by(image).startswith("data/image[0..")
    assert " of the commit " in walk.needed_by(image)


@pytest.mark.long
@given(st.data())
def test_whatever_byte_is_flipped_is_found_and_repaired(
    original: Path, tmp_path: Path, data: st.DataObject
) -> None:
    folder = tmp_path / "flipped"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)
    files = sorted([*(folder / "packfiles").iterdir(), *(folder / "files").iterdir()])
    file = data.draw(st.sampled_from(files))
    flip(file, data.draw(st.integers(0, file.stat().st_size - 1)))
    report = verify(at(folder))
    assert f"{file.parent.name}/{file.name}" in {problem.name for problem in report.problems}
    assert not report.ok
    check_repaired(at(folder), original)


def test_a_byte_in_each_kind_of_object_is_found_with_what_needs_it(repository: Repository) -> None:
    found = set()
    for file in packfiles(repository):
        packfile = read_packfile(repository.store, f"packfiles/{file.name}", file.stat().st_size)
        for place in packfile.objects.values():
            if place.stop > place.start and place.kind not in found:
                found.add(place.kind)
                flip(file, place.start)
                report = verify(at(repository.store))
                flip(file, place.start)
                (problem,) = [one for one in report.problems if one.kind == "damaged"]
                assert f"the {place.kind} " in problem.reason
                assert " of the commit " in problem.needed_by or "the commit" in problem.needed_by
    assert found == {"commit", "page", "json", "fragment", "tensor"}
    (artifact,) = (folder_of(repository) / "files").iterdir()
    flip(artifact, 0)
    (problem,) = verify(at(repository.store)).problems
    assert str(problem).startswith(
        f"files/{artifact.name}: the file has changed; needed by run/first of the commit "
    )


@pytest.mark.long
@pytest.mark.parametrize("kept", [0, 4, 300, -1])
@pytest.mark.parametrize("group", ["data", "meta"])
def test_packfiles_that_are_cut_off_are_repaired(
    repository: Repository, original: Path, group: str, kept: int
) -> None:
    for file in packfiles(repository, group):
        file.write_bytes(file.read_bytes()[:kept])
    assert not verify(at(repository.store)).ok
    check_repaired(repository, original)


@pytest.mark.parametrize("group", ["data", "meta", ""])
def test_packfiles_that_are_gone_are_fetched(repository: Repository, original: Path, group: str) -> None:
    for file in packfiles(repository, group):
        file.unlink()
    report = verify(at(repository.store))
    assert {problem.kind for problem in report.problems} <= {"missing", "index"}
    assert any(problem.kind == "missing" and problem.needed_by for problem in report.problems)
    check_repaired(repository, original)


def test_all_damage_is_reported_not_the_first_only(repository: Repository) -> None:
    for file in packfiles(repository, "data"):
        flip(file, file.stat().st_size - 1)
    repository.store.put("refs/heads/broken/000000000001", b"nothing")
    repository.references.set("heads/away", "a" * 64, "Ada")
    repository.store.put("stage/main/none/000000000001", b"nothing")
    repository.store.put("remotes/origin", b"nothing")
    repository.store.put(f"tombstones/{'b' * 64}/{'c' * 64}", b"nothing")
    report = verify(at(repository.store))
    names = {problem.name for problem in report.problems}
    assert {f"packfiles/{file.name}" for file in packfiles(repository, "data")} <= names
    assert {
        "refs/heads/broken/000000000001",
        "a" * 64,
        "stage/main/none/000000000001",
        "remotes/origin",
    } <= names
    assert f"tombstones/{'b' * 64}/{'c' * 64}" in names
    (away,) = [problem for problem in report.problems if problem.name == "a" * 64]
    assert away.needed_by == f"the commit {'a' * 12}, to which heads/away leads"


def test_many_problems_are_shown_as_the_first_ones_and_printed_whole() -> None:
    problems = [Problem("missing", f"{number}", "is \x1b[2Jgone") for number in range(100_000)]
    verified = Verified(problems, objects=3, nbytes=2000, commits=1)
    lines = repr(verified).split("\n")
    assert lines[0] == r"0: is \x1b[2Jgone"
    assert lines[30:] == ["and 99,970 more", "3 objects (2 kB) of 1 commit are whole; 100,000 problems"]
    assert len(str(verified).split("\n")) == 100_001
    assert repr(Verified()) == str(Verified()) == "0 objects (0 B) of 0 commits are whole; no problems"


def test_a_gap_in_a_log_is_found(repository: Repository) -> None:
    (folder_of(repository) / "refs/heads/main/000000000002").unlink()
    (problem,) = verify(repository).problems
    assert problem.name == "refs/heads/main/000000000002"
    assert "this entry of heads/main is missing" in problem.reason
    assert verify(repository, repair=True).ok
    assert not verify(repository).problems


def test_two_roots_and_detached_commits_are_no_damage(tmp_path: Path) -> None:
    repository = begun(tmp_path)
    commit(repository, values={"a": 1})
    commit(repository, "other", values={"b": 1})
    repository.references.set("worktrees/main", tip(repository, "other"), "Ada")
    commit(repository, "main", merged=tip(repository, "other"))
    repository.references.set("heads/other", None, "Ada")
    commit(repository, "third", values={"c": 1})
    repository.references.set("heads/third", None, "Ada")  # nothing leads to its commit
    report = verify(repository)
    assert not report.problems
    assert report.commits == 3


def test_a_wrong_index_is_made_anew(repository: Repository) -> None:
    list(repository.objects.packed([tip(repository)]))
    first, *_ = packfiles(repository, "meta")
    packfile = read_packfile(repository.store, f"packfiles/{first.name}", first.stat().st_size)
    moved = {digest: place._replace(start=place.start + 1) for digest, place in packfile.objects.items()}
    repository.objects._index.remove([packfile.name])
    repository.objects._index.add([packfile._replace(objects=moved)])
    (problem,) = verify(repository).problems
    assert (problem.kind, problem.name, problem.repaired) == ("index", packfile.name, True)
    assert not verify(repository).problems


def test_what_is_staged_is_needed(repository: Repository) -> None:
    stage = Stage(repository.store, "main", tip(repository))
    record = ModelRecord("d" * 64, 1).to_json()
    stage.append(WriteOperation(things=(("model", "net", record),)).encode())
    (problem,) = verify(repository).problems
    assert problem.kind == "missing"
    assert problem.needed_by == f"model/net of stage/main/{tip(repository)}/000000000001"


def test_data_that_only_a_remote_has_is_counted(original: Path, tmp_path: Path) -> None:
    clone = begun(tmp_path / "clone")
    remember(clone.store, KnownRemote("origin", str(original)))
    origin = at(original, "origin")
    fetched = fetch(clone, origin)
    report = verify(clone)
    assert not report.problems
    assert report.elsewhere > 4
    assert f"{report.elsewhere} objects are only at a remote" in str(report)
    clone.references.set(
        "heads/main", tip(origin), "Ada"
    )  # as a clone does: a branch of its own at that commit
    clone.references.set("tags/v1", tip(origin), "Ada")
    assert verify(clone) == report
    bring(clone, [origin], select(clone.objects, fetched.heads.values(), FetchSelection(True, history=True)))
    assert verify(clone).elsewhere < report.elsewhere
    clone.references.set("heads/mine", tip(origin), "Ada")
    made = commit(clone, "mine", extra=samples(1))
    for file in (tmp_path / "clone/packfiles").glob("data-*"):
        if read_packfile(clone.store, f"packfiles/{file.name}", file.stat().st_size).objects.keys() & {
            need.digest for need in needs(clone.objects, [made], [tip(origin)])
        }:
            file.unlink()
    report = verify(clone)
    assert [problem.kind for problem in report.problems if problem.kind != "index"] == ["missing"]


def test_a_repository_that_is_read_only_is_verified_and_gc_does_not_wait(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def refuse(path: str | Path, flags: int, *mode: int) -> int:
        if Path(path).name == "gc.lock":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return really(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    assert verify(repository).ok
    with pytest.raises(NotWritableError, match=r"gc\.lock cannot be written: Read-only file system"):
        verify(repository, repair_from=repository)
    told: list[str] = []
    with pytest.raises(NotWritableError, match=r"gc\.lock cannot be written: Read-only file system"):
        gc(repository, tell=told.append)
    assert not told  # that it waits


def test_packfiles_are_what_safetensors_reads(repository: Repository, tmp_path: Path) -> None:
    for file in packfiles(repository):
        with safe_open(file, "np") as opened:
            assert opened.keys()
    broken = packfiles(repository, "data")[0]
    data = broken.read_bytes()
    broken.write_bytes(data + b"more")
    report = verify(at(repository.store))
    assert any("its header says" in problem.reason for problem in report.problems)


def test_what_a_damaged_packfile_still_has_is_kept(repository: Repository) -> None:
    """Also without a remote that has the rest: the bytes are set aside, never deleted."""
    file = max(packfiles(repository, "data"), key=lambda one: one.stat().st_size)
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    report = verify(at(repository.store), repair_from=at(MemoryStore(), "empty", index=False))
    assert not report.ok
    assert (folder_of(repository) / "damaged/packfiles" / file.name).read_bytes() == damaged
    left = verify(at(repository.store))
    assert {problem.kind for problem in left.problems} == {"missing"}
    assert len(left.problems) == 1


def test_what_is_no_repository_or_a_newer_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no stockroom at"):
        verify(at(tmp_path / "nothing"))
    store = LocalStore(tmp_path / "newer")
    store.put("FORMAT", root_format({"hopyard": "9.0", "kind": "stockroom", "version": 99, "flags": []}))
    with pytest.raises(FormatError, match=r"hopyard>=9\.0"):
        verify(at(store))


def test_a_remote_in_memory_is_verified_too(repository: Repository) -> None:
    remote = at(MemoryStore(), "origin", index=False)
    push(repository, remote, ["main", "dev"], ["v1"])
    assert not verify(remote).problems


def test_a_model_whose_tensors_are_others_than_it_says_is_found(tmp_path: Path) -> None:
    repository = begun(tmp_path / "own")
    made = commit(repository, models={"net": {"w": np.zeros((2, 3), np.float32)}})
    record = Snapshot(repository.objects, root_of(repository, made), made).record("model", "net")
    assert isinstance(record, ModelRecord)
    value = repository.objects.json(record.tree)
    value["tensors"][0][2] = [3, 2]  # as whoever can make objects may write it
    with repository.objects.writing() as writer:
        tree = writer.add_json(value)
    draft = Draft(repository.objects, root_of(repository, made))
    draft.set("model", "net", ModelRecord(tree, record.nbytes))
    root = draft.flush()
    with repository.objects.writing() as writer:
        wrong = write_commit(writer, root, [made], "wrong", "Mallory").digest
    draft.release()
    repository.references.set("heads/main", wrong, "Mallory")
    (problem,) = verify(reopened(repository)).problems
    assert (problem.kind, problem.name) == ("unreadable", tree)
    assert problem.reason == "'w' of model/net is said to be F32 of shape (3, 2), but is F32 of shape (2, 3)"
    assert f"model/net of the commit {wrong[:12]}" in problem.needed_by


def test_a_damaged_packfile_is_named_once_and_verify_does_not_advise_itself(repository: Repository) -> None:
    file = packfiles(repository, "data")[0]
    flip(file, 20)
    (problem, *_) = [one for one in verify(repository).problems if one.name == f"packfiles/{file.name}"]
    assert str(problem).startswith(f"packfiles/{file.name}: its header has another digest than its name says")
    assert str(problem).count(file.name) == 1
    assert "hopyard stock verify`" not in problem.reason


def test_data_of_a_tag_are_missed_unless_a_remote_has_the_tag(tmp_path: Path) -> None:
    """What the index remembers of packfiles is lost with them."""
    root, remote = tmp_path / "work", tmp_path / "remote"
    stock = StockRoom.init(root)
    with stock.enable_write("first"):
        stock.data["x"] = np.arange(5)
    stock.push(remote)
    with stock.enable_write("second"):
        stock.data["y"] = np.arange(7)
    stock.tag("own")
    stock.reset("HEAD~1")
    stock.close()
    shutil.copytree(root, tmp_path / "copy")
    for work in (root, tmp_path / "copy"):
        if work != root:
            with StockRoom(work, enable_write=True) as copy:
                assert copy.push(tags=["own"]).tags
        for file in work.glob(".hopyard/packfiles/data-*"):
            file.unlink()
        for file in work.glob(".hopyard/index.sqlite*"):
            file.unlink()
    report = StockRoom.verify_in(root)
    assert {problem.kind for problem in report.problems} == {"missing"}
    assert "data/y" in report.problems[0].needed_by
    for work in (tmp_path / "copy", StockRoom.clone(remote, tmp_path / "clone").place.root):
        report = StockRoom.verify_in(work)
        assert report.ok
        assert report.elsewhere


@pytest.mark.parametrize("kind", ["stocjroom", "dataset"])
def test_a_format_of_another_kind_where_a_stockroom_is_is_written_anew(tmp_path: Path, kind: str) -> None:
    with StockRoom.init(tmp_path) as stock, stock.enable_write():
        stock.experiment["x"] = 1
    file = tmp_path / ".hopyard" / "FORMAT"
    good = file.read_bytes()
    file.write_bytes(root_format(format_header(kind)))
    with pytest.raises(CorruptError, match=f"holds a {kind}.*so its file FORMAT is damaged.*verify --repair"):
        StockRoom(tmp_path)
    assert [problem.name for problem in StockRoom.verify_in(tmp_path).problems] == ["FORMAT"]
    StockRoom.verify_in(tmp_path, repair=True)
    assert file.read_bytes() == good
    with StockRoom(tmp_path) as stock:
        assert stock.experiment["x"] == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"version": 1', b'"version": 3'), (b"stockroom", b"stocjroom"), (b"[]", b"{}"), (b"\n", b"\r")],
)
def test_a_flipped_byte_of_format_is_damage_and_no_newer_version(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    with StockRoom.init(tmp_path) as stock, stock.enable_write():
        stock.experiment["x"] = 1
    file = tmp_path / ".hopyard" / "FORMAT"
    good = file.read_bytes()
    file.write_bytes(good.replace(old, new))
    with pytest.raises(CorruptError, match=r"FORMAT .*hopyard stock verify --repair"):
        StockRoom(tmp_path)
    report = StockRoom.verify_in(tmp_path)
    assert [problem.name for problem in report.problems] == ["FORMAT"]
    assert not report.ok
    assert StockRoom.verify_in(tmp_path, repair=True).ok
    assert file.read_bytes() == good
    with StockRoom(tmp_path) as stock:
        assert stock.experiment["x"] == 1


@pytest.mark.parametrize("name", ["main.lock", "main.moving.lock"])
def test_a_folder_in_the_place_of_a_lock_is_named_and_deleted(tmp_path: Path, name: str) -> None:
    with StockRoom.init(tmp_path) as stock, stock.enable_write():
        stock.experiment["x"] = 1
    with StockRoom(tmp_path, enable_write=True) as stock:
        stock.experiment["y"] = 2
    lock = tmp_path / ".hopyard" / "stage" / name
    lock.unlink(missing_ok=True)
    lock.mkdir()
    (problem,) = StockRoom.verify_in(tmp_path).problems
    assert problem.name == f"stage/{name}"
    assert "it is a folder, and should be the file of a lock" in problem.reason

    def write() -> None:
        with StockRoom(tmp_path, enable_write=True) as stock:
            stock.experiment["z"] = 3
            stock.commit("z")

    with pytest.raises(CorruptError, match="is a folder, and should be the file of a lock"):
        write()
    with StockRoom(tmp_path) as stock, pytest.raises(CorruptError, match="should be the file of a lock"):
        stock.gc()
    StockRoom.verify_in(tmp_path, repair=True)
    assert StockRoom.verify_in(tmp_path).ok
    with StockRoom(tmp_path, enable_write=True) as stock:
        assert stock.experiment["y"] == 2
    write()
