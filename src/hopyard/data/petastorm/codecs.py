"""Decodes values of Petastorm's codecs into columns, some rows of one field at a time.

Arrays are read from the bytes of ``numpy.save`` and ``numpy.savez_compressed`` (never a pickle in them), images by
Pillow. Every row is held against the Unischema; what differs is named by file, row group, field and row.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.columns.columns import ColumnData, expand, settle
from hopyard.data.columns.convert_arrow import from_arrow
from hopyard.data.files.unischema import Field
from hopyard.data.ragged import Ragged, offsets_of
from hopyard.data.recipe.decoding import Decoder, decode_rows
from hopyard.data.recipe.images import ImageDecoder, pillow
from hopyard.data.schema import TENSOR_DTYPES, Column
from hopyard.errors import CorruptError, DataError, UnsupportedTypeError

_DAMAGED = (
    ValueError,
    EOFError,
    OSError,
    KeyError,
    MemoryError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


class RowDecoder:
    """The bytes of one row -> its array, of the dtype and shape that the field has.

    Args:
        field: with a codec of arrays or images.
        shape: the one shape that the rows of a field of several open dimensions must have; None: not known yet.
    """

    def __init__(self, field: Field, shape: tuple[int, ...] | None = None) -> None:
        self._field = field
        self._shape = shape
        self._image = ImageDecoder() if field.codec == "CompressedImageCodec" else None

    def __call__(self, encoded: bytes) -> npt.NDArray[Any]:
        array = self._read(encoded) if self._image is None else self._pixels(encoded)
        self.check(array.dtype, array.shape)
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def check(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Raises DataError if a row has not the dtype or shape of the field."""
        field = self._field
        fits = len(shape) == len(field.shape) and all(
            size in (None, its) for size, its in zip(field.shape, shape, strict=True)
        )
        if dtype.name != field.dtype or not fits:
            raise DataError(
                f"it is {dtype.name}{list(shape)}, but the Unischema says {field}. Write the row again as the "
                "Unischema says, or leave the field out: name the others in columns=."
            )
        if self._shape is not None and shape != self._shape:
            keep = ", or keep images encoded with images='keep'" if self._image is not None else ""
            raise DataError(
                f"its shape is {list(shape)}, but {list(self._shape)} in the first row. The Unischema allows both "
                f"({field}), a dataset does not: only the first dimension may differ, and only if it alone is open. "
                f"Leave the field out (name the others in columns=){keep}."
            )

    def _read(self, encoded: bytes) -> npt.NDArray[Any]:
        try:
            if self._field.codec == "NdarrayCodec":
                return np.asarray(np.lib.format.read_array(io.BytesIO(encoded), allow_pickle=False))
            with zipfile.ZipFile(io.BytesIO(encoded)) as archive, archive.open("arr.npy") as member:
                return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
        except _DAMAGED as error:
            raise CorruptError(
                f"its {len(encoded)} bytes are no array of {self._field.codec} ({type(error).__name__}: {error}). "
                "Restore the file, or leave the field out: name the others in columns=."
            ) from error

    def _pixels(self, encoded: bytes) -> npt.NDArray[Any]:
        assert self._image is not None
        pixels = self._image(encoded)
        if self._field.dtype == "uint16" and pixels.dtype == np.uint8 and pixels.ndim == 3:
            low = _low_bytes(encoded)
            return pixels if low is None else (pixels.astype(np.uint16) << 8) | low
        return pixels


def _low_bytes(encoded: bytes) -> npt.NDArray[np.uint8] | None:
    """The lower bytes of a PNG of 16 bits a channel (Pillow gives the upper ones); None for other images."""
    with pillow().open(io.BytesIO(encoded)) as image:
        tiles = image.tile
        if image.mode != "RGB" or any(tile[3] != "RGB;16B" for tile in tiles):
            return None
        image.tile = [
            tile._replace(args="RGB;16L") for tile in tiles
        ]  # as if the other byte were the upper one
        return np.asarray(image)


def unsupported(field: Field) -> str | None:
    """Why a dataset cannot hold the field, or None if it can."""
    if field.encoded and field.dtype not in TENSOR_DTYPES:
        return f"{field.name} (arrays of {field.dtype})"
    return None


def settles(field: Field) -> bool:
    """Whether dimensions other than the first are open, so that the first row settles them for all."""
    return field.encoded and None in field.shape[1:]


def decode_field(
    field: Field, array: pa.Array, where: str, shape: tuple[int, ...] | None = None
) -> ColumnData:
    """The rows of one field as they are in a dataset.

    Args:
        field: of the Unischema.
        array: the rows as they are stored.
        where: file, row group and field, for errors.
        shape: of all rows, of a field that ``settles``.

    Raises:
        DataError: a row is not what the Unischema says; CorruptError: its bytes cannot be decoded.
    """
    if not field.encoded:
        return _stored(field, array, where)
    encoded = encoded_rows(field, array, where)
    rows, missing = encoded.values, encoded.missing
    assert isinstance(rows, Ragged)
    decoder = RowDecoder(field, shape)
    fixed = shape if shape is not None else field.shape
    if None not in fixed:
        whole = tuple(size for size in fixed if size is not None)
        values = _alike(field, rows, missing, decoder, whole)
        if values is None:
            column = Column(field.name, "tensor", field.dtype, whole)
            values = decode_rows(rows, Decoder(decoder, ""), column, where, missing)
        return ColumnData(field.name, "tensor", values, missing)
    return _ragged(field, rows, missing, decoder, where)


