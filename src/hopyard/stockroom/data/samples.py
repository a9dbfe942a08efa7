"""Samples as users give them, as they are stored: tensors without a framework, strings, and bytes; and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.data.ragged import offsets_of
from hopyard.errors import CorruptError, DataError, MissingExtraError
from hopyard.objects.tensors import ITEM_SIZES, ML_DTYPES, Tensor
from hopyard.stockroom.data.fragments import row_width
from hopyard.stockroom.data.rows import SampleBytes
from hopyard.stockroom.records import ColumnRecord

StoredSample: TypeAlias = Tensor | str | bytes
"""A sample as it is stored."""

_COMMON = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64",
    "complex128": "C128",
}  # fmt: skip
_NAMES = {stored: name for name, stored in (_COMMON | ML_DTYPES).items()}


def dtype_name(stored: str) -> str:
    """Name in NumPy and PyTorch of a dtype that ``objects.tensors`` calls ``stored``."""
    return _NAMES[stored]


def is_uncommon(stored: str) -> bool:
    """Whether NumPy lacks this dtype."""
    return stored in ML_DTYPES.values()


def stored_dtype(dtype: Any) -> str:
    """Name in ``objects.tensors`` of a dtype of NumPy or PyTorch, or of its name.

    Raises:
        DataError: it is none of those that tensors can have.
    """
    text = dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")
    if text in ITEM_SIZES:
        return text
    if text not in _COMMON and text not in ML_DTYPES:
        with suppress(TypeError, ValueError):
            text = np.dtype(dtype).name
    found = _COMMON.get(text) or ML_DTYPES.get(text)
    if found is None:
        raise DataError(
            f"dtype={dtype!r} is none that tensors of a column can have. Use one of {', '.join(_COMMON)}, "
            f"{', '.join(ML_DTYPES)}."
        )
    return found


@cache
def raw_dtype(stored: str) -> np.dtype[Any]:
    """NumPy's dtype for the elements; unsigned ints of the same width where it has none."""
    dtype: np.dtype[Any] = Tensor(stored, (0,), np.empty(0, np.uint8)).numpy().dtype
    return dtype


# From users


class Weak:
    """A Python scalar or list: numbers without a dtype of their own."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array


def as_stored(value: Any) -> StoredSample | Weak:
    """One sample.

    Raises:
        DataError: it cannot be one; the text says why, and begins with ``is``.
    """
    if isinstance(value, str):
        return _checked_text(str.__str__(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Tensor):
        return value
    if is_array(value):
        if getattr(value, "mode", None) == "P" and hasattr(value, "getpalette"):
            raise DataError(
                "is an image of PIL with a palette, of which an array would hold the numbers of colours. Convert it: "
                "image.convert('RGB'), or 'RGBA' if it is transparent"
            )
        dtype, array = raw_array(value)
        if dtype in ("string", "bytes"):
            if array.shape:
                raise DataError("is an array of text. A sample is one text: give its elements as samples")
            return as_stored(array.item())
        return Tensor(dtype, array.shape, _bytes(array, dtype).reshape(-1))
    if isinstance(value, bool | int | float | complex | list | tuple):
        return Weak(numbers(value))
    raise DataError(
        f"is of type {type(value).__module__}.{type(value).__qualname__}. Samples are arrays, numbers, strings "
        "or bytes: convert it"
    )


def numbers(value: Any) -> npt.NDArray[Any]:
    """A Python number, or a list of numbers, as an array of a dtype that holds all of them exactly.

    Ints are int64, or uint64 if one needs that; together with floats float64.

    Raises:
        DataError: as ``as_stored``; no dtype holds all of them.
    """
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        raise DataError(
            "is a list whose parts differ in length. Give one array each, in a nested column or as strings"
        ) from None
    if array.dtype.kind in "UST":
        raise DataError("is a list of text. A sample is one text: use a nested column, or json.dumps")
    if array.shape or array.dtype.kind == "O":
        array = _exact(value, array)
    raw_array(array)
    return array


def _exact(value: Any, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``array``, if it holds the numbers that ``value`` is made of; NumPy rounds ints to have them with floats."""
    if array.ndim == 1:
        kinds = set(map(type, value))
        if kinds == {_ALONE.get(array.dtype.kind)}:
            return array
        if kinds == {int, float} and array.dtype.kind == "f" and not (np.abs(array) >= 1 << 53).any():
            return array
    elif array.ndim and {getattr(each, "dtype", None) for each in value} == {array.dtype}:
        return array  # of arrays, none of which was cast
    own = np.asarray(value, object).ravel().tolist()
    own = [each.item() if isinstance(each, np.generic) else each for each in own]
    kinds = set(map(type, own))
    if not kinds <= {bool, int, float, complex}:
        return array
    if kinds == {int}:
        if array.dtype.kind in "iu":
            return array
        low, high = min(own), max(own)
        if low >= 0 and high < 1 << 64:
            return np.asarray(value, np.uint64)
        if high >= 1 << 64 or low < -(1 << 63):
            wrong = high if high >= 1 << 64 else low
            raise DataError(f"holds {_shown(wrong)}, which is no int of 64 bits. {_INSTEAD}")
        raise DataError(
            f"holds {low} and {high}: int64 cannot hold the one, and uint64 not the other. {_INSTEAD}"
        )
    if bool in kinds and len(kinds) > 1:
        raise DataError("holds bools and numbers. Give bools alone, or int(...) of them")
    if int in kinds:
        wrong = next((each for each in own if type(each) is int and not _is_float(each)), None)
        if wrong is not None:
            raise DataError(
                f"holds {_shown(wrong)} together with floats, and float64 cannot hold it exactly. Give ints alone, "
                "or float(...) of it, if it may be rounded"
            )
    return array


