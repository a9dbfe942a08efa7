"""Columns of a dataset: names, kinds, dtypes and shapes of one row.

Four kinds of column, by the form of a batch of n rows in memory:

=========  =======================================  ==============================
kind       a batch                                  in Parquet
=========  =======================================  ==============================
tensor     array (n, *shape) of ``dtype``           fixed width, see ``parquet.py``
string     object array (n,) of ``str``             BYTE_ARRAY, UTF-8
bytes      object array (n,) of ``bytes``           BYTE_ARRAY
ragged     ``Ragged``: values (total,       list of the values, or of the bytes of
           *shape) of ``dtype``, offsets    arrays
=========  =======================================  ==============================

A tensor may be *sparse*: then its files hold the elements that are not zero, each with its index, and a batch is the
same array as ever. Outside of files, kind and shape are those of any tensor; in JSON its kind is ``"sparse"``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from hopyard.errors import ColumnError
from hopyard.wording import nearest

Kind = Literal["tensor", "string", "bytes", "ragged"]
_SPARSE = "sparse"

TENSOR_DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: as in batches.
        kind: ``"tensor"``, ``"string"``, ``"bytes"`` or ``"ragged"``.
        dtype: NumPy dtype name of a tensor's, or a ragged column's, elements; ``"object"`` otherwise.
        shape: of one row of a tensor, () for scalars; of one value of a ragged row; () for the other kinds, but of
            windows (length,) for strings and bytes too.
        sparse: whether files hold only the elements of a tensor of shape (length,) that are not zero.
    """

    name: str
    kind: Kind = "tensor"
    dtype: str = "object"
    shape: tuple[int, ...] = ()
    sparse: bool = False

    @property
    def width(self) -> int | None:
        """Bytes of one row in a batch, or None if rows differ in size."""
        return _value_width(self.dtype, self.shape) if self.kind == "tensor" else None

    @property
    def value_width(self) -> int:
        """Bytes of one row of a tensor, or of one value of a ragged row."""
        return _value_width(self.dtype, self.shape)

    @property
    def stored_width(self) -> int | None:
        """Bytes of one row in a file or a cache, or None if rows differ in size there."""
        return None if self.sparse else self.width

    @property
    def is_scalar(self) -> bool:
        """Whether a row is one number."""
        return self.kind == "tensor" and not self.shape

    def named(self, name: str) -> Column:
        """A column of that name that is otherwise the same."""
        other = object.__new__(Column)  # of a wide frame there are thousands: half of what __init__ takes
        other.__dict__.update(self.__dict__, name=name)
        return other

    def to_json(self) -> dict[str, Any]:
        kind = _SPARSE if self.sparse else self.kind
        return {"name": self.name, "kind": kind, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Column:
        kind = fields["kind"]
        if kind not in (*get_args(Kind), _SPARSE):
            raise ValueError(f"column {fields['name']!r} is of the unknown kind {kind!r}")
        sparse = kind == _SPARSE
        return cls(
            fields["name"], "tensor" if sparse else kind, fields["dtype"], tuple(fields["shape"]), sparse
        )

    def __str__(self) -> str:
        if self.kind in ("string", "bytes"):
            return f"{self.name}: {self.kind}{list(self.shape) if self.shape else ''}"
        sizes = [*("*" if self.kind == "ragged" else ""), *map(str, self.shape)]
        size = f"[{', '.join(sizes)}]" if sizes else ""
        return f"{self.name}: {self.dtype}{size}{', sparse' if self.sparse else ''}"


@lru_cache(maxsize=4096)
def _value_width(dtype: str, shape: tuple[int, ...]) -> int:
    """The columns of a wide frame are of a few types, and each is asked several times."""
    return np.dtype(dtype).itemsize * math.prod(shape)


class Schema:
    """The columns of a dataset, in order. Immutable; equal if the columns are."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self._columns = tuple(columns)
        self._by_name = {column.name: column for column in self._columns}

    @property
    def columns(self) -> tuple[Column, ...]:
        return self._columns

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def __getitem__(self, name: str) -> Column:
        """The column of that name.

        Raises:
            ColumnError: there is none; names all there are, and the nearest.
        """
        if name not in self._by_name:
            raise unknown_columns([name], self._by_name)
        return self._by_name[name]

    def select(self, names: Iterable[str]) -> Schema:
        """The schema with only these columns, in this order; ColumnError names all unknown ones."""
        wanted = list(names)
        unknown = [name for name in wanted if name not in self._by_name]
        if unknown:
            raise unknown_columns(unknown, self._by_name)
        return Schema(self._by_name[name] for name in wanted)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Column]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self._columns == other._columns

    def __hash__(self) -> int:
        return hash(self._columns)

    def __str__(self) -> str:
        return ", ".join(str(column) for column in self._columns)

    def __repr__(self) -> str:
        return f"Schema({self})"

    def to_json(self) -> list[dict[str, Any]]:
        return [column.to_json() for column in self._columns]

    @classmethod
    def from_json(cls, columns: list[dict[str, Any]]) -> Schema:
        return cls(Column.from_json(fields) for fields in columns)


def unknown_columns(unknown: Sequence[str], known: Iterable[str], what: str = "column") -> ColumnError:
    """The error for names of columns that do not exist: names them, all there are, and the nearest."""
    known = list(known)
    named = ", ".join(f"{name!r}{nearest(name, known)}" for name in unknown)
    plural = "s" if len(unknown) > 1 else ""
    end = "" if named.endswith("?") else "."
    return ColumnError(f"Unknown {what}{plural}: {named}{end} The columns there are: {', '.join(known)}.")
