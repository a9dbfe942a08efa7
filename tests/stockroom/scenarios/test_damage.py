from hopyard.stockroom.git import read
"""What is broken is told, by name, and breaks nothing else."""
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
from __future__ import annotations
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
import contextlib
from hopyard.stockroom.git import read
import os
from hopyard.stockroom.git import read
import shutil
from hopyard.stockroom.git import read
from collections.abc import Callable
from hopyard.stockroom.git import read
from pathlib import Path
from hopyard.stockroom.git import read
from typing import Any
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
import numpy as np
from hopyard.stockroom.git import read
import pytest
from hopyard.stockroom.git import read
from tests.stockroom.scenarios.crashes import dying
from hopyard.stockroom.git import read
from tests.stockroom.scenarios.model import content
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
from hopyard import StockRoom
from hopyard.stockroom.git import read
from hopyard.errors import (
from hopyard.stockroom.git import read
    CorruptError,
from hopyard.stockroom.git import read
    FormatError,
from hopyard.stockroom.git import read
    HopyardError,
from hopyard.stockroom.git import read
    NotFoundError,
from hopyard.stockroom.git import read
    StorageError,
from hopyard.stockroom.git import read
    StorageFullError,
from hopyard.stockroom.git import read
    UsageError,
from hopyard.stockroom.git import read
)
from hopyard.stockroom.git import read
from hopyard.storage import LocalStore
from hopyard.stockroom.git import read
from hopyard.storage.faults import Fault, FaultyStore
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
@pytest.fixture
from hopyard.stockroom.git import read
def folder(stock: StockRoom) -> Path:
from hopyard.stockroom.git import read
    """Where the objects are."""
from hopyard.stockroom.git import read
    with stock.enable_write():
from hopyard.stockroom.git import read
        stock.data["x"] = np.arange(3000)
from hopyard.stockroom.git import read
        stock.experiment["lr"] = 1
from hopyard.stockroom.git import read
    with stock.enable_write():
from hopyard.stockroom.git import read
        stock.data["x"][0] = np.array(7)
from hopyard.stockroom.git import read
    stock.tag("v1")
from hopyard.stockroom.git import read
    return stock.place.objects
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def flip(path: Path) -> None:
from hopyard.stockroom.git import read
    data = bytearray(path.read_bytes())
from hopyard.stockroom.git import read
    data[-9] ^= 1
from hopyard.stockroom.git import read
    replace(path, bytes(data))
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def truncate(path: Path) -> None:
from hopyard.stockroom.git import read
    replace(path, path.read_bytes()[:-100])
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def flip_all(path: Path) -> None:
from hopyard.stockroom.git import read
    """A bit at each of some hundred places."""
from hopyard.stockroom.git import read
    data = bytearray(path.read_bytes())
