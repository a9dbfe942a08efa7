"""NumPy files: ``.npy``, ``.npz``, and folders of ``.npy``."""

from __future__ import annotations

import functools
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from hopyard.errors import CorruptError, DataError, UnsupportedTypeError
from hopyard.stockroom.importers.base import ColumnSource, Importer
from hopyard.stockroom.importers.mapped import MappedNumpy
from hopyard.stockroom.importers.parts import describe_files, listed
from hopyard.storage.oserrors import write_errors

_AT_ONCE = 1 << 24
_DTYPES = frozenset(
    [
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
        "float64", "complex64", "complex128",
    ]
)  # fmt: skip

_SPLITS = {"train": "", "test": "test", "val": "val", "valid": "valid"}
_KERAS_NAME = re.compile(rf"(.+)_({'|'.join(_SPLITS)})")


class Numpy(Importer):
    """NumPy arrays: a .npy file, a .npz file, or a folder of .npy files.

    A column for each array, named as in the .npz, or as the file; the first axis numbers the samples. Numbers keep
    their dtype (in native byte order); texts (U) and bytes (S) of one axis are strings and bytes. Pickled objects are
    refused. All arrays have the same count of samples, but those of a split, which are called as it is (test-image),
    may have another. Arrays that are all called as those of Keras' files (x_train, y_test) become columns of splits
    (x, test-y).
    """

    @functools.cached_property
    def _files(self) -> list[Path]:
        """The files given."""
        assert self.source is not None
        if not self.source.is_dir():
            return [self.source]
        files = sorted(path for path in self.source.iterdir() if path.suffix == ".npy")
        if not files:
            there = sorted(path.name for path in self.source.iterdir())
            raise DataError(
                f"There are no .npy files in {self.source}, but {listed(there) or 'nothing'}. Check the path."
            )
        return files

    @functools.cached_property
    def _arrays(self) -> dict[str, tuple[Path, str]]:
        """Name of a column -> a .npy file, and how errors call it."""
        first = self._files[0]
        if len(self._files) == 1 and (first.suffix == ".npz" or zipfile.is_zipfile(first)):
            return self._unpacked(first)
        return {path.stem: (path, str(path)) for path in self._files}

    def _unpacked(self, archive: Path) -> dict[str, tuple[Path, str]]:
        arrays: dict[str, tuple[Path, str]] = {}
        try:
            with zipfile.ZipFile(archive) as file:
                for number, name in enumerate(file.namelist()):
                    target = self.scratch / f"array-{number}.npy"
                    with file.open(name) as packed, write_errors(str(target)), target.open("wb") as unpacked:
                        while block := packed.read(_AT_ONCE):
                            unpacked.write(block)
                    arrays[name.removesuffix(".npy")] = target, f"{archive}: {name}"
        except (zipfile.BadZipFile, EOFError, zlib.error) as error:
            raise CorruptError(f"{archive} is truncated or damaged: {error}. Restore it.") from error
        if not arrays:
            raise DataError(f"{archive} holds no arrays. Give a file with at least one.")
        return arrays

    def columns(self) -> list[ColumnSource]:
        names = _of_splits(list(self._arrays))
        columns = [_column(name, *self._arrays[array]) for array, name in names.items()]
        return [replace(column, split=column.name.rpartition("-")[0]) for column in columns]

    def identity(self) -> Mapping[str, Any]:
        return {"files": describe_files(self._files)}


def _of_splits(arrays: Sequence[str]) -> dict[str, str]:
    """The name of the column that each array becomes."""
    found = [_KERAS_NAME.fullmatch(array) for array in arrays]
    names = ["-".join(filter(None, (_SPLITS[each[2]], each[1]))) for each in found if each]
    is_of_keras = len(names) == len(set(names)) == len(arrays)
    return dict(zip(arrays, names if is_of_keras else arrays, strict=True))


def _column(name: str, path: Path, shown: str) -> ColumnSource:
    read = MappedNumpy(str(path))
    try:
        array = read.array()
    except (ValueError, EOFError, OSError) as error:
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            raise UnsupportedTypeError(
                f"{shown} holds Python objects, which only a pickle can: it could run any code. Save arrays of "
                "numbers, texts or bytes."
            ) from error
        raise CorruptError(
            f"{shown} is no whole .npy file ({error}). Give an array that numpy.save wrote."
        ) from error
    if not array.ndim or not len(array):
        raise DataError(
            f"{shown} is of shape {array.shape}, but the first axis numbers the samples, at least one. Reshape it."
        )
    return _described(name, array, read, shown)


def _described(name: str, array: npt.NDArray[Any], read: MappedNumpy, shown: str) -> ColumnSource:
    if array.dtype.kind in "US" and array.ndim == 1:
        kind = "string" if array.dtype.kind == "U" else "bytes"
        return ColumnSource(name, len(array), kind, "object", (), read)  # type: ignore[arg-type]
    dtype = array.dtype.newbyteorder("=").name
    if dtype not in _DTYPES:
        raise UnsupportedTypeError(
            f"{shown} is of dtype {array.dtype} with {array.ndim} axes, which no column can hold. Save numbers (times "
            "as int64, fields of records as arrays of their own), or one axis of texts or bytes."
        )
    return ColumnSource(name, len(array), "tensor", dtype, array.shape[1:], read)
