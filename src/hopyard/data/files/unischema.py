"""Petastorm's Unischema: the fields of a dataset, read from its pickle without unpickling it.

The pickle lies in the footer of ``_common_metadata``. Layouts that are read: Petastorm 0.4 to 0.13, with all protocols
of Python 2 and 3; packages of Petastorm's earlier names; fields that pyspark pickled as named tuples.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.files.pickled import DeferredCall, Symbol, read_pickle
from hopyard.errors import CorruptError, NotFoundError, StorageError, UnsupportedTypeError, UsageError
from hopyard.storage.base import Store

_log = logging.getLogger("hopyard")
_warned_of: set[str] = set()

METADATA_NAME = "_common_metadata"
UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"

Shape = tuple[int | None, ...]

_PACKAGES = ("petastorm", "av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit")
_FIELD_NAMES = ("name", "numpy_dtype", "shape", "codec", "nullable")
_SAME = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"),
    *("float64", "datetime64", "timedelta64"),
)
_NUMPY = dict(zip(_SAME, _SAME, strict=True)) | {
    "bool_": "bool", "half": "float16", "single": "float32", "double": "float64", "int_": "int64", "intc": "int32",
    "uintc": "uint32", "longlong": "int64", "ulonglong": "uint64", "str_": "str", "unicode_": "str",
    "string_": "bytes", "bytes_": "bytes", "object_": "object",
}  # fmt: skip
_PYTHON = {
    "bool": "bool",
    "int": "int64",
    "long": "int64",
    "float": "float64",
    "bytes": "bytes",
    "object": "object",
}
_OTHERS = {"decimal.Decimal": "decimal", "datetime.date": "datetime64", "datetime.datetime": "datetime64"}


@dataclass(frozen=True)
class Field:
    """One field of a Unischema.

    Attributes:
        name: of the column.
        dtype: NumPy's name without a unit, or ``"str"``, ``"bytes"``, ``"decimal"``, ``"object"``.
        shape: of one row; None is a dimension of any length.
        codec: ``"NdarrayCodec"``, ``"CompressedNdarrayCodec"``, ``"CompressedImageCodec"``, ``"ScalarCodec"``, or None:
            stored as it is.
        arguments: of the codec: ``format`` and ``quality`` of images, ``spark_type`` of scalars.
        nullable: whether rows may be null.
    """

    name: str
    dtype: str
    shape: Shape = ()
    codec: str | None = None
    arguments: Mapping[str, Any] | None = None
    nullable: bool = False

    @property
    def encoded(self) -> bool:
        """Whether a row is stored as the bytes of an array or image."""
        return self.codec in ("NdarrayCodec", "CompressedNdarrayCodec", "CompressedImageCodec")

    def __str__(self) -> str:
        shape = (
            f"[{', '.join('*' if size is None else str(size) for size in self.shape)}]" if self.shape else ""
        )
        return f"{self.name}: {self.dtype}{shape}" + (f" by {self.codec}" if self.codec else "")


def is_petastorm(path: str | os.PathLike[str] | Store) -> bool:
    """Whether a directory or store is a Petastorm dataset, which ``hopyard data convert-petastorm`` converts.

    Nothing but the footer of ``_common_metadata`` is read, and no error is raised: what cannot be read is none.
    """
    try:
        if isinstance(path, Store):
            source: Any = pa.BufferReader(path.get(METADATA_NAME)) if path.exists(METADATA_NAME) else None
        else:
            file = local_directory(path) / METADATA_NAME
            source = file if file.is_file() else None
        return source is not None and UNISCHEMA_KEY in (pq.read_metadata(source).metadata or {})
    except (pa.ArrowInvalid, OSError, StorageError, UsageError):
        return False


def warn_of_encoded(place: str | os.PathLike[str] | Store, name: str, columns: Sequence[str]) -> None:
    """Log once, if ``place`` is a Petastorm dataset, that these columns of bytes hold arrays, which nothing decodes."""
    if not columns or name in _warned_of or not is_petastorm(place):
        return
    _warned_of.add(name)
    _log.warning(
        "%s is a Petastorm dataset. Its columns %s hold encoded arrays, which stay bytes here. Convert it to have them "
        "as arrays: hopyard data convert-petastorm %s STORE", name, ", ".join(columns), name,
    )  # fmt: skip


def local_directory(path: str | os.PathLike[str]) -> Path:
    """The directory that a path or a ``file://`` URL names."""
    text = os.fspath(path)
    return Path(unquote(urlsplit(text).path)) if text.startswith("file://") else Path(text).expanduser()


