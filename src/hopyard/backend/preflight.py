"""Checks before a run that every worker reads the store, and that the workers are alike.

Results are bitwise the same on any worker only if packages, instruction sets and thread settings are
(a matrix product sums in another order with AVX-512), so a worker that differs is refused at once.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import mmap
import os
import platform
import secrets
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import hopyard
from hopyard.backend.base import Backend
from hopyard.data.cache.node import cache_directory
from hopyard.errors import StorageFullError, UsageError, WorkerError, WorkerMismatchError
from hopyard.storage.base import Store
from hopyard.wording import beginning

PROBE_BYTES = 4096
ALIKE = {  # what must not differ between workers: field -> how messages call it
    "python": "Python",
    "hopyard": "hopyard",
    "numpy": "numpy",
    "torch": "torch",
    "instructions": "CPU instruction set",
    "threads": "OMP_NUM_THREADS",
}


@dataclass(frozen=True)
class WorkerFacts:
    """Facts about a worker's process and machine. All fields are JSON values.

    Attributes:
        worker: the worker's number.
        host, pid: its machine and process.
        cache: the directory of that machine that keeps decoded data.
        python, hopyard, numpy, torch, keras: versions; None for a package that is not installed.
        instructions: a digest of the CPU's vendor and feature flags.
        threads: its OMP_NUM_THREADS; None if unset.
    """

    worker: int
    host: str
    pid: int
    cache: str
    python: str
    hopyard: str
    numpy: str | None
    torch: str | None
    instructions: str
    threads: str | None
    keras: str | None = None

    @property
    def node(self) -> str:
        """Place of the worker's data: workers for which this is equal read the same files."""
        return f"{self.host}:{self.cache}"


def preflight(backend: Backend, store: Store) -> list[WorkerFacts]:
    """The facts of every worker, after each has read an object that the driver wrote to ``store``.

    Raises:
        UsageError: the store lives in the driver's memory and the workers are other processes.
        WorkerMismatchError: a worker cannot read the store, or differs from the driver or from worker 0.
        WorkerError: a worker was lost.
        StorageError: the driver cannot write to the store.
    """
    if backend.isolated and not store.shared:
        raise UsageError(
            f"The store {store.url} lives in the driver's memory, where the worker processes of {backend!r} "
            "cannot see it; use LocalStore (or another store that is shared), or InlineBackend."
        )
    name, data = f"preflight-{secrets.token_hex(8)}", secrets.token_bytes(PROBE_BYTES)
    store.put(name, data)
    try:
        workers = range(backend.num_workers)
        futures = [backend.submit(worker, _look, worker, store, name, data) for worker in workers]
        facts = [_answer(future, backend, worker, store) for worker, future in enumerate(futures)]
    finally:
        store.delete(name)
    _compare_with_driver(facts, backend)
    _compare(facts)
    return facts


def check_alike(first: WorkerFacts) -> None:
    """Check that this process is like the run's first worker, also if it came later, or elsewhere than asked.

    Raises:
        WorkerMismatchError: it differs; says in what.
    """
    _compare([first, _own_facts()])


@cache
def _own_facts() -> WorkerFacts:
    return _facts(-1)


def _answer(future: Future[WorkerFacts], backend: Backend, worker: int, store: Store) -> WorkerFacts:
    try:
        return future.result()
    except (WorkerError, StorageFullError):
        raise
    except Exception as error:
        raise WorkerMismatchError(
            f"{beginning(backend.place(worker))} cannot read what the driver wrote to {store.url}: "
            f"{type(error).__name__}: {error}. Every worker must see the store under the same address, with "
            "credentials and packages to read it: mount it there, or use a store that all machines reach."
        ) from error


def _for_the_driver(facts: WorkerFacts) -> dict[str, str | None]:
    """Versions that workers must share with the driver, if it has any: it pickles for them, and reads what they write.
    Pickles of functions are of a minor version of Python."""
    found = {
        "Python": facts.python.rpartition(".")[0],
        "hopyard": facts.hopyard,
        "numpy": facts.numpy,
        "torch": facts.torch,
    }
    return found | {"keras": facts.keras} if "keras" in sys.modules else found


def _compare_with_driver(facts: Sequence[WorkerFacts], backend: Backend) -> None:
    """All differences of all workers at once, so that they can be mended at once."""
    driver = _for_the_driver(_facts(-1))
    differing = [
        f"{backend.place(fact.worker)} (host {fact.host}) has {f'{name} {there}' if there else f'no {name}'}"
        for name, here in driver.items()
        for fact in facts
        if here is not None and (there := _for_the_driver(fact)[name]) != here
    ]
    if differing:
        had = ", ".join(f"{name} {here}" for name, here in driver.items() if here)
        raise WorkerMismatchError(
            f"Workers lack what the driver has ({had}): {'; '.join(differing)}. The driver pickles for its workers "
            "and reads what they write; install the same versions everywhere."
        )


def _compare(facts: Sequence[WorkerFacts]) -> None:
    first = facts[0]
    for other in facts[1:]:
        differing = [
            f"{label} {getattr(other, field)} (worker 0: {getattr(first, field)})"
            for field, label in ALIKE.items()
            if getattr(other, field) != getattr(first, field)
        ]
        if differing:
            who = f"Worker {other.worker}" if other.worker >= 0 else f"A worker's process, {other.pid},"
            raise WorkerMismatchError(
                f"{who} on {other.host} differs from worker 0 on {first.host}: "
                f"{', '.join(differing)}. Results would depend on which worker does what; install the "
                "same versions everywhere, and use machines (or a pool) with the same kind of CPU."
            )


def _look(worker: int, store: Store, name: str, data: bytes) -> WorkerFacts:
    """Check, on the worker, that the store has the driver's object; returns the worker's facts."""
    path = store.path(name)
    if store.get(name) != data or (path is not None and _mapped(path) != data):
        raise ValueError(f"the object {name!r} has other content there")
    return _facts(worker)


def _facts(worker: int) -> WorkerFacts:
    """Facts of this process."""
    return WorkerFacts(
        worker=worker,
        host=socket.gethostname(),
        pid=os.getpid(),
        cache=cache_directory(),
        python=platform.python_version(),
        hopyard=hopyard.__version__,
        numpy=_version("numpy"),
        torch=_version("torch"),
        instructions=instruction_set(),
        threads=os.environ.get("OMP_NUM_THREADS"),
        keras=_version("keras"),
    )


def _mapped(path: Path) -> bytes:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return view[:]


@cache
def _version(package: str) -> str | None:
    """The installed version, without importing the package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def instruction_set(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """A digest of the first CPU's architecture, vendor and feature flags; where the system has no
    such file, of the architecture and the processor's name."""
    facts = {platform.machine()}
    try:
        lines = cpuinfo.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        lines = [f"vendor_id: {platform.processor()}"]
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("vendor_id", "CPU implementer", "flags", "Features"):
            facts.update(value.split())
    return hashlib.sha256(" ".join(sorted(facts)).encode()).hexdigest()[:16]
