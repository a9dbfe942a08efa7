"""Imports that are interrupted go on where they were."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard import StockRoom
from hopyard.errors import DataError, UsageError
from hopyard.stockroom.importers import ColumnSource, Importer, storing

_SCRIPT = """
import os, signal, sys
from hopyard import StockRoom
from hopyard.stockroom.importers import storing

storing._AT_ONCE = 1 << 20
storing.read_columns.__kwdefaults__["chunk_bytes"] = 1 << 19
kill = int(sys.argv[2])

def watch(progress):
    if kill and progress.done >= kill:
        os.kill(os.getpid(), signal.SIGKILL)

imported = StockRoom(sys.argv[1]).import_from("numpy", sys.argv[3], watch=watch)
print(imported.resumed, imported.columns)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", _SCRIPT, *arguments], capture_output=True, text=True)


def test_an_import_that_was_killed_goes_on(tmp_path: Path) -> None:
    values = np.arange(1_000_000).reshape(100_000, 10)
    np.save(tmp_path / "x.npy", values)
    root, source = str(tmp_path / "repo"), str(tmp_path / "x.npy")
    stock = StockRoom.init(root)
    done = run(root, "60000", source)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert stock.log() == []
    np.save(tmp_path / "y.npy", values[:5])
    with pytest.raises(
        UsageError, match="something is staged, which the commit of the import 'numpy' would have"
    ):
        stock.import_from("numpy", tmp_path / "y.npy")
    done = run(root, "0", source)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout.split()[0]) < 100_000
    stock = StockRoom(root)
    (name,) = stock.data
    assert np.array_equal(np.asarray(stock.data[name]), values)
    assert stock.status().staged == []
    again = stock.import_from("numpy", source)
    assert (again.resumed, again.is_new) == (0, False)
    assert stock.status().staged == []
    assert len(stock.log()) == 1


def test_a_column_of_a_name_that_none_can_have_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a\x1b": [1], "b": [2]}), tmp_path / "x.parquet")
    stock = StockRoom.init(tmp_path)
    with pytest.raises(
        UsageError, match=r"A column of the import 'parquet' was given the name 'a\\x1b'.*control"
    ):
        stock.import_from("parquet", tmp_path / "x.parquet")
    assert list(stock.data) == []
    assert not stock.status().staged


def test_columns_of_a_split_that_differ_in_length_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    stock = StockRoom.init(tmp_path)
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros(5))
    with pytest.raises(
        DataError,
        match=r"the column 'a' has 3 samples, and 'b' has 5, but samples i of all columns of one split belong "
        r"together, so these have the same count\. Give columns of one length, or import each length from a source of "
        r"its own; columns of another split are called by it, as 'test-image'",
    ):
        stock.import_from("numpy", tmp_path / "x.npz")
    assert list(stock.data) == []
    assert not stock.status().staged
    np.savez(tmp_path / "y.npz", **{"a": np.zeros(3), "test-a": np.zeros(5), "test-b": np.zeros(5)})
    assert stock.import_from("numpy", tmp_path / "y.npz").columns == {"a": 3, "test-a": 5, "test-b": 5}


class Lines(Importer):
    """Texts of a file, one a line."""

    def columns(self) -> list[ColumnSource]:
        assert self.source is not None
        lines = self.source.read_text().splitlines()
        return [ColumnSource("line", len(lines), "string", "object", (), lambda begin, end: lines[begin:end])]

    def identity(self) -> dict[str, str]:
        return {"digest": "of the text"}


def test_a_folder_where_an_importer_reads_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "open_importer", lambda name, source, options: Lines(source))
    stock = StockRoom.init(tmp_path / "repo")
    (tmp_path / "x.txt").write_text("one\ntwo\n")
    for source, given, needed in ((tmp_path, "folder", "file"), (tmp_path / "x.txt", "file", "folder")):
        if needed == "folder":
            monkeypatch.setattr(Lines, "columns", lambda self: list(self.source.iterdir()))
        with pytest.raises(
            DataError,
            match=f"the importer 'lines' was given {source}, and {source} is a {given}, where it reads a {needed}. "
            "Give another path; `hopyard stock import` without arguments says what each importer takes.",
        ):
            stock.import_from("lines", source)
    assert not stock.status().staged


def test_rows_that_have_other_keys_than_before_are_told(tmp_path: Path) -> None:
    stock = StockRoom.init(tmp_path)

    def imported(text: str, **options: str) -> tuple[str, ...]:
        (tmp_path / "x.csv").write_text(text)
        return stock.import_from("csv", tmp_path / "x.csv", options=options).notes

    assert imported("id,n,m\n7,1,5\n9,2,5\n") == ()
    assert imported("id,n,m\n7,1,5\n9,3,5\n") == ()
    (note,) = imported("id,n,m\n7,1,5\n8,4,5\n9,3,5\n")
    assert note.startswith(
        "'id' (and 2 other columns) had 2 rows and has 3 now; keys are the numbers of rows, so"
    )
    assert note.endswith("A column of ids keeps them: key=ID")
    (note,) = imported("id,n,m\n7,1,5\n8,4,5\n9,3,5\n", key="id")
    assert note.startswith(
        "the column 'id', which has the keys now, is still there from an import without key="
    )
    assert note.endswith("del stock.data['id']")
    with stock.enable_write():
        del stock.data["id"]
    assert imported("id,n,m\n7,1,5\n8,4,5\n", key="id") == ()


def test_edits_of_two_people_merge_by_ids_but_not_by_rows(tmp_path: Path) -> None:
    stock = StockRoom.init(tmp_path)

    def imported(text: str, **options: str) -> None:
        (tmp_path / "x.csv").write_text(text)
        stock.import_from("csv", tmp_path / "x.csv", options=options)

    imported("id,n\n7,1\n9,2\n", key="id")
    stock.branch("edited")
    imported("id,n\n7,1\n8,5\n9,2\n", key="id")
    stock.switch("edited")
    imported("id,n\n7,1\n9,3\n", key="id")
    stock.merge("main")
    assert {key: int(value) for key, value in stock.data["n"].items()} == {7: 1, 8: 5, 9: 3}
