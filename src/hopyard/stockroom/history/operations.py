"""Operations: single writes of a draft as bytes, for the stage.

The bytes are 8 bytes with the length of a header, little-endian; the header, JSON; then, if samples are set, the
fragment of these samples, as commits have fragments.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopyard.errors import CorruptError, UsageError
from hopyard.stockroom.data.drafts import Edit
from hopyard.stockroom.data.fragments import Fragment, encode_fragment
from hopyard.stockroom.maps import decode, encode
from hopyard.stockroom.packfiles.tombstones import key_of
from hopyard.stockroom.records import ColumnRecord, Json, Shelf, parse
from hopyard.storage.format import check_format, format_header

_KIND = "operation"


@dataclass(frozen=True)
class WriteOperation:
    """One write: an edit of a column, or records of things.

    Attributes:
        column: the name of the column.
        edit: the samples that are set there, and the keys of those that go; None: the write says records.
        things: triples ``[shelf, name, record as JSON]``, which the root map has from now on; None in place of a
            record: the thing is removed.
    """

    column: str = ""
    edit: Edit | None = None
    things: tuple[tuple[Shelf, str, Json | None], ...] = ()

    def encode(self) -> bytes:
        """The operation as bytes."""
        header: dict[str, Any] = {"format": format_header(_KIND)}
        fragment = b""
        if self.edit is None:
            header["things"] = self.things
        else:
            record, gone, new = self.edit
            header |= {"column": self.column, "gone": [*map(decode, gone)], "record": record.to_json()}
            if new is not None:
                fragment, _ = encode_fragment(record, [new])
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        return b"".join([len(text).to_bytes(8, "little"), text, fragment])

    @classmethod
    def decode(cls, data: bytes) -> WriteOperation:
        """The operation that ``encode`` gave ``data`` for.

        Raises:
            CorruptError: none did; FormatError: a newer version of Hopyard did.
        """
        try:
            start = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:start])
            check_format(header["format"], _KIND, where="a staged write")
            if "things" in header:
                return cls(things=tuple((shelf, name, value) for shelf, name, value in header["things"]))
            record = parse(header["record"], f"data/{header['column']}")
            if not isinstance(record, ColumnRecord):
                raise ValueError("what it changes is no column")
            gone = [encode(key_of(key)) for key in header["gone"]]
            new = None
            if start < len(data):
                fragment = Fragment(np.frombuffer(data, np.uint8, offset=start))
                fragment.check_settings(record)
                new = fragment.batch
            return cls(header["column"], Edit(record, gone, new))
        except (ValueError, TypeError, KeyError, AttributeError, UsageError, CorruptError) as error:
            reason = error.__cause__ if isinstance(error, CorruptError) and error.__cause__ else error
            raise CorruptError(
                f"a staged write cannot be read ({type(reason).__name__}: {reason}). Restore the repository's folder "
                "stage/ from a copy, or discard what is staged: hopyard stock status says what that is."
            ) from error
