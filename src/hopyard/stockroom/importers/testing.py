"""The suite that every importer must pass, also a user's own.

::

    class TestMyFormat(ImporterSuite):
        @pytest.fixture
        def importer(self, tmp_path):
            write_a_small_file(tmp_path / "data.mine")
            with MyImporter(tmp_path / "data.mine") as importer:
                yield importer
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hopyard.errors import HopyardError
from hopyard.stockroom.importers.base import ColumnSource, Importer, Samples
from hopyard.stockroom.importers.run import ImportProgress, check_columns, check_samples, read_columns

__all__ = ["ImporterSuite", "gathered", "same"]


def gathered(read: Any) -> dict[str, list[Any]]:
    """Samples that ``read_columns`` gives, as one list a column; checks that starts follow each other."""
    found: dict[str, list[Any]] = {}
    for name, start, samples in read:
        rows = found.setdefault(name, [])
        assert start == len(rows), f"column {name!r}: a chunk begins at {start}, but {len(rows)} samples came"
        rows.extend(samples)
    return found


def same(one: Samples | list[Any], other: Samples | list[Any]) -> bool:
    """Whether samples are equal bit for bit."""
    return len(one) == len(other) and all(
        (type(a), np.shape(a), np.asarray(a).tobytes()) == (type(b), np.shape(b), np.asarray(b).tobytes())
        for a, b in zip(one, other, strict=True)
    )


class ImporterSuite:
    """Inherit and define the fixture ``importer``: one that is open, with at least two samples in each column."""

    @pytest.fixture
    def importer(self) -> Importer:
        raise NotImplementedError("define a fixture `importer` that gives an open importer of a small source")

    def test_columns_have_unique_names_and_samples(self, importer: Importer) -> None:
        columns = importer.columns()
        names = [column.name for column in columns]
        assert names
        assert len(set(names)) == len(names)
        assert all(isinstance(name, str) and name for name in names)
        assert all(column.count >= 2 for column in columns), "give the suite at least two samples"

    def test_columns_of_a_split_have_the_same_count(self, importer: Importer) -> None:
        check_columns(importer.columns())

    def test_columns_are_described_alike_at_each_call(self, importer: Importer) -> None:
        def described(column: ColumnSource) -> tuple[Any, ...]:
            return column.name, column.count, column.kind, column.dtype, column.shape, column.split

        assert [described(c) for c in importer.columns()] == [described(c) for c in importer.columns()]

    def test_samples_are_as_described(self, importer: Importer) -> None:
        for column in importer.columns():
            check_samples(column, column.read(0, column.count), column.count)
            if column.kind == "tensor":
                assert np.dtype(column.dtype).isnative
            else:
                assert (column.dtype, column.shape) == ("object", ())

    def test_any_range_is_a_part_of_the_whole(self, importer: Importer) -> None:
        for column in importer.columns():
            whole, n = column.read(0, column.count), column.count
            for start, stop in [(n - 1, n), (0, 1), (1, n), (n // 2, n), (0, n // 2 + 1), (0, n)]:
                assert same(column.read(start, stop), whole[start:stop])

    def test_keys_are_unique_and_of_the_range(self, importer: Importer) -> None:
        for column in importer.columns():
            if column.keys is not None:
                keys = column.keys(0, column.count)
                assert len(set(keys)) == len(keys) == column.count
                assert all(type(key) in (int, str) for key in keys)
                assert column.keys(1, column.count) == keys[1:]

    def test_a_pickled_column_reads_the_same(self, importer: Importer) -> None:
        for column in importer.columns():
            copy = pickle.loads(pickle.dumps(column))
            assert same(copy.read(0, column.count), column.read(0, column.count))

    def test_processes_read_what_one_reads(self, importer: Importer) -> None:
        columns = importer.columns()
        here = gathered(read_columns(columns, chunk_bytes=1))
        there = gathered(read_columns(columns, processes=1))
        assert list(here) == list(there) == [column.name for column in columns]
        assert all(same(here[name], there[name]) for name in here)

    def test_reading_goes_on_where_it_stopped(self, importer: Importer) -> None:
        columns = importer.columns()
        whole = gathered(read_columns(columns))
        starts = {column.name: 1 + number % 2 for number, column in enumerate(columns)}
        tail: dict[str, list[Any]] = {}
        for name, start, samples in read_columns(columns, start=starts, chunk_bytes=1):
            assert start == starts[name] + len(tail.setdefault(name, []))
            tail[name].extend(samples)
        assert all(same(tail.get(name, []), whole[name][starts[name] :]) for name in whole)

    def test_progress_ends_with_all_samples(self, importer: Importer) -> None:
        seen: list[ImportProgress] = []
        columns = importer.columns()
        for _ in read_columns(columns, watch=seen.append):
            pass
        total = sum(column.count for column in columns)
        assert [p.total for p in seen] == [total] * len(seen)
        assert [p.done for p in seen] == sorted(p.done for p in seen)
        assert (seen[-1].done, seen[-1].left) == (total, 0)

    def test_identity_is_json_that_stays(self, importer: Importer) -> None:
        identity = importer.identity()
        assert json.loads(json.dumps(identity)) == identity
        assert importer.identity() == identity

    def test_identity_differs_once_the_files_have_changed(
        self, importer: Importer, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """By a byte of each, in a copy: an import that is interrupted must not go on with other files."""
        if importer.source is None:
            pytest.skip("the importer reads no files")
        copy = tmp_path_factory.mktemp("copied") / importer.source.name
        if importer.source.is_dir():
            shutil.copytree(importer.source, copy)
        else:
            shutil.copy2(importer.source, copy)

        def identity() -> Mapping[str, Any]:
            with type(importer)(copy, **importer.settings) as another:
                return another.identity()

        before = identity()
        assert identity() == before, "the same files have another identity when they are opened again"
        for path in [*copy.rglob("*")] if copy.is_dir() else [copy]:
            if path.is_file() and (data := bytearray(path.read_bytes())):
                data[len(data) // 2] ^= 1
                changed = (
                    path.stat().st_mtime_ns + 10**9
                )  # a second later, whatever the resolution of the clock
                path.write_bytes(data)
                os.utime(path, ns=(changed, changed))
        with contextlib.suppress(HopyardError):  # they may be damaged, and found to be
            assert identity() != before, "the files have changed, but the identity has not"

    def test_help_says_what_it_imports_and_every_option(self, importer: Importer) -> None:
        text = importer.help()
        assert text.strip()
        for option in importer.options():
            assert f"{option.name}=" in text
            assert option.check(option.default) == option.default

    def test_closing_twice_is_fine(self, importer: Importer) -> None:
        importer.columns()
        importer.close()
        importer.close()