_ALONE = {"b": bool, "i": int, "f": float, "c": complex}
_INSTEAD = "Give it as text, str(...), or as bytes"


def _is_float(number: int) -> bool:
    """Whether a float64 is exactly this int."""
    try:
        return float(number) == number
    except OverflowError:
        return False


def _shown(number: int) -> str:
    return str(number) if abs(number) < 1 << 128 else f"an int of {number.bit_length()} bits"


def _checked_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"has half of a surrogate pair at character {error.start}, which is no text. Give it as bytes: "
            "text.encode(errors='surrogatepass')"
        ) from None
    return text


def is_array(value: Any) -> bool:
    """Whether it is an array or tensor of some library."""
    return (
        isinstance(value, np.ndarray) or hasattr(value, "__array__") or hasattr(value, "__array_interface__")
    )


def raw_array(value: Any) -> tuple[str, npt.NDArray[Any]]:
    """The stored dtype (``"string"`` and ``"bytes"`` for arrays of text), and an array of ``raw_dtype``, or of text.

    Raises:
        DataError: as ``as_stored``.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(value)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise DataError(
            "is a masked array. A column stores no masks: fill it (.filled), or store the mask too"
        )
    if not isinstance(value, np.ndarray) and _has_nulls(value):
        raise DataError(
            f"is a {type(value).__name__} with missing values, which NumPy would make NaN, and ints beside them "
            "floats. Fill them, or leave them out"
        )
    try:
        array = np.asarray(value)
    except Exception as error:  # each library raises errors of its own
        raise DataError(
            f"is a {type(value).__module__}.{type(value).__qualname__} that cannot be made a NumPy array ({error}). "
            "Convert it first"
        ) from error
    kind = array.dtype.kind
    if kind in "UT":
        return "string", array
    if kind == "S":
        return "bytes", array
    if kind in "Mm":
        raise DataError(
            f"is of dtype {array.dtype}. Columns store no times: convert it with .astype('int64') and say in the "
            "column's name which unit and time zone that is"
        )
    if kind == "O":
        raise DataError(
            "is of dtype object. Columns store numbers, text and bytes: give a list, .tolist() of numbers, which are "
            "kept exactly, or of text, or arrays if their shapes differ; or convert it with .astype(...)"
        )
    name = ML_DTYPES.get(array.dtype.name) or _COMMON.get(array.dtype.name)
    if name is None:
        raise DataError(
            f"is of dtype {array.dtype}. Convert it with .astype(...) to one of {', '.join(_COMMON)}"
        )
    return name, array.view(raw_dtype(name)) if is_uncommon(name) else array


def _has_nulls(value: Any) -> bool:
    """Whether values are missing in what pandas, polars or Arrow made; NaN in columns of NumPy's dtypes is a number."""
    if hasattr(value, "null_count"):
        count = value.null_count() if callable(value.null_count) else value.null_count
        return bool(np.sum(np.asarray(count)))
    if hasattr(value, "isna"):
        kinds = list(value.dtypes) if getattr(value, "ndim", 1) == 2 else [value.dtype]
        if not all(isinstance(kind, np.dtype) for kind in kinds):
            return bool(np.asarray(value.isna()).any())
    columns = getattr(value, "columns", ())
    return isinstance(columns, list) and any(getattr(column, "null_count", 0) for column in columns)


