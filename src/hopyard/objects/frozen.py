"""Tensors that no training changes, stored once by content for all trials, epochs and runs of a store.

They lie in files beside the runs. A state refers to such a file as to one of its own folder, by a name that begins with
``frozen/``, which the folder of a run resolves. Each file has a folder of its own, ``<digest>-<number>``:

============================  ===============================================================
``<digest>.safetensors``      the file
``marks/<run>``               a run that uses it
``going/<token>``             a deletion that is about to happen
============================  ===============================================================

A run may also read such tensors where they lie already, in files of somebody else. A file ``<digest>.safetensors`` in
the folder ``elsewhere`` of the run says where. Other runs do not use it, since nobody told them that the files stay.

The deletion of a run deletes files that no run uses any more. It shows itself before it looks for marks, and a run
leaves its mark before it looks for deletions; so at least one of the two sees the other, however long it takes: a run
does not use a file that a deletion is after, but one of the next number, and a deletion leaves a file with a mark.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping

from hopyard.errors import CorruptError, NotFoundError
from hopyard.objects.elsewhere import Elsewhere, Found
from hopyard.objects.states import (
    ELSEWHERE,
    FROZEN,
    file_name,
    files_if_whole,
    own_tensors,
    save_references,
    save_state,
    state_digest,
)
from hopyard.objects.tensorfile import TensorFile
from hopyard.objects.tensors import Tensor
from hopyard.storage import Store
from hopyard.storage.base import PrefixStore

_SHARED = "_frozen"
"""Folder beside those of the runs; no run can have this name."""
_MARKS, _GOING = "marks", "going"
SMALLEST = 1 << 16
"""Bytes of frozen tensors that are worth a file."""

_places: dict[str, dict[str, tuple[str, int]]] = {}
"""For the URL of a store of files: for each tensor's digest the folder of a file, and the bytes of tensors in that, as
far as this process knows."""
_lent: dict[str, dict[str, tuple[str, int]]] = {}
"""For the URL of a run's folder ``elsewhere``: as above, for tensors that the run reads elsewhere."""
_marked: set[tuple[str, str, str]] = set()
"""(URL, folder, run) of the marks that this process has left without seeing a deletion."""


class RunFolder(PrefixStore):
    """The folder of a run, or a part of it. A file below ``frozen/``, in any part, is one of all runs, and one below
    ``elsewhere/`` of all parts.

    Args:
        runs: the store of all runs.
        prefix: of the run, and of the part.
    """

    def _full(self, name: str) -> str:
        full = super()._full(name)
        if file := full.partition(f"/{FROZEN}/")[2]:
            return f"{_SHARED}/{file}"
        file = full.partition(f"/{ELSEWHERE}/")[2]
        return f"{full.partition('/')[0]}/{ELSEWHERE}/{file}" if file else full

    def at(self, prefix: str) -> Store:
        return RunFolder(self._inner, f"{self._prefix}{prefix}") if prefix else self

    def frozen(self) -> FrozenTensors:
        """The tensors that the run shares with others."""
        return FrozenTensors(self._inner, self._prefix.partition("/")[0])