def read_unischema(directory: Path) -> dict[str, Field]:
    """The fields of the dataset in ``directory``, by name, in their order.

    Raises:
        NotFoundError: there is no Unischema.
        CorruptError: it cannot be followed.
        UnsupportedTypeError: a field has a codec or dtype of its writer's own.
    """
    file = directory / METADATA_NAME
    try:
        metadata = pq.read_metadata(file).metadata or {}
    except FileNotFoundError as error:
        raise _none_there(directory, f"there is no {METADATA_NAME}") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptError(
            f"{file} is not a whole Parquet footer ({str(error).splitlines()[0]}). Restore it, or write it again with "
            "petastorm-generate-metadata.py."
        ) from error
    if UNISCHEMA_KEY not in metadata:
        raise _none_there(directory, f"its {METADATA_NAME} has no key {UNISCHEMA_KEY.decode()!r}")
    return parse_unischema(metadata[UNISCHEMA_KEY], f"the Unischema in {file}")


def parse_unischema(pickled: bytes, where: str) -> dict[str, Field]:
    """The fields of a pickled Unischema; see :func:`read_unischema` for the errors."""
    root = read_pickle(pickled, where)
    state = root.state if isinstance(root, DeferredCall) else None
    fields = _pairs(state.get("_fields")) if isinstance(state, dict) else None
    if not fields:
        raise _unexpected(where, "it is no Unischema with fields")
    found = [_field(value, where) for _, value in fields]
    return {field.name: field for field in found}


def _none_there(directory: Path, why: str) -> NotFoundError:
    return NotFoundError(
        f"{directory} is no Petastorm dataset: {why}. Check the path; plain Parquet needs no conversion and is read by "
        "open_dataset() and prepare() as it is."
    )


def _unexpected(where: str, what: str) -> CorruptError:
    return CorruptError(
        f"{where} was followed to its end, but {what}. It was changed, or a version of Petastorm that is unknown here "
        "wrote it; write it again with petastorm-generate-metadata.py of Petastorm 0.5 to 0.13."
    )


def _pairs(value: Any) -> list[tuple[Any, Any]] | None:
    """The pairs of an ``OrderedDict``, which protocols and Pythons spell in three ways, or of a dict."""
    if isinstance(value, dict):
        return list(value.items())
    if not isinstance(value, DeferredCall) or _name(value.function) != "OrderedDict":
        return None
    given = value.arguments[0] if value.arguments else []
    if not isinstance(given, (list, tuple)) or not all(
        isinstance(p, (list, tuple)) and len(p) == 2 for p in given
    ):
        return None
    return [*((key, its) for key, its in given), *value.items]


def _name(symbol: Any) -> str:
    return symbol.name if isinstance(symbol, Symbol) else ""


def _object(value: Any) -> tuple[Symbol | None, tuple[Any, ...]]:
    """The class of an object that would be made, and its arguments."""
    if not isinstance(value, DeferredCall):
        return None, ()
    function, arguments = value.function, value.arguments
    if function.name == "_reconstructor" and len(arguments) == 3 and isinstance(arguments[0], Symbol):
        inner = arguments[2]
        return arguments[0], inner if isinstance(inner, tuple) else ()
    return function, arguments


