"""Tensors that no training changes, stored once by content for all trials, epochs and runs of a store.

They lie in files beside the runs. A state refers to such a file as to one of its own folder, by a name that begins with
``frozen/``, which the folder of a run resolves.

Each run that uses a file leaves a mark beside it, and the deletion of a run deletes the files that are left without. A
deletion that is about to happen shows as an object, which a run looks for once it has left its mark; the deletion looks
for marks once it has shown itself. So at least one of the two sees the other: a run that sees a deletion does not share
the tensors, and a deletion that sees a mark does not happen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hopyard.errors import CorruptError, NotFoundError
from hopyard.objects.states import FROZEN, own_tensors, save_state
from hopyard.objects.tensors import Tensor
from hopyard.storage import Store
from hopyard.storage.base import PrefixStore

_SHARED = "_frozen"
"""Folder beside those of the runs; no run can have this name."""
_MARKS, _GOING = ".marks", ".going"
_SMALLEST = 1 << 16
"""Bytes of frozen tensors that are worth a file."""

_places: dict[str, dict[str, tuple[str, int]]] = {}
"""For the URL of a folder of files: of each tensor's digest, the file and the tensors' bytes in it, as far as known."""
_marked: set[tuple[str, str, str]] = set()
"""(URL, file, run) of the marks that this process has left, and found no deletion."""


class RunFolder(PrefixStore):
    """The folder of a run, or a part of it. A file below ``frozen/``, in any part, is one of all runs.

    Args:
        runs: the store of all runs.
        prefix: of the run, and of the part.
    """

    def _full(self, name: str) -> str:
        full = super()._full(name)
        file = full.partition(f"/{FROZEN}/")[2]
        return f"{_SHARED}/{file}" if file else full

    def at(self, prefix: str) -> Store:
        return RunFolder(self._inner, f"{self._prefix}{prefix}") if prefix else self

    @property
    def run_id(self) -> str:
        return self._prefix.partition("/")[0]

    def frozen(self) -> FrozenTensors:
        """The tensors that the run shares with others."""
        return FrozenTensors(self._inner.at(_SHARED), self.run_id)


class FrozenTensors:
    """The frozen tensors of a store, as one of its runs uses them.

    Attributes:
        written: bytes of tensors that were written.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._known = _places.setdefault(store.url, {})
        self.written = 0

    def places(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, int]]:
        """The file in which each of some tensors is, and the bytes of tensors in it, by the tensor's digest. Those that
        are in none are written; those that cannot be shared are left out.

        Args:
            tensors: by digest.
        """
        if sum(tensor.nbytes for tensor in tensors.values()) < _SMALLEST:
            return {}
        if not tensors.keys() <= self._known.keys():
            self._look()
        missing = {digest: tensor for digest, tensor in tensors.items() if digest not in self._known}
        if missing:
            self._write(missing)
        files = {self._known[digest][0] for digest in tensors}
        usable = {file for file in files if self._use(file)}
        return {
            digest: place
            for digest in tensors
            if (place := self._known.get(digest)) is not None and place[0] in usable
        }

    def release(self) -> None:
        """Delete this run's marks, and the files that no other run has marked."""
        for file in sorted(_files(self._store)):
            self._store.delete(f"{file}{_MARKS}/{self._run_id}")
            if self._is_marked(file):
                continue
            self._store.put(f"{file}{_GOING}", b"")
            try:
                if not self._is_marked(file):
                    self._store.delete(file)
            finally:
                self._store.delete(f"{file}{_GOING}")

    def _is_marked(self, file: str) -> bool:
        return bool(self._store.names(f"{file}{_MARKS}"))

    def _look(self) -> None:
        """Find out which tensors the files hold that other processes wrote."""
        known = {file for file, _ in self._known.values()}
        for file in _files(self._store):
            if f"{FROZEN}/{file}" not in known:
                try:
                    found = own_tensors(self._store, file)
                except (NotFoundError, CorruptError):  # it was deleted meanwhile, or will be written anew
                    continue
                self._note(file, found)

    def _note(self, file: str, sizes: Mapping[str, int]) -> None:
        place = (f"{FROZEN}/{file}", sum(sizes.values()))
        for digest in sizes:
            self._known.setdefault(digest, place)

    def _write(self, tensors: Mapping[str, Tensor]) -> None:
        """Write a file of tensors that no file has."""
        file = save_state(self._store, {digest: tensors[digest] for digest in sorted(tensors)}).files[0]
        sizes = {digest: tensor.nbytes for digest, tensor in tensors.items()}
        self.written += sum(sizes.values())
        self._note(file, sizes)

    def _use(self, place: str) -> bool:
        """Mark a file as used by this run; False if it is gone, or about to be."""
        file = place.removeprefix(f"{FROZEN}/")
        mark, known = f"{file}{_MARKS}/{self._run_id}", (self._store.url, file, self._run_id)
        if known in _marked and self._store.exists(mark):  # it is not if the run was deleted, and begun anew
            return True
        self._store.put(mark, b"")
        self._store.sync([mark])
        if self._store.exists(file) and not self._store.exists(f"{file}{_GOING}"):
            _marked.add(known)
            return True
        self._store.delete(mark)
        for digest in [digest for digest, (name, _) in self._known.items() if name == place]:
            del self._known[digest]
        return False


def _files(store: Store) -> Iterator[str]:
    """The names of all files of frozen tensors."""
    return (name for name in store.names() if "/" not in name and name.endswith(".safetensors"))
