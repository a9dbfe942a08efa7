"""``hopyard stock`` as users type it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.stockroom.importers.formats import cifar10, tar
from typer.testing import CliRunner

from hopyard import StockRoom
from hopyard.cli import stock
from hopyard.errors import HopyardError

Stock = Callable[..., str]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stock:
    """The command in an empty folder: ``typed("log", "--graph")`` gives what it prints; errors are raised."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Ada")
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(stock.app, list(arguments))
        if isinstance(done.exception, HopyardError):
            raise done.exception
        assert done.exit_code == code, done.output
        return done.output

    return run


def test_the_way_of_a_newcomer(typed: Stock) -> None:
    assert "a stockroom is in" in typed("init")
    assert "nothing is committed yet" in typed("status")
    assert typed("log") == "nothing is committed yet\n"
    assert typed("list") == "nothing is on the shelves\n"
    room = StockRoom(enable_write=True)
    room.data["image"] = np.zeros((3, 2, 2), np.uint8)
    room.data["name"] = {"a": "x"}
    room.model["net"] = {"w": torch.arange(6.0).reshape(2, 3)}
    room.experiment["lr"] = 0.1
    with room.run(params={"lr": 0.1}) as run:
        run.log(loss=0.5)
    room.close()
    shown = typed("status")
    assert "on branch main, nothing is committed yet" in shown
    assert "    added    data/image" in shown
    assert typed("commit", "-m", "first", "-m", "with a run").startswith("committed 5 things as ")
    assert typed("log").rstrip().endswith("(HEAD) (main)  first")
    listed = typed("list")
    assert "data/image" in listed
    assert "uint8 (2, 2)" in listed
    assert max(map(len, listed.splitlines())) <= 80
    assert typed("list", "experiment").split() == ["samples", "size", "experiment/lr", "0.1"]
    assert "dtype uint8, shape (2, 2)" in typed("inspect", "data/image")
    assert "w       F32    2x3" in typed("inspect", "model/net", "--against", "HEAD")
    assert typed("inspect", "experiment/lr") == "0.1\n"
    assert "metric loss: 1 value, last 0.5 at step 0" in typed("inspect", f"run/{run.id}")
    assert "to go there: hopyard stock switch dev" in typed("branch", "dev")
    assert typed("switch", "dev").startswith("on branch dev, at ")
    with StockRoom().enable_write("on dev") as dev:
        dev.experiment["lr"] = 0.2
    typed("switch", "main")
    with StockRoom().enable_write("on main") as main:
        main.experiment["lr"] = 0.3
    with pytest.raises(HopyardError, match="hopyard stock merge dev --resolve ours"):
        typed("merge", "dev")
    assert typed("merge", "dev", "--resolve", "theirs").startswith("merged: main is at ")
    assert typed("log", "--graph").splitlines()[1] == "|\\"
    assert typed("diff", "HEAD~1", "HEAD").splitlines() == ["~ experiment/lr", "    0.3 -> 0.2"]
    typed("tag", "v1")
    assert typed("tag").startswith("v1  ")
    assert typed("branch").splitlines()[1].startswith("* main")
    typed("revert", "HEAD", "--parent", "1")
    assert typed("inspect", "experiment/lr", "--at", "v1") == "0.2\n"
    assert typed("inspect", "experiment/lr") == "0.3\n"
    typed("reset", "v1")
    assert typed("inspect", "experiment/lr") == "0.2\n"
    with pytest.raises(HopyardError, match="leaks was given image, image, but compares at least two"):
        typed("leaks", "image", "image")
    assert "no problem" in typed("verify")
    assert "freed" in typed("gc")
    assert "1 sample of 'image' is purged; replaced: 1 fragment and " in typed(
        "purge", "image", "--key", "1", "--why", "asked", "--yes"
    )


