"""CIFAR-10 and CIFAR-100: pickled batches in a ``.tar.gz``.

The pickles are of Python 2. They are read by an unpickler that knows four names, those an array is made of, and
refuses all others: an archive cannot run code.

Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009;
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import functools
import io
import itertools
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hopyard.errors import CorruptError, DataError
from hopyard.stockroom.importers.base import ColumnSource, Importer
from hopyard.stockroom.importers.download import RemoteFile
from hopyard.stockroom.importers.parts import FilePart, FileParts, describe_files, find_parts

_SHAPE = (3, 32, 32)
_reconstruct = np.empty(0).__reduce__()[0]
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")
        return _ALLOWED[module, name]


def read_batch(data: bytes, where: str) -> dict[str, Any]:
    """The dict that a file of CIFAR holds.

    Raises:
        CorruptError: it is no pickle of a dict of arrays, lists and texts.
    """
    try:
        batch = _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # a damaged pickle raises whatever its opcodes do
        raise CorruptError(
            f"{where} is not a batch of CIFAR: {error}. Give the original archive, or its folder."
        ) from error
    if not isinstance(batch, dict):
        raise CorruptError(f"{where} is not a batch of CIFAR: it holds a {type(batch).__name__}, not a dict.")
    return batch


@functools.lru_cache(maxsize=2)  # about 30 MB each; chunks rise through the batches
def _batch(part: FilePart) -> dict[str, Any]:
    return read_batch(part.read(), part.shown)


@dataclass(frozen=True)
class _Batches:
    """Reads one entry of some batches: their images (n, 3, 32, 32), or labels (n,) int64."""

    parts: FileParts
    counts: tuple[int, ...]
    entry: str

    def __call__(self, start: int, stop: int) -> npt.NDArray[Any]:
        images = self.entry == "data"
        pieces = [np.empty((0, *_SHAPE), np.uint8) if images else np.empty(0, np.int64)]
        for number, first in enumerate(itertools.accumulate(self.counts[:-1], initial=0)):
            low, high = max(start - first, 0), min(stop - first, self.counts[number])
            if low < high:
                rows = _batch(self.parts[number])[self.entry][low:high]
                pieces.append(rows.reshape(-1, *_SHAPE) if images else np.array(rows, np.int64))
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)


class Cifar10(Importer):
    """CIFAR-10: 60,000 colour images in 10 classes.

    Columns image and test-image (uint8, 3 x 32 x 32, channels first as in the archive), label and test-label
    (int64). The names of the classes are in the metadata of the import.
    """

    needs_source = False
    folder: ClassVar[str] = "cifar-10-batches-py"
    remote: ClassVar[RemoteFile] = RemoteFile(
        "cifar-10-python.tar.gz",
        ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
        "c58f30108f718f92721af3b95e74349a",
    )
    splits: ClassVar[Mapping[str, Sequence[str]]] = {
        "": [f"data_batch_{number}" for number in range(1, 6)],
        "test": ["test_batch"],
    }
    labels: ClassVar[Mapping[str, str]] = {"label": "labels"}
    meta: ClassVar[str] = "batches.meta"
    names: ClassVar[Mapping[str, str]] = {"classes": "label_names"}

    @functools.cached_property
    def _archive(self) -> Path:
        return self.source or self.download(self.remote)

    @functools.cached_property
    def _parts(self) -> FileParts:
        wanted = [*itertools.chain(*self.splits.values()), self.meta]
        what = f"what the importer {self.typed_name()!r} reads"
        return find_parts(
            self._archive, wanted, self.scratch, folder=self.folder, archive=self.remote.name, what=what
        )

    def columns(self) -> list[ColumnSource]:
        columns, first = [], 0
        for split, files in self.splits.items():
            prefix = f"{split}-" if split else ""
            parts = self._parts.select(range(first, first + len(files)))
            counts = tuple(self._count(parts[number]) for number in range(len(files)))
            images = _Batches(parts, counts, "data")
            columns.append(
                ColumnSource(f"{prefix}image", sum(counts), "tensor", "uint8", _SHAPE, images, split=split)
            )
            for name, entry in self.labels.items():
                labels = _Batches(parts, counts, entry)
                columns.append(
                    ColumnSource(f"{prefix}{name}", sum(counts), "tensor", "int64", (), labels, split=split)
                )
            first += len(files)
        return columns

    def _count(self, part: FilePart) -> int:
        """Samples of a batch, after a look at whether it is one."""
        batch, where = _batch(part), part.shown
        images = batch.get("data")
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (3072,):
            has = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else f"{sorted(batch)}"
            raise DataError(
                f"{where} must hold 'data' of uint8 (n, 3072), but has {has}. Give the original archive."
            )
        for entry in self.labels.values():
            labels = batch.get(entry)
            if not isinstance(labels, list) or len(labels) != len(images):
                raise DataError(
                    f"{where} must hold {entry!r} with a number for each of its {len(images)} images, but has "
                    f"{len(labels) if isinstance(labels, list) else 'none'}. Give the original archive."
                )
        return len(images)

    def identity(self) -> Mapping[str, Any]:
        meta = _batch(self._parts[len(self._parts) - 1])
        return {
            "files": describe_files(self._parts.files()),
            **{name: [str(each) for each in meta.get(entry, [])] for name, entry in self.names.items()},
        }


class Cifar100(Cifar10):
    """CIFAR-100: 60,000 colour images in 100 classes and 20 coarse classes.

    Columns image and test-image (uint8, 3 x 32 x 32, channels first as in the archive), label and test-label (int64,
    the fine labels), coarse-label and test-coarse-label (int64). The names of the classes are in the metadata of the
    import.
    """

    folder = "cifar-100-python"
    remote: ClassVar[RemoteFile] = RemoteFile(
        "cifar-100-python.tar.gz",
        ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
        "eb9058c3a382ffc7106e4002c42a8d85",
    )
    splits: ClassVar[Mapping[str, Sequence[str]]] = {"": ["train"], "test": ["test"]}
    labels: ClassVar[Mapping[str, str]] = {"label": "fine_labels", "coarse-label": "coarse_labels"}
    meta = "meta"
    names: ClassVar[Mapping[str, str]] = {
        "classes": "fine_label_names",
        "coarse-classes": "coarse_label_names",
    }