def _of_torch(value: Any) -> tuple[str, npt.NDArray[Any]]:
    from hopyard.objects.torch import NAMES, is_dense, to_tensor

    if is_dense(value) and value.dtype not in NAMES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in NAMES)
        raise DataError(f"is of dtype {value.dtype}. Convert it with .to(...) to one of {known}")
    if value.is_nested:
        raise DataError(
            "is a nested tensor, which is several tensors. Give them as samples: list(tensor.unbind()); as one sample "
            "fill them up: torch.nested.to_padded_tensor(tensor, 0)"
        )
    if not is_dense(value):
        raise DataError(
            f"is a tensor of layout {value.layout}, dtype {value.dtype}, on {value.device}. Make it dense, with "
            "elements: .to_dense(), .dequantize()"
        )
    tensor = to_tensor(value)
    return tensor.dtype, tensor.numpy()


def _bytes(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.uint8]:
    flat = np.ascontiguousarray(array, raw_dtype(dtype)).reshape(-1)
    return flat.view(np.uint8)


def settle(
    values: Sequence[StoredSample | Weak], record: ColumnRecord | None, say: Callable[[int, str], DataError]
) -> list[StoredSample]:
    """The samples with the dtype of the column, or of one another where the column is new.

    Args:
        say: makes the error for the sample of this number.
    """
    if record is not None and record.kind == "tensor":
        dtype = record.dtype
    else:
        strong = next((value.dtype for value in values if isinstance(value, Tensor)), None)
        weak = [value.array.dtype for value in values if isinstance(value, Weak)]
        dtype = strong or _common_dtype(weak)
    return [
        _cast(value.array, dtype, partial(say, at)) if isinstance(value, Weak) else value
        for at, value in enumerate(values)
    ]


def _common_dtype(weak: Sequence[np.dtype[Any]]) -> str:
    if {dtype.name for dtype in weak} == {"int64", "uint64"}:
        return "U64"  # NumPy has float64, which rounds them
    return _COMMON[np.result_type(*weak).name] if weak else "U8"


def _cast(array: npt.NDArray[Any], dtype: str, say: Callable[[str], DataError]) -> Tensor:
    """Numbers without a dtype of their own, as ``dtype`` if that is exact."""
    own = _COMMON[array.dtype.name]
    if own == dtype:
        return Tensor.from_numpy(array)
    if not is_uncommon(dtype):
        cast = cast_exactly(array, raw_dtype(dtype))
        if cast is not None:
            return Tensor.from_numpy(cast)
    shown = repr(array.tolist())
    raise say(
        f"is {shown if len(shown) < 60 else dtype_name(own)}, which {dtype_name(dtype)}, the dtype of the others, "
        "cannot hold exactly. Give an array of that dtype, or replace the whole column"
    )