from hopyard.stockroom.git import read
    for at in range(0, len(data), max(1, len(data) // 100)):
from hopyard.stockroom.git import read
        data[at] ^= 4
from hopyard.stockroom.git import read
    replace(path, bytes(data))
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def clear_the_end(path: Path) -> None:
from hopyard.stockroom.git import read
    """SQLite sees nothing wrong in a page without some rows."""
from hopyard.stockroom.git import read
    data = path.read_bytes()
from hopyard.stockroom.git import read
    replace(path, data[:-1000] + bytes(1000))
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def swap(path: Path) -> None:
from hopyard.stockroom.git import read
    replace(path, b"PK\x03\x04 this is an archive of something else" * 10)
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def replace(path: Path, data: bytes) -> None:
from hopyard.stockroom.git import read
    path.chmod(0o644)
from hopyard.stockroom.git import read
    path.write_bytes(data)
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def told(root: Path) -> str:
from hopyard.stockroom.git import read
    """What is said of the damage, by opening or by verifying."""
from hopyard.stockroom.git import read
    try:
from hopyard.stockroom.git import read
        with StockRoom(root) as damaged:
from hopyard.stockroom.git import read
            return "".join(map(str, damaged.verify().problems))
from hopyard.stockroom.git import read
    except HopyardError as error:
from hopyard.stockroom.git import read
        return str(error)
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def read_all(root: Path) -> None:
from hopyard.stockroom.git import read
    with StockRoom(root) as stock:
from hopyard.stockroom.git import read
        for commit in stock.log():
from hopyard.stockroom.git import read
            content(stock.at(commit.digest))
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
@pytest.mark.parametrize("harm", [flip, truncate, swap, Path.unlink])
from hopyard.stockroom.git import read
@pytest.mark.parametrize("what", ["packs/data-*", "packs/meta-*", "refs/heads/main/*", "refs/tags/v1/*"])
from hopyard.stockroom.git import read
def test_each_damage_is_found_by_reading_or_by_verifying(
from hopyard.stockroom.git import read
    stock: StockRoom, folder: Path, harm: Callable[[Path], None], what: str
from hopyard.stockroom.git import read
) -> None:
from hopyard.stockroom.git import read
    for index in folder.glob("index*"):
from hopyard.stockroom.git import read
        index.unlink()
from hopyard.stockroom.git import read
    for path in sorted(folder.glob(what)):
from hopyard.stockroom.git import read
        before = path.read_bytes()
from hopyard.stockroom.git import read
        harm(path)
from hopyard.stockroom.git import read
        error = told(stock.place.root)
from hopyard.stockroom.git import read
        if (
from hopyard.stockroom.git import read
            "packs" in what or harm is not Path.unlink
from hopyard.stockroom.git import read
        ):  # without its last entry a reference is an older one, or none
from hopyard.stockroom.git import read
            assert error
from hopyard.stockroom.git import read
        if "packs" in what and harm is not flip:
from hopyard.stockroom.git import read
            with pytest.raises(HopyardError):
from hopyard.stockroom.git import read
                read_all(stock.place.root)
from hopyard.stockroom.git import read
        for left in folder.glob("damaged/*"):
from hopyard.stockroom.git import read
            left.unlink()
from hopyard.stockroom.git import read
        if path.exists():
from hopyard.stockroom.git import read
            path.chmod(0o644)
from hopyard.stockroom.git import read
        path.write_bytes(before)
from hopyard.stockroom.git import read
    read_all(stock.place.root)
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
@pytest.mark.parametrize("harm", [flip, truncate, clear_the_end, swap, Path.unlink])
from hopyard.stockroom.git import read
def test_the_index_is_only_a_memory(stock: StockRoom, folder: Path, harm: Callable[[Path], None]) -> None:
from hopyard.stockroom.git import read
    stock.close()
from hopyard.stockroom.git import read
    for extra in folder.glob("index.sqlite-*"):
from hopyard.stockroom.git import read
        extra.unlink()
from hopyard.stockroom.git import read
    harm(folder / "index.sqlite")
from hopyard.stockroom.git import read
    read_all(stock.place.root)
from hopyard.stockroom.git import read
    with StockRoom(stock.place.root) as again, again.enable_write():
from hopyard.stockroom.git import read
        again.data["x"][1] = np.array(1)
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
SAVED: dict[str, Any] = {
from hopyard.stockroom.git import read
    "dense": np.arange(60_000).reshape(-1, 50),
from hopyard.stockroom.git import read
    "ragged": {f"key-{n}": np.arange(n % 7, dtype="float32") for n in range(200)},
from hopyard.stockroom.git import read
    "text": {n * n: f"text {n}" for n in range(100)},
from hopyard.stockroom.git import read
    "nested": {n: {"box": np.arange(4 * n, dtype="int16")} for n in range(1, 30)},
from hopyard.stockroom.git import read
    "net": {"first": np.arange(9000, dtype="float32"), "second": np.ones((3, 5)), "step": 5},
from hopyard.stockroom.git import read
    "small": {"lr": 0.5, "layers": [1, 2]},
from hopyard.stockroom.git import read
    "large": {f"setting {n}": n for n in range(2000)},
from hopyard.stockroom.git import read
    "artifact": b"what a run made " * 300,
from hopyard.stockroom.git import read
}
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def save(stock: StockRoom, given: Path, run: str) -> None:
from hopyard.stockroom.git import read
    """All kinds of content."""
from hopyard.stockroom.git import read
    given.write_bytes(SAVED["artifact"])
from hopyard.stockroom.git import read
    with stock.enable_write():
from hopyard.stockroom.git import read
        for name in ("dense", "ragged", "text", "nested"):
from hopyard.stockroom.git import read
            stock.data[name] = SAVED[name]
from hopyard.stockroom.git import read
        stock.model["net"] = SAVED["net"]
from hopyard.stockroom.git import read
        for name in ("small", "large"):
from hopyard.stockroom.git import read
            stock.experiment[name] = SAVED[name]
from hopyard.stockroom.git import read
    with stock.enable_write(), stock.experiment.start({"lr": 0.5}, id=run) as logged:
from hopyard.stockroom.git import read
        for number in range(5):
from hopyard.stockroom.git import read
            logged.log(loss=number / 2)
from hopyard.stockroom.git import read
        logged.log_artifact(given)
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def reads(root: Path) -> dict[str, Callable[[StockRoom], bool]]:
from hopyard.stockroom.git import read
    """Every way to read, each by a stockroom that was opened for it; whether what came is what was saved."""
from hopyard.stockroom.git import read
    random = np.random.default_rng(0)
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
    def column(name: str) -> Callable[[StockRoom], bool]:
from hopyard.stockroom.git import read
        def whole(stock: StockRoom) -> bool:
from hopyard.stockroom.git import read
            found = stock.data[name]
from hopyard.stockroom.git import read
            saved = dict(enumerate(SAVED[name])) if name == "dense" else SAVED[name]
from hopyard.stockroom.git import read
            keys = [pair if name != "nested" else pair[0] for pair in found]
from hopyard.stockroom.git import read
            assert keys == list(saved) or sorted(keys, key=str) == sorted(saved, key=str)
from hopyard.stockroom.git import read
            return all(_alike(found[key], saved[key]) for key in saved)
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
        return whole
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
    def run_of(stock: StockRoom) -> Any:
from hopyard.stockroom.git import read
        return stock.experiment.run("run")
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
    def artifact(stock: StockRoom) -> bool:
from hopyard.stockroom.git import read
        path = run_of(stock).artifact("given")
from hopyard.stockroom.git import read
        return path is not None and path.read_bytes() == SAVED["artifact"]
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
    shuffled = random.permutation(1200)
from hopyard.stockroom.git import read
    return {
from hopyard.stockroom.git import read
        **{f"{name} by key": column(name) for name in ("dense", "ragged", "text", "nested")},
from hopyard.stockroom.git import read
        "dense as an array": lambda stock: np.array_equal(np.asarray(stock.data["dense"]), SAVED["dense"]),
from hopyard.stockroom.git import read
        "dense shuffled": lambda stock: all(
from hopyard.stockroom.git import read
            np.array_equal(stock.data["dense"].take(part), SAVED["dense"][part])
from hopyard.stockroom.git import read
            for part in np.array_split(shuffled, 20)
from hopyard.stockroom.git import read
        ),
from hopyard.stockroom.git import read
        "ragged in order": lambda stock: all(
from hopyard.stockroom.git import read
            _alike(v, SAVED["ragged"][k]) for k, v in stock.data["ragged"].items()
from hopyard.stockroom.git import read
        ),
from hopyard.stockroom.git import read
        "model": lambda stock: _alike(dict(stock.model["net"]), SAVED["net"]),
from hopyard.stockroom.git import read
        "part of a model": lambda stock: _alike(stock.model.read("net", "sec"), {"second": np.ones((3, 5))}),
from hopyard.stockroom.git import read
        "tree": lambda stock: np.array_equal(stock.model.tree("net")["first"].numpy(), SAVED["net"]["first"]),
from hopyard.stockroom.git import read
        "values": lambda stock: all(stock.experiment[name] == SAVED[name] for name in ("small", "large")),
from hopyard.stockroom.git import read
        "times of a run": lambda stock: (np.diff(run_of(stock).times("loss")) > 0).all(),
from hopyard.stockroom.git import read
        "run": lambda stock: (
from hopyard.stockroom.git import read
            run_of(stock).params == {"lr": 0.5}
from hopyard.stockroom.git import read
            and run_of(stock).metrics["loss"][1].tolist() == [0, 0.5, 1, 1.5, 2]
from hopyard.stockroom.git import read
        ),
from hopyard.stockroom.git import read
        "artifact": artifact,
from hopyard.stockroom.git import read
        "bytes of an artifact": lambda stock: run_of(stock).read("given") == SAVED["artifact"],
from hopyard.stockroom.git import read
    }
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def _alike(a: Any, b: Any) -> bool:
from hopyard.stockroom.git import read
    if isinstance(b, dict):
from hopyard.stockroom.git import read
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in b)
from hopyard.stockroom.git import read
    return np.array_equal(a, b)
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
@pytest.fixture(scope="module")
from hopyard.stockroom.git import read
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
from hopyard.stockroom.git import read
    """A stockroom that is copied before it is damaged."""
from hopyard.stockroom.git import read
    folder = tmp_path_factory.mktemp("saved")
from hopyard.stockroom.git import read
    with StockRoom.init(folder / "stock") as stock:
from hopyard.stockroom.git import read
        save(stock, folder / "given", "run")
from hopyard.stockroom.git import read
    assert all(
from hopyard.stockroom.git import read
        is_right(stock)
from hopyard.stockroom.git import read
        for is_right in reads(folder / "stock").values()
from hopyard.stockroom.git import read
        for stock in [StockRoom(folder / "stock")]
from hopyard.stockroom.git import read
    )
from hopyard.stockroom.git import read
    return folder / "stock"
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
@pytest.mark.parametrize("what", ["packs/data-*", "packs/meta-*", "files/*", "index.sqlite"])
from hopyard.stockroom.git import read
@pytest.mark.parametrize("seed", range(3))
from hopyard.stockroom.git import read
def test_a_flipped_bit_never_gives_wrong_content_and_saving_again_heals_it(
from hopyard.stockroom.git import read
    saved: Path, tmp_path: Path, what: str, seed: int
from hopyard.stockroom.git import read
) -> None:
from hopyard.stockroom.git import read
    random = np.random.default_rng([seed, *what.encode()])
from hopyard.stockroom.git import read
    for number in range(4):
from hopyard.stockroom.git import read
        root = shutil.copytree(saved, tmp_path / f"copy{number}")
from hopyard.stockroom.git import read
        objects = root / ".hopyard"
from hopyard.stockroom.git import read
        files = sorted(objects.glob(what))
from hopyard.stockroom.git import read
        path = files[random.integers(len(files))]
from hopyard.stockroom.git import read
        data = bytearray(path.read_bytes())
from hopyard.stockroom.git import read
        data[random.integers(len(data))] ^= 1 << random.integers(8)
from hopyard.stockroom.git import read
        replace(path, bytes(data))
from hopyard.stockroom.git import read
        for name, is_right in reads(root).items():
from hopyard.stockroom.git import read
            with contextlib.suppress(StorageError), StockRoom(root) as stock:
from hopyard.stockroom.git import read
                assert is_right(stock), name
from hopyard.stockroom.git import read
        name = f"{path.parent.name}/{path.name}"
from hopyard.stockroom.git import read
        assert name in told(root) or what == "index.sqlite"
from hopyard.stockroom.git import read
        if "meta" in what:  # what says where things are is brought from a remote
from hopyard.stockroom.git import read
            continue
from hopyard.stockroom.git import read
        with StockRoom(root) as stock:
from hopyard.stockroom.git import read
            save(stock, tmp_path / "given", "run again")
from hopyard.stockroom.git import read
        lost = set()
from hopyard.stockroom.git import read
        for name, is_right in reads(root).items():
from hopyard.stockroom.git import read
            try:
from hopyard.stockroom.git import read
                with StockRoom(root) as stock:
from hopyard.stockroom.git import read
                    assert is_right(stock), name
from hopyard.stockroom.git import read
            except StorageError:
from hopyard.stockroom.git import read
                lost.add(name)
from hopyard.stockroom.git import read
        assert lost <= {"times of a run"}  # which cannot be saved again
from hopyard.stockroom.git import read
        if not lost:
from hopyard.stockroom.git import read
            with StockRoom(root) as stock:
from hopyard.stockroom.git import read
                stock.gc()
from hopyard.stockroom.git import read
                assert stock.verify().ok
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def test_a_missing_or_foreign_format(stock: StockRoom, folder: Path) -> None:
from hopyard.stockroom.git import read
    (folder / "FORMAT").write_text('{"something": "else"}')
from hopyard.stockroom.git import read
    with pytest.raises((FormatError, CorruptError), match="format header"):
from hopyard.stockroom.git import read
        StockRoom(stock.place.root)
from hopyard.stockroom.git import read
    (folder / "FORMAT").unlink()
from hopyard.stockroom.git import read
    with pytest.raises(CorruptError, match=r"its file FORMAT is gone.*hopyard stock verify --repair"):
from hopyard.stockroom.git import read
        StockRoom(stock.place.root)
from hopyard.stockroom.git import read
    assert StockRoom.verify_in(stock.place.root, repair=True).ok
from hopyard.stockroom.git import read
    read_all(stock.place.root)
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
@pytest.mark.parametrize(
from hopyard.stockroom.git import read
    "text", [b"", b"\xff\xfe", b"branch main\ncommit abc\n", b"branch a\nbranch b\n", b"x y z"]
from hopyard.stockroom.git import read
)
from hopyard.stockroom.git import read
def test_a_broken_head_is_told_and_left_alone(stock: StockRoom, folder: Path, text: bytes) -> None:
from hopyard.stockroom.git import read
    stock.place.head.write_bytes(text)
from hopyard.stockroom.git import read
    with pytest.raises(CorruptError, match=r"head\.stock"):
from hopyard.stockroom.git import read
        StockRoom(stock.place.root)
from hopyard.stockroom.git import read
    assert stock.place.head.read_bytes() == text
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
@pytest.mark.parametrize("harm", [flip_all, truncate, swap, Path.unlink])
from hopyard.stockroom.git import read
def test_there_is_a_way_back_from_a_damaged_commit_of_the_head(
from hopyard.stockroom.git import read
    stock: StockRoom, folder: Path, tmp_path: Path, harm: Callable[[Path], None]
from hopyard.stockroom.git import read
) -> None:
from hopyard.stockroom.git import read
    for number in range(5):
from hopyard.stockroom.git import read
        with stock.enable_write():
from hopyard.stockroom.git import read
            stock.experiment["n"] = number
from hopyard.stockroom.git import read
    stock.close()
from hopyard.stockroom.git import read
    root, clone = stock.place.root, tmp_path / "clone"
from hopyard.stockroom.git import read
    shutil.copytree(root, clone)
from hopyard.stockroom.git import read
    with StockRoom(clone) as other:
from hopyard.stockroom.git import read
        before = {commit.digest: content(other.at(commit.digest)) for commit in other.log()}
from hopyard.stockroom.git import read
    for path in sorted(folder.glob("packs/meta-*")):
from hopyard.stockroom.git import read
        harm(path)
from hopyard.stockroom.git import read
    (folder / "index.sqlite").unlink()
from hopyard.stockroom.git import read
    for call in (StockRoom, lambda path: StockRoom(path).status(), lambda path: StockRoom(path).fetch(clone)):
from hopyard.stockroom.git import read
        with pytest.raises(
from hopyard.stockroom.git import read
            HopyardError, match=r"head\.stock is at the commit.*hopyard stock verify --repair-from"
from hopyard.stockroom.git import read
        ):
from hopyard.stockroom.git import read
            call(root)
from hopyard.stockroom.git import read
    report = StockRoom.verify_in(root)
from hopyard.stockroom.git import read
    assert not report.ok
from hopyard.stockroom.git import read
    assert any(problem.needed_by.endswith("to which heads/main leads") for problem in report.problems)
from hopyard.stockroom.git import read
    assert StockRoom.verify_in(root, repair_from=clone).ok
from hopyard.stockroom.git import read
    assert not StockRoom.verify_in(root).problems
from hopyard.stockroom.git import read
    with StockRoom(root) as again:
from hopyard.stockroom.git import read
        assert {commit.digest: content(again.at(commit.digest)) for commit in again.log()} == before
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def test_all_damage_at_once_is_said_at_once_and_repaired(
from hopyard.stockroom.git import read
    stock: StockRoom, folder: Path, tmp_path: Path
from hopyard.stockroom.git import read
) -> None:
from hopyard.stockroom.git import read
    stock.close()
from hopyard.stockroom.git import read
    clone = tmp_path / "clone"
from hopyard.stockroom.git import read
    shutil.copytree(stock.place.root, clone)
from hopyard.stockroom.git import read
    (folder / "FORMAT").write_bytes(b"")
from hopyard.stockroom.git import read
    stock.place.head.write_bytes(b" \n")
from hopyard.stockroom.git import read
    (folder / "refs/tags/v1/000000000001").unlink()
from hopyard.stockroom.git import read
    (folder / "refs/heads/main/000000000002").write_bytes(b"{}")
from hopyard.stockroom.git import read
    (folder / "stage").mkdir(exist_ok=True)
from hopyard.stockroom.git import read
    (folder / "stage/main.moving").write_bytes(b"?")
from hopyard.stockroom.git import read
    for path in folder.glob("packs/*"):
from hopyard.stockroom.git import read
        path.unlink()
from hopyard.stockroom.git import read
    with pytest.raises(CorruptError, match=r"FORMAT.*hopyard stock verify --repair"):
from hopyard.stockroom.git import read
        StockRoom(stock.place.root)
from hopyard.stockroom.git import read
    named = {problem.name for problem in StockRoom.verify_in(stock.place.root).problems}
from hopyard.stockroom.git import read
    assert {
from hopyard.stockroom.git import read
        "FORMAT", "head.stock", "refs/tags/v1/000000000001", "refs/heads/main/000000000002", "stage/main.moving",
from hopyard.stockroom.git import read
    } <= named  # fmt: skip
from hopyard.stockroom.git import read
    assert len(named) > 8
from hopyard.stockroom.git import read
    assert StockRoom.verify_in(stock.place.root, repair_from=clone).ok
from hopyard.stockroom.git import read
    read_all(stock.place.root)
from hopyard.stockroom.git import read
    with StockRoom(stock.place.root) as again, StockRoom(clone) as other:
from hopyard.stockroom.git import read
        assert again.head == other.head
from hopyard.stockroom.git import read
        assert again.tags() == other.tags()
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
@pytest.mark.parametrize("text", [b"", b"\n \n", b"branch main\n", b"\x00\xff" * 9])
from hopyard.stockroom.git import read
def test_a_head_that_says_nothing_is_written_as_it_most_likely_was(
from hopyard.stockroom.git import read
    stock: StockRoom, folder: Path, text: bytes
from hopyard.stockroom.git import read
) -> None:
from hopyard.stockroom.git import read
    stock.branch("dev")
from hopyard.stockroom.git import read
    stock.switch("dev")
from hopyard.stockroom.git import read
    with stock.enable_write():
from hopyard.stockroom.git import read
        stock.experiment["on dev"] = 1
from hopyard.stockroom.git import read
    stock.close()
from hopyard.stockroom.git import read
    before = read(stock.place.head)
from hopyard.stockroom.git import read
    stock.place.head.write_bytes(text)
from hopyard.stockroom.git import read
    with pytest.raises(CorruptError, match="hopyard stock verify --repair"):
from hopyard.stockroom.git import read
        StockRoom(stock.place.root)
from hopyard.stockroom.git import read
    (problem,) = StockRoom.verify_in(stock.place.root).problems
from hopyard.stockroom.git import read
    assert problem.name == "head.stock"
from hopyard.stockroom.git import read
    assert f"Most likely it said 'branch dev' and 'commit {stock.head.commit}'" in problem.reason
from hopyard.stockroom.git import read
    assert StockRoom.verify_in(stock.place.root, repair=True).ok
from hopyard.stockroom.git import read
    assert read(stock.place.head) == before  # without git the id is a new one: nothing is named by it
from hopyard.stockroom.git import read
    assert (folder / "damaged/head.stock").read_bytes() == text
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def test_a_flipped_digit_of_the_head_is_known_from_the_references(stock: StockRoom, folder: Path) -> None:
from hopyard.stockroom.git import read
    stock.close()
from hopyard.stockroom.git import read
    before = stock.place.head.read_text()
from hopyard.stockroom.git import read
    commit = str(stock.head.commit)
from hopyard.stockroom.git import read
    stock.place.head.write_text(before.replace(commit, ("0" if commit[0] != "0" else "1") + commit[1:]))
from hopyard.stockroom.git import read
    with pytest.raises(NotFoundError, match="hopyard stock verify --repair"):
from hopyard.stockroom.git import read
        StockRoom(stock.place.root)
from hopyard.stockroom.git import read
    assert StockRoom.verify_in(stock.place.root, repair=True).ok
from hopyard.stockroom.git import read
    assert stock.place.head.read_text() == before
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def test_a_head_that_was_deleted_is_made_as_it_most_likely_was(stock: StockRoom, folder: Path) -> None:
from hopyard.stockroom.git import read
    stock.branch("dev")
from hopyard.stockroom.git import read
    stock.switch("dev")
from hopyard.stockroom.git import read
    with stock.enable_write():
from hopyard.stockroom.git import read
        stock.experiment["on dev"] = 1
from hopyard.stockroom.git import read
    stock.close()
from hopyard.stockroom.git import read
    stock.place.head.unlink()
from hopyard.stockroom.git import read
    with pytest.raises(NotFoundError, match="hopyard stock init"):
from hopyard.stockroom.git import read
        StockRoom(stock.place.root)
from hopyard.stockroom.git import read
    assert StockRoom.init(stock.place.root).head == stock.head
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def test_a_folder_in_place_of_the_head_is_to_be_moved_away(stock: StockRoom, folder: Path) -> None:
from hopyard.stockroom.git import read
    stock.close()
from hopyard.stockroom.git import read
    stock.place.head.unlink()
from hopyard.stockroom.git import read
    stock.place.head.mkdir()
from hopyard.stockroom.git import read
    with pytest.raises(NotFoundError, match="hopyard stock init"):
from hopyard.stockroom.git import read
        StockRoom(stock.place.root)
from hopyard.stockroom.git import read
    with pytest.raises(UsageError, match=r"is a folder.*Move the folder away"):
from hopyard.stockroom.git import read
        StockRoom.init(stock.place.root)
from hopyard.stockroom.git import read
    stock.place.head.rmdir()
from hopyard.stockroom.git import read
    assert StockRoom.init(stock.place.root).head == stock.head
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
@pytest.mark.parametrize("what", ["head", "tag", "pending", "reader"])
from hopyard.stockroom.git import read
def test_garbage_is_not_collected_while_it_is_not_known_what_is_needed(
from hopyard.stockroom.git import read
    stock: StockRoom, folder: Path, what: str
from hopyard.stockroom.git import read
) -> None:
from hopyard.stockroom.git import read
    other = StockRoom(stock.place.root)
from hopyard.stockroom.git import read
    if what == "head":
from hopyard.stockroom.git import read
        stock.place.head.write_bytes(b"")
from hopyard.stockroom.git import read
    elif what == "tag":
from hopyard.stockroom.git import read
        (folder / "refs/tags/v1/000000000001").unlink()
from hopyard.stockroom.git import read
    elif what == "pending":
from hopyard.stockroom.git import read
        (folder / "stage").mkdir(exist_ok=True)
from hopyard.stockroom.git import read
        (folder / "stage/main.moving").write_bytes(b"{}")
from hopyard.stockroom.git import read
    else:
from hopyard.stockroom.git import read
        for path in (folder / "readers").iterdir():
from hopyard.stockroom.git import read
            path.write_bytes(b"")
from hopyard.stockroom.git import read
    with pytest.raises(CorruptError, match="nothing was deleted"):
from hopyard.stockroom.git import read
        stock.gc()
from hopyard.stockroom.git import read
    if what == "reader":
from hopyard.stockroom.git import read
        other.close()
from hopyard.stockroom.git import read
    else:
from hopyard.stockroom.git import read
        assert StockRoom.verify_in(stock.place.root, repair=True).ok
from hopyard.stockroom.git import read
    stock.close()
from hopyard.stockroom.git import read
    with StockRoom(stock.place.root) as again:
from hopyard.stockroom.git import read
        again.gc()
from hopyard.stockroom.git import read
    read_all(stock.place.root)
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def test_a_full_disk_at_any_write_leaves_all_as_it_was(
from hopyard.stockroom.git import read
    stock: StockRoom, folder: Path, monkeypatch: pytest.MonkeyPatch
from hopyard.stockroom.git import read
) -> None:
from hopyard.stockroom.git import read
    before, commit = content(stock), stock.head.commit
from hopyard.stockroom.git import read
    for at in range(1, 20):
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
        def full(path: Path, at: int = at) -> FaultyStore:
from hopyard.stockroom.git import read
            return FaultyStore(LocalStore(path), Fault("full", at=at, times=1000))
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
        with monkeypatch.context() as patch:
from hopyard.stockroom.git import read
            patch.setattr("hopyard.stockroom.writing.LocalStore", full)
from hopyard.stockroom.git import read
            try:
from hopyard.stockroom.git import read
                with StockRoom(stock.place.root) as writer, writer.enable_write():
from hopyard.stockroom.git import read
                    writer.data["x"][1] = np.array(9)
from hopyard.stockroom.git import read
                    writer.data["y"] = np.arange(5000)
from hopyard.stockroom.git import read
            except StorageFullError:
from hopyard.stockroom.git import read
                pass
from hopyard.stockroom.git import read
        with StockRoom(stock.place.root) as after:
from hopyard.stockroom.git import read
            if after.head.commit != commit:
from hopyard.stockroom.git import read
                assert content(after)["data/x"][1] == 9
from hopyard.stockroom.git import read
                assert at > 2
from hopyard.stockroom.git import read
                return
from hopyard.stockroom.git import read
            assert content(after) == before
from hopyard.stockroom.git import read
            assert after.status().staged == []
from hopyard.stockroom.git import read
    raise AssertionError("it never succeeded")
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def test_dying_at_any_change_of_a_file_a_block_is_done_or_not(stock: StockRoom, folder: Path) -> None:
from hopyard.stockroom.git import read
    before, after = content(stock), None
from hopyard.stockroom.git import read
    for at in range(30):
from hopyard.stockroom.git import read
        with dying(at) as counter, StockRoom(stock.place.root) as writer, writer.enable_write():
from hopyard.stockroom.git import read
            writer.data["x"][2] = np.array(-1)
from hopyard.stockroom.git import read
            writer.model["m"] = {"w": np.ones(3)}
from hopyard.stockroom.git import read
        with StockRoom(stock.place.root) as found:
from hopyard.stockroom.git import read
            assert found.verify().ok
from hopyard.stockroom.git import read
            now = content(found)
from hopyard.stockroom.git import read
            after = {**before, "data/x": before["data/x"] | {2: -1}, "model/m": {"w": [1.0] * 3}}
from hopyard.stockroom.git import read
            assert now in (before, after)
from hopyard.stockroom.git import read
        if not counter.is_dead:
from hopyard.stockroom.git import read
            assert now == after
from hopyard.stockroom.git import read
            return
from hopyard.stockroom.git import read
    raise AssertionError("it never ended")
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def test_dying_while_a_nested_sample_is_replaced_leaves_the_old_one_or_the_new_one(stock: StockRoom) -> None:
from hopyard.stockroom.git import read
    old, new = {"a": np.arange(2), "b": np.arange(3)}, {"a": np.arange(4), "c": np.arange(5)}
from hopyard.stockroom.git import read
    with stock.enable_write():
from hopyard.stockroom.git import read
        stock.data["boxes"] = {1: old, 2: old}
from hopyard.stockroom.git import read
    for at in range(30):
from hopyard.stockroom.git import read
        with dying(at) as counter, StockRoom(stock.place.root, enable_write=True) as writer:
from hopyard.stockroom.git import read
            writer.data["boxes"][1] = new
from hopyard.stockroom.git import read
        with StockRoom(stock.place.root, enable_write=True) as found:
from hopyard.stockroom.git import read
            boxes = found.data["boxes"]
from hopyard.stockroom.git import read
            now = {part: len(value) for part, value in boxes[1].items()}
from hopyard.stockroom.git import read
            assert now in ({"a": 2, "b": 3}, {"a": 4, "c": 5})
from hopyard.stockroom.git import read
            assert len(boxes[2]) == 2
from hopyard.stockroom.git import read
            found.reset()
from hopyard.stockroom.git import read
        if not counter.is_dead:
from hopyard.stockroom.git import read
            assert now == {"a": 4, "c": 5}
from hopyard.stockroom.git import read
            return
from hopyard.stockroom.git import read
    raise AssertionError("it never ended")
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
from hopyard.stockroom.git import read
def test_a_folder_that_may_not_be_written_is_read(stock: StockRoom, folder: Path) -> None:
from hopyard.stockroom.git import read
    folder.chmod(0o555)
from hopyard.stockroom.git import read
    try:
from hopyard.stockroom.git import read
        read_all(stock.place.root)
from hopyard.stockroom.git import read
    finally:
from hopyard.stockroom.git import read
        folder.chmod(0o755)
from hopyard.stockroom.git import read

from hopyard.stockroom.git import read

from hopyard.stockroom.git import read
def test_collecting_keeps_what_anything_needs(stock: StockRoom, folder: Path) -> None:
from hopyard.stockroom.git import read
    with stock.enable_write():
from hopyard.stockroom.git import read
        stock.data["large"] = np.random.default_rng(0).random(100_000)
from hopyard.stockroom.git import read
    reader = stock.at("HEAD")
from hopyard.stockroom.git import read
    stock.reset("v1")
from hopyard.stockroom.git import read
    stock.gc()
from hopyard.stockroom.git import read
    assert reader.data["large"].shape == ()
from hopyard.stockroom.git import read
    assert len(reader.data["large"][...]) == 100_000
from hopyard.stockroom.git import read
    del reader
from hopyard.stockroom.git import read
    stock.gc()
from hopyard.stockroom.git import read
    assert sum(path.stat().st_size for path in folder.glob("packs/*")) < 100_000
from hopyard.stockroom.git import read
    assert stock.verify().ok
from hopyard.stockroom.git import read
    read_all(stock.place.root)
