"""Every byte of packfiles and files against the digests that name them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hopyard.errors import CorruptError, FormatError, NotFoundError, StorageError
from hopyard.objects.digests import Hasher
from hopyard.stockroom.packfiles.layout import Packfile, digest_at, is_packfile, read_packfile
from hopyard.stockroom.packfiles.mapped import Mapped
from hopyard.storage import Store

_FILE = re.compile(r"files/([0-9a-f]{64})")
_CHUNK = 16 << 20  # bytes of a file that are read at a time

Progress = Callable[[int, int], None]
"""Told the bytes that are checked, and those of all."""


@dataclass
class CheckedFile:
    """One packfile or file.

    Attributes:
        name: of the store's object; ``size``: its bytes.
        packfile: what its header says; None: it is a file, or has no readable header.
        good: digest to bytes of objects that are as they were written.
        reasons: digest of an object that is not, or "" for the whole, to what is wrong.
        is_newer: it was written by a newer version of Hopyard.
        is_gone: there is none, or no more.
    """

    name: str
    size: int
    packfile: Packfile | None = None
    good: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    is_newer: bool = False
    is_gone: bool = False


def check_all(
    store: Store, known: Mapping[str, CheckedFile] | None = None, progress: Progress | None = None
) -> dict[str, CheckedFile]:
    """Read and check all packfiles and files, several at once; those that are ``known`` not again."""
    entries = [entry for entry in store.list("packfiles") if is_packfile(entry.name)]
    entries += [entry for entry in store.list("files") if _FILE.fullmatch(entry.name)]
    found = {entry.name: known[entry.name] for entry in entries if known and entry.name in known}
    entries = [entry for entry in entries if entry.name not in found]
    total, done = sum(entry.size for entry in entries), 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for checked in pool.map(lambda entry: check(store, entry.name), entries):
            if not checked.is_gone:
                found[checked.name] = checked
            done += checked.size
            if progress is not None:
                progress(done, total)
    return found


def check(store: Store, name: str) -> CheckedFile:
    """Read and check one packfile or file."""
    checked = CheckedFile(name, 0, is_gone=False)
    try:
        size = store.size(name)
        checked.size, checked.is_gone = size or 0, size is None
        if not checked.is_gone:
            (_check_packfile if is_packfile(name) else _check_file)(store, checked)
    except NotFoundError:
        checked.is_gone = True
    except StorageError as error:
        checked.reasons[""] = str(error)
    return checked


def _check_packfile(store: Store, checked: CheckedFile) -> None:
    try:
        packfile = checked.packfile = read_packfile(store, checked.name, checked.size)
    except FormatError as error:
        checked.reasons[""], checked.is_newer = str(error), True
        return
    except CorruptError as error:
        checked.reasons[""] = error.reason or str(error)
        return
    if packfile.whole != checked.size:
        checked.reasons[""] = f"it has {checked.size} bytes, but its header says {packfile.whole}"
    view = Mapped(store).get(checked.name)
    data = np.frombuffer(store.get(checked.name), np.uint8) if view is None else view.data
    for name, place in packfile.objects.items():
        if digest_at(place, data[place.start : place.stop]) == name:
            checked.good[name] = place.stop - place.start
        else:
            checked.reasons[name] = f"the {place.kind} {name} in it has changed"
    if "" not in checked.reasons and (reason := _unlike_safetensors(data)):
        checked.reasons[""] = reason


def _unlike_safetensors(data: npt.NDArray[np.uint8]) -> str:
    """Broken rule of safetensors: entries follow one another without gaps; and padding is zeros."""
    base = 8 + int.from_bytes(data[:8].tobytes(), "little")
    entries = json.loads(data[8:base].tobytes())
    spans = sorted(
        (*entry["data_offsets"], name) for name, entry in entries.items() if name != "__metadata__"
    )
    end = 0
    for start, stop, name in spans:
        if start != end:
            return f"its entries leave a gap at byte {base + end}"
        if name.startswith("~") and data[base + start : base + stop].any():
            return f"its padding at byte {base + start} has changed"
        end = stop
    return "" if base + end == len(data) else f"it goes on after its last entry, from byte {base + end}"


def _check_file(store: Store, checked: CheckedFile) -> None:
    name = checked.name.rpartition("/")[2]
    hasher = Hasher("hopyard.file")
    for chunk in _chunks(store, checked.name, checked.size):
        hasher.update(chunk)
    if hasher.hexdigest() == name:
        checked.good[name] = checked.size
    else:
        checked.reasons[name] = "the file has changed"


def _chunks(store: Store, name: str, size: int) -> Iterator[bytes]:
    for start in range(0, size, _CHUNK):
        yield store.get(name, start, min(_CHUNK, size - start))
