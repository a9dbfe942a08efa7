"""Things of a shelf as files that other programs read."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data import Dataset
from hopyard.errors import NotFoundError, UsageError
from hopyard.stockroom.catalog.replacing import replaced
from hopyard.stockroom.catalog.shelves import Shelves
from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.data.samples import describe, is_uncommon
from hopyard.stockroom.models import export_safetensors
from hopyard.stockroom.records import thing_of
from hopyard.stockroom.records.quoting import quoted
from hopyard.storage.names import path_given

_AT_ONCE = 32 << 20  # bytes
_FOLDER = "a folder (a name without a suffix)"


def export(shelves: Shelves, path: str, target: str | os.PathLike[str]) -> Path:
    """Write one thing out of a shelf; what is at ``target`` is replaced when all is written.

    ================  ==========================================================================================
    ``data/NAME``     of a column ``.npy``: all samples, which are of one shape, in the order of their keys, without
                      these; ``.npz`` and ``.parquet``: arrays or columns ``key`` (of a column ``key``:
                      ``sample_key``) and the name; else a folder with a file for each sample. Of a dataset a folder
                      with its Parquet files.
    ``model/NAME``    ``.safetensors``
    ``experiment/X``  ``.json``
    ================  ==========================================================================================

    Raises:
        NotFoundError: there is no such thing; UsageError: it cannot be written so.
    """
    shelf, name = thing_of(path)
    file = path_given(target)
    if not file.parent.is_dir():
        raise NotFoundError(
            f"{path} cannot be exported to {file}: there is no directory {file.parent}. Make it."
        )
    if shelf == "model":
        _check_suffix(path, file, ".safetensors")
        shelves.model.record(name)
        export_safetensors(shelves.model, name, file)
    elif shelf == "experiment":
        _check_suffix(path, file, ".json")
        text = _json(path, shelves.experiment[name])
        replaced(file, lambda temporary: _write_text(temporary, text))
    elif shelf == "data":
        _export_data(path, shelves.data[name], file)
    else:
        raise UsageError(
            f"{path!r} is a run, which is no one file. Write data/NAME, model/NAME or experiment/NAME; "
            f"stock.experiment.run({name!r}).read('ARTIFACT') gives the bytes of an artifact."
        )
    return file


def _export_data(path: str, item: Any, file: Path) -> None:
    column = item.snapshot() if isinstance(item, ColumnDraft) else item
    if isinstance(column, Dataset):
        _check_suffix(path, file, "")
        replaced(file, lambda temporary: _write_dataset(column, temporary))
        return
    if column.kind == "tensor" and is_uncommon(column.record.dtype):
        raise UsageError(
            f"{path} is {describe(column.record)}, which neither NumPy nor Parquet has. Store it in another dtype, "
            "or as a model, which is exported as .safetensors."
        )
    if file.suffix in (".npy", ".npz"):
        if column.kind != "tensor" or None in column.shape:
            is_list = column.kind != "tensor" or (len(column.shape) == 1 and not _is_complex(column))
            raise UsageError(
                f"{path} has samples of {'different shapes' if column.kind == 'tensor' else column.kind}, which "
                f"{file.suffix} does not hold. Export it as {'.parquet, or as ' if is_list else ''}{_FOLDER}."
            )
        write = _write_npy if file.suffix == ".npy" else partial(_write_npz, path)
        replaced(file, lambda temporary: write(column, temporary))
    elif file.suffix == ".parquet":
        replaced(file, lambda temporary: _write_parquet(path, column, temporary))
    else:
        _check_suffix(path, file, "")
        replaced(file, lambda temporary: _write_folder(path, column, temporary))


def _check_suffix(path: str, file: Path, suffix: str) -> None:
    if file.suffix != suffix:
        kinds = {"": _FOLDER + (", .npy, .npz or .parquet" if path.startswith("data/") else "")}
        raise UsageError(
            f"{path} cannot be exported to {file.name}: it is written as {kinds.get(suffix, suffix)}."
        )


def _blocks(column: SampleColumn) -> Iterator[Any]:
    """Numbers of samples, some at a time."""
    step = max(1, _AT_ONCE // max(1, column.nbytes // max(1, len(column))))
    for first in range(0, len(column), step):
        yield np.arange(first, min(first + step, len(column)))


def _json(path: str, value: Any) -> str:
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise UsageError(
            f"{path} holds nan or an infinity, which JSON lacks. Store None or a string instead, or read it in Python: "
            f"stock.experiment[{path.partition('/')[2]!r}]."
        ) from error


def _write_text(file: Path, text: str) -> None:
    file.write_text(text + "\n", encoding="utf-8")


def _write_npy(column: SampleColumn, file: Path) -> None:
    with file.open("wb") as out:
        _write_samples(column, out)


def _write_npz(path: str, column: SampleColumn, file: Path) -> None:
    keys = _keys(path, column, "array of NumPy")
    array = np.array(keys) if keys else np.zeros(0, np.int64)
    if array.tolist() != keys:  # NumPy takes a NUL at the end of a text for filling
        raise UsageError(f"{path} has keys that end in NUL, which NumPy leaves out. Export it as .parquet.")
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open(f"{_key_name(column)}.npy", "w", force_zip64=True) as out:
            np.save(out, array)
        with archive.open(f"{column.name}.npy", "w", force_zip64=True) as out:
            _write_samples(column, out)


def _write_samples(column: SampleColumn, out: IO[bytes]) -> None:
    """All samples, in the order of their keys, as ``numpy.save`` writes an array."""
    first = np.asarray(column.take(np.arange(min(1, len(column)))))
    header = np.lib.format.header_data_from_array_1_0(first)
    header["shape"] = (len(column), *first.shape[1:])
    np.lib.format.write_array_header_2_0(out, header)
    for rows in _blocks(column):
        out.write(np.ascontiguousarray(column.take(rows)).data)


def _keys(path: str, column: SampleColumn, where: str) -> list[Any]:
    """All keys of a column, which are ints or are texts."""
    keys = list(column.keys())
    kinds = {type(key) for key in keys}
    if len(kinds) > 1 or tuple in kinds:
        raise UsageError(
            f"{path} has keys of several kinds, which one {where} does not hold. Export it as a folder."
        )
    return keys


def _is_complex(column: SampleColumn) -> bool:
    return column.kind == "tensor" and column.record.dtype in ("C64", "C128")


def _key_name(column: SampleColumn) -> str:
    return "key" if column.name != "key" else "sample_key"


def _write_parquet(path: str, column: SampleColumn, file: Path) -> None:
    keys = _keys(path, column, "column of Parquet")
    if _is_complex(column):
        way = _FOLDER if None in column.shape else ".npy"
        raise UsageError(f"{path} is {describe(column.record)}, which Parquet lacks. Export it as {way}.")
    if column.kind == "tensor" and None in column.shape and len(column.shape) > 1:
        raise UsageError(
            f"{path} has samples of several shapes, which Parquet holds only if they have one dimension. Export it "
            f"as {_FOLDER}."
        )
    texts = any(isinstance(key, str) for key in keys[:1])
    writer: pq.ParquetWriter | None = None
    for rows in _blocks(column) if keys else [np.arange(0)]:
        values = _arrow(column.take(rows))
        names = pa.array([keys[row] for row in rows], pa.string() if texts else pa.int64())
        table = pa.table({_key_name(column): names, column.name: values})
        writer = writer or pq.ParquetWriter(file, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _arrow(values: Any) -> pa.Array:
    if isinstance(values, list):
        return pa.array(values)
    array = np.asarray(values)
    for length in reversed(array.shape[1:]):
        if length == 0:
            raise UsageError("samples without elements cannot be columns of Parquet. Export them as .npy.")
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    for length in reversed(array.shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, length)
    return flat


def _write_folder(path: str, column: SampleColumn, folder: Path) -> None:
    folder.mkdir()
    suffix = {"string": ".txt", "bytes": ".bin"}.get(column.kind, ".npy")
    for key, sample in column.items():
        parts = key if isinstance(key, tuple) else (key,)
        file = folder / ("--".join(quoted(str(part)) for part in parts) + suffix)
        try:
            with file.open("xb") as out:
                if isinstance(sample, str | bytes):
                    out.write(sample.encode() if isinstance(sample, str) else sample)
                else:
                    np.save(out, np.asarray(sample))
        except FileExistsError:
            raise UsageError(
                f"the sample {key!r} of {path} would be in the file {file.name}, where another one is already: their "
                "keys are too much alike for names of files. Export it as .npy, which leaves them out, or give it "
                "other keys."
            ) from None


def _write_dataset(dataset: Dataset, folder: Path) -> None:
    folder.mkdir()
    assert dataset.store is not None
    for entry in dataset.store.list():
        (folder / entry.name).write_bytes(dataset.store.get(entry.name))