def cast_exactly(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    if (array.dtype.kind == "b") != (dtype.kind == "b") or (array.dtype.kind == "c" and dtype.kind != "c"):
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        back = cast.real if dtype.kind == "c" and array.dtype.kind != "c" else cast
        has_nan = array.dtype.kind in "fc"
        exact = np.array_equal(cast, array, equal_nan=has_nan)
        exact = exact and np.array_equal(back.astype(array.dtype), array, equal_nan=has_nan)
    return cast if exact else None


def record_for(values: Sequence[StoredSample], nested: bool) -> ColumnRecord:
    """Properties that samples share, as the record of an empty column."""
    first = values[0]
    if not isinstance(first, Tensor):
        return empty_record("string" if isinstance(first, str) else "bytes", "U8", (), nested)
    shapes = [
        value.shape for value in values if isinstance(value, Tensor) and len(value.shape) == len(first.shape)
    ]
    common = tuple(
        lengths[0] if all(length == lengths[0] for length in lengths) else None
        for lengths in zip(*shapes, strict=True)
    )
    return empty_record("tensor", first.dtype, common, nested)


def empty_record(kind: Any, dtype: str, shape: tuple[int | None, ...], nested: bool) -> ColumnRecord:
    """The record of a column without samples."""
    return ColumnRecord(kind, dtype, shape, nested, bits=0, pages=None, count=0, nbytes=0)


def misfit(value: StoredSample, record: ColumnRecord) -> str | None:
    """Why a sample does not fit a column; None if it does."""
    if isinstance(value, Tensor):
        dtype, shape = value.dtype, value.shape
    else:
        dtype, shape = ("string" if isinstance(value, str) else "bytes"), ()
    return misfit_of(dtype, shape, record)


def misfit_of(dtype: str, shape: tuple[int, ...], record: ColumnRecord) -> str | None:
    """The same for a sample of this dtype (or ``"string"``, ``"bytes"``) and shape."""
    if record.kind == "tensor":
        fits = dtype == record.dtype and len(shape) == len(record.shape)
        if fits and all(want in (None, have) for want, have in zip(record.shape, shape, strict=True)):
            return None
    elif dtype == record.kind:
        return None
    given = dtype if dtype in ("string", "bytes") else f"{dtype_name(dtype)} of shape {shape}"
    return f"is {given}, but the column holds {describe(record)}"


def describe(record: ColumnRecord) -> str:
    """Kind, dtype and shape in words."""
    if record.kind != "tensor":
        return "strings" if record.kind == "string" else "bytes"
    return f"{dtype_name(record.dtype)} of shape {record.shape}"


def in_short(record: ColumnRecord) -> str:
    """Kind, dtype and shape in a list of things: ``uint8 (3, 32, 32)``, ``string``; ``?`` for lengths that differ."""
    if record.kind != "tensor":
        samples: str = record.kind
    else:
        shape = ", ".join("?" if length is None else str(length) for length in record.shape)
        samples = f"{dtype_name(record.dtype)} {f'({shape})' if record.shape else 'scalar'}"
    return f"{samples}, nested" if record.nested else samples


def rows_of(values: Sequence[StoredSample], record: ColumnRecord) -> SampleBytes:
    """Samples that fit, in bulk."""
    parts = [_content(value) for value in values]
    data = np.frombuffer(b"".join(parts), np.uint8)
    width = row_width(record)
    if width is not None:
        return SampleBytes(data.reshape(len(values), width))
    shapes = [value.shape for value in values if isinstance(value, Tensor)]
    offsets = offsets_of(np.fromiter(map(len, parts), np.int64, len(parts)))
    table = np.array(shapes, np.int64).reshape(len(values), len(record.shape)) if shapes else None
    return SampleBytes(data, offsets, table)


def _content(value: StoredSample) -> Any:
    if isinstance(value, Tensor):
        return value.data.data
    return value.encode() if isinstance(value, str) else value


def rows_of_array(array: npt.NDArray[Any], record: ColumnRecord) -> SampleBytes:
    """The rows of an array (n, ...) of ``raw_dtype`` that fit, in bulk."""
    flat = _bytes(array, record.dtype)
    width = row_width(record)
    if width is not None:
        return SampleBytes(flat.reshape(len(array), width))
    size = flat.size // max(len(array), 1)
    shapes = np.tile(np.array(array.shape[1:], np.int64), (len(array), 1))
    return SampleBytes(flat, np.arange(len(array) + 1, dtype=np.int64) * size, shapes)


# To users


def stored_sample(rows: SampleBytes, at: int, record: ColumnRecord) -> StoredSample:
    """One sample of rows; a tensor shares their memory."""
    data, shape = rows.sample(at)
    if record.kind == "tensor":
        lengths = record.shape if shape is None else shape
        return Tensor(record.dtype, tuple(n for n in lengths if n is not None), np.ascontiguousarray(data))
    if record.kind != "string":
        return data.tobytes()
    try:
        return data.tobytes().decode()
    except UnicodeDecodeError as error:
        raise CorruptError(
            f"a sample of a column of strings is no UTF-8 ({error}). Run `hopyard stock verify`, which says of which "
            "column; then bring that from a remote."
        ) from error


def to_user(value: StoredSample) -> Any:
    """A sample as users get it: an array or PyTorch tensor of its own, a NumPy scalar where it is one number, a string,
    or bytes."""
    if not isinstance(value, Tensor):
        return value
    found = array_to_user(value.numpy().copy(), value.dtype)
    return found[()] if isinstance(found, np.ndarray) and not found.shape else found


def array_to_user(array: npt.NDArray[Any], dtype: str) -> Any:
    """An array of ``raw_dtype``, or a PyTorch tensor of the same memory where NumPy lacks the dtype.

    Raises:
        MissingExtraError: that needs PyTorch.
    """
    if not is_uncommon(dtype):
        return array
    try:
        from hopyard.objects.torch import from_bytes
    except ImportError as error:
        raise MissingExtraError(
            f"NumPy has no {dtype_name(dtype)}, so samples of this dtype are given as PyTorch tensors, and PyTorch is "
            "not installed. Install it with: pip install torch"
        ) from error
    return from_bytes(dtype, array.shape, array.reshape(-1).view(np.uint8))


def samples_to_user(rows: SampleBytes, record: ColumnRecord) -> list[Any]:
    """All samples of rows, each its own."""
    return [to_user(stored_sample(rows, at, record)) for at in range(len(rows))]
