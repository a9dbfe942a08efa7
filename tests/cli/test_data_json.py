"""What ``hopyard data|store|plan|version --json`` prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.cli.shapes import document, shape, undocumented
from typer.testing import CliRunner

from hopyard import __version__
from hopyard.cli import app
from hopyard.data import inspect, list_cache
from hopyard.hopper import plan as estimate

SPLIT = {
    "split": "text",
    "rows": "int",
    "row_groups": "int",
    "files": "int",
    "file_bytes": "int",
    "prepared": "bool",
    "created": "text",
    "fingerprint": "text",
    "partitions": {},
    "cached_row_groups": "int",
    "notes": [],
}
STATISTICS = {
    "min": "float",
    "max": "float",
    "mean": "float",
    "std": "float",
    "missing": "int",
    "not_finite": "int",
    "distinct": None,
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with rows in ``rows.parquet``, in four row groups."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPYARD_CACHE", str(tmp_path / "cache"))
    frame = {"größe": np.arange(64) / 2, "label": np.arange(64) % 2, "text": ["名前"] * 64}
    pd.DataFrame(frame).to_parquet("rows.parquet", row_group_size=16)
    return tmp_path


def typed(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == code, done.output
    found = document(done.stdout)
    words = {"plan": 1, "version": 1}.get(arguments[0], 3 if arguments[1:2] == ("cache",) else 2)
    assert undocumented(" ".join(arguments[:words]), found) == set()
    return found


def test_prepare_and_inspect() -> None:
    made = typed("data", "prepare", "rows.parquet", "Lager")
    assert shape(made) == {
        "fingerprint": "text",
        "reused": "bool",
        "took_seconds": "float",
        "train": {"rows": "int", "url": "text"},
        "val": {"rows": "int", "url": "text"},
    }
    assert typed("data", "prepare", "rows.parquet", "Lager")["reused"]
    train, val = typed("data", "inspect", "Lager")
    columns, settings = train.pop("columns"), train.pop("settings")
    assert shape(train) == SPLIT
    assert settings["seed"] == 0
    assert (train["split"], val["split"]) == ("train", "val")
    assert train["rows"] == made["train"]["rows"]
    assert train["fingerprint"] == inspect("Lager").splits[0].fingerprint == made["fingerprint"]
    [size] = [column for column in columns if column["name"] == "größe"]
    assert shape(size) == {
        "name": "text",
        "kind": "text",
        "dtype": "text",
        "shape": [],
        "read": "text",
        "sorted": None,
        "statistics": STATISTICS,
    }
    [text] = [column for column in columns if column["name"] == "text"]
    assert text["statistics"]["distinct"] == ["名前"]


def test_inspect_of_files_as_they_are() -> None:
    [split] = typed("data", "inspect", "rows.parquet")
    assert split["prepared"] is False
    assert split["created"] is None
    assert split["columns"][0]["statistics"] is None
    assert split["columns"][0]["sorted"] == 1.0


def test_prepare_without_a_validation_set() -> None:
    assert typed("data", "prepare", "rows.parquet", "store", "--validation", "none")["val"] is None


def test_verify_of_whole_and_of_damaged_data() -> None:
    typed("data", "prepare", "rows.parquet", "store", "--validation", "none")
    whole = typed("data", "verify", "store")
    assert shape(whole) == {
        "ok": "bool",
        "datasets": ["text"],
        "files": "int",
        "read_bytes": "int",
        "problems": [],
    }
    file = max(filter(Path.is_file, Path("store").rglob("*")), key=lambda each: each.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(content)
    damaged = typed("data", "verify", "store", code=1)
    assert damaged["ok"] is False
    assert len(damaged["problems"]) == 1


def test_throughput() -> None:
    typed("data", "prepare", "rows.parquet", "store", "--validation", "none")
    found = typed(
        "data", "throughput", "store", "--epochs", "1", "--batch-size", "8", "--columns", "größe,label"
    )
    [epoch] = found.pop("epochs")
    assert found["columns"] == ["größe", "label"]
    assert set(found) == {
        "rows", "batch_size", "shuffle", "output", "columns", "decoded_columns", "window_rows",
        "take_rows_per_second", "pyarrow_rows_per_second", "quality", "anonymous_before_bytes",
    }  # fmt: skip
    assert set(epoch) == {
        "rows", "batches", "value_bytes", "took_seconds", "first_batch_seconds", "cpu_seconds", "rows_per_second",
        "peak_anonymous_bytes", "peak_shared_bytes",
    }  # fmt: skip
    assert (epoch["rows"], epoch["batches"]) == (64, 8)


def test_the_cache_filled_and_empty() -> None:
    assert typed("data", "cache", "list")["files"] == []
    typed("data", "throughput", "rows.parquet", "--epochs", "1")
    found = typed("data", "cache", "list")
    assert shape(found) == {
        "path": "text",
        "limit_bytes": "int",
        "used_bytes": "int",
        "files": [
            {"file": "text", "entries": "int", "row_groups": "int", "used_bytes": "int", "last_used": "text"}
        ],
    }
    assert found["used_bytes"] == list_cache().nbytes > 0
    cleared = typed("data", "cache", "clear")
    assert shape(cleared) == {"path": "text", "freed_bytes": "int"}
    assert typed("data", "cache", "clear")["freed_bytes"] == 0


def test_store_check() -> None:
    found = typed("store", "check", "Lager", "--megabytes", "1")
    assert shape(found) == {
        "url": "text",
        "ok": "bool",
        "checks": [{"name": "text", "ok": "bool", "found": "text"}],
        "request_seconds": dict.fromkeys(("write", "read", "list", "delete"), "float"),
    }


def test_store_check_of_what_is_no_store() -> None:
    found = typed("store", "check", "rows.parquet", "--megabytes", "1", code=1)
    assert found["ok"] is False
    assert found["request_seconds"] == {}


def test_plan_with_and_without_a_searcher() -> None:
    Path("searcher.json").write_text(
        json.dumps({"name": "random", "max_trials": 2, "max_length": {"epochs": 3}})
    )
    cluster = ("--workers", "8", "--rows", "1000000", "--rows-per-second", "5000", "--data-gb", "50")
    searcher = {
        "unit": "epochs",
        "num_trials": 2,
        "units": 6,
        "groups": [{"num_trials": 2, "units_each": 3}],
    }
    assert typed("plan", "--searcher", "searcher.json") == {
        "searcher": searcher,
        "estimates": None,
        "packing": None,
    }
    both = typed("plan", "--searcher", "searcher.json", *cluster)
    assert both["searcher"] == searcher
    assert shape(both["estimates"][0]) == {
        "way": "text",
        "total_seconds": "float",
        "worker_hours": "float",
        "moved_bytes": "int",
        "stored_bytes": "int",
        "bucket_read_bytes": "int",
        "bucket_requests": "int",
    }
    alone = typed("plan", *cluster, "--models", "2", "--epochs", "3")
    assert alone == both | {"searcher": None}
    assert both["packing"]["packs"] == []  # two trials on eight workers
    wanted = estimate(
        workers=8, rows=10**6, state_bytes=1e8, dataset_bytes=5e10, num_models=2, num_epochs=3, rows_per_second=5000
    )  # fmt: skip
    assert [each["total_seconds"] for each in alone["estimates"]] == [each.seconds for each in wanted]


def test_version() -> None:
    assert typed("version") == {"version": __version__}
