"""Files of states: safetensors files with a manifest, which may also list tensors that lie elsewhere.

Tensors that lie elsewhere are in safetensors files that belong to somebody else. The metadata say where; the names of
such tensors are their digests, and they are looked for anew where their file is gone or has changed: it may have a new
name, and a stockroom packs its files anew.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from hopyard.errors import CorruptError, NotFoundError, StorageError
from hopyard.objects.elsewhere import Elsewhere, find_elsewhere
from hopyard.objects.safetensorsfile import Bytes, SafetensorsFile, TensorSlot, file_pieces, put_pieces
from hopyard.objects.tensors import Tensor
from hopyard.storage import Store, open_store

_MANIFEST = "hopyard"
_ELSEWHERE = "hopyard.elsewhere"
_PUT_BACK = (
    "Put the file back; or call fit(...) again with frozen_at= of the folder in which these weights are now, which "
    "mends the run; or search again with fresh=True and without frozen_at=."
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
        self._has_looked_again = False

    @property
    def bytes_read(self) -> int:
        """How many bytes were asked for so far, with the headers."""
        return self._file.bytes_read + sum(other.bytes_read for other in self._others.values())

    @property
    def is_near(self) -> bool:
        """Whether all of its bytes are in files, not behind a network's interface."""
        return self._file.is_near and (self.elsewhere is None or self._place.path("x") is not None)

    @cached_property
    def _place(self) -> Store:
        assert self.elsewhere is not None
        return open_store(self.elsewhere.url)

    def corrupt(self, reason: str) -> CorruptError:
        """The error for content that is not what was written."""
        return self._file.corrupt(reason)

    def read(self, names: Iterable[str]) -> dict[str, Bytes]:
        """Read-only bytes of these slots. Those that lie elsewhere are compared with their digests.

        Raises:
            NotFoundError, CorruptError: a tensor that lies elsewhere is not there any more.
        """
        slots = {name: self.slot(name) for name in names}
        found = self._file.read({name: slot for name, slot in slots.items() if not slot.file})
        lent = [name for name, slot in slots.items() if slot.file]
        found |= self._unchanged(lent)
        if (gone := [name for name in lent if name not in found]) and not self._has_looked_again:
            self._has_looked_again = True
            with contextlib.suppress(NotFoundError):
                self._slots |= find_elsewhere(self._place).elsewhere.slots
            found |= self._unchanged(gone)
        if gone := [name for name in lent if name not in found]:
            raise self._lost(gone[0])
        return found

    def _unchanged(self, digests: Iterable[str]) -> dict[str, Bytes]:
        """The bytes of tensors elsewhere, but for those that are not there any more."""
        by_file: dict[str, dict[str, TensorSlot]] = {}
        for digest in digests:
            slot = self.slot(digest)
            by_file.setdefault(slot.file, {})[digest] = slot
        found: dict[str, Bytes] = {}
        for file, slots in by_file.items():
            if (opened := self._opened(file)) is None:
                continue
            content = opened.read({name: slot for name, slot in slots.items() if slot.stop <= opened.size})
            for digest, data in content.items():
                if Tensor(slots[digest].dtype, slots[digest].shape, data).digest == digest:
                    found[digest] = data
        return found

    def _opened(self, file: str) -> SafetensorsFile | None:
        """A file elsewhere; None: it is gone, or no whole file any more."""
        if file not in self._others:
            try:
                self._others[file] = SafetensorsFile(self._place.foreign(), file, is_ours=False)
            except (NotFoundError, CorruptError):
                return None
        return self._others[file]

    def _lost(self, digest: str) -> NotFoundError | CorruptError:
        """The error for a tensor that is not where it lay, and not beside it."""
        slot, place = self.slot(digest), self._place.url
        tensor = f"a tensor of {slot.dtype} {[*slot.shape]}"
        try:
            is_there = self._place.foreign().exists(slot.file)
        except StorageError:
            is_there = False
        if is_there:
            return CorruptError(
                f"{slot.file} in {place}, from which a run reads frozen tensors (frozen_at=), is not what it was, and "
                f"no file there has {tensor} that it had. {_PUT_BACK}"
            )
        return NotFoundError(
            f"{slot.file} in {place}, from which a run reads frozen tensors (frozen_at=), is gone, and no file there "
            f"has {tensor} that it had. {_PUT_BACK}"
        )

    def slot(self, name: str) -> TensorSlot:
        """Slot of the tensor ``name``."""
        if name not in self._slots:
            raise self.corrupt(f"its header lacks the tensor {name!r}")
        return self._slots[name]
