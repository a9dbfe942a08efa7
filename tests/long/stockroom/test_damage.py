"""What is broken is told, by name, and breaks nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.long.stockroom.crashes import dying
from tests.long.stockroom.model import content
from tests.sampling import SEED, by_level

from hopyard import StockRoom
from hopyard.errors import (
    CorruptError,
    HopyardError,
    NotFoundError,
    StorageError,
    StorageFullError,
    UsageError,
)
from hopyard.stockroom.git import read
from hopyard.storage import LocalStore
from hopyard.storage.faults import Fault, FaultyStore


@pytest.fixture
def folder(stock: StockRoom) -> Path:
    """Where the objects are."""
    with stock.enable_write():
        stock.data["x"] = np.arange(3000)
        stock.experiment["lr"] = 1
    with stock.enable_write():
        stock.data["x"][0] = np.array(7)
    stock.tag("v1")
    return stock.place.objects


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    replace(path, bytes(data))


def truncate(path: Path) -> None:
    replace(path, path.read_bytes()[:-100])


def flip_all(path: Path) -> None:
    """A bit at each of some hundred places."""
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), max(1, len(data) // 100)):
        data[at] ^= 4
    replace(path, bytes(data))


def clear_the_end(path: Path) -> None:
    """SQLite sees nothing wrong in a page without some rows."""
    data = path.read_bytes()
    replace(path, data[:-1000] + bytes(1000))


def swap(path: Path) -> None:
    replace(path, b"PK\x03\x04 this is an archive of something else" * 10)


def replace(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def told(root: Path) -> str:
    """What is said of the damage, by opening or by verifying."""
    try:
        with StockRoom(root) as damaged:
            return "".join(map(str, damaged.verify().problems))
    except HopyardError as error:
        return str(error)


def read_all(root: Path) -> None:
    with StockRoom(root) as stock:
        for commit in stock.log():
            content(stock.at(commit.digest))


@pytest.mark.parametrize("harm", [flip, truncate, swap, Path.unlink])
@pytest.mark.parametrize(
    "what", ["packfiles/data-*", "packfiles/meta-*", "refs/heads/main/*", "refs/tags/v1/*"]
)
def test_each_damage_is_found_by_reading_or_by_verifying(
    stock: StockRoom, folder: Path, harm: Callable[[Path], None], what: str
) -> None:
    for index in folder.glob("index*"):
        index.unlink()
    for path in sorted(folder.glob(what)):
        before = path.read_bytes()
        harm(path)
        error = told(stock.place.root)
        if (
            "packfiles" in what or harm is not Path.unlink
        ):  # without its last entry a reference is an older one, or none
            assert error
        if "packfiles" in what and harm is not flip:
            with pytest.raises(HopyardError):
                read_all(stock.place.root)
        for left in folder.glob("damaged/*"):
            left.unlink()
        if path.exists():
            path.chmod(0o644)
        path.write_bytes(before)
    read_all(stock.place.root)


@pytest.mark.parametrize("harm", [flip, truncate, clear_the_end, swap, Path.unlink])
def test_the_index_is_only_a_memory(stock: StockRoom, folder: Path, harm: Callable[[Path], None]) -> None:
    stock.close()
    for extra in folder.glob("index.sqlite-*"):
        extra.unlink()
    harm(folder / "index.sqlite")
    read_all(stock.place.root)
    with StockRoom(stock.place.root) as again, again.enable_write():
        again.data["x"][1] = np.array(1)


SAVED: dict[str, Any] = {
    "dense": np.arange(60_000).reshape(-1, 50),
    "ragged": {f"key-{n}": np.arange(n % 7, dtype="float32") for n in range(200)},
    "text": {n * n: f"text {n}" for n in range(100)},
    "nested": {n: {"box": np.arange(4 * n, dtype="int16")} for n in range(1, 30)},
    "net": {"first": np.arange(9000, dtype="float32"), "second": np.ones((3, 5)), "step": 5},
    "small": {"lr": 0.5, "layers": [1, 2]},
    "large": {f"setting {n}": n for n in range(2000)},
    "artifact": b"what a run made " * 300,
}


def save(stock: StockRoom, given: Path, run: str) -> None:
    """All kinds of content."""
    given.write_bytes(SAVED["artifact"])
    with stock.enable_write():
        for name in ("dense", "ragged", "text", "nested"):
            stock.data[name] = SAVED[name]
        stock.model["net"] = SAVED["net"]
        for name in ("small", "large"):
            stock.experiment[name] = SAVED[name]
    with stock.enable_write(), stock.experiment.start({"lr": 0.5}, id=run) as logged:
        for number in range(5):
            logged.log(loss=number / 2)
        logged.log_artifact(given)


def reads(root: Path) -> dict[str, Callable[[StockRoom], bool]]:
    """Every way to read, each by a stockroom that was opened for it; whether what came is what was saved."""
    random = np.random.default_rng(0)

    def column(name: str) -> Callable[[StockRoom], bool]:
        def whole(stock: StockRoom) -> bool:
            found = stock.data[name]
            saved = dict(enumerate(SAVED[name])) if name == "dense" else SAVED[name]
            keys = [pair if name != "nested" else pair[0] for pair in found]
            assert keys == list(saved) or sorted(keys, key=str) == sorted(saved, key=str)
            return all(_alike(found[key], saved[key]) for key in saved)

        return whole

    def run_of(stock: StockRoom) -> Any:
        return stock.experiment.run("run")

    def artifact(stock: StockRoom) -> bool:
        path = run_of(stock).artifact("given")
        return path is not None and path.read_bytes() == SAVED["artifact"]

    shuffled = random.permutation(1200)
    return {
        **{f"{name} by key": column(name) for name in ("dense", "ragged", "text", "nested")},
        "dense as an array": lambda stock: np.array_equal(np.asarray(stock.data["dense"]), SAVED["dense"]),
        "dense shuffled": lambda stock: all(
            np.array_equal(stock.data["dense"].take(part), SAVED["dense"][part])
            for part in np.array_split(shuffled, 20)
        ),
        "ragged in order": lambda stock: all(
            _alike(v, SAVED["ragged"][k]) for k, v in stock.data["ragged"].items()
        ),
        "model": lambda stock: _alike(dict(stock.model["net"]), SAVED["net"]),
        "part of a model": lambda stock: _alike(stock.model.read("net", "sec"), {"second": np.ones((3, 5))}),
        "tree": lambda stock: np.array_equal(stock.model.tree("net")["first"].numpy(), SAVED["net"]["first"]),
        "values": lambda stock: all(stock.experiment[name] == SAVED[name] for name in ("small", "large")),
        "times of a run": lambda stock: (np.diff(run_of(stock).times("loss")) > 0).all(),
        "run": lambda stock: (
            run_of(stock).params == {"lr": 0.5}
            and run_of(stock).metrics["loss"][1].tolist() == [0, 0.5, 1, 1.5, 2]
        ),
        "artifact": artifact,
        "bytes of an artifact": lambda stock: run_of(stock).read("given") == SAVED["artifact"],
    }


def _alike(a: Any, b: Any) -> bool:
    if isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in b)
    return np.array_equal(a, b)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stockroom that is copied before it is damaged."""
    folder = tmp_path_factory.mktemp("saved")
    with StockRoom.init(folder / "stock") as stock:
        save(stock, folder / "given", "run")
    assert all(
        is_right(stock)
        for is_right in reads(folder / "stock").values()
        for stock in [StockRoom(folder / "stock")]
    )
    return folder / "stock"


