"""What ``hopyard stock ... --json`` prints of real stockrooms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.shapes import document, shape, undocumented
from typer.testing import CliRunner

from hopyard import StockRoom
from hopyard.cli import stock
from hopyard.errors import UsageError

STATUS = {
    "branch": "text",
    "commit": "text",
    "behind": None,
    "ahead": None,
    "detached": None,
    "why": None,
    "staged": [],
    "elsewhere": [],
    "remotes": [],
    "advice": [],
}
SPREAD = {
    **dict.fromkeys(("mean", "std", "norm", "min", "max", "zeros"), "float"),
    "nan": "int",
    "infinite": "int",
    "histogram": ["int"],
}
NOTHING_FETCHED = {
    "branches": [],
    "tags": [],
    "differing_tags": [],
    "gone": [],
    "received_bytes": "int",
    "purges": {"waiting": "int", "accepted": "int", "refused": "int", "messages": []},
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a stockroom, without git."""
    folder = tmp_path / "Größen"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Ägidius")
    return folder


@pytest.fixture
def room() -> Iterator[StockRoom]:
    with StockRoom.init(".") as opened:
        yield opened


@pytest.fixture
def filled(room: StockRoom) -> StockRoom:
    """Two commits, ``v1`` and one more, of something on every shelf."""
    with room.enable_write("erster"):
        room.data["名前"] = np.arange(6.0).reshape(3, 2)
        room.data["text"] = {"a": "ä", "b": "ö"}
        room.model["net"] = {"w": torch.arange(6.0).reshape(2, 3)}
        room.experiment["lr"] = {"x": [0.1, float("nan")]}
        with room.run(params={"lr": 0.1}, tags={"who": "ü"}) as run:
            run.log(loss=float("nan"))
            run.log(loss=0.5)
    room.tag("v1")
    with room.enable_write("second"):
        room.data["text"] = {"a": "ä", "b": "o", "c": "u"}
        room.model["net"] = {"w": torch.ones(2, 3)}
        room.experiment["lr"] = 0.2
    return room


