"""What ``hopyard data`` shows and writes, and what it says when something is wrong."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from hopyard.cli import app
from hopyard.data import NodeCache, open_dataset
from hopyard.errors import ColumnError, DataError, NotFoundError, UsageError

Invoke = Callable[..., str]
PETASTORM = Path(__file__).resolve().parent.parent / "data" / "petastorm" / "dataset"


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """The command in this process and an empty directory; its errors come as they are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("HOPYARD_CACHE", str(tmp_path / "cache"))

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["data", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return call


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """120 rows in three row groups, with nulls and lists."""
    table = pa.table(
        {
            "x": np.arange(120, dtype=np.float32),
            "y": np.arange(120) % 3,
            "late": np.arange(120) >= 90,
            "note": [None if i % 40 == 0 else f"row {i}" for i in range(120)],
            "words": [list(range(i % 4)) for i in range(120)],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=40)
    return tmp_path / "rows.parquet"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """300 rows in hive directories of years, which are decoded."""
    for year in (2023, 2024, 2025):
        (tmp_path / "plain" / f"year={year}").mkdir(parents=True)
        table = pa.table({"x": np.arange(100.0), "y": np.arange(100)})
        pq.write_table(table, tmp_path / "plain" / f"year={year}" / "part.parquet", compression="zstd")
    return tmp_path / "plain"


def test_prepare_says_what_was_made_and_what_comes_next(invoke: Invoke, parquet: Path) -> None:
    said = invoke("prepare", str(parquet), "my store", "--nulls", "mask", "--ragged", "pad", "--seed", "3")
    first, train, val, following = said.splitlines()
    assert re.fullmatch(r"90 rows for train and 30 rows for val in [\d.]+ s, [\d,]+ rows/s", first)
    dataset = open_dataset("my store")
    assert dataset.store is not None
    assert train == f"  train: {dataset.store.url}"
    assert val.startswith("  val: ")
    assert following == "next: hopyard data inspect 'my store', or hopyard data throughput 'my store'"
    assert dataset.manifest.settings["seed"] == 3
    assert dataset.schema.names == ["x", "y", "late", "note", "note_mask", "words", "words_length"]
    again = invoke("prepare", str(parquet), "my store", "--nulls", "mask", "--ragged", "pad", "--seed", "3")
    assert again.startswith(
        "90 rows for train and 30 rows for val are there already, with the same arguments"
    )


def test_prepare_takes_a_column_for_validation_and_only_some_columns(invoke: Invoke, parquet: Path) -> None:
    said = invoke(
        "prepare", str(parquet), "store", "--validation", "late", "--features", "x", "--labels", "y"
    )
    assert said.startswith("90 rows for train and 30 rows for val in")
    assert open_dataset("store").schema.names == ["x", "y"]
    assert set(open_dataset("store", "val")[:]["x"]) == set(range(90, 120))


def test_prepare_takes_several_files_and_patterns_and_no_validation(invoke: Invoke, tmp_path: Path) -> None:
    for name in "abc":
        pd.DataFrame({"x": range(10)}).to_csv(tmp_path / f"{name}.csv", index=False)
    assert invoke("prepare", "a.csv", "b.csv", "two", "--validation", "none").startswith(
        "20 rows for train in"
    )
    assert invoke("prepare", "*.csv", "three", "--validation", "none").startswith("30 rows for train in")


def test_prepare_reads_csv_with_the_types_and_the_delimiter_given(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;x\n" + "".join(f"{row};{row}\n" for row in range(10)))
    invoke(
        "prepare", "a.csv", "two", "--validation", "none", "--types", "id=text,x=int16", "--delimiter", ";"
    )
    assert str(open_dataset(tmp_path / "two").schema) == "id: string, x: int16"


def test_prepare_refuses_bad_input_and_writes_nothing(invoke: Invoke, parquet: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'note' in 3 rows"):
        invoke("prepare", str(parquet), "store", "--ragged", "keep")
    with pytest.raises(ColumnError, match=r"Unknown validation column: 'lat'; did you mean 'late'\?"):
        invoke("prepare", str(parquet), "store", "--validation", "lat")
    with pytest.raises(UsageError, match="validation"):
        invoke("prepare", str(parquet), "store", "--validation", "1.5")
    with pytest.raises(NotFoundError, match="Check the path"):
        invoke("prepare", "no.parquet", "store")
    assert not list(tmp_path.glob("store/**/*.parquet"))
    assert not list(tmp_path.glob("store/**/manifest.json"))


def test_inspect_shows_partitions_policies_and_what_is_cached(
    invoke: Invoke, parquet: Path, plain: Path
) -> None:
    shown = invoke("inspect", str(plain))
    assert "300 rows in 3 row groups, 3 files" in shown
    assert "columns of directories: year (3 values)" in shown
    assert "the node cache holds" not in shown
    next(iter(open_dataset(plain).loader(8)))
    assert "the node cache holds decoded data of 3 of 3 row groups" in invoke("inspect", str(plain))
    refused = " ".join(invoke("inspect", str(parquet)).split())
    assert "without more arguments:" in refused
    assert "column 'note' has 3 nulls" in refused
    assert re.search(r"note_mask +bool", refused)
    assert re.search(r"words +int64\[\*\]", refused)


def test_throughput_shows_epochs_and_limits(invoke: Invoke, plain: Path) -> None:
    shown = invoke(
        "throughput", str(plain), "--batch-size", "10", "--columns", "x, y", "--epochs", "2", "--no-shuffle"
    )
    lines = shown.splitlines()
    assert lines[0] == "300 rows, batches of 10, in natural order, as numpy: x: float64, y: int64"
    assert lines[1].split()[:3] == ["epoch", "rows/s", "bytes/s"]
    assert [line.split()[0] for line in lines[2:6]] == ["1", "2", "pyarrow", "take"]
    assert "batch means of the row number vary" in shown
    with pytest.raises(ColumnError, match="Unknown column: 'z'"):
        invoke("throughput", str(plain), "--columns", "z")


def test_throughput_of_data_with_nulls(invoke: Invoke, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.5, None] * 50}), tmp_path / "nulls.parquet")
    with pytest.raises(DataError, match="column 'x' has 50 nulls"):
        invoke("throughput", "nulls.parquet", "--epochs", "1")
    shown = invoke("throughput", "nulls.parquet", "--epochs", "1", "--nulls", "mask")
    assert shown.startswith("100 rows, batches of 1,024, shuffled, as numpy: x: float64, x_mask: bool\n")


def test_the_cache_is_listed_and_cleared(invoke: Invoke, plain: Path, tmp_path: Path) -> None:
    assert re.fullmatch(
        rf"{re.escape(str(tmp_path))}/cache: 0 entries, 0 B of at most 20 GB\s*", invoke("cache", "list")
    )
    assert invoke("cache", "clear") == f"{tmp_path}/cache: there was nothing to delete\n"
    next(iter(open_dataset(plain).loader(8)))
    entries = NodeCache().entries()
    title, *lines, total = invoke("cache", "list", "--path", "cache").splitlines()
    assert title.split() == ["last", "used", "entries", "row", "groups", "size", "decoded", "from"]
    assert len(lines) == 3
    assert {line.split()[-1] for line in lines} == {str(file) for file in plain.rglob("*.parquet")}
    assert total.startswith(f"{tmp_path}/cache: {len(entries)} entries, ")
    freed = invoke("cache", "clear")
    assert re.fullmatch(r".*/cache: [\d.]+ (B|kB|MB) freed\n", freed)
    assert NodeCache().entries() == []


def test_a_cache_that_is_none_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(UsageError):
        invoke("cache", "clear", "--path", "photos")
    assert (tmp_path / "photos" / "cat.jpg").exists()
    with pytest.raises(
        NotFoundError, match=r"does not exist here\. Give the directory that was given as cache="
    ):
        invoke("cache", "list", "--path", "misspelt")


def test_petastorm_datasets_are_converted(invoke: Invoke) -> None:
    said = invoke("convert-petastorm", str(PETASTORM), "store", "--columns", "id", "--validation", "0.5")
    rows = pq.read_table(PETASTORM, columns=["id"]).num_rows
    assert re.match(rf"{rows // 2} rows for train and {rows - rows // 2} rows for val in ", said)
    converted = open_dataset("store")
    assert converted.schema.names == ["id"]
    invoke("convert-petastorm", str(PETASTORM), "encoded", "--columns", "photo", "--images", "keep")
    assert open_dataset("encoded").schema["photo"].kind == "bytes"
    with pytest.raises(NotFoundError):
        invoke("convert-petastorm", "nowhere", "store")


def test_errors_end_a_command_with_status_1(
    hopyard: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = hopyard("data", "inspect", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"NotFoundError: There is no .*Check the path\.\n", done.stderr)
    assert list(tmp_path.iterdir()) == []
