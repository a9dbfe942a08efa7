"""Survey of rows of Parquet files for facts that types do not tell: nulls, lengths of lists, undecodable groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hopyard.data.columns.structs import FlatColumn, field_of
from hopyard.data.dataset import Skipped
from hopyard.data.files.stored import StoredFile
from hopyard.data.layout import stored_schema
from hopyard.data.recipe.arrow_columns import damaged_column, read_group
from hopyard.errors import CorruptError, NotFoundError


@dataclass(frozen=True)
class Selection:
    """Selection of rows of a row group.

    Attributes:
        bits: ``np.packbits`` of a bool for each row of the row group.
        count: number of the True ones.
    """

    bits: npt.NDArray[np.uint8]
    count: int

    @classmethod
    def of(cls, mask: npt.NDArray[np.bool_]) -> Selection | None:
        """The selection of the rows where ``mask`` is True; None if all are."""
        return None if mask.all() else cls(np.packbits(mask), int(np.count_nonzero(mask)))

    def mask(self, rows: int) -> npt.NDArray[np.bool_]:
        """Mask of the selected rows, (rows,) bool."""
        return np.unpackbits(self.bits, count=rows).view(np.bool_)


class Scan:
    """Row groups that are read to survey their rows, some of them left out.

    Args:
        files: of the dataset.
        skip: leave out row groups that cannot be decoded, instead of raising CorruptError.

    Attributes:
        selections: of each file's row groups, the rows that belong to the dataset; None: all.
        skipped: parts that were left out so far.
    """

    def __init__(self, files: Sequence[StoredFile], skip: bool) -> None:
        self.files = files
        self.skipped: list[Skipped] = []
        self.selections: list[list[Selection | None]] = [
            [None] * file.footer.num_row_groups for file in files
        ]
        self._skip = skip
        self._bad: set[tuple[int, int]] = set()

    def groups(self) -> Iterator[tuple[int, int]]:
        """(number of the file, number of the row group) of row groups that have rows of the dataset."""
        for number, selections in enumerate(self.selections):
            for group in range(len(selections)):
                if self.rows(number, group):
                    yield number, group

    def rows(self, number: int, group: int) -> int:
        """Number of the row group's rows that belong to the dataset."""
        if self.is_left_out(number, group):
            return 0
        selection = self.selections[number][group]
        return self.files[number].footer.row_group(group).num_rows if selection is None else selection.count

    def is_left_out(self, number: int, group: int) -> bool:
        """Whether the row group could not be decoded."""
        return (number, group) in self._bad

    def name(self, number: int, group: int) -> str:
        """File and row group, for errors."""
        return f"{self.files[number].name}, row group {group}"

    def read(
        self, number: int, group: int, columns: Iterable[str], first: int | None = None
    ) -> pa.Table | None:
        """Columns of a row group: the rows that belong to the dataset, among its ``first`` ones if that is
        given. None if it cannot be decoded and is left out."""
        table = self.read_whole(number, group, columns, first)
        selection = self.selections[number][group]
        if table is None or selection is None:
            return table
        mask = selection.mask(self.files[number].footer.row_group(group).num_rows)
        return table.filter(pa.array(mask[: table.num_rows]))

    def read_whole(
        self, number: int, group: int, columns: Iterable[str], first: int | None = None
    ) -> pa.Table | None:
        """Columns of a row group as ``read`` gives them, with the rows that do not belong to the dataset."""
        columns = list(columns)
        try:
            return read_group(self.files[number], group, columns, first)
        except CorruptError as error:
            self.leave_out(number, group, columns, error)
            return None

    def leave_out(
        self, number: int, group: int, columns: Iterable[str], error: CorruptError | NotFoundError
    ) -> None:
        """Skip a row group because these columns cannot be decoded, or raise the error."""
        if not self._skip:
            raise error
        file = self.files[number]
        self._bad.add((number, group))
        rows = file.footer.row_group(group).num_rows
        column = damaged_column(file, group, columns)
        self.skipped.append(Skipped(file.name, group, column and column[0], rows, str(error)))


@dataclass
class Facts:
    """Facts about all rows of a column.

    Attributes:
        nulls: number of rows that are null.
        where: file and row group of the first null.
        shortest, longest: lengths of lists that are not null; None if there is none.
    """

    nulls: int = 0
    where: str = ""
    shortest: int | None = None
    longest: int | None = None

    def add_nulls(self, nulls: int, where: str) -> None:
        self.where = self.where or (where if nulls else "")
        self.nulls += nulls

    def add(self, array: pa.ChunkedArray, where: str) -> None:
        self.add_nulls(array.null_count, where)
        if is_any_list(array.type):
            bounds = pc.min_max(pc.list_value_length(array)).as_py()
            if bounds["min"] is not None:
                self.add_lengths(bounds["min"], bounds["max"])

    def add_lengths(self, shortest: int, longest: int) -> None:
        self.shortest = shortest if self.shortest is None else min(self.shortest, shortest)
        self.longest = longest if self.longest is None else max(self.longest, longest)


def survey(scan: Scan, flats: Sequence[Mapping[str, FlatColumn]], names: Sequence[str]) -> dict[str, Facts]:
    """The facts about these columns, which are read as a whole, once.

    Args:
        flats: of each file, its columns.
    """
    facts = {name: Facts() for name in names}
    if not names:
        return facts
    for number, group in list(scan.groups()):
        if (table := scan.read(number, group, names)) is not None:
            for name in names:
                facts[name].add(field_of(table, flats[number][name].path), scan.name(number, group))
            for column in stored_schema(scan.files[number].footer.metadata) or ():
                if column.name in facts and column.kind == "tensor" and column.shape and not column.sparse:
                    facts[column.name].add_lengths(column.shape[0], column.shape[0])
    return facts


def counted_nulls(
    scan: Scan, flats: Sequence[Mapping[str, FlatColumn]], names: Iterable[str]
) -> dict[str, Facts]:
    """The nulls of columns, as far as footers tell exactly; without columns whose nulls they leave open.

    A footer's count for a column of lists includes empty lists and nulls inside lists, and for a row group that
    belongs to the dataset in part it includes all rows.
    """
    facts = {name: Facts() for name in names}
    looked_at: Mapping[str, FlatColumn] | None = None
    counted: list[tuple[Facts, FlatColumn]] = []
    lists: set[str] = set()
    for number, group in scan.groups():
        if flats[number] is not looked_at:
            looked_at = flats[number]
            lists = {name for name in facts if is_any_list(looked_at[name].type)}
            counted = [
                (its, column)
                for name, its in facts.items()
                if (column := looked_at[name]).nullable or name in lists
            ]
        described = scan.files[number].footer.row_group(group)
        is_whole = scan.selections[number][group] is None
        unknown = []
        for its, column in counted:
            if column.leaf < 0 or pa.types.is_null(column.type):
                its.add_nulls(scan.rows(number, group), scan.name(number, group))
                continue
            statistics = described.column(column.leaf).statistics
            nulls = statistics.null_count if statistics is not None and statistics.has_null_count else None
            if nulls is None or (nulls and (column.name in lists or not is_whole)):
                unknown.append(column.name)
            elif nulls:
                its.add_nulls(nulls, scan.name(number, group))
        for name in unknown:
            del facts[name]
        if unknown:
            looked_at = None
    return facts


def is_any_list(kind: pa.DataType) -> bool:
    """Whether rows of this type are lists, of any or of one length."""
    return bool(hasattr(kind, "value_field") and not pa.types.is_map(kind))
