"""Files of states: safetensors files with a manifest, which may also list tensors that lie elsewhere.

Tensors that lie elsewhere are in safetensors files that belong to somebody else. The metadata say where; the names of
such tensors are their digests, and they are looked for anew where their file is gone, as a stockroom packs its files
anew.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from hopyard.errors import CorruptError, NotFoundError
from hopyard.objects.elsewhere import Elsewhere, find_elsewhere
from hopyard.objects.safetensorsfile import Bytes, SafetensorsFile, TensorSlot, file_pieces, put_pieces
from hopyard.objects.tensors import Tensor
from hopyard.storage import Store, open_store

_MANIFEST = "hopyard"
_ELSEWHERE = "hopyard.elsewhere"
_PUT_BACK = (
    "Put the file back as it was. Or search again with fresh=True over the same weights, and without frozen_at=, which "
    "stores them with the runs."
)


def write_file(
    store: Store, name: str, tensors: Mapping[str, Tensor], manifest: Any, elsewhere: Elsewhere | None = None
) -> None:
    """Store the file ``name`` with these tensors, those that it refers to, and ``manifest`` (a JSON value)."""
    metadata = {_MANIFEST: json.dumps(manifest, separators=(",", ":"))}
    if elsewhere is not None:
        metadata[_ELSEWHERE] = elsewhere.to_json()
    put_pieces(store, name, file_pieces(tensors, metadata))


class _OwnFile(SafetensorsFile):
    """A file that ``write_file`` stored."""

    def corrupt(self, reason: str) -> CorruptError:
        return CorruptError(
            f"the file {self.place} is not what was written: {reason}. Restore it from a copy, or delete it and run "
            "again, with fresh=True if the run is finished: what needs it is then made anew."
        )


class TensorFile:
    """A file that ``write_file`` stored, open for reading: its manifest, its slots, and the bytes of slots.

    Attributes:
        elsewhere: the tensors that it refers to; None: it has all itself.

    Raises:
        NotFoundError: there is no such file in the store.
        CorruptError: it is not a whole safetensors file with a manifest.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._file = _OwnFile(store, name)
        self.elsewhere: Elsewhere | None = None
        try:
            self.manifest: Any = json.loads(self._file.metadata[_MANIFEST])
            if (referred := self._file.metadata.get(_ELSEWHERE)) is not None:
                self.elsewhere = Elsewhere.from_json(referred)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self.corrupt(f"its header cannot be read ({error})") from None
        self._slots = self._file.slots | dict({} if self.elsewhere is None else self.elsewhere.slots)
        self._others: dict[str, SafetensorsFile] = {}

    @property
    def bytes_read(self) -> int:
        """How many bytes were asked for so far, with the headers."""
        return self._file.bytes_read + sum(other.bytes_read for other in self._others.values())

    @property
    def is_near(self) -> bool:
        """Whether all of its bytes are in files, not behind a network's interface.

        Raises:
            NotFoundError: a file elsewhere is gone.
        """
        return self._file.is_near and all(other.is_near for other in self._open_others().values())

    def corrupt(self, reason: str) -> CorruptError:
        """The error for content that is not what was written."""
        return self._file.corrupt(reason)

    def changed(self, name: str) -> CorruptError:
        """The error for a tensor whose bytes are not those that were written, or referred to."""
        slot = self.slot(name)
        if not slot.file:
            return self.corrupt(f"the bytes of the tensor {name!r} have changed")
        return CorruptError(
            f"the file {self._open_others()[slot.file].place}, in which a run has frozen tensors (frozen_at=), is not "
            f"what it was: a tensor of {slot.dtype} {[*slot.shape]} has other bytes. {_PUT_BACK}"
        )

    def read(self, names: Iterable[str]) -> dict[str, Bytes]:
        """Read-only bytes of these slots.

        Raises:
            NotFoundError: a file elsewhere is gone.
        """
        others = self._open_others()
        by_file: dict[str, dict[str, TensorSlot]] = {}
        for name in names:
            slot = self.slot(name)
            by_file.setdefault(slot.file, {})[name] = slot
        found: dict[str, Bytes] = {}
        for file, slots in by_file.items():
            other = others[file] if file else self._file
            for name, slot in slots.items():
                if slot.stop > other.size:
                    raise self.changed(name)
            found |= other.read(slots)
        return found

    def slot(self, name: str) -> TensorSlot:
        """Slot of the tensor ``name``."""
        if name not in self._slots:
            raise self.corrupt(f"its header lacks the tensor {name!r}")
        return self._slots[name]

    def _open_others(self) -> dict[str, SafetensorsFile]:
        """The files elsewhere, by name. Tensors whose file is gone are looked for in all that are there."""
        if self.elsewhere is None or self._others:
            return self._others
        store, slots = open_store(self.elsewhere.url), dict(self.elsewhere.slots)
        files = {file: _opened(store, file) for file in {slot.file for slot in slots.values()}}
        gone = [file for file, opened in files.items() if opened is None]
        if gone:
            with contextlib.suppress(NotFoundError):
                slots |= find_elsewhere(store).elsewhere.slots
            if any(slots[name].file in gone for name in self.elsewhere.slots):
                raise NotFoundError(
                    f"{gone[0]} in {store.url} is gone, in which a run has frozen tensors (frozen_at=). {_PUT_BACK}"
                )
            self._slots |= {name: slots[name] for name in self.elsewhere.slots}
            files |= {slot.file: _opened(store, slot.file) for slot in self._slots.values() if slot.file}
        self._others = {file: opened for file, opened in files.items() if opened is not None}
        return self._others


def _opened(store: Store, file: str) -> SafetensorsFile | None:
    """A file elsewhere, or None if it is gone."""
    try:
        return SafetensorsFile(store, file, maps=False)
    except NotFoundError:
        return None
