"""Operations: single writes of a draft as bytes, for the stage.

The bytes are 8 bytes with the length of a header, little-endian; the header, JSON; then the content of tensors and of
bytes, one after the other. ``samples`` in the header says of each: ``["string", text]``, ``["bytes", length]`` or
``[dtype, shape]``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hopyard.errors import CorruptError
from hopyard.objects.tensors import ITEM_SIZES, Tensor
from hopyard.stockroom.data.samples import Stored
from hopyard.stockroom.maps import Key
from hopyard.storage.format import check_format, format_header

_KIND = "operation"


@dataclass(frozen=True)
class Operation:
    """One write.

    Attributes:
        do: ``"set"`` samples of a column under keys; ``"delete"`` these; ``"record"``: let the root map say this of
            things.
        shelf, name: of the column.
        keys: of samples.
        samples: to be set.
        value: of ``set`` the record of an empty column, for one that is not there yet; of ``record`` triples
            ``[shelf, name, record as JSON]``, None in place of a record: the thing is removed.
    """

    do: Literal["set", "delete", "record"]
    shelf: str = ""
    name: str = ""
    keys: tuple[Key, ...] = ()
    samples: tuple[Stored, ...] = ()
    value: Any = None

    def encode(self) -> bytes:
        """The operation as bytes."""
        content = [_content(sample) for sample in self.samples]
        header = {
            "do": self.do, "format": format_header(_KIND), "keys": self.keys, "name": self.name,
            "samples": [_described(sample) for sample in self.samples], "shelf": self.shelf, "value": self.value,
        }  # fmt: skip
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        return b"".join([len(text).to_bytes(8, "little"), text, *content])

    @classmethod
    def decode(cls, data: bytes) -> Operation:
        """The operation that ``encode`` gave ``data`` for.

        Raises:
            CorruptError: none did; FormatError: a newer version of Hopyard did.
        """
        try:
            start = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:start])
            check_format(header["format"], _KIND, where="a staged write")
            keys = tuple(tuple(key) if isinstance(key, list) else key for key in header["keys"])
            samples = tuple(_samples(header["samples"], data, start))
            return cls(header["do"], header["shelf"], header["name"], keys, samples, header["value"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptError(
                f"a staged write cannot be read ({type(error).__name__}: {error}). Restore the repository's folder "
                "stage/ from a copy, or discard what is staged: hopyard stock status says what that is."
            ) from error


def _described(sample: Stored) -> list[Any]:
    if isinstance(sample, Tensor):
        return [sample.dtype, sample.shape]
    return ["string", sample] if isinstance(sample, str) else ["bytes", len(sample)]


def _content(sample: Stored) -> bytes:
    if isinstance(sample, Tensor):
        return sample.data.tobytes()
    return sample if isinstance(sample, bytes) else b""


def _samples(described: list[list[Any]], data: bytes, start: int) -> Iterator[Stored]:
    for kind, what in described:
        if kind == "string":
            yield what
            continue
        size = what if kind == "bytes" else ITEM_SIZES[kind] * math.prod(what)
        content = data[start : start + size]
        start += size
        if len(content) != size:
            raise ValueError(f"it ends after {len(data)} bytes")
        yield content if kind == "bytes" else Tensor(kind, tuple(what), np.frombuffer(content, np.uint8))
