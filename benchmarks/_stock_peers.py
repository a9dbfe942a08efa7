"""The stockroom's peers: each stores the same samples, as its documentation says it is done in bulk.

A process for each, in its own environment, which answers ``_stock.Peers``. What a peer leaves to the system's
caches is synced after each write, within the time that it took: all writers here are durable.
"""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from _serve import serve
from _stock_data import samples

CHUNK_BYTES = 512 << 10  # of Icechunk, as the fragments of ours
Array = np.ndarray[Any, Any]


class Hangar:
    """An array set in its NumPy backend, a sample at a time in one transaction: it has nothing else."""

    def __init__(self, directory: Path) -> None:
        import hangar

        directory.mkdir()
        self._repo = hangar.Repository(str(directory), exists=False)
        self._repo.init("bench", "bench@example.com", remove_old=True)

    def write(self, data: Array) -> None:
        checkout = self._repo.checkout(write=True)
        with checkout.add_ndarray_column("x", prototype=data[0]) as column:
            for number, sample in enumerate(data):
                column[number] = sample
        checkout.commit("all")
        checkout.close()

    def change(self, number: int, sample: Array) -> None:
        checkout = self._repo.checkout(write=True)
        checkout.columns["x"][number] = sample
        checkout.commit("one")
        checkout.close()


