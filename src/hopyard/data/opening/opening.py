"""Opens a dataset from a store, a path, a URL, or Parquet files as they are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Literal, TypeAlias

from hopyard.data.dataset import Dataset
from hopyard.data.files.found import CSV, PARQUET, FoundFile, find_data, is_any, is_url, is_wild
from hopyard.data.files.hive import is_hidden
from hopyard.data.files.unfinished import refuse_leftovers
from hopyard.data.files.unischema import local_directory, warn_of_encoded
from hopyard.data.manifest import MANIFEST_NAME, Manifest
from hopyard.data.opening.assemble import Cache, OpeningOptions, as_cache, assemble
from hopyard.data.opening.foreign import ForeignFiles, files_of, foreign_files
from hopyard.data.recipe.recipe import CachedTransform
from hopyard.errors import DataError, InvalidNameError, NotFoundError, UsageError
from hopyard.storage import open_store
from hopyard.storage.base import Store
from hopyard.wording import counted, nearest

PathLike: TypeAlias = str | os.PathLike[str]

_SPLITS = ("train", "val")
_NO_SOURCES = ("train_data", "val_data", "runs", "logs")  # below a store: what Hopyard keeps there itself


def open_dataset(
    data: Dataset | Store | PathLike | Sequence[PathLike],
    split: Literal["train", "val"] = "train",
    *,
    columns: Sequence[str] | None = None,
    filters: Any = None,
    nulls: Literal["error", "fill", "mask"] = "error",
    ragged: Literal["error", "keep", "pad"] = "keep",
    decode: Mapping[str, Any] | None = None,
    cached_transform: CachedTransform | None = None,
    cache: Cache = None,
    corrupt: Literal["error", "skip"] = "error",
    missing: Literal["error", "null"] = "error",
    widen: bool = False,
    depends_on: Sequence[Any] = (),
) -> Dataset:
    """The dataset that ``data`` names, prepared or not.

    * a store, or its path or URL: the newest prepared dataset of the split in it; one without a manifest is none;
    * a directory with a manifest: that dataset;
    * a Parquet file, a list of them, a pattern, or a directory of them, here or in a bucket: their rows, without
      preparation.
      Directories ``key=value/`` below the one named are columns (Spark, Hive).

    Fields of structs are columns ``a.b``. What is asked for is done in the order of the arguments, but for the
    selection of columns, which comes last:

    Args:
        data: as above, or a dataset that is open.
        split: of a store.
        columns: of the dataset, in this order; None: all. What others hold does not matter.
        filters: rows to keep: a pyarrow expression over the columns as they are stored, or a list of tuples
            (column, operator, value) as pyarrow takes them. Row groups are skipped by their statistics; of the
            others only the filter's columns are read now. A comparison with a null is not true.
        nulls: ``"error"``, ``"fill"`` (0, False, "" or no values) or ``"mask"`` (filled, and a bool column
            ``<name>_mask`` that is True where the row was null).
        ragged: of lists of different lengths: ``"keep"`` (a ``Ragged``: values and offsets), ``"pad"`` (zeros up to
            the longest row, and an int64 column ``<name>_length``; the lists are read once now) or ``"error"``.
        decode: of columns of bytes: ``"image"``, ``hopyard.data.image(...)``, or a function of the bytes of a row
            that gives its array; in threads.
        cached_transform: of a dict of arrays into a dict of arrays with as many rows: deterministic, row by row.
        cache: keeps decoded data on this machine: a ``NodeCache``, its path, None for the default one,
            False to keep it in memory only.
        corrupt: ``"skip"`` leaves out files and row groups that cannot be read; every row group is decoded now, and
            ``dataset.skipped`` lists the missing parts.
        missing: ``"null"``: a column that some files lack is null there, and treated as ``nulls`` says.
        widen: numbers of columns whose dtype differs between files become those of the wider one: ints that hold all
            ints, floats that hold all floats.
        depends_on: inputs of ``cached_transform`` and ``decode`` besides their arguments: files and folders, each a
            ``pathlib.Path``, whose content counts, and values (numbers, texts, arrays, a setting of ``os.environ``).

    Raises:
        NotFoundError: there is no dataset; names the places that were searched.
        DataError: Parquet files differ in their columns, have nulls, or none are there; no row matches.
        ColumnError: unknown columns.
        CorruptError: a file is not a whole Parquet file.
        UsageError: an unknown split or policy.
    """
    if split not in _SPLITS:
        raise UsageError(
            f"split={split!r}, but it must be 'train' or 'val'{nearest(str(split), _SPLITS, '.')}"
        )
    options = OpeningOptions(
        columns, filters, nulls, ragged, decode or {}, cached_transform, cache, corrupt, missing, widen,
        tuple(depends_on) if isinstance(depends_on, (list, tuple)) else depends_on,
    )  # fmt: skip
    if isinstance(data, Dataset):
        return _reopened(data, options)
    if isinstance(data, Store):
        return _from_store(data, split, options)
    if not isinstance(data, (str, os.PathLike)):
        _check_paths(data)
        return _from_files([found for path in data for found in find_data(os.fspath(path))], options)
    if is_url(os.fspath(data)):
        return _from_url(os.fspath(data), split, options)
    path = local_directory(data)
    if os.path.isdir(path):  # noqa: PTH112 - False where it may not be looked at
        return _from_store(open_store(path), split, options)
    return _from_files(find_data(path), options)


def _check_paths(data: Any) -> None:
    if not isinstance(data, (list, tuple)) or not all(isinstance(each, (str, os.PathLike)) for each in data):
        raise UsageError(
            f"Data of type {type(data).__module__}.{type(data).__qualname__} cannot be opened: give a path or URL, a "
            "list of paths, a store, or a dataset. Rows in memory become a dataset by prepare(data, store).train."
        )


def _from_url(url: str, split: str, options: OpeningOptions) -> Dataset:
    """The dataset in a store, or Parquet files there, if the URL names them, or a directory as no store is called."""
    if not is_wild(url) and not is_any(url, (*PARQUET, *CSV)):
        with contextlib.suppress(InvalidNameError):
            return _from_store(open_store(url), split, options)
    return _from_files(find_data(url), options)


def _from_files(found: Sequence[FoundFile], options: OpeningOptions) -> Dataset:
    other = [str(file) for file in found if not is_any(file.name, PARQUET)]
    if other:
        raise DataError(
            f"{other[0]} is not a Parquet file, which alone is read without preparation. Prepare it: "
            "prepare(path, store), or hopyard data prepare."
        )
    urls = {file.store and file.store.url for file in found}
    if len(urls) > 1:
        raise DataError(
            f"The files are in several places: {', '.join(sorted(url or 'this machine' for url in urls))}. Those of "
            "one dataset must be in one bucket, or all on this machine: copy them, or open a dataset of each place."
        )
    store = found[0].store if found else None
    names = [file.name if store else os.path.abspath(file.name) for file in found]  # noqa: PTH100
    files = foreign_files(
        store, names, [file.relative for file in found], options.skip, options.stored, options.differences
    )
    return assemble(files, options)


def _reopened(dataset: Dataset, options: OpeningOptions) -> Dataset:
    """The dataset with more asked of it."""
    if options.change_nothing:
        if options.cache is None:
            return dataset
        dataset = copy(dataset)  # shares nothing that is open
        dataset.cache = as_cache(options.cache)
        return dataset
    if dataset.recipe.digest:
        raise UsageError(
            "The dataset was opened with policies, decoders or a transform, on top of which nothing can be asked. Open "
            "the data itself, and ask for all at once."
        )
    return assemble(files_of(dataset, options.skip, options.stored), options)


def _from_store(store: Store, split: str, options: OpeningOptions) -> Dataset:
    """The newest dataset of the split below ``store``, or the one in ``store`` itself.

    Parquet that others wrote is a dataset where a user named its folder: as the store, or as its train_path or
    val_path. Where Hopyard keeps datasets there is none without a manifest.
    """
    part = store.train_data if split == "train" else store.val_data
    single = store.single_train if split == "train" else store.single_val
    places = [(part, single), *([(store, True)] if store.has_root else [])]
    for place, may_be_foreign in places:
        listed = [entry.name for entry in place.list()]
        if MANIFEST_NAME in listed:
            return _reopened(Dataset(place, _manifest(place, MANIFEST_NAME)), options)
        dataset = _newest(place, listed, split)
        if dataset is not None:
            return _reopened(dataset, options)
        if place is store:
            listed = [name for name in listed if name.split("/")[0] not in _NO_SOURCES]
        refuse_leftovers(listed, place, place.url)
        names = [name for name in listed if _is_source(name)]
        if names and may_be_foreign:
            files = _foreign_in(place, names, options)
            _say_if_petastorm(place, files, options)
            return assemble(files, options)
        if names:
            raise NotFoundError(
                f"{place.url} holds {counted(len(names), 'Parquet file')} but no {MANIFEST_NAME}, so no {split} "
                "dataset: in a store, that is what prepare() finished. Prepare the data, or name the files' folder, "
                f"open_dataset({place.url!r}), to read them as they are."
            )
    places_searched = " or ".join(place.url for place, _ in places)
    raise NotFoundError(
        f"{store.url} holds no {split} dataset: neither a {MANIFEST_NAME} nor Parquet files are in "
        f"{places_searched}. Prepare one with prepare(data, store=...)."
    )


def _newest(place: Store, listed: Sequence[str], split: str) -> Dataset | None:
    """The newest of the datasets in the directories below ``place``; ``listed`` are all names there."""
    found: list[tuple[str, str, Manifest]] = []
    for each in listed:
        directory, _, name = each.rpartition("/")
        if name == MANIFEST_NAME and "/" not in directory:
            manifest = _manifest(place, each)
            if manifest.split == split:
                found.append((manifest.created, directory, manifest))
    if not found:
        return None
    _, directory, manifest = max(found, key=lambda each: each[:2])
    return Dataset(place.at(directory), manifest)


def _manifest(place: Store, name: str) -> Manifest:
    return Manifest.from_bytes(place.get(name), f"{place.url}/{name}")


def _foreign_in(place: Store, names: Sequence[str], options: OpeningOptions) -> ForeignFiles:
    """Files below a store, by their paths if they have some: others named them, maybe as no store would."""
    directory = place.path(MANIFEST_NAME)
    if directory is None:
        return foreign_files(place.foreign(), names, names, options.skip, options.stored, options.differences)
    base = str(directory.parent).rstrip("/")
    paths = [f"{base}/{name}" for name in names]
    return foreign_files(None, paths, names, options.skip, options.stored, options.differences)


def _say_if_petastorm(place: Store, files: ForeignFiles, options: OpeningOptions) -> None:
    encoded = [column.name for column in files.manifest.schema if column.kind == "bytes"]
    warn_of_encoded(place, place.url, [name for name in encoded if name not in options.decode])


def holds_plain_parquet(store: Store) -> bool:
    """Whether Parquet files that ``prepare`` did not write are in a store: ``open_dataset`` reads them as they are, if
    there is no prepared dataset."""
    return store.has_root and any(_is_source(entry.name) for entry in store.list())


def _is_source(name: str) -> bool:
    return name.lower().endswith(PARQUET) and not is_hidden(name) and name.split("/")[0] not in _NO_SOURCES
