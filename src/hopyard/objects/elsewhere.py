"""Tensors in safetensors files that belong to somebody else: a folder of a pretrained model, a store, a stockroom."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hopyard.errors import HopyardError, NotFoundError, StorageError
from hopyard.objects.safetensorsfile import SafetensorsFile, TensorSlot
from hopyard.objects.tensors import Tensor
from hopyard.storage import Store

_FILES = re.compile(r"(?i:\.safetensors)$|(^|/)packfiles/data-[0-9a-f]{64}$")
"""Names of safetensors files; those of a stockroom, too."""
_OF_RUNS = re.compile(r"/\d{5}/[0-9a-f]{64}\.safetensors$|/_frozen/")
"""Places of files that go with the run of a store."""


@dataclass(frozen=True)
class Elsewhere:
    """Tensors that lie in the safetensors files of another store.

    Attributes:
        url: of that store.
        slots: the place of each, by its digest.
    """

    url: str
    slots: Mapping[str, TensorSlot]

    def to_json(self) -> str:
        """The text that stands in the metadata of a file that refers to them."""
        slots = {
            digest: [slot.file, slot.dtype, slot.shape, slot.start, slot.stop]
            for digest, slot in self.slots.items()
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
                digest: TensorSlot(dtype, tuple(shape), start, stop, str(file))
                for digest, (file, dtype, shape, start, stop) in slots.items()
            },
        )


@dataclass(frozen=True)
class Found:
    """Tensors of files elsewhere, known by content.

    Attributes:
        tensors: by digest; of dtype and shape, and without memory.
        elsewhere: the place of each, by digest.
        left_out: why a file was not read, by the file's name.
    """

    tensors: dict[str, Tensor]
    elsewhere: Elsewhere
    left_out: dict[str, str] = field(default_factory=dict)

    def only(self, digests: Collection[str]) -> Found:
        """Those of these digests, without others."""
        tensors = {digest: tensor for digest, tensor in self.tensors.items() if digest in digests}
        slots = {digest: self.elsewhere.slots[digest] for digest in tensors}
        return Found(tensors, Elsewhere(self.elsewhere.url, slots))


def files_elsewhere(place: Store) -> list[str]:
    """The safetensors files of a folder or store, but for those that go with runs.

    Raises:
        NotFoundError: there is none.
        StorageError: the place cannot be listed.
    """
    url = place.url
    try:
        names = [name for name in sorted(place.names()) if _FILES.search(name) and _is_there(place, name)]
    except OSError as error:
        raise StorageError(
            f"frozen_at={url!r} cannot be listed: {error.strerror} ({error.filename}). Give a folder that this user "
            "may read, with nothing in it that leads back to it."
        ) from error
    kept = [name for name in names if not _OF_RUNS.search(f"{url}/{name}")]
    if not kept:
        what = "no safetensors file"
        if names:
            what = "no safetensors file but those of runs, which go with their runs"
        elif (folder := place.path("x")) is not None and not folder.parent.exists():
            what = "no such folder"
        raise NotFoundError(
            f"frozen_at={url!r}, but there is {what}. Give the folder in which the files of the pretrained model lie, "
            "such as model.safetensors (huggingface_hub.snapshot_download gives that of a model of the hub); or leave "
            "frozen_at out, and frozen tensors are stored with the runs."
        )
    return kept


def find_elsewhere(place: Store) -> Found:
    """The tensors of all safetensors files of a folder or store; every byte is read. A file that is not whole is left
    out.

    Raises:
        NotFoundError: there is no file that can be read.
        StorageError: the place cannot be listed.
    """
    slots: dict[str, TensorSlot] = {}
    tensors: dict[str, Tensor] = {}
    left_out: dict[str, str] = {}
    for name in files_elsewhere(place):
        try:
            for tensor, slot in _tensors(SafetensorsFile(place.foreign(), name, is_ours=False)):
                if tensor.digest not in tensors:
                    tensors[tensor.digest], slots[tensor.digest] = tensor, replace(slot, file=name)
        except HopyardError as error:
            left_out[name] = str(error)
    if not tensors and left_out:
        raise NotFoundError(
            f"frozen_at={place.url!r}, but no safetensors file there can be read: {next(iter(left_out.values()))}"
        )
    return Found(tensors, Elsewhere(place.url, slots), left_out)


def _is_there(place: Store, name: str) -> bool:
    """Whether a name is of a file: links may lead nowhere, and pipes have no end."""
    try:
        path = place.path(name)
    except HopyardError:  # names that stores refuse are told when the file is read
        return True
    return path is None or Path(path).is_file()


def _tensors(file: SafetensorsFile) -> Iterator[tuple[Tensor, TensorSlot]]:
    """Each tensor of a file, without its bytes."""
    for name, slot in file.slots.items():
        data = file.read({name: slot})[name]
        without = Tensor(slot.dtype, slot.shape, np.broadcast_to(np.zeros(1, np.uint8), data.size))
        without.know(Tensor(slot.dtype, slot.shape, data).digest)
        yield without, slot
