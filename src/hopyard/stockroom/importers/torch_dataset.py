"""Any map-style torch Dataset: whatever has ``__len__`` and ``__getitem__``. Torch itself is not needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from hopyard.data.columns.convert import module_of, torch_to_numpy
from hopyard.errors import DataError, UnsupportedTypeError, UsageError
from hopyard.stockroom.importers.base import ColumnSource, Importer, Samples

_LOOKED_AT = 8


class MapDataset(Protocol):
    """Methods of a torch Dataset that are called."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass
class _Items:
    """Reads items, each range once for all columns; other processes get the dataset, not what was read."""

    dataset: MapDataset
    columns: Sequence[str] | None
    _range: tuple[int, int] | None = None
    _last: list[dict[str, Any]] = field(default_factory=list)

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": self.dataset, "columns": self.columns, "_range": None, "_last": []}

    def rows(self, start: int, stop: int) -> list[dict[str, Any]]:
        if self._range != (start, stop):
            self._last = [self.row(number) for number in range(start, stop)]
            self._range = start, stop
        return self._last

    def row(self, number: int) -> dict[str, Any]:
        """The item as columns.

        Raises:
            DataError: it has other parts than the columns.
        """
        item = self.dataset[number]
        if isinstance(item, Mapping):
            names = list(item) if self.columns is None else list(self.columns)
            if missing := [name for name in names if name not in item]:
                raise DataError(
                    f"item {number} has {', '.join(map(str, item))}, but not {', '.join(missing)}. Name columns that "
                    "all items have."
                )
            return {name: item[name] for name in names}
        values = item if isinstance(item, tuple | list) else (item,)
        names = list(self.columns) if self.columns is not None else list(getattr(item, "_fields", ()))
        if len(names) != len(values):
            raise DataError(
                f"item {number} has {len(values)} part(s), but columns= names {len(names)}: {names}. Name one for each "
                "part: columns=['image', 'label']."
            )
        return dict(zip(names, values, strict=True))


@dataclass(frozen=True)
class _ItemColumn:
    """Reads a part of the items."""

    items: _Items
    name: str
    kind: Literal["tensor", "string", "bytes"]
    fixed: bool

    def __call__(self, start: int, stop: int) -> Samples:
        rows = [row[self.name] for row in self.items.rows(start, stop)]
        if self.kind != "tensor":
            return rows
        arrays = [_array(self.name, value) for value in rows]
        if not self.fixed or len({array.shape for array in arrays}) != 1:
            return arrays  # of a fixed shape: the driver says which differs
        return np.stack(arrays)


def from_torch_dataset(
    dataset: MapDataset, columns: Sequence[str] | None = None, variable: Sequence[str] = ()
) -> TorchDatasetImporter:
    """An importer for a map-style dataset.

    Items are tuples, mappings, or one value; their parts tensors, arrays, numbers, texts, bytes or Pillow's images
    (as NumPy sees them). Each item is read once if columns are read together, and has to be the same whenever it
    is read: no random augmentation. To be read by several processes, the dataset has to be picklable.

    Args:
        dataset: has ``__len__`` and ``__getitem__``.
        columns: a name for each part; None: the keys of items that are mappings, the fields of named tuples.
        variable: columns whose arrays differ in shape. Some items are looked at, which shows most of them.

    Raises:
        UsageError: it is no map-style dataset, or unknown names.
        DataError: it is empty, or items do not fit the columns.
        UnsupportedTypeError: of a part that no column can hold.
    """
    return TorchDatasetImporter(dataset, columns, variable)


class TorchDatasetImporter(Importer):
    """A torch Dataset of this program: see from_torch_dataset."""

    needs_source = False

    def __init__(
        self, dataset: MapDataset, columns: Sequence[str] | None = None, variable: Sequence[str] = ()
    ) -> None:
        super().__init__()
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise UsageError(
                f"{type(dataset).__qualname__} is no map-style dataset: it needs __len__ and __getitem__. Collect the "
                "items of an iterable one in a list first."
            )
        if columns is not None and (isinstance(columns, str) or len(set(columns)) != len(columns)):
            raise UsageError(f"columns={columns!r} must be a list of different names.")
        self._dataset, self._items = dataset, _Items(dataset, columns)
        self._variable = set(variable)

    def columns(self) -> list[ColumnSource]:
        count = len(self._dataset)
        if not count:
            raise DataError("The dataset is empty: its length is 0. Give one with at least one item.")
        numbers = sorted({number * (count - 1) // (_LOOKED_AT - 1) for number in range(_LOOKED_AT)})
        looked_at = [self._items.row(number) for number in numbers]
        names = list(looked_at[0])
        if unknown := self._variable.difference(names):
            raise UsageError(f"variable names {sorted(unknown)}, but the columns are {', '.join(names)}.")
        return [self._column(name, count, [row[name] for row in looked_at]) for name in names]

    def _column(self, name: str, count: int, values: Sequence[Any]) -> ColumnSource:
        if isinstance(values[0], str):
            return ColumnSource(
                name, count, "string", "object", (), _ItemColumn(self._items, name, "string", True)
            )
        if isinstance(values[0], bytes):
            return ColumnSource(
                name, count, "bytes", "object", (), _ItemColumn(self._items, name, "bytes", True)
            )
        arrays = [_array(name, value) for value in values]
        shapes = {array.shape for array in arrays}
        fixed = len(shapes) == 1 and name not in self._variable
        read = _ItemColumn(self._items, name, "tensor", fixed)
        shape = arrays[0].shape if fixed else None
        return ColumnSource(name, count, "tensor", arrays[0].dtype.name, shape, read)

    def identity(self) -> Mapping[str, Any]:
        return {
            "dataset": f"{type(self._dataset).__module__}.{type(self._dataset).__qualname__}",
            "items": len(self._dataset),
            "columns": None if self._items.columns is None else list(self._items.columns),
        }


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    array = torch_to_numpy(value) if module_of(value) == "torch" else np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise UnsupportedTypeError(
            f"Part {name!r} of an item is a {type(value).__qualname__}, which no column can hold. Make it a tensor, an "
            "array, a number, a text or bytes, or leave it out."
        )
    return array