class FrozenTensors:
    """The frozen tensors of a store, as one of its runs uses them.

    Args:
        runs: the store of all runs.

    Attributes:
        written: bytes of tensors that were written.
    """

    def __init__(self, runs: Store, run_id: str) -> None:
        self._runs, self._run_id = runs, run_id
        self._store = runs.at(_SHARED)
        self._own = runs.at(f"{run_id}/{ELSEWHERE}")
        self._known = _places.setdefault(self._store.url, {})
        self.written: int = 0

    def places(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, int]]:
        """The file in which each of some tensors is, and the bytes of tensors in it, by the tensor's digest. Those that
        are in none are written; there are none if they are too small for a file.

        Args:
            tensors: by digest.
        """
        if sum(tensor.nbytes for tensor in tensors.values()) < SMALLEST:
            return {}
        lent = {digest: place for digest, place in self._referred().items() if digest in tensors}
        files = {file.removeprefix(f"{ELSEWHERE}/") for file, _ in lent.values()}
        if not all(map(self._own.exists, files)):
            _lent.pop(self._own.url, None)  # the run was deleted, and begun anew
            lent = {}
        tensors = {digest: tensor for digest, tensor in tensors.items() if digest not in lent}
        if not tensors.keys() <= self._known.keys():
            self._look()
        for folder in {self._known[digest][0] for digest in tensors if digest in self._known}:
            if not self._use(folder):
                self._forget(folder)
        missing = {digest: tensors[digest] for digest in sorted(tensors) if digest not in self._known}
        if missing:
            self._write(missing)
        found = {digest: self._known[digest] for digest in tensors}
        return lent | {
            digest: (f"{FROZEN}/{_file(folder)}", size) for digest, (folder, size) in found.items()
        }

    def refer(self, found: Found) -> None:
        """Read tensors from where they lie from now on. What the run reads elsewhere already is read there, too, if all
        that one of its files lists was found."""
        self.mend(found)
        known = self._referred()
        missing = found.only([digest for digest in found.tensors if digest not in known])
        if sum(tensor.nbytes for tensor in missing.tensors.values()) >= SMALLEST:
            save_references(self._own, dict(sorted(missing.tensors.items())), missing.elsewhere)
        _lent.pop(self._own.url, None)

    def mend(self, found: Found) -> None:
        """Read what the run reads elsewhere where it was found, as far as all that one of its files lists was."""
        for _, elsewhere in _references(self._own):
            here = found.only(elsewhere.slots)
            if here.tensors.keys() == elsewhere.slots.keys() and here.elsewhere != elsewhere:
                save_references(self._own, dict(sorted(here.tensors.items())), here.elsewhere)
        _lent.pop(self._own.url, None)

    def _referred(self) -> dict[str, tuple[str, int]]:
        """For each tensor that the run can read elsewhere the file that says where, and the bytes of tensors there."""
        known = _lent.get(self._own.url)
        if known is None:
            known = {}
            for name, _ in _references(self._own):
                if files_if_whole(self._own, name) is not None:
                    sizes = own_tensors(self._own, name)
                    known |= dict.fromkeys(sizes, (f"{ELSEWHERE}/{name}", sum(sizes.values())))
            _lent[self._own.url] = known
        return known

    def release(self) -> None:
        """Delete the marks of this run, and of those whose folders are gone; and the files without a mark."""
        for folder in self._store.folders():
            for mark in self._store.names(f"{folder}/{_MARKS}"):
                run = mark.rpartition("/")[2]
                if run == self._run_id or not self._runs.names(
                    run
                ):  # a run leaves marks once it holds its lease
                    self._store.delete(mark)
            if self._is_marked(folder):
                continue
            going = f"{folder}/{_GOING}/{secrets.token_hex(8)}"
            self._store.put(going, b"")
            if not self._is_marked(folder):
                self._store.delete(_file(folder))
            self._store.delete(going)

    def _is_marked(self, folder: str) -> bool:
        return bool(self._store.names(f"{folder}/{_MARKS}"))

    def _look(self) -> None:
        """Find out which tensors the files hold that other processes wrote."""
        known = {folder for folder, _ in self._known.values()}
        for folder in self._store.folders():
            if folder not in known:
                try:
                    found = own_tensors(self._store, _file(folder))
                except (NotFoundError, CorruptError):  # it is deleted, or will be written anew
                    continue
                self._note(folder, found)

    def _note(self, folder: str, sizes: Mapping[str, int]) -> None:
        total = sum(sizes.values())
        for digest in sizes:
            self._known.setdefault(digest, (folder, total))

    def _forget(self, folder: str) -> None:
        for digest in [digest for digest, (other, _) in self._known.items() if other == folder]:
            del self._known[digest]

    def _use(self, folder: str) -> bool:
        """Mark a file as used by this run; False if it is gone or not whole, or a deletion is after it."""
        mark, known = f"{folder}/{_MARKS}/{self._run_id}", (self._store.url, folder, self._run_id)
        if known in _marked and self._store.exists(mark):  # it is not if the run was deleted, and begun anew
            return True
        self._mark(folder)
        if not self._is_going(folder) and files_if_whole(self._store, _file(folder)) is not None:
            _marked.add(known)
            return True
        return False  # and the mark stays: another worker of the run may have left it

    def _mark(self, folder: str) -> None:
        mark = f"{folder}/{_MARKS}/{self._run_id}"
        self._store.put(mark, b"")
        self._store.sync([mark])

    def _is_going(self, folder: str) -> bool:
        return bool(self._store.names(f"{folder}/{_GOING}"))

    def _write(self, tensors: Mapping[str, Tensor]) -> None:
        """Write a file of tensors that no file has, or that none has for long. Processes that do so at once write the
        same file."""
        digest, number = state_digest(tensors), 0
        while True:
            folder = f"{digest}-{number}"
            self._mark(folder)
            if not self._is_going(folder):
                break
            number += 1
        save_state(self._store.at(folder), dict(tensors))
        _marked.add((self._store.url, folder, self._run_id))
        sizes = {digest: tensor.nbytes for digest, tensor in tensors.items()}
        self.written += sum(sizes.values())
        self._note(folder, sizes)


def urls_elsewhere(folder: Store) -> list[str]:
    """The places from which a run reads frozen tensors, beside the store.

    Args:
        folder: of the run.
    """
    return sorted({elsewhere.url for _, elsewhere in _references(folder.at(ELSEWHERE))})


def _references(store: Store) -> list[tuple[str, Elsewhere]]:
    """The files of a run that say where tensors lie."""
    found = []
    for name in sorted(store.names()):
        with contextlib.suppress(NotFoundError, CorruptError):  # a damaged one is of no use
            elsewhere = TensorFile(store, name).elsewhere
            found += [] if elsewhere is None else [(name, elsewhere)]
    return found


def _file(folder: str) -> str:
    """The file in a folder of its own."""
    return f"{folder}/{file_name(folder.rpartition('-')[0])}"
