"""Tensors in safetensors files that belong to somebody else: a folder of a pretrained model, a store, a stockroom."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hopyard.errors import NotFoundError
from hopyard.objects.safetensorsfile import SafetensorsFile, TensorSlot
from hopyard.objects.tensors import Tensor
from hopyard.storage import Store

_SUFFIX = ".safetensors"
_PACKFILES = "packfiles/data-"
"""What the names of a stockroom's packfiles begin with, which are safetensors files too."""
_RUNS = "runs"
"""Folder of a store whose files go with their runs."""


@dataclass(frozen=True)
class Elsewhere:
    """Tensors of a file that lie in the safetensors files of another store.

    Attributes:
        url: of that store.
        slots: the place of each, by its name here.
    """

    url: str
    slots: Mapping[str, TensorSlot]

    def to_json(self) -> str:
        """The text that stands in the metadata of the file."""
        slots = {
            name: [slot.file, slot.dtype, slot.shape, slot.start, slot.stop]
            for name, slot in self.slots.items()
        }
        return json.dumps([self.url, slots], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Elsewhere:
        """Those of a text that :meth:`to_json` gave.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        url, slots = json.loads(text)
        return cls(
            str(url),
            {
                name: TensorSlot(dtype, tuple(shape), start, stop, str(file))
                for name, (file, dtype, shape, start, stop) in slots.items()
            },
        )


@dataclass(frozen=True)
class Found:
    """Tensors of files elsewhere, known by content.

    Attributes:
        tensors: by digest; of dtype and shape, and without memory.
        elsewhere: the place of each, by digest.
    """

    tensors: dict[str, Tensor]
    elsewhere: Elsewhere


def files_elsewhere(store: Store) -> list[str]:
    """The safetensors files of a folder or store, but for those of its runs, which go with the runs.

    Raises:
        NotFoundError: there is none.
    """
    names = [
        name
        for name in sorted(store.names())
        if (name.endswith(_SUFFIX) or name.startswith(_PACKFILES)) and not name.startswith(f"{_RUNS}/")
    ]
    if not names:
        raise NotFoundError(
            f"frozen_at={store.url!r}, but there is no safetensors file. Give the folder in which the files of the "
            "pretrained model lie, such as model.safetensors; or leave frozen_at out, and frozen tensors are stored "
            "with the runs."
        )
    return names


def find_elsewhere(store: Store) -> Found:
    """The tensors of all safetensors files of a folder or store; every byte is read.

    Raises:
        NotFoundError: there is no such file.
        CorruptError: one is not whole; names it.
    """
    slots: dict[str, TensorSlot] = {}
    tensors: dict[str, Tensor] = {}
    for name in files_elsewhere(store):
        for tensor, slot in _tensors(SafetensorsFile(store, name, maps=False)):
            if tensor.digest not in tensors:
                tensors[tensor.digest], slots[tensor.digest] = tensor, replace(slot, file=name)
    return Found(tensors, Elsewhere(store.url, slots))


def _tensors(file: SafetensorsFile) -> Iterator[tuple[Tensor, TensorSlot]]:
    """Each tensor of a file, without its bytes."""
    for name, slot in file.slots.items():
        data = file.read({name: slot})[name]
        without = Tensor(slot.dtype, slot.shape, np.broadcast_to(np.zeros(1, np.uint8), data.size))
        without.know(Tensor(slot.dtype, slot.shape, data).digest)
        yield without, slot