def _field(value: Any, where: str) -> Field:
    kind, arguments = _object(value)
    if kind is not None and str(kind) == "pyspark.serializers._restore" and len(arguments) == 3:
        _, names, values = arguments  # pyspark pickled named tuples of all classes so
    else:
        names, values = _FIELD_NAMES, arguments
        if kind is None or kind.name != "UnischemaField":
            raise _unexpected(where, f"a field is a {kind or type(value).__name__}, not a UnischemaField")
    named = isinstance(names, (tuple, list)) and all(isinstance(each, str) for each in names)
    if not named or not isinstance(values, tuple) or len(names) != len(values):
        raise _unexpected(where, f"a field has other parts than {', '.join(_FIELD_NAMES)}")
    parts = dict(zip(names, values, strict=True))
    if set(parts) != set(_FIELD_NAMES) or not isinstance(parts["name"], str):
        raise _unexpected(where, f"a field has other parts than {', '.join(_FIELD_NAMES)}")
    name = parts["name"]
    codec, settings = _codec(parts["codec"], name, where)
    dtype = _dtype(parts["numpy_dtype"], name, where)
    return Field(name, dtype, _shape(parts["shape"], name, where), codec, settings, bool(parts["nullable"]))


def _shape(value: Any, name: str, where: str) -> Shape:
    if isinstance(value, (tuple, list)) and all(
        size is None or (isinstance(size, int) and size >= 0) for size in value
    ):
        return tuple(value)
    raise _unexpected(where, f"field {name!r} has a shape that is no tuple of sizes and None")


def _dtype(value: Any, name: str, where: str) -> str:
    """The name of a dtype: of a NumPy scalar type, a Python type, or an instance of ``numpy.dtype``."""
    if isinstance(value, DeferredCall) and _name(value.function) == "dtype" and value.arguments:
        value = Symbol("numpy", _from_code(value.arguments[0]))
    if isinstance(value, Symbol):
        if value.module.partition(".")[0] == "numpy" and value.name in _NUMPY:
            return _NUMPY[value.name]
        if value.module in ("builtins", "__builtin__"):
            if value.name in ("str", "unicode"):
                return "str"
            if value.name in _PYTHON:
                return _PYTHON[value.name]
        if str(value) in _OTHERS:
            return _OTHERS[str(value)]
    raise UnsupportedTypeError(
        f"{where}: field {name!r} is of the type {value if isinstance(value, Symbol) else type(value).__name__}, which "
        "is none of NumPy's or Python's scalar types. Write the dataset again with another type, or without the field."
    )


def _from_code(code: Any) -> str:
    """NumPy's name of a code such as ``f4``."""
    sizes = {"i": "int", "u": "uint", "f": "float"}
    if not isinstance(code, str) or not code:
        return ""
    if code[0] in sizes and code[1:].isdigit():
        return f"{sizes[code[0]]}{int(code[1:]) * 8}"
    return {"b1": "bool_", "M8": "datetime64", "m8": "timedelta64"}.get(
        code, {"U": "str_", "S": "bytes_", "O": "object_"}.get(code[0], "")
    )


def _codec(value: Any, name: str, where: str) -> tuple[str | None, dict[str, Any] | None]:
    if value is None:
        return None, None
    kind, _ = _object(value)
    known = kind is not None and kind.module in {f"{package}.codecs" for package in _PACKAGES}
    state = value.state if isinstance(value, DeferredCall) and isinstance(value.state, dict) else {}
    if kind is not None and known:
        if kind.name in ("NdarrayCodec", "CompressedNdarrayCodec"):
            return kind.name, {}
        if kind.name == "ScalarCodec":
            spark_type, _ = _object(state.get("_spark_type"))
            return kind.name, {"spark_type": _name(spark_type)}
        if kind.name == "CompressedImageCodec":
            given, quality = state.get("_image_codec"), state.get("_quality")
            if isinstance(given, str) and isinstance(quality, int):
                return kind.name, {"format": given.lstrip("."), "quality": quality}
            raise _unexpected(where, f"field {name!r} has images of no format and quality")
    raise UnsupportedTypeError(
        f"{where}: field {name!r} is encoded by {kind or type(value).__name__}, not by one of Petastorm's own codecs, "
        "so its bytes have no meaning here. Write the dataset again with one of those, or without the field."
    )
