"""Addresses of datasets: those in a store, their columns and statistics, and some of their rows."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from hopyard.data import open_dataset
from hopyard.data.dataset import Dataset
from hopyard.data.opening.opening import holds_plain_parquet
from hopyard.data.opening.verifying import list_prepared
from hopyard.data.reports.images import thumbnail
from hopyard.data.reports.summary import inspect
from hopyard.data.reports.throughput import shuffle_quality
from hopyard.data.schema import Column
from hopyard.documents.data import summary_json
from hopyard.documents.shapes import DescribedSplitJson
from hopyard.errors import NotFoundError, UsageError
from hopyard.storage import Store
from hopyard.web import shapes
from hopyard.web.answers import answer
from hopyard.web.places import ShownPlace, place_of
from hopyard.web.requests import whole
from hopyard.wording import counted, shortened

_MOST_ROWS = 200
_LONGEST_TEXT = 500
_FIRST_NUMBERS = 8
_QUALITY_BATCH = 256


class DataPages:
    """Answers about datasets.

    Args:
        places: stores whose datasets are shown.
    """

    def __init__(self, places: list[ShownPlace]) -> None:
        self._places = places

    def list(self, request: Request) -> Response:
        store = self._store(request)
        found, problems = list_prepared(store)
        listed: list[shapes.ListedDatasetJson] = [
            {"path": _path_of(each, store), "prepared": True, "error": None} for each, _ in found
        ]
        if not found and not problems and holds_plain_parquet(store):
            listed = [{"path": "", "prepared": False, "error": None}]
        listed += [{"path": "", "prepared": True, "error": problem} for problem in problems]
        document: shapes.DatasetListJson = {"datasets": listed}
        return answer(document)

    def describe(self, request: Request) -> Response:
        store = self._at(request)
        return answer([_described(store, split) for split in summary_json(inspect(store))])

    def samples(self, request: Request) -> Response:
        split = request.query_params.get("split", "train")
        if split not in ("train", "val"):
            raise UsageError(f"split is {split!r}; a dataset has train and val. Ask for one of them.")
        dataset = open_dataset(self._at(request), split, nulls="mask")  # type: ignore[arg-type]
        first = whole(request, "first", 0, 0, 2**53)
        rows = np.arange(first, min(first + whole(request, "count", 20, 1, _MOST_ROWS), len(dataset)))
        batch = dataset.take(rows, {name: name for name in dataset.schema.names})
        policies = dataset.recipe.policies
        masked: Mapping[str, Any] = (
            {} if policies is None else {name: f"{name}_mask" for name in policies.masked}
        )
        cells: list[list[shapes.Cell]] = [
            [
                None
                if masked.get(column.name) in batch and batch[masked[column.name]][place]
                else _cell(column, batch[column.name][place], int(row))
                for column in dataset.schema
            ]
            for place, row in enumerate(rows)
        ]
        columns: list[shapes.SampleColumnJson] = [
            {
                "name": column.name,
                "type": str(column).removeprefix(f"{column.name}: "),
                "shown": _shown(cells, place),
            }
            for place, column in enumerate(dataset.schema)
        ]
        document: shapes.SamplesJson = {"columns": columns, "rows": cells, "first": first, "of": len(dataset)}
        return answer(document)

    def _at(self, request: Request) -> Store:
        """The dataset that is asked for, which must be one of those listed: a path leads nowhere else."""
        store, path = self._store(request), request.query_params.get("path", "")
        if not path:
            return store
        found, _ = list_prepared(store)
        for each, _ in found:
            if _path_of(each, store) == path:
                return each
        raise NotFoundError(f"{store.url} holds no dataset {path!r}. Choose one that is listed.")

    def _store(self, request: Request) -> Store:
        return place_of(self._places, request.path_params["place"]).store()


def _described(store: Store, split: DescribedSplitJson) -> shapes.SplitJson:
    dataset = open_dataset(store, split["split"], nulls="mask" if split["notes"] else "error")
    quality, places = shuffle_quality(dataset, _QUALITY_BATCH), _places(dataset)
    too_few = (
        f"it has {counted(len(dataset), 'row')}; how well batches of {_QUALITY_BATCH} are mixed is told from two of "
        "them on"
    )
    return {
        **split,
        "row_group_rows": list(dataset.group_rows),
        "places": places,
        "places_unknown": _why_no_places(dataset) if places is None else None,
        "order_quality": None if quality is None else {"batch_size": _QUALITY_BATCH, "ratio": quality},
        "order_quality_unknown": too_few if quality is None else None,
    }


def _path_of(dataset: Store, store: Store) -> str:
    return dataset.url.removeprefix(store.url).strip("/")


def _places(dataset: Dataset) -> list[list[str]] | None:
    """Hosts of each file's bytes, where the store knows them."""
    if dataset.store is None:
        return None
    hosts = [sorted(dataset.store.hosts(entry.name)) for entry in dataset.manifest.files]
    return hosts if any(hosts) else None


def _why_no_places(dataset: Dataset) -> str:
    """Why nobody knows which hosts have the bytes."""
    url = "" if dataset.store is None else dataset.store.url
    if url.startswith("hdfs:"):
        return "HDFS does not tell where its blocks are; the output of this server says why"
    if "://" in url and not url.startswith("file:"):
        return "a bucket does not tell on which machines its objects are; HDFS does"
    return (
        "the files are in this machine's file system, where there are no hosts to tell apart; HDFS has some"
    )


def _shown(cells: list[list[shapes.Cell]], place: int) -> Literal["text", "number", "image", "tensor"]:
    for row in cells:
        match row[place]:
            case {"image": _}:
                return "image"
            case {"tensor": _}:
                return "tensor"
            case str():
                return "text"
    return "number"


def _cell(column: Column, value: Any, row: int) -> shapes.Cell:
    """A value as a page shows it."""
    image = _image(column, value, row)
    if image is not None:
        return image
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value):,} bytes"
    if isinstance(value, str):
        return shortened(value, _LONGEST_TEXT)
    array = np.asarray(value)
    if array.ndim == 0 and array.dtype.kind in "biufMm":
        return array.item() if array.dtype.kind in "biuf" else str(array)
    if array.dtype.kind in "biuf":
        finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        return {
            "tensor": f"{array.dtype} {'x'.join(map(str, array.shape))}",
            "first": array.ravel()[:_FIRST_NUMBERS].tolist(),
            "min": finite.min().item() if finite.size else None,
            "max": finite.max().item() if finite.size else None,
        }
    return shortened(str(value), _LONGEST_TEXT)


def _image(column: Column, value: Any, row: int) -> shapes.ImageJson | None:
    if column.kind not in ("tensor", "bytes"):
        return None
    try:
        made = thumbnail(column, value, row)
    except (ImportError, TypeError, ValueError):  # no Pillow, or no image
        return None
    return None if made is None else {"image": f"data:image/png;base64,{base64.b64encode(made.png).decode()}"}