@pytest.mark.parametrize("what", ["packfiles/data-*", "packfiles/meta-*", "files/*", "index.sqlite"])
@pytest.mark.parametrize("seed", range(SEED, SEED + by_level(1, 1, 3)))
def test_a_flipped_bit_never_gives_wrong_content_and_saving_again_heals_it(
    saved: Path, tmp_path: Path, what: str, seed: int
) -> None:
    random = np.random.default_rng([seed, *what.encode()])
    for number in range(by_level(2, 2, 4)):
        root = shutil.copytree(saved, tmp_path / f"copy{number}")
        objects = root / ".hopyard"
        files = sorted(objects.glob(what))
        path = files[random.integers(len(files))]
        data = bytearray(path.read_bytes())
        data[random.integers(len(data))] ^= 1 << random.integers(8)
        replace(path, bytes(data))
        for name, is_right in reads(root).items():
            with contextlib.suppress(StorageError), StockRoom(root) as stock:
                assert is_right(stock), name
        name = f"{path.parent.name}/{path.name}"
        assert name in told(root) or what == "index.sqlite"
        if "meta" in what:  # what says where things are is brought from a remote
            continue
        with StockRoom(root) as stock:
            save(stock, tmp_path / "given", "run again")
        lost = set()
        for name, is_right in reads(root).items():
            try:
                with StockRoom(root) as stock:
                    assert is_right(stock), name
            except StorageError:
                lost.add(name)
        assert lost <= {"times of a run"}  # which cannot be saved again
        if not lost:
            with StockRoom(root) as stock:
                stock.gc()
                assert stock.verify().ok


