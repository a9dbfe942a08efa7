"""The suite of importers refuses those that break a rule."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopyard.errors import DataError
from hopyard.stockroom.importers.base import ColumnSource, Importer
from hopyard.stockroom.importers.testing import ImporterSuite


class Lines(Importer):
    """Texts of a file, one a line."""

    def columns(self) -> list[ColumnSource]:
        lines = self.text().splitlines()
        return [
            ColumnSource("line", len(lines), "string", "object", (), lambda start, stop: lines[start:stop])
        ]

    def text(self) -> str:
        assert self.source is not None
        return self.source.read_text()

    def identity(self) -> Mapping[str, Any]:
        return {"text": self.text()}


class Constant(Lines):
    def identity(self) -> Mapping[str, Any]:
        return {"format": "lines"}


class OfThePath(Lines):
    def identity(self) -> Mapping[str, Any]:
        return {"source": str(self.source)}


class OfTheSize(Lines):
    def identity(self) -> Mapping[str, Any]:
        return {"bytes": len(self.text())}


class Anew(Lines):
    """Has another identity for each opening."""

    openings = itertools.count()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.number = next(self.openings)

    def identity(self) -> Mapping[str, Any]:
        return {"number": self.number}


UNCHANGED = "the files have changed, but the identity has not"


class OfTwoCounts(Lines):
    """Has a column more, of one sample less."""

    def columns(self) -> list[ColumnSource]:
        (lines,) = super().columns()
        return [lines, replace(lines, name="other", count=lines.count - 1)]


class OfAnUnnamedSplit(Lines):
    """Says that the column is of a split that its name does not begin with."""

    def columns(self) -> list[ColumnSource]:
        return [replace(*super().columns(), split="test")]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            OfTwoCounts,
            "the column 'line' has 3 samples, and 'other' has 2, but samples i .* have the same count",
        ),
        (OfAnUnnamedSplit, r"of the split 'test', but .* begin with it\. Call it 'test-line'\."),
    ],
)
def test_the_suite_refuses_columns_of_a_split_that_do_not_go_together(
    kind: type[Lines], text: str, tmp_path: Path
) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\nthree\n")
    ImporterSuite().test_columns_of_a_split_have_the_same_count(Lines(tmp_path / "lines.txt"))
    with pytest.raises(DataError, match=text):
        ImporterSuite().test_columns_of_a_split_have_the_same_count(kind(tmp_path / "lines.txt"))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Constant, UNCHANGED),
        (OfThePath, UNCHANGED),
        (OfTheSize, UNCHANGED),
        (Anew, "the same files have another identity when they are opened again"),
    ],
)
def test_the_suite_refuses_an_identity_that_does_not_follow_the_files(
    kind: type[Lines], text: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\nthree\n")
    ImporterSuite().test_identity_differs_once_the_files_have_changed(Lines(path), tmp_path_factory)
    with pytest.raises(AssertionError, match=text):
        ImporterSuite().test_identity_differs_once_the_files_have_changed(kind(path), tmp_path_factory)
    assert path.read_text() == "one\ntwo\nthree\n"
