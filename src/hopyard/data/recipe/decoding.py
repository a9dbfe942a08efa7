"""Encoded images and raw records: rows of bytes decoded into a tensor, by the built-in decoder or a user's function.

Images are decoded anew for every batch, since they are many times as large decoded, unless they are to be cached; what
functions give is cached. Threads live as long as one call or one iteration: none is idle otherwise, and a process that
forks takes none along.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.checks import flag
from hopyard.data.files.named import checked_root, described_root
from hopyard.data.ragged import Ragged
from hopyard.data.recipe.images import Fit, ImageDecoder, NamedImageDecoder
from hopyard.data.schema import TENSOR_DTYPES, Column
from hopyard.errors import DataError, HopyardError, UsageError
from hopyard.objects.digests import digest_json
from hopyard.objects.identity import function_digest, identity
from hopyard.storage.base import Store

_log = logging.getLogger("hopyard")

DOMAIN = "hopyard.data.decoder"
IMAGES_VERSION = 2  # differs once the built-in decoder gives other arrays of the same bytes
MOST_THREADS = 8
MOST_READERS = 32  # threads that wait for files and objects most of the time
_DTYPES = frozenset(map(np.dtype, TENSOR_DTYPES))


@dataclass(frozen=True)
class Decoder:
    """A function of the bytes of one row that gives its array, or an object that ``numpy.asarray`` makes one of.

    Rows are decoded by several threads, in no particular order: the function must give the same array for the same
    bytes, independently of earlier calls. All arrays must have one dtype, of a tensor's, and one shape.

    Attributes:
        function: picklable if the decoder is to travel.
        digest: 64 hex digits; decoders are equal if it is.
        is_cached: whether arrays are kept in the node cache; else rows are kept as they are stored, and decoded for
            every batch.
    """

    function: Callable[..., Any] = field(compare=False)
    digest: str
    is_cached: bool = field(default=True, compare=False)

    @property
    def is_of_images(self) -> bool:
        """Whether the function is the built-in one, which can write into an array."""
        return isinstance(self.function, (ImageDecoder, NamedImageDecoder))

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
            return image(given.size, given.mode, fit=given.fit, root=given.root)
        if not callable(given):
            raise UsageError(
                f"decode={given!r} is no decoder; give 'image', hopyard.data.image(...), or a function of the bytes of "
                "one row that gives its array."
            )
        return cls(given, digest_or_random(given, DOMAIN, "The decoder"))

    def for_column(self, column: Column) -> Decoder:
        """The decoder for a column of bytes; of images also for one of strings, the names of their files.

        Raises:
            DataError: the column's kind is another, or no image is decoded; says what to do.
        """
        if column.kind == "string" and isinstance(self.function, ImageDecoder):
            named = NamedImageDecoder(self.function)
            root = described_root(self.function.root)
            return replace(self, function=named, digest=digest_json(["named", self.digest, root], DOMAIN))
        check_decodable(column)
        return self


def image(
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    *,
    fit: Fit = "stretch",
    root: str | os.PathLike[str] | Store | None = None,
    cached: bool = False,
) -> Decoder:
    """The built-in decoder of images, for ``decode={"photo": image(size=(224, 224), mode="RGB")}``.

    Of a column of bytes, each row is an encoded image; of a column of strings, the path or URL of one.

    Args:
        size: (height, width) in pixels that all images are resized to, bilinear; None: as encoded.
        mode: ``"L"`` for grey (h, w), ``"LA"`` (h, w, 2), ``"RGB"`` (h, w, 3) or ``"RGBA"`` (h, w, 4), all uint8;
            None: as encoded, so grey of 16 bits is uint16 and images with alpha have four channels.
        fit: ``"stretch"`` makes each image the size, whatever its proportions; ``"crop"`` takes the largest part around
            its middle that has the size's proportions.
        root: folder, URL or store that paths in a column of strings are relative to; None: they are absolute, or URLs.
        cached: keep the arrays in the node cache; False: images are decoded again for every batch.

    Raises:
        UsageError: an impossible argument.
        MissingExtraError: Pillow is not installed.
    """
    decoder = ImageDecoder(size, mode, fit, root=checked_root(root))
    decided_by = [IMAGES_VERSION, decoder.size, mode, fit, decoder.codec]
    return Decoder(decoder, digest_json(["image", *decided_by], DOMAIN), flag("cached", cached))


def check_decodable(column: Column) -> None:
    """Refuse ``decode=`` of anything but bytes.

    Raises:
        DataError: the column's kind is another; says what to do.
    """
    if column.kind == "bytes":
        return
    if column.kind == "string":
        rule = (
            "Text has its characters already: use cached_transform= for text; store records as binary. Names of image "
            "files are decoded by hopyard.data.image(...)."
        )
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

    def encoded(row: int) -> bytes:
        raw: bytes = rows[row].tobytes()
        return raw

    def at(row: int) -> str:
        return f"{where}, row {row}"

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
        array = _decode(encoded(first), decoder, lambda: at(first))
        expected = _Expected(array.dtype, array.shape, f"row {first} {_form(array.dtype, array.shape)}")
        decoded = np.zeros((len(rows), *array.shape), array.dtype)
        decoded[first] = array
    with closing(DecodingThreads()) as threads:
        _begin(decoded, todo.tolist(), encoded, decoder, expected, at, threads, helps=True)()
    return decoded


def begin_decoding(
    rows: Sequence[bytes | str | memoryview],
    decoder: Decoder,
    column: Column,
    at: Callable[[int], str],
    out: npt.NDArray[Any],
    threads: DecodingThreads,
    helps: bool = False,
) -> Callable[[], None]:
    """Begin to decode rows into ``out``, (n, *shape); rows without a byte become zeros.

    Args:
        column: dtype and shape that rows must have.
        at: gives the place of a row, for errors.
        helps: the thread that waits is one of those that decode.

    Returns:
        a function that waits for the last row. It raises CorruptError and DataError as :func:`decode_rows` does.
    """
    todo = []
    for row, encoded in enumerate(rows):
        if len(encoded):
            todo.append(row)
        else:
            out[row] = 0
    expected = _Expected(np.dtype(column.dtype), column.shape, f"the dataset has {column}")
    return _begin(out, todo, rows.__getitem__, decoder, expected, at, threads, helps)


class DecodingThreads:
    """Threads that decode one batch after another; begun when they are needed, and ended by :meth:`close`."""

    def __init__(self) -> None:
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def submit(self, count: int, work: Callable[..., None], *arguments: Any) -> list[Future[None]]:
        """Have ``count`` threads do the same work, behind what they were given before."""
        if count not in self._pools:
            self._pools[count] = ThreadPoolExecutor(count, "hopyard-decode")
        return [self._pools[count].submit(work, *arguments) for _ in range(count)]

    def close(self) -> None:
        """Wait for the work under way, and forget the rest."""
        while self._pools:
            self._pools.popitem()[1].shutdown(cancel_futures=True)


def _begin(
    out: npt.NDArray[Any],
    todo: Sequence[int],
    encoded: Callable[[int], bytes | str | memoryview],
    decoder: Decoder,
    expected: _Expected,
    at: Callable[[int], str],
    threads: DecodingThreads,
    helps: bool,
) -> Callable[[], None]:
    """Begin to decode the rows of these numbers; what is returned waits, and raises the error of the first bad row.

    Args:
        helps: the thread that waits is one of those that decode.
    """

    def decode(row: int) -> None:
        place = out[row]
        found = _decode(encoded(row), decoder, lambda: at(row), place)
        if found is not place:
            out[row] = expected.check(found, decoder, lambda: at(row))

    is_named = isinstance(decoder.function, NamedImageDecoder)
    count = MOST_READERS if is_named else min(usable_cores(), MOST_THREADS)
    count -= 1 if helps else 0
    rows, failed = iter(todo), dict[int, BaseException]()
    begun = (
        threads.submit(count, _decode_shared, decode, rows, failed)
        if count and len(todo) > int(helps)
        else []
    )

    def finish() -> None:
        if helps:
            _decode_shared(decode, rows, failed)
        for each in begun:
            each.result()
        if failed:
            raise failed[min(failed)]

    return finish


def _decode_shared(
    decode: Callable[[int], None], rows: Iterator[int], failed: dict[int, BaseException]
) -> None:
    """Decode rows that several threads take from one iterator, until one fails. All rows before it are decoded."""
    while not failed and (row := next(rows, None)) is not None:
        try:
            decode(row)
        except BaseException as error:
            failed[row] = error


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _decode(
    encoded: bytes | str | memoryview,
    decoder: Decoder,
    at: Callable[[], str],
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """The array of a row, which images may be decoded into ``out`` for."""
    try:
        array: npt.NDArray[Any]
        if out is not None and decoder.is_of_images:
            array = decoder.function(encoded, out)
            if array is out:
                return out
        else:
            array = np.asarray(decoder.function(encoded))
    except HopyardError as error:
        raise type(error)(f"{at()}: {error}") from error.__cause__
    except Exception as error:  # the user's
        name = getattr(decoder.function, "__qualname__", type(decoder.function).__name__)
        raise DataError(
            f"{at()}: the decoder {name} failed for its {len(encoded)} bytes: {type(error).__name__}: {error}. "
            "Mend the decoder, or remove the row."
        ) from error
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in _DTYPES:
        raise DataError(
            f"{at()}: the decoder gave an array of {array.dtype}; a row's dtype must be one of "
            f"{', '.join(TENSOR_DTYPES)}. Convert it in the decoder."
        )
    return array


@dataclass(frozen=True)
class _Expected:
    """Dtype and shape that all rows must have, and the reason as errors tell it."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    because: str

    def check(self, array: npt.NDArray[Any], decoder: Decoder, at: Callable[[], str]) -> npt.NDArray[Any]:
        if array.shape == self.shape and array.dtype == self.dtype:
            return array
        found = _form(array.dtype, array.shape)
        if decoder.is_of_images:
            rule = "All images must have one size and one mode: give decode=image(size=(h, w), mode='RGB')."
        else:
            rule = "The decoder must give one dtype and one shape for all rows."
        raise DataError(f"{at()} {found}, but {self.because}. {rule}")


def _form(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"is {dtype.name}{list(shape) if shape else ''} when decoded"