class Icechunk:
    """One Zarr array, without compression."""

    def __init__(self, directory: Path) -> None:
        import icechunk
        import zarr

        self._zarr = zarr
        storage = icechunk.local_filesystem_storage(str(directory))
        self._repo = icechunk.Repository.open_or_create(storage)
        self._commits: list[str] = []

    def write(self, data: Array) -> None:
        session = self._repo.writable_session("main")
        rows = max(1, min(len(data), CHUNK_BYTES // data[0].nbytes))
        array = self._zarr.create_array(
            session.store,
            name="x",
            shape=data.shape,
            chunks=(rows, *data.shape[1:]),
            dtype="u1",
            compressors=None,
        )
        array[:] = data
        self._commits.append(session.commit("all"))

    def change(self, number: int, sample: Array) -> None:
        session = self._repo.writable_session("main")
        self._zarr.open_array(session.store, path="x")[number] = sample
        self._commits.append(session.commit("one"))

    def first(self, number: int) -> Array:
        oldest = list(self._repo.ancestry(branch="main"))[-2]  # the last one is empty
        session = self._repo.readonly_session(snapshot_id=oldest.id)
        return np.asarray(self._zarr.open_array(session.store, path="x", mode="r")[number])

    def diff(self, count: int) -> int:
        """Chunks that differ: it does not know which samples do."""
        found = self._repo.diff(from_snapshot_id=self._commits[-1 - count], to_snapshot_id=self._commits[-1])
        return sum(map(len, found.updated_chunks.values()))


class Lance:
    """A table of lists of one length with their numbers."""

    def __init__(self, directory: Path) -> None:
        self._path = str(directory / "data")

    def write(self, data: Array) -> None:
        import lance

        lance.write_dataset(self._table(np.arange(len(data)), data), self._path)

    def change(self, number: int, sample: Array) -> None:
        import lance

        merge = lance.dataset(self._path).merge_insert("id").when_matched_update_all()
        merge.execute(self._table(np.array([number]), sample[None]))

    def first(self, number: int) -> Array:
        import lance

        table = lance.dataset(self._path, version=1).take([number])
        return np.asarray(table.column("x").combine_chunks().flatten())

    def take(self) -> Callable[[Array], Array]:
        import lance

        data = lance.dataset(self._path, version=1)

        def take(positions: Array) -> Array:
            table = data.take(positions, columns=["x"])
            return np.asarray(table.column("x").combine_chunks().flatten())

        return take

    def _table(self, numbers: Array, data: Array) -> Any:
        import pyarrow as pa

        width = data[0].size
        lists = pa.FixedSizeListArray.from_arrays(pa.array(data.reshape(-1)), width)
        return pa.table({"id": numbers.astype(np.int64), "x": lists})


class Dvc:
    """One file of all samples, which it stores whole whenever one has changed. Without git, as a library."""

    def __init__(self, directory: Path) -> None:
        from dvc.repo import Repo

        directory.mkdir()
        self._file = directory / "data.bin"
        self._repo = Repo.init(str(directory), no_scm=True)

    def write(self, data: Array) -> None:
        self._file.write_bytes(data.tobytes())
        self._repo.add(str(self._file))

    def change(self, number: int, sample: Array) -> None:
        with self._file.open("r+b") as file:
            file.seek(number * sample.nbytes)
            file.write(sample.tobytes())
        self._repo.add(str(self._file))


class Lmdb:
    """Plain puts in one transaction, in the order of the keys: no versions, no digests. A limit, not a peer."""

    def __init__(self, directory: Path) -> None:
        import lmdb

        self._env = lmdb.open(str(directory), map_size=4 << 30)

    def write(self, data: Array) -> None:
        view = memoryview(data.reshape(len(data), -1))
        with self._env.begin(write=True) as transaction:
            for number in range(len(data)):
                transaction.put(number.to_bytes(8, "big"), view[number : number + 1].cast("B"), append=True)

    def change(self, number: int, sample: Array) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.put(number.to_bytes(8, "big"), sample.tobytes())


PEERS = {"hangar": Hangar, "icechunk": Icechunk, "lance": Lance, "dvc": Dvc, "lmdb": Lmdb}


class Commands:
    """What the process does. Each answer has the seconds that it took."""

    def open(self, peer: str, directory: str, kind: str, rows: int) -> dict[str, Any]:
        self._kind, self._rows = kind, rows
        self._directory, self._make = Path(directory), PEERS[peer]
        self._directory.mkdir(exist_ok=True)
        self._data = samples(kind, rows)
        self._number = 0
        warm = self._make(self._fresh())  # what is imported when it is first used
        warm.write(self._data[:100])
        return {}

    def ingest(self) -> dict[str, Any]:
        """All samples into a new place, which is gone afterwards."""
        directory = self._fresh()
        peer = self._make(directory)
        found = self._durably(lambda: peer.write(self._data), directory)
        shutil.rmtree(directory)
        return found

    def prepare(self) -> dict[str, Any]:
        """All samples into a place that stays."""
        self._home = self._fresh()
        self._peer: Any = self._make(self._home)
        return self._durably(lambda: self._peer.write(self._data), self._home)

    def change(self, number: int) -> dict[str, Any]:
        """One sample, and a commit."""
        self._number += 1
        sample = samples(self._kind, 1, seed=self._number)[0]
        return self._durably(lambda: self._peer.change(number, sample), self._home)

    def shuffled(self, batch: int, seed: int) -> dict[str, Any]:
        """All samples by batches of a permutation."""
        take = self._peer.take()
        order = np.random.default_rng(seed).permutation(self._rows)
        start = time.perf_counter()
        for first in range(0, self._rows, batch):
            take(order[first : first + batch])
        return {"seconds": time.perf_counter() - start}

    def at_home(self) -> dict[str, Any]:
        return {"directory": str(self._home)}

    def first(self, peer: str, directory: str, kind: str, rows: int, number: int) -> dict[str, Any]:
        """One sample of the first commit, by a process that has only imported what it needs."""
        import icechunk  # noqa: F401
        import lance  # noqa: F401
        import zarr  # noqa: F401

        gc.collect()  # as in _stock_first.py
        start = time.perf_counter()
        found = PEERS[peer](Path(directory)).first(number)
        took = time.perf_counter() - start
        assert np.array_equal(found.reshape(-1), samples(kind, rows)[number].reshape(-1))
        return {"seconds": took}

    def diff(self, count: int) -> dict[str, Any]:
        """What the last ``count`` commits changed."""
        start = time.perf_counter()
        found = self._peer.diff(count)
        return {"seconds": time.perf_counter() - start, "found": found}

    def _fresh(self) -> Path:
        self._number += 1
        return self._directory / str(self._number)

    def _durably(self, action: Callable[[], object], directory: Path) -> dict[str, Any]:
        begun, written = time.time() - 1, _bytes_written()
        start = time.perf_counter()
        action()
        for folder, _, files in os.walk(directory):
            for path in (folder, *(os.path.join(folder, name) for name in files)):  # noqa: PTH118
                if os.stat(path).st_mtime >= begun:  # noqa: PTH116
                    fd = os.open(path, os.O_RDONLY)
                    os.fsync(fd)
                    os.close(fd)
        return {"seconds": time.perf_counter() - start, "written": _bytes_written() - written}


def _bytes_written() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["write_bytes"])


if __name__ == "__main__":
    serve(Commands())