def test_remotes(typed: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed("init")
    with StockRoom().enable_write() as room:
        room.data["image"] = np.zeros((3, 2, 2), np.uint8)
    with pytest.raises(
        HopyardError, match=r"there is no folder .*/nodir/x, so .*/nodir/x/r3 is not made a stockroom"
    ):
        typed("push", "../nodir/x/r3")
    assert not (tmp_path / "nodir").exists()
    assert typed("remote", "list") == ""
    assert "main: new -> " in typed("push", "../remote")
    assert typed("push") == "nothing is new; the remote has all of it\n"
    assert "branch main at" in typed("clone", "../remote", "../copy")
    monkeypatch.chdir(tmp_path / "copy")
    assert typed("fetch") == "nothing is new\n"
    assert typed("fetch", "--data", "image", "--keys", "0:2").startswith("1 object, ")
    assert typed("pull").startswith("nothing is new: main is at ")
    assert typed("remote", "list") == f"origin  {tmp_path / 'remote'}\n"
    assert "0 objects in 0 packfiles" in typed("gc", "--remote", "origin")
    assert typed("remote", "forget", "origin") == "forgot origin; what is there stays\n"
    assert typed("remote", "list") == ""
    with pytest.raises(HopyardError, match="no remote 'origin' is known here"):
        typed("remote", "forget", "origin")
    with pytest.raises(HopyardError, match=r"--keys 'a:b' must be FIRST:STOP"):
        typed("fetch", "--data", "image", "--keys", "a:b")


def test_things_leave_as_files(typed: Stock, tmp_path: Path) -> None:
    typed("init")
    images = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    with StockRoom().enable_write() as room:
        room.data["image"] = images
        room.data["name"] = {"a": "x", "b": "y"}
        room.model["net"] = {"w": torch.ones(2)}
        room.experiment["lr"] = {"x": [1, 2.5]}
        room.data["half"] = torch.ones(2, 3, dtype=torch.bfloat16)
        room.data["key"] = {"a": np.int64(5), "b": np.int64(6)}
        room.data["like"] = {1: np.int64(1), "1": np.int64(2)}
        room.data["parts"] = {("a", "b--c"): np.int64(1), ("a--b", "c"): np.int64(2)}
        room.data["wave"] = np.ones(2, np.complex64)
        room.data.create("empty", dtype="float32", shape=(2, 3))
        room.data["sparse/x"] = {2**62: np.uint8(1), -7: np.uint8(2)}
        room.data["traces"] = {at: np.ones((at, 2)) for at in (1, 2)}
        room.data["waves"] = {at: np.ones(at, np.complex64) for at in (1, 2)}
        room.data["nul"] = {"a\0": np.int64(1)}
        room.experiment["nan"] = {"loss": [1.0, float("nan")]}
    for path, name in (
        ("data/image", "i.npy"), ("data/image", "i.parquet"), ("data/name", "folder"),
        ("model/net", "n.safetensors"), ("experiment/lr", "lr.json"), ("data/key", "k.parquet"),
        ("data/wave", "wave"),
    ):  # fmt: skip
        assert typed("export", path, name).startswith(f"{path}: ")
    assert np.array_equal(np.load("i.npy"), images)
    assert "in the order of their keys, which .npy does not hold" in typed("export", "data/image", "i.npy")
    for path, name, keys in (
        ("data/image", "image", [0, 1, 2]), ("data/key", "key", ["a", "b"]), ("data/wave", "wave", [0, 1]),
        ("data/empty", "empty", []), ("data/sparse/x", "sparse/x", [-7, 2**62]),
    ):  # fmt: skip
        typed("export", path, "x.npz")
        with np.load("x.npz") as arrays, StockRoom() as room:
            assert set(arrays) == {name, "sample_key" if name == "key" else "key"}
            assert arrays["sample_key" if name == "key" else "key"].tolist() == keys
            assert np.array_equal(arrays[name], np.asarray(room.data[name]))
            assert arrays[name].dtype == room.data[name].dtype
    Path("x.npz").unlink()
    table = pq.read_table("i.parquet")
    assert table["key"].to_pylist() == [0, 1, 2]
    assert table["image"].to_pylist() == images.tolist()
    assert pq.read_table("k.parquet").to_pydict() == {"sample_key": ["a", "b"], "key": [5, 6]}
    assert Path("folder/a.txt").read_text() == "x"
    assert np.load("wave/1.npy") == 1
    assert json.loads(Path("lr.json").read_text()) == {"x": [1, 2.5]}
    for path, name, message in (
        ("data/name", "x.npy", "has samples of string, which .npy does not hold"),
        ("data/name", "x.npz", "has samples of string, which .npz does not hold. Export it as .parquet"),
        ("data/traces", "x.npz", r"different shapes, which .npz does not hold. Export it as a folder \("),
        ("data/traces", "x.parquet", r"data/traces has samples of several shapes.*Export it as a folder \("),
        ("data/waves", "x.npy", r"different shapes, which .npy does not hold. Export it as a folder \("),
        ("data/waves", "x.parquet", r"which Parquet lacks. Export it as a folder \("),
        (
            "data/like",
            "x.npz",
            "keys of several kinds, which one array of NumPy does not hold. Export it as a folder",
        ),
        ("data/parts", "x.npz", "keys of several kinds"),
        ("data/nul", "x.npz", "keys that end in NUL, which NumPy leaves out. Export it as .parquet"),
        ("data/half", "x.npy", r"is bfloat16 of shape \(3,\), which neither NumPy nor Parquet has"),
        ("data/half", "x", "Store it in another dtype, or as a model"),
        ("model/net", "x.bin", "cannot be exported to x.bin: it is written as .safetensors"),
        ("data/image", "x.txt", "it is written as a folder"),
        ("what/image", "x.npy", "'what/image' names no thing of a shelf"),
        (
            "data",
            "x.npy",
            "'data' names a shelf, and no thing on it. Write data/NAME; hopyard stock list data",
        ),
        ("run/1", "x.json", "is a run, which is no one file"),
        (
            "data/like",
            "x",
            "the sample '1' of data/like would be in the file 1.npy, where another one is already",
        ),
        ("data/parts", "x", r"the sample \('a--b', 'c'\) of data/parts would be in the file a--b--c.npy"),
        ("data/wave", "x.parquet", r"is complex64 of shape \(\), which Parquet lacks. Export it as .npy"),
        ("experiment/nan", "x.json", "experiment/nan holds nan or an infinity, which JSON lacks. Store None"),
    ):
        with pytest.raises(HopyardError, match=message):
            typed("export", path, name)
    assert sorted(path.suffix for path in Path().iterdir() if path.name.startswith("x")) == []


def test_things_are_named_whole(typed: Stock) -> None:
    typed("init")
    for path, message in (
        ("data", "'data' names a shelf, and no thing on it. Write data/NAME; hopyard stock list data shows"),
        ("run/", "'run/' names a shelf, and no thing on it. Write run/NAME"),
        (
            "image",
            "'image' names no thing of a shelf. Write SHELF/NAME, with a shelf of data, model, experiment, run",
        ),
    ):
        with pytest.raises(HopyardError, match=message):
            typed("inspect", path)


def test_an_import_makes_a_stockroom_and_commits_what_it_is(typed: Stock, tmp_path: Path) -> None:
    files, columns = cifar10()
    archive = tar(tmp_path / "cifar-10-python.tar.gz", files, "w:gz")
    listed = typed("import")
    assert "torchvision.cifar10" in listed.splitlines()
    assert "  delimiter=: one character between columns" in listed
    with pytest.raises(HopyardError, match=r"Give its place: --from PATH"):
        typed("import", "images")
    shown = typed("import", "torchvision.cifar10", "--from", str(archive))
    assert "data/test-image: 4 samples" in shown
    room = StockRoom()
    assert sorted(room.data) == ["image", "label", "test-image", "test-label"]
    assert np.array_equal(np.asarray(room.data["image"]), np.asarray(columns["image"]))
    title, identity = room.log()[0].message.split("\n\n")
    assert title == "Import cifar-10-python.tar.gz as torchvision.cifar10"
    assert len(json.loads(identity)["classes"]) == 10
    assert "all of it is there already, in" in typed("import", "torchvision.cifar10", "--from", str(archive))


def test_help_and_errors_of_the_program(
    tmp_path: Path, hopyard: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = hopyard("stock", "-h", cwd=tmp_path)
    assert "Versions of data, models and experiments, beside git." in done.stdout
    done = hopyard("stock", "status", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"NotFoundError: {os.path.realpath(tmp_path)} is in no stockroom")


def test_inspect_counts_what_is_nan_or_infinite(typed: Stock) -> None:
    typed("init")
    with StockRoom().enable_write() as room:
        room.data["x"] = np.array([[1.0, np.nan], [np.inf, 2.0], [3.0, -np.inf]])
        room.data["n"] = np.arange(4)
        room.model["net"] = {"b": np.ones(2), "w": np.array([np.nan, 1.0, np.inf, np.nan])}
        room.model["fine"] = {"b": np.ones(2)}
    assert "min 1, max 3, mean 2, std 0.8165\n1 NaN, 2 infinite\n" in typed("inspect", "data/x")
    assert "min 0, max 3, mean 1.5, std 1.118\n    [0] 0\n    [1] 1\n" in typed("inspect", "data/n", "--all")
    title, *rows = typed("inspect", "model/net").splitlines()[1:]
    assert title.split()[-2:] == ["NaN", "infinite"]
    assert [row.split()[-2:] for row in rows] == [["0", "0"], ["2", "1"]]
    assert "NaN" not in typed("inspect", "model/fine")


def test_leaks_among_several_splits_end_with_status_1(typed: Stock) -> None:
    typed("init")
    images = np.random.default_rng(0).integers(0, 255, (30, 2, 2), np.uint8)
    with StockRoom().enable_write() as room:
        room.data["train"] = images[:20]
        room.data["val"] = images[18:25].astype(np.float32)
        room.data["test"] = images[25:]
    assert typed("leaks", "train", "test") == "train and test: 0 of 20 samples are among the 5 others too\n"
    assert typed("leaks", "train", "val", "test", code=1).splitlines() == [
        "train and val: 2 of 20 samples are among the 7 others too",
        "    train[18] = val[0]",
        "    train[19] = val[1]",
        "train and test: 0 of 20 samples are among the 5 others too",
        "val and test: 0 of 7 samples are among the 5 others too",
    ]
    with pytest.raises(HopyardError, match="leaks was given train, but compares at least two"):
        typed("leaks", "train")


def test_leaks_goes_on_after_columns_that_cannot_be_compared(typed: Stock) -> None:
    typed("init")
    with StockRoom().enable_write() as room:
        room.data["train"] = np.arange(3)
        room.data["text"] = ["a", "b"]
        room.data["val"] = np.arange(2, 9)
        room.data["test"] = np.arange(9, 12)
    shown = typed("leaks", "train", "text", "val", code=1).splitlines()
    assert shown[0].startswith("train and text cannot be compared: <column 'train'")
    assert "train and val: 1 of 3 samples is among the 7 others too" in shown
    assert shown[-1].startswith("text and val cannot be compared: ")
    shown = typed("leaks", "train", "text", "test", code=2).splitlines()
    assert "train and test: 0 of 3 samples are among the 3 others too" in shown


class Offered(Protocol):
    """What a shell offers after these words."""

    def __call__(self, *words: str, shell: str = "bash") -> list[str]: ...


@pytest.fixture
def offered() -> Offered:
    def offers(*words: str, shell: str = "bash") -> list[str]:
        given = {
            "_STOCK_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": " ".join(("stock", *words)),
            "COMP_CWORD": str(len(words)),
            "_TYPER_COMPLETE_ARGS": " ".join(("stock", *words)),
        }
        done = CliRunner().invoke(stock.app, prog_name="stock", env=given)
        return done.output.split()

    return offers


def test_a_shell_is_offered_branches_tags_and_things(typed: Stock, offered: Offered) -> None:
    assert offered("switch", "m") == []
    typed("init")
    with StockRoom().enable_write() as room:
        room.data["image"] = np.zeros((3, 2))
        room.data["label"] = np.arange(3)
        room.model["net"] = {"w": np.ones(2)}
    typed("branch", "topic")
    typed("tag", "v1")
    assert offered("switch", "") == ["main", "topic", "v1"]
    assert offered("merge", "t") == ["topic"]  # no digit of a digest
    assert offered("inspect", "") == ["data/image", "data/label", "model/net"]
    assert offered("export", "data/l") == ["data/label"]
    assert offered("leaks", "image", "") == ["image", "label"]
    assert offered("branch", "--delete", "") == ["main", "topic"]
    assert offered("tag", "--delete", "") == ["v1"]
    assert offered("purge", "i") == ["image"]
    assert offered("purge", "image", "--key", "") == ["0", "1", "2"]
    assert offered("purge", "data/label", "--key", "1") == ["1"]
    assert offered("purge", "none", "--key", "") == []
    assert offered("leaks", "image", "label", "--columns", "") == []
    assert offered("fetch", "--data", "") == ["image", "label"]
    assert offered("fetch", "--model", "n") == ["net"]
    typed("push", "./remote")
    for call in (
        ("fetch",),
        ("pull",),
        ("remote", "forget"),
        ("gc", "--remote"),
        ("verify", "--repair-from"),
    ):
        assert offered(*call, "o") == ["origin"]
    assert offered("fetch", "") == ["origin"]
    for call in (
        ("diff",), ("diff", "main"), ("log",), ("log", "topic"), ("reset",), ("merge", "--base"), ("list", "--at"),
        ("fetch", "--at"), ("inspect", "--against"),
    ):  # fmt: skip
        assert offered(*call, "") == ["main", "topic", "v1", "origin/main"]
    assert offered("push", "--branch", "") == offered("pull", "--branch", "") == ["main", "topic"]
    assert offered("push", "--tag", "") == ["v1"]
    assert offered("list", "m") == ["model"]


def test_a_shell_is_offered_commits_by_their_digests_once_one_is_begun(
    typed: Stock, offered: Offered
) -> None:
    typed("init")
    with StockRoom() as room:
        for number in range(20):
            with room.enable_write(f"{number}"):
                room.experiment["x"] = number
        digests = [commit.digest for commit in room.log()]
    for length in (1, 3, 12, 30):
        begun = digests[4][:length]
        found = [digest[: max(12, length)] for digest in digests if digest.startswith(begun)]
        assert offered("diff", begun) == offered("log", begun) == found
        typed("diff", found[0])
    assert offered("diff", "x") == []


def test_a_shell_is_offered_importers_their_options_and_files(offered: Offered) -> None:
    assert offered("import", "torchvision.cifar") == ["torchvision.cifar10", "torchvision.cifar100"]
    assert "csv" in offered("import", "")
    assert "nulls=" in " ".join(offered("import", "csv", "--option", "n"))
    assert offered("import", "csv", "--option", "nul") == [
        each for each in offered("import", "csv", "-o", "") if each.startswith("nul")
    ]
    assert offered("import", "no-such-importer", "--option", "") == []
    # With nothing offered, shells complete the names of files by themselves.
    assert offered("import", "csv", "--from", "") == []
    assert offered("import", "csv", "--from", "", shell="zsh") == ["_files"]


def test_keys_that_look_like_numbers_are_what_the_column_has(
    typed: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left() -> dict[str, list[object]]:
        with StockRoom() as room:
            return {name: list(room.data[name]) for name in room.data}

    typed("init")
    with StockRoom().enable_write() as room:
        room.data["ids"] = {"001": "a", "003": "b", "7": "c", "x,1": "d"}
        room.data["mixed"] = {3: "int", "3": "text"}
        room.data["parts"] = {("a", 1): "p", ("a", 2): "q", ("b", "1"): "r"}
    typed("push", "../remote")

    def purged(name: str, *keys: str) -> None:
        given = [each for key in keys for each in ("--key", key)]
        typed("purge", name, *given, "--why", "asked", "--yes")

    for key, message in (
        ("3", r"no version of the column 'ids' has a sample 3, so .*The nearest keys are '001', '003', '7'"),
        (
            "004",
            r"has a sample '004', .*purge; did you mean '003'\? Nothing .*nearest keys are '003', '7'; stock",
        ),
        ("x,2", r"has a sample 'x,2', so there is nothing to purge; did you mean 'x,1'\?"),
    ):
        with pytest.raises(HopyardError, match=message):
            purged("ids", key)
    with pytest.raises(HopyardError, match=r"has a sample \('a', 3\).*\('a', 2\), \('b', '1'\)"):
        purged("parts", "a,3")
    with pytest.raises(HopyardError, match=r"no version has a column 'idz'; did you mean 'ids'\? Nothing"):
        purged("idz", "3")
    purged("ids", "003", "7", "x,1")
    purged("mixed", "'3'")
    purged("parts", "a,1", "b,1")
    assert left() == {"ids": ["001"], "mixed": [3], "parts": [("a", 2)]}

    typed("clone", "../remote", "../copy")
    monkeypatch.chdir(tmp_path / "copy")
    for keys in ("zz", "'zz,1'", "0:5"):
        with pytest.raises(HopyardError, match=r"no sample near the key .*The nearest keys? "):
            typed("fetch", "--data", "ids", "--keys", keys)
    assert typed("fetch", "--data", "ids", "--keys", "003,7").startswith("1 object, ")
    assert typed("fetch", "--data", "parts", "--keys", "a,1", "--keys", "b").startswith("1 object, ")
