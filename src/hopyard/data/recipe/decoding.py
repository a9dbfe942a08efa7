"""Encoded images and raw records: rows of bytes decoded into a tensor, by the built-in decoder or a user's function.

Threads live as long as one call: none is idle between calls, and a process that forks takes none along.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.ragged import Ragged
from hopyard.data.recipe.images import ImageDecoder
from hopyard.data.schema import TENSOR_DTYPES, Column
from hopyard.errors import DataError, HopyardError, UsageError
from hopyard.objects.digests import digest_json
from hopyard.objects.identity import function_digest, identity

_log = logging.getLogger("hopyard")

DOMAIN = "hopyard.data.decoder"
IMAGES_VERSION = 1  # differs once the built-in decoder gives other arrays of the same bytes
MOST_THREADS = 8
_MOST_ROWS_AT_ONCE = 32
_DTYPES = frozenset(map(np.dtype, TENSOR_DTYPES))


@dataclass(frozen=True)
class Decoder:
    """A function of the bytes of one row that gives its array, or an object that ``numpy.asarray`` makes one of.

    Rows are decoded by several threads, in no particular order: the function must give the same array for the same
    bytes, independently of earlier calls. All arrays must have one dtype, of a tensor's, and one shape.

    Attributes:
        function: picklable if the decoder is to travel.
        digest: 64 hex digits; decoders are equal if it is.
    """

    function: Callable[[bytes], Any] = field(compare=False)
    digest: str

    @classmethod
    def of(cls, given: object) -> Decoder:
        """The decoder that ``"image"``, a function, or a decoder stands for.

        Raises:
            UsageError: it is something else.
            MissingExtraError: ``"image"`` needs Pillow, which is not installed.
        """
        if isinstance(given, Decoder):
            return given
        if isinstance(given, str) and given == "image":
            return image()
        if isinstance(given, ImageDecoder):
            return image(given.size, given.mode)
        if not callable(given):
            raise UsageError(
                f"decode={given!r} is no decoder; give 'image', hopyard.data.image(...), or a function of the bytes of "
                "one row that gives its array."
            )
        return cls(given, digest_or_random(given, DOMAIN, "The decoder"))


def image(size: tuple[int, int] | None = None, mode: str | None = None) -> Decoder:
    """The built-in decoder of images, for ``decode={"photo": image(size=(224, 224), mode="RGB")}``.

    Args:
        size: (height, width) in pixels that all images are resized to, bilinear; None: as encoded.
        mode: ``"L"`` for grey (h, w), ``"LA"`` (h, w, 2), ``"RGB"`` (h, w, 3) or ``"RGBA"`` (h, w, 4), all uint8;
            None: as encoded, so grey of 16 bits is uint16 and images with alpha have four channels.

    Raises:
        UsageError: an impossible size or mode.
        MissingExtraError: Pillow is not installed.
    """
    decoder = ImageDecoder(size, mode)
    return Decoder(decoder, digest_json(["image", IMAGES_VERSION, decoder.size, mode], DOMAIN))


def check_decodable(column: Column) -> None:
    """Refuse ``decode=`` of anything but bytes.

    Raises:
        DataError: the column's kind is another; says what to do.
    """
    if column.kind == "bytes":
        return
    if column.kind == "string":
        rule = "Text has its characters already: use cached_transform= for text; store records as binary."
    else:
        rule = "It holds numbers already: leave it out of decode=, or use cached_transform=."
    raise DataError(f"decode= is for columns of bytes, but column {column.name!r} is {column}. {rule}")


def digest_or_random(function: Callable[..., Any], domain: str, what: str) -> str:
    """The digest of a user's function; a new random one if it has none, which is logged.

    Args:
        function: of the user.
        domain: of the digest.
        what: name of the function for the user, as a sentence begins: ``"cached_transform"``.
    """
    known = function_digest(function, domain)
    if known is not None:
        return known
    name = getattr(function, "__qualname__", type(function).__name__)
    _log.warning(
        "%s %s cannot be told from others, because %s. What it gives is not reused by other processes, nor after "
        "the dataset is opened again.",
        what,
        name,
        "; ".join(identity(function, name).undigestible),
    )
    return secrets.token_hex(32)


def decode_rows(
    rows: Ragged,
    decoder: Decoder,
    column: Column | None,
    where: str,
    missing: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[Any]:
    """The rows decoded: (n, *shape).

    Args:
        rows: n rows of uint8, the bytes of each.
        decoder: of one row.
        column: dtype and shape that rows must have; None: the first row that is not missing has them.
        where: file, row group and column, for errors.
        missing: (n,) bool, rows that are null: they are not decoded, but zeros.

    Raises:
        CorruptError: the bytes of a row are no image, or a truncated one.
        DataError: the decoder fails for a row, or gives another dtype or shape than for the others.
    """
    todo = np.arange(len(rows)) if missing is None else np.flatnonzero(~missing)
    if column is not None:
        expected = _Expected(np.dtype(column.dtype), column.shape, f"the dataset has {column}")
        decoded = np.zeros((len(rows), *column.shape), expected.dtype)
    elif not len(todo):
        raise DataError(
            f"{where}: there is no row to decode, so what the decoder gives is unknown. Give at least one row that "
            "is not null."
        )
    else:
        first, todo = int(todo[0]), todo[1:]
        array = _decode(rows, first, decoder, where)
        expected = _Expected(array.dtype, array.shape, f"row {first} {_form(array.dtype, array.shape)}")
        decoded = np.zeros((len(rows), *array.shape), array.dtype)
        decoded[first] = array

    def fill(block: npt.NDArray[np.int64]) -> None:
        for row in block.tolist():
            decoded[row] = expected.check(_decode(rows, row, decoder, where), row, decoder, where)

    _in_threads(fill, todo)
    return decoded


def _in_threads(fill: Callable[[npt.NDArray[np.int64]], None], todo: npt.NDArray[np.int64]) -> None:
    """``fill`` called with some rows at a time; of several errors, that of the first row is raised."""
    threads = min(usable_cores(), MOST_THREADS)
    at_once = max(1, min(_MOST_ROWS_AT_ONCE, len(todo) // (4 * threads)))
    blocks = [todo[start : start + at_once] for start in range(0, len(todo), at_once)]
    if threads == 1 or len(blocks) <= 1:
        for block in blocks:
            fill(block)
        return
    with ThreadPoolExecutor(min(threads, len(blocks)), "hopyard-decode") as pool:
        for _ in pool.map(fill, blocks):  # an error cancels what has not begun
            pass


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _decode(rows: Ragged, row: int, decoder: Decoder, where: str) -> npt.NDArray[Any]:
    at = f"{where}, row {row}"
    try:
        array = np.asarray(decoder.function(rows[row].tobytes()))
    except HopyardError as error:
        raise type(error)(f"{at}: {error}") from error.__cause__
    except Exception as error:  # the user's
        name = getattr(decoder.function, "__qualname__", type(decoder.function).__name__)
        raise DataError(
            f"{at}: the decoder {name} failed for its {rows.lengths[row]} bytes: {type(error).__name__}: {error}. "
            "Mend the decoder, or remove the row."
        ) from error
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in _DTYPES:
        raise DataError(
            f"{at}: the decoder gave an array of {array.dtype}; a row's dtype must be one of "
            f"{', '.join(TENSOR_DTYPES)}. Convert it in the decoder."
        )
    return array


@dataclass(frozen=True)
class _Expected:
    """Dtype and shape that all rows must have, and the reason as errors tell it."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    because: str

    def check(self, array: npt.NDArray[Any], row: int, decoder: Decoder, where: str) -> npt.NDArray[Any]:
        if array.shape == self.shape and array.dtype == self.dtype:
            return array
        found = _form(array.dtype, array.shape)
        if isinstance(decoder.function, ImageDecoder):
            rule = "All images must have one size and one mode: give decode=image(size=(h, w), mode='RGB')."
        else:
            rule = "The decoder must give one dtype and one shape for all rows."
        raise DataError(f"{where}, row {row} {found}, but {self.because}. {rule}")


def _form(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"is {dtype.name}{list(shape) if shape else ''} when decoded"
