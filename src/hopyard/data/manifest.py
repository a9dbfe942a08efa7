"""The manifest: the files of a dataset, their content, and the origin of the data.

A dataset below a prefix of a store is its files, named by content, and ``manifest.json``, which
is written last and never again: without it there is no dataset. Reading a dataset needs the
manifest alone, no listing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.schema import Schema
from hopyard.errors import CorruptError
from hopyard.objects.digests import digest_json
from hopyard.storage.format import check_format, format_header

MANIFEST_NAME = "manifest.json"
FILE_DOMAIN = "hopyard.file"  # of the digests of files
FORMAT_KIND = "dataset"
FORMAT_VERSION = 1
MANIFEST_DOMAIN = "hopyard.manifest"
SPARSE_FLAG = "sparse"
ARRAYS_FLAG = "ragged-arrays"


@dataclass(frozen=True)
class FileEntry:
    """One Parquet file.

    Attributes:
        name: of the object, relative to the manifest's prefix.
        size: bytes.
        digest: BLAKE3 of the file's bytes.
        seal: of the checksums that the file carries; see ``reading/checks.py``. Empty: it carries none.
        group_rows: rows of each of its row groups.
    """

    name: str
    size: int
    digest: str
    seal: str
    group_rows: tuple[int, ...]

    @property
    def rows(self) -> int:
        return sum(self.group_rows)

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> FileEntry:
        return FileEntry(
            fields["name"], fields["size"], fields["digest"], fields["seal"], tuple(fields["group_rows"])
        )


class Fingerprint:
    """A fingerprint that is made when it is first asked for, since files must be read for it. Pickled, it is known.

    Threads may share it.
    """

    def __init__(self, make: Callable[[], str]) -> None:
        self._make: Callable[[], str] | None = make
        self._value = ""
        self._lock = threading.Lock()

    def value(self) -> str:
        """The fingerprint.

        Raises:
            CorruptError: a file was changed since it was opened.
        """
        with self._lock:
            if self._make is not None:
                self._value, self._make = self._make(), None
            return self._value

    def __reduce__(self) -> tuple[Callable[[str], Fingerprint], tuple[str]]:
        return _known_fingerprint, (self.value(),)


def _known_fingerprint(value: str) -> Fingerprint:
    return Fingerprint(lambda: value)


@dataclass(frozen=True)
class ForeignEntry(FileEntry):
    """A Parquet file that others wrote, and maybe will write to; its digest is that of its footer.

    Attributes:
        identity: of the file when it was opened; see ``StoredFile``.
        content: tells its content from any other.
    """

    identity: tuple[Any, ...]
    content: Fingerprint = field(compare=False)


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of a column's values. None: does not apply, or no finite value.

    Attributes:
        min, max, mean, std: over all finite elements of all rows, mean and std in float64.
        missing: rows that were null and got a fill value.
        not_finite: elements that are NaN or infinite.
        distinct: the sorted distinct values of an integer scalar, bool or string column, if they are few.
    """

    min: float | int | None = None
    max: float | int | None = None
    mean: float | None = None
    std: float | None = None
    missing: int = 0
    not_finite: int = 0
    distinct: tuple[int | str, ...] | None = None

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ColumnStatistics:
        distinct = fields.get("distinct")
        return cls(**{**fields, "distinct": None if distinct is None else tuple(distinct)})


@dataclass(frozen=True)
class Manifest:
    """Everything about one split of a prepared dataset. Immutable.

    Attributes:
        split: ``"train"`` or ``"val"``.
        fingerprint: digest of the source's content and the arguments of ``prepare``; both splits have it.
        schema: the columns.
        files: in the order of their rows.
        statistics: by column.
        settings: the arguments of ``prepare`` and the source's fingerprint; JSON values.
        created: when it was written, as ISO 8601 in UTC.
    """

    split: str
    fingerprint: str
    schema: Schema
    files: tuple[FileEntry, ...]
    statistics: Mapping[str, ColumnStatistics] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""

    @property
    def rows(self) -> int:
        return sum(entry.rows for entry in self.files)

    @property
    def _flags(self) -> list[str]:
        """Flags of the format: features that a reader must know beyond the layout."""
        flags = [SPARSE_FLAG] if any(column.sparse for column in self.schema) else []
        arrays = any(column.kind == "ragged" and column.shape for column in self.schema)
        return [*flags, ARRAYS_FLAG] if arrays else flags

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)

    @property
    def num_row_groups(self) -> int:
        return sum(len(entry.group_rows) for entry in self.files)

    def group_rows(self) -> npt.NDArray[np.int64]:
        """(num_row_groups,) int64: rows of each row group, numbered through all files."""
        return np.array([rows for entry in self.files for rows in entry.group_rows], np.int64)

    def locate(self, group: int) -> tuple[int, int]:
        """(number of the file, number of the row group in it) of a row group numbered through all files."""
        first = 0
        for number, entry in enumerate(self.files):
            if group < first + len(entry.group_rows):
                return number, group - first
            first += len(entry.group_rows)
        raise IndexError(f"row group {group} of {first}")

    def to_json(self) -> dict[str, Any]:
        return {
            "format": format_header(FORMAT_KIND, FORMAT_VERSION, self._flags),
            "split": self.split,
            "fingerprint": self.fingerprint,
            "created": self.created,
            "rows": self.rows,
            "schema": self.schema.to_json(),
            "files": [asdict(entry) for entry in self.files],
            "statistics": {name: asdict(values) for name, values in self.statistics.items()},
            "settings": dict(self.settings),
        }

    def to_bytes(self) -> bytes:
        """The manifest as JSON, with a digest of everything else in it."""
        fields = json.loads(json.dumps(self.to_json(), allow_nan=False))
        return json.dumps({**fields, "digest": digest_json(fields, MANIFEST_DOMAIN)}, indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str = MANIFEST_NAME) -> Manifest:
        """The manifest in ``data``; ``where`` names it in errors.

        Raises:
            CorruptError: the bytes are no manifest.
            FormatError: written by a newer version of Hopyard.
        """
        try:
            fields = json.loads(data)
            if fields.pop("digest") != digest_json(fields, MANIFEST_DOMAIN):
                raise ValueError("its digest is not that of its content")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _damaged(where, error) from error
        return cls.from_json(fields, where)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], where: str) -> Manifest:
        """The inverse of ``to_json``; ``where`` names the manifest in errors.

        Raises:
            CorruptError: these are no fields of a manifest.
            FormatError: written by a newer version of Hopyard.
        """
        try:
            check_format(fields["format"], FORMAT_KIND, FORMAT_VERSION, (SPARSE_FLAG, ARRAYS_FLAG), where)
            return cls._from_json(fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(where, error) from error

    @classmethod
    def _from_json(cls, fields: Mapping[str, Any]) -> Manifest:
        manifest = cls(
            split=fields["split"],
            fingerprint=fields["fingerprint"],
            schema=Schema.from_json(fields["schema"]),
            files=tuple(map(FileEntry.from_json, fields["files"])),
            statistics={
                name: ColumnStatistics.from_json(values) for name, values in fields["statistics"].items()
            },
            settings=fields["settings"],
            created=fields["created"],
        )
        if manifest.rows != fields["rows"]:
            raise ValueError(f"{fields['rows']} rows promised, {manifest.rows} listed")
        return manifest


def _damaged(where: str, error: Exception) -> CorruptError:
    return CorruptError(
        f"{where} is not a dataset's manifest as it was written ({error!r}): it is damaged or was changed. "
        "Prepare the same data with the same arguments again, which writes it anew, or restore it."
    )