def encoded_rows(field: Field, array: pa.Array, where: str) -> ColumnData:
    """The bytes of the rows of an encoded field."""
    data = from_arrow(field.name, array)
    if data.kind != "bytes":
        raise DataError(
            f"{where} is stored as {array.type}, but the Unischema says {field}, which is stored as bytes. Write the "
            "file again, or leave the field out: name the others in columns=."
        )
    return data


def _alike(
    field: Field,
    rows: Ragged,
    missing: npt.NDArray[np.bool_] | None,
    decoder: RowDecoder,
    shape: tuple[int, ...],
) -> npt.NDArray[Any] | None:
    """Rows of ``numpy.save`` whose headers are the same bytes, all at once; None if they are not so."""
    lengths = rows.lengths if missing is None else rows.lengths[~missing]
    if field.codec != "NdarrayCodec" or not len(lengths) or (lengths != lengths[0]).any():
        return None
    table = rows.values.reshape(len(lengths), -1)
    first = io.BytesIO(table[0].tobytes())
    try:
        version = np.lib.format.read_magic(first)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        its, by_column, dtype = read(first)
    except ValueError:
        return None
    start = first.tell()
    fits = (
        dtype.name == field.dtype
        and its == shape
        and dtype.itemsize * int(np.prod(its)) == table.shape[1] - start
    )
    if by_column or not fits or (table[:, :start] != table[0, :start]).any():
        return None
    decoder.check(dtype, its)
    values = np.ascontiguousarray(table[:, start:]).view(dtype).reshape(len(table), *shape)
    return expand(values.astype(dtype.newbyteorder("="), copy=False), missing)


def _ragged(
    field: Field, rows: Ragged, missing: npt.NDArray[np.bool_] | None, decoder: RowDecoder, where: str
) -> ColumnData:
    inner = tuple(size for size in field.shape[1:] if size is not None)
    lengths = np.zeros(len(rows), np.int64)
    arrays = [np.empty((0, *inner), field.dtype)]
    for row in range(len(rows)):
        if missing is None or not missing[row]:
            try:
                arrays.append(decoder(rows[row].tobytes()))
            except (DataError, CorruptError) as error:
                raise type(error)(f"{where}, row {row}: {error}") from error.__cause__
            lengths[row] = len(arrays[-1])
    return settle(
        ColumnData(field.name, "ragged", Ragged(np.concatenate(arrays), offsets_of(lengths)), missing)
    )


def _stored(field: Field, array: pa.Array, where: str) -> ColumnData:
    """Rows that are stored as they are, in the dtype of the field."""
    try:
        data = settle(from_arrow(field.name, _cast(field, array)))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _no_fit(field, array, where, error) from error
    except UnsupportedTypeError as error:
        raise DataError(
            f"{where} is stored as {array.type}, which a dataset cannot hold ({error}). Leave the field out: name the "
            "others in columns=."
        ) from error
    shape = data.values.values.shape[1:] if isinstance(data.values, Ragged) else data.values.shape[1:]
    open_shape = field.shape[1:] if data.kind == "ragged" else field.shape
    if data.kind in ("tensor", "ragged") and not (
        len(shape) == len(open_shape)
        and all(size in (None, its) for size, its in zip(open_shape, shape, strict=True))
    ):
        raise DataError(
            f"{where} has rows of shape {list(shape)}, but the Unischema says {field}. Leave the field out: name the "
            "others in columns=."
        )
    return data


def _cast(field: Field, array: pa.Array) -> pa.Array:
    types, stored = pa.types, array.type
    if types.is_nested(stored) or types.is_null(stored):
        return pa.nulls(len(array), _arrow_type(field)) if types.is_null(stored) else array
    if field.dtype in TENSOR_DTYPES:
        if types.is_temporal(stored):
            return array
        if field.dtype == "float16":  # Arrow casts no integers and texts to it
            array = array.cast(pa.float32())
        return array.cast(_arrow_type(field))
    if field.dtype in ("str", "bytes"):
        return array.cast(_arrow_type(field))
    if types.is_string(stored) or types.is_large_string(stored):  # of a directory's name
        return array.cast(_arrow_type(field))
    return array


def _arrow_type(field: Field) -> pa.DataType:
    others = {
        "str": pa.large_string(),
        "bytes": pa.large_binary(),
        "decimal": pa.float64(),
        "datetime64": pa.timestamp("ns"),
        "timedelta64": pa.duration("ns"),
        "object": pa.large_string(),
    }
    return others[field.dtype] if field.dtype in others else pa.from_numpy_dtype(np.dtype(field.dtype))


def _no_fit(field: Field, array: pa.Array, where: str, error: Exception) -> DataError:
    for row in range(len(array)):
        try:
            _cast(field, array[row : row + 1])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            break
    return DataError(
        f"{where}, row {row}: {array[row].as_py()!r} is stored as {array.type} and does not fit what the Unischema "
        f"says, {field} ({str(error).splitlines()[0]}). Write the row again, or leave the field out: name the "
        "others in columns=."
    )