def test_a_missing_or_foreign_format(stock: StockRoom, folder: Path) -> None:
    (folder / "FORMAT").write_text('{"something": "else"}')
    with pytest.raises(CorruptError, match=r"FORMAT is not as it was written.*hopyard stock verify --repair"):
        StockRoom(stock.place.root)
    (folder / "FORMAT").unlink()
    with pytest.raises(CorruptError, match=r"its file FORMAT is gone.*hopyard stock verify --repair"):
        StockRoom(stock.place.root)
    assert StockRoom.verify_in(stock.place.root, repair=True).ok
    read_all(stock.place.root)


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"branch main\ncommit abc\n", b"branch a\nbranch b\n", b"x y z"]
)
def test_a_broken_head_is_told_and_left_alone(stock: StockRoom, folder: Path, text: bytes) -> None:
    stock.place.head.write_bytes(text)
    with pytest.raises(CorruptError, match=r"head\.stock"):
        StockRoom(stock.place.root)
    assert stock.place.head.read_bytes() == text


@pytest.mark.parametrize("harm", [flip_all, truncate, swap, Path.unlink])
def test_there_is_a_way_back_from_a_damaged_commit_of_the_head(
    stock: StockRoom, folder: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    for number in range(5):
        with stock.enable_write():
            stock.experiment["n"] = number
    stock.close()
    root, clone = stock.place.root, tmp_path / "clone"
    shutil.copytree(root, clone)
    with StockRoom(clone) as other:
        before = {commit.digest: content(other.at(commit.digest)) for commit in other.log()}
    for path in sorted(folder.glob("packfiles/meta-*")):
        harm(path)
    (folder / "index.sqlite").unlink()
    for call in (StockRoom, lambda path: StockRoom(path).status(), lambda path: StockRoom(path).fetch(clone)):
        with pytest.raises(
            HopyardError, match=r"head\.stock is at the commit.*hopyard stock verify --repair-from"
        ):
            call(root)
    report = StockRoom.verify_in(root)
    assert not report.ok
    assert any(problem.needed_by.endswith("to which heads/main leads") for problem in report.problems)
    assert StockRoom.verify_in(root, repair_from=clone).ok
    assert not StockRoom.verify_in(root).problems
    with StockRoom(root) as again:
        assert {commit.digest: content(again.at(commit.digest)) for commit in again.log()} == before


def test_a_deep_history_comes_back(stock: StockRoom, folder: Path, tmp_path: Path) -> None:
    """None of its commits can be read here: each is known only by the one that follows it, which is at the remote."""
    with stock.enable_write():
        for number in range(120):
            stock.experiment["n"] = number
            stock.commit(f"{number}")
        stock.experiment["n"] = -1
    stock.close()
    root, clone = stock.place.root, tmp_path / "clone"
    shutil.copytree(root, clone)
    with StockRoom(clone) as other:
        before = [(commit.digest, other.at(commit.digest).experiment["n"]) for commit in other.log(limit=121)]
    for path in folder.glob("packfiles/meta-*"):
        path.unlink()
    (folder / "index.sqlite").unlink()
    assert not StockRoom.verify_in(root).ok
    assert StockRoom.verify_in(root, repair_from=clone).ok
    assert not StockRoom.verify_in(root).problems
    with StockRoom(root) as again:
        assert [
            (commit.digest, again.at(commit.digest).experiment["n"]) for commit in again.log(limit=121)
        ] == before


def test_all_damage_at_once_is_said_at_once_and_repaired(
    stock: StockRoom, folder: Path, tmp_path: Path
) -> None:
    stock.close()
    clone = tmp_path / "clone"
    shutil.copytree(stock.place.root, clone)
    (folder / "FORMAT").write_bytes(b"")
    stock.place.head.write_bytes(b" \n")
    (folder / "refs/tags/v1/000000000001").unlink()
    (folder / "refs/heads/main/000000000002").write_bytes(b"{}")
    (folder / "stage").mkdir(exist_ok=True)
    (folder / "stage/main.moving").write_bytes(b"?")
    for path in folder.glob("packfiles/*"):
        path.unlink()
    with pytest.raises(CorruptError, match=r"FORMAT.*hopyard stock verify --repair"):
        StockRoom(stock.place.root)
    named = {problem.name for problem in StockRoom.verify_in(stock.place.root).problems}
    assert {
        "FORMAT", "head.stock", "refs/tags/v1/000000000001", "refs/heads/main/000000000002", "stage/main.moving",
    } <= named  # fmt: skip
    assert len(named) > 8
    assert StockRoom.verify_in(stock.place.root, repair_from=clone).ok
    read_all(stock.place.root)
    with StockRoom(stock.place.root) as again, StockRoom(clone) as other:
        assert again.head == other.head
        assert again.tags() == other.tags()


@pytest.mark.parametrize("text", [b"", b"\n \n", b"branch main\n", b"\x00\xff" * 9])
def test_a_head_that_says_nothing_is_written_as_it_most_likely_was(
    stock: StockRoom, folder: Path, text: bytes
) -> None:
    stock.branch("dev")
    stock.switch("dev")
    with stock.enable_write():
        stock.experiment["on dev"] = 1
    stock.close()
    before = read(stock.place.head)
    stock.place.head.write_bytes(text)
    with pytest.raises(CorruptError, match="hopyard stock verify --repair"):
        StockRoom(stock.place.root)
    (problem,) = StockRoom.verify_in(stock.place.root).problems
    assert problem.name == "head.stock"
    assert f"Most likely it said 'branch dev' and 'commit {stock.head.commit}'" in problem.reason
    assert ". Most likely" in problem.reason
    repaired = StockRoom.verify_in(stock.place.root, repair=True)
    assert repaired.ok
    assert str(repaired).endswith("; 1 problem, 1 of them repaired")
    assert read(stock.place.head) == before  # without git the id is a new one: nothing is named by it
    assert (folder / "damaged/head.stock").read_bytes() == text


def test_a_flipped_digit_of_the_head_is_known_from_the_references(stock: StockRoom, folder: Path) -> None:
    stock.close()
    before = stock.place.head.read_text()
    commit = str(stock.head.commit)
    stock.place.head.write_text(before.replace(commit, ("0" if commit[0] != "0" else "1") + commit[1:]))
    with pytest.raises(NotFoundError, match="hopyard stock verify --repair"):
        StockRoom(stock.place.root)
    assert StockRoom.verify_in(stock.place.root, repair=True).ok
    assert stock.place.head.read_text() == before


def test_a_head_that_was_deleted_is_made_as_it_most_likely_was(stock: StockRoom, folder: Path) -> None:
    stock.branch("dev")
    stock.switch("dev")
    with stock.enable_write():
        stock.experiment["on dev"] = 1
    stock.close()
    stock.place.head.unlink()
    with pytest.raises(NotFoundError, match="hopyard stock init"):
        StockRoom(stock.place.root)
    assert StockRoom.init(stock.place.root).head == stock.head


def test_a_folder_in_place_of_the_head_is_to_be_moved_away(stock: StockRoom, folder: Path) -> None:
    stock.close()
    stock.place.head.unlink()
    stock.place.head.mkdir()
    with pytest.raises(NotFoundError, match="hopyard stock init"):
        StockRoom(stock.place.root)
    with pytest.raises(UsageError, match=r"is a folder.*Move the folder away"):
        StockRoom.init(stock.place.root)
    stock.place.head.rmdir()
    assert StockRoom.init(stock.place.root).head == stock.head


@pytest.mark.parametrize("what", ["head", "tag", "pending", "reader"])
def test_garbage_is_not_collected_while_it_is_not_known_what_is_needed(
    stock: StockRoom, folder: Path, what: str
) -> None:
    other = StockRoom(stock.place.root)
    if what == "head":
        stock.place.head.write_bytes(b"")
    elif what == "tag":
        (folder / "refs/tags/v1/000000000001").unlink()
    elif what == "pending":
        (folder / "stage").mkdir(exist_ok=True)
        (folder / "stage/main.moving").write_bytes(b"{}")
    else:
        for path in (folder / "readers").iterdir():
            path.write_bytes(b"")
    with pytest.raises(CorruptError, match="nothing was deleted"):
        stock.gc()
    if what == "reader":
        other.close()
    else:
        assert StockRoom.verify_in(stock.place.root, repair=True).ok
    stock.close()
    with StockRoom(stock.place.root) as again:
        again.gc()
    read_all(stock.place.root)


def test_a_full_disk_at_any_write_leaves_all_as_it_was(
    stock: StockRoom, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, commit = content(stock), stock.head.commit
    for at in range(1, 20):

        def full(path: Path, at: int = at) -> FaultyStore:
            return FaultyStore(LocalStore(path), Fault("full", at=at, times=1000))

        with monkeypatch.context() as patch:
            patch.setattr("hopyard.stockroom.session.opening.LocalStore", full)
            try:
                with StockRoom(stock.place.root) as writer, writer.enable_write():
                    writer.data["x"][1] = np.array(9)
                    writer.data["y"] = np.arange(5000)
            except StorageFullError:
                pass
        with StockRoom(stock.place.root) as after:
            if after.head.commit != commit:
                assert content(after)["data/x"][1] == 9
                assert at > 2
                return
            assert content(after) == before
            assert after.status().staged == []
    raise AssertionError("it never succeeded")


def test_dying_at_any_change_of_a_file_a_block_is_done_or_not(stock: StockRoom, folder: Path) -> None:
    before, after = content(stock), None
    for at in range(30):
        with dying(at) as counter, StockRoom(stock.place.root) as writer, writer.enable_write():
            writer.data["x"][2] = np.array(-1)
            writer.model["m"] = {"w": np.ones(3)}
        with StockRoom(stock.place.root) as found:
            assert found.verify().ok
            now = content(found)
            after = {**before, "data/x": before["data/x"] | {2: -1}, "model/m": {"w": [1.0] * 3}}
            assert now in (before, after)
        if not counter.is_dead:
            assert now == after
            return
    raise AssertionError("it never ended")


def test_dying_while_a_nested_sample_is_replaced_leaves_the_old_one_or_the_new_one(stock: StockRoom) -> None:
    old, new = {"a": np.arange(2), "b": np.arange(3)}, {"a": np.arange(4), "c": np.arange(5)}
    with stock.enable_write():
        stock.data["boxes"] = {1: old, 2: old}
    for at in range(30):
        with dying(at) as counter, StockRoom(stock.place.root, enable_write=True) as writer:
            writer.data["boxes"][1] = new
        with StockRoom(stock.place.root, enable_write=True) as found:
            boxes = found.data["boxes"]
            now = {part: len(value) for part, value in boxes[1].items()}
            assert now in ({"a": 2, "b": 3}, {"a": 4, "c": 5})
            assert len(boxes[2]) == 2
            found.reset()
        if not counter.is_dead:
            assert now == {"a": 4, "c": 5}
            return
    raise AssertionError("it never ended")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_read(stock: StockRoom, folder: Path) -> None:
    folder.chmod(0o555)
    try:
        read_all(stock.place.root)
    finally:
        folder.chmod(0o755)


def test_collecting_keeps_what_anything_needs(stock: StockRoom, folder: Path) -> None:
    with stock.enable_write():
        stock.data["large"] = np.random.default_rng(0).random(100_000)
    reader = stock.at("HEAD")
    stock.reset("v1")
    stock.gc()
    assert reader.data["large"].shape == ()
    assert len(reader.data["large"][...]) == 100_000
    del reader
    stock.gc()
    assert sum(path.stat().st_size for path in folder.glob("packfiles/*")) < 100_000
    assert stock.verify().ok
    read_all(stock.place.root)