def typed(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(stock.app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == code, done.output
    found = document(done.stdout)
    command = " ".join(arguments[: 2 if arguments[0] == "remote" else 1])
    assert undocumented(f"stock {command}", found) == set()
    return found


@pytest.mark.usefixtures("room")
def test_a_stockroom_in_which_nothing_is() -> None:
    assert shape(typed("status")) == STATUS | {"commit": None}
    for command in ("log", "list", "branch", "tag", "diff"):
        assert typed(command) == [], command
    assert typed("remote", "list") == []
    assert typed("verify")["problems"] == []


def test_status_and_commit(filled: StockRoom) -> None:
    assert shape(typed("status")) == STATUS
    writing = StockRoom(enable_write=True)
    writing.experiment["größe"] = 1
    writing.close()
    assert typed("status")["staged"] == [{"path": "experiment/größe", "how": "added"}]
    made = typed("commit", "-m", "größer")
    assert shape(made) == {"commit": "text", "branch": "text", "things": "int"}
    assert made["commit"] == typed("log")[0]["commit"]


def test_log(filled: StockRoom) -> None:
    second, first = typed("log")
    assert shape(second) == {
        "commit": "text",
        "parents": ["text"],
        "time": "text",
        "author": "text",
        "message": "text",
        "labels": ["text"],
        "git": None,
    }
    assert (first["labels"], first["message"]) == (["tag v1"], "erster")
    assert first["author"].startswith("Ägidius")
    assert second["parents"] == [first["commit"]]
    assert len(typed("log", "-n", "1")) == 1


def test_branches_and_tags(filled: StockRoom) -> None:
    made = typed("branch", "dev", "v1")
    assert typed("branch") == [made | {"current": False}, *typed("branch")[1:]]
    assert [each["current"] for each in typed("branch")] == [False, True]
    assert typed("tag") == [{"tag": "v1", "commit": made["commit"]}]
    assert typed("tag", "v1", "--delete") == {"tag": "v1", "commit": None}
    assert typed("branch", "dev", "--delete") == {"branch": "dev", "commit": None}


def test_switch_merge_revert_and_reset(filled: StockRoom) -> None:
    typed("branch", "dev", "v1")
    assert typed("switch", "dev") == {"branch": "dev", "commit": filled.tags()["v1"]}
    merged = typed("merge", "main")
    assert merged == {"how": "fast-forward", "branch": "dev", "commit": filled.branches()["main"]}
    reverted = typed("revert", "HEAD")
    assert typed("reset") == reverted == {"branch": "dev", "commit": typed("log")[0]["commit"]}


def test_diff(filled: StockRoom) -> None:
    found = {each["path"]: each for each in typed("diff", "v1", "main")}
    text, net, value = (found[path] for path in ("data/text", "model/net", "experiment/lr"))
    keys = {"path", "how", "before", "after", "samples", "tensors", "values", "files"}
    assert [set(each) for each in (value, net, text)] == [keys] * 3
    assert text["samples"] == [{"key": "b", "how": "changed"}, {"key": "c", "how": "added"}]
    assert shape(net["tensors"]) == [{"path": "text", "how": "text", "moved": "float", "relative": "float"}]
    assert value["values"] == {"before": {"x": [0.1, None]}, "after": 0.2}


def test_list(filled: StockRoom) -> None:
    found = typed("list", "data")
    assert shape(found) == [{"path": "text", "what": "text", "count": "int", "value_bytes": "int"}]
    assert [each["path"] for each in found] == ["data/text", "data/名前"]


def test_inspect(filled: StockRoom) -> None:
    net = typed("inspect", "model/net", "--against", "v1")
    assert shape(net) == {
        "path": "text",
        "value_bytes": "int",
        "tensors": [
            {
                "path": "text",
                "dtype": "text",
                "shape": ["int"],
                "value_bytes": "int",
                "statistics": SPREAD,
                "change": "text",
                "moved": "float",
                "relative": "float",
            }
        ],
    }
    column = typed("inspect", "data/名前")
    assert shape(column) == {
        "path": "text",
        "kind": "text",
        "count": "int",
        "value_bytes": "int",
        "dtype": "text",
        "shape": ["int"],
        "first_keys": ["int"],
        "described": "int",
        "statistics": SPREAD,
    }
    texts = typed("inspect", "data/text")
    assert (texts["first_keys"], texts["statistics"], texts["described"]) == (["a", "b", "c"], None, 0)
    assert typed("inspect", "experiment/lr", "--at", "v1") == {
        "path": "experiment/lr",
        "value": {"x": [0.1, None]},
    }
    [run_id] = [each["path"] for each in typed("list", "run")]
    run = typed("inspect", run_id)
    assert shape(run) == {
        "path": "text",
        "status": "text",
        "started": "text",
        "run_seconds": "float",
        "params": {"lr": "float"},
        "tags": {"who": "text"},
        "metrics": {"loss": {"count": "int", "last": "float", "last_step": "int"}},
        "artifacts": [],
        "error": None,
    }


def test_export(filled: StockRoom) -> None:
    found = typed("export", "data/text", "texte.parquet")
    assert found == {
        "path": "data/text",
        "file": "texte.parquet",
        "file_bytes": Path("texte.parquet").stat().st_size,
    }


def test_leaks(filled: StockRoom) -> None:
    with filled.enable_write("more"):
        filled.data["again"] = {"z": "ö", "y": "u"}
    found, other, third = typed("leaks", "text", "again", "名前", code=1)
    assert found == {
        "first": "text",
        "second": "again",
        "compared": [3, 2],
        "pairs": [["c", "y"]],
        "error": None,
    }
    assert (other["pairs"], third["compared"]) == (None, None)
    assert other["error"]
    typed("leaks", "text", "名前", code=2)


def test_importers() -> None:
    found = typed("import")
    assert shape(found) == [{"importer": "text", "help": "text", "error": None}]
    assert "csv" in [each["importer"] for each in found]


def test_import_makes_a_stockroom_and_says_so_elsewhere() -> None:
    Path("größen.csv").write_text("größe\n1\n2\n")
    done = CliRunner().invoke(stock.app, ["import", "csv", "--from", "größen.csv", "--json"])
    assert done.exit_code == 0, done.output
    found = document(done.stdout)
    assert "a stockroom is in" in done.stderr
    assert shape(found) == {
        "commit": "text",
        "branch": "text",
        "is_new": "bool",
        "columns": [{"path": "text", "count": "int"}],
        "resumed": "int",
        "took_seconds": "float",
        "notes": [],
    }
    assert found["columns"] == [{"path": "data/größe", "count": 2}]


def test_remotes(filled: StockRoom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = str(tmp_path / "there")
    pushed = typed("push", there)
    assert typed("push", "--tag", "v1")["tags"] == [{"tag": "v1", "commit": filled.tags()["v1"]}]
    assert shape(pushed) == {
        "branches": [{"branch": "text", "before": None, "now": "text"}],
        "tags": [],
        "kept": [],
        "objects": "int",
        "sent_bytes": "int",
        "purges": [],
        "notes": [],
    }
    assert typed("push")["branches"] == []
    assert [each["remote"] for each in typed("remote", "list")] == ["origin"]
    assert shape(typed("fetch")) == NOTHING_FETCHED
    StockRoom.clone(there, str(tmp_path / "clone")).close()
    monkeypatch.chdir(tmp_path / "clone")
    brought = typed("fetch", "--data", "text", "--max-bytes", "0")
    assert shape(brought) == {
        "objects": "int",
        "received_bytes": "int",
        "left": [{"path": "text", "objects": "int", "left_bytes": "int"}],
        "returned": [],
    }
    pulled = typed("pull")
    assert (pulled.pop("how"), shape(pulled.pop("fetched"))) == ("up to date", NOTHING_FETCHED)
    assert pulled == {"branch": "main", "commit": pushed["branches"][0]["now"]}


def test_gc(filled: StockRoom) -> None:
    assert shape(typed("gc", "--dry-run")) == {
        "dry_run": "bool",
        "objects": "int",
        "files": "int",
        "packfiles": "int",
        "freed_bytes": "int",
        "young_bytes": "int",
    }


def test_purge_asks_nothing(filled: StockRoom) -> None:
    asked = ["purge", "text", "--key", "a", "--why", "asked"]
    with pytest.raises(
        UsageError, match=r"^purge --json was given without --yes, but it would ask, and programs do"
    ):
        typed(*asked)
    found = typed(*asked, "--yes")
    assert (found["column"], found["keys"]) == ("text", ["a"])
    assert shape(found["equal"]) == {"count": "int", "first": [], "unread_bytes": "int"}
    assert set(found) == {
        "column", "keys", "fragments", "staged", "shared", "remotes", "equal", "collected",
    }  # fmt: skip


def test_verify_of_a_whole_and_of_a_damaged_stockroom(filled: StockRoom) -> None:
    whole = typed("verify")
    assert shape(whole) == {
        "ok": "bool",
        "commits": "int",
        "objects": "int",
        "read_bytes": "int",
        "elsewhere": "int",
        "problems": [],
        "unproven": [],
        "returned": [],
    }
    file = max(filled.place.objects.rglob("packfiles/*"), key=lambda each: each.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.chmod(0o644)
    file.write_bytes(content)
    damaged = typed("verify", code=1)
    assert damaged["ok"] is False
    assert shape(damaged["problems"][0]) == {
        "kind": "text",
        "name": "text",
        "reason": "text",
        "needed_by": "text",
        "repaired": "bool",
    }
