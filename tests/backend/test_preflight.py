"""Before a run, every worker has read the store and is like the others."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.backend.preflight import instruction_set, preflight
from hopyard.backend.testing import result_of
from hopyard.errors import UsageError, WorkerLostError, WorkerMismatchError
from hopyard.storage.local import LocalStore
from hopyard.storage.memory import MemoryStore
from hopyard.worker_start import common_env


@pytest.fixture
def backend() -> Iterator[LocalBackend]:
    with LocalBackend(num_workers=2, device="cpu") as backend:
        yield backend


def test_the_facts_of_every_worker_are_reported(backend: LocalBackend, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    facts = preflight(backend, store)
    assert [fact.worker for fact in facts] == [0, 1]
    assert [fact.pid for fact in facts] == [result_of(backend.submit(worker, os.getpid)) for worker in (0, 1)]
    assert {(fact.python, fact.threads) for fact in facts} == {(platform.python_version(), "1")}
    assert facts[0].instructions == instruction_set()
    assert facts[0].numpy is not None
    assert list(store.list()) == []


def test_a_store_in_memory_is_enough_inline_and_refused_by_processes(backend: LocalBackend) -> None:
    store = MemoryStore()
    (facts,) = preflight(InlineBackend(), store)
    assert facts.pid == os.getpid()
    assert list(store.list()) == []
    with pytest.raises(
        UsageError,
        match=r"memory://unnamed-\d+ lives in the driver's memory, .* use LocalStore .* InlineBackend",
    ):
        preflight(backend, store)


def test_a_worker_that_differs_is_refused(backend: LocalBackend, tmp_path: Path) -> None:
    result_of(backend.submit(1, lambda: os.environ.update(OMP_NUM_THREADS="7")))
    with pytest.raises(WorkerMismatchError) as caught:
        preflight(backend, LocalStore(tmp_path))
    assert f"Worker 1 on {platform.node()} differs from worker 0" in str(caught.value)
    assert "OMP_NUM_THREADS 7 (worker 0: 1)" in str(caught.value)
    assert "install the same versions everywhere" in str(caught.value)
    assert list(LocalStore(tmp_path).list()) == []


def test_workers_that_differ_from_the_driver_are_named_with_their_packages(
    backend: LocalBackend, tmp_path: Path
) -> None:
    def replace_packages() -> None:
        installed = importlib.metadata.version

        def version(name: str) -> str:
            if name == "torch":
                raise importlib.metadata.PackageNotFoundError(name)
            return "1.0" if name == "numpy" else installed(name)

        importlib.metadata.version = version

    result_of(backend.submit(0, replace_packages))
    with pytest.raises(WorkerMismatchError) as caught:
        preflight(backend, LocalStore(tmp_path))
    host, numpy = platform.node(), importlib.metadata.version("numpy")
    assert f"numpy {numpy}, torch " in str(caught.value)
    assert f": worker 0 (host {host}) has numpy 1.0; worker 0 (host {host}) has no torch. " in str(
        caught.value
    )
    assert "install the same versions everywhere" in str(caught.value)


def test_a_worker_that_sees_another_directory_is_refused(backend: LocalBackend, tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"

    class MountedElsewhere(LocalStore):
        def __reduce__(self) -> tuple[type[LocalStore], tuple[Path]]:
            return LocalStore, (elsewhere,)

    store = MountedElsewhere(here)
    with pytest.raises(WorkerMismatchError) as caught:
        preflight(backend, store)
    assert f"Worker 0 cannot read what the driver wrote to {store.url}: NotFoundError" in str(caught.value)
    assert "mount it there, or use a store that all machines reach" in str(caught.value)
    assert list(store.list()) == []


def test_a_worker_that_dies_meanwhile_is_lost_and_not_different(
    backend: LocalBackend, tmp_path: Path
) -> None:
    class Deadly(LocalStore):
        def __reduce__(self) -> tuple[object, tuple[int]]:
            return os._exit, (5,)

    with pytest.raises(WorkerLostError, match="exit code 5"):
        preflight(backend, Deadly(tmp_path))


def test_the_instruction_set_ignores_what_changes_between_boots(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        (tmp_path / "cpuinfo").write_text(text)
        return instruction_set(tmp_path / "cpuinfo")

    first = "vendor_id : Intel\ncpu MHz : 2000.1\nflags : fpu avx\n\nvendor_id : Intel\nflags : fpu avx\n"
    assert digest(first) == digest(first.replace("2000.1", "3100.7").replace("fpu avx", "avx fpu"))
    assert digest(first) != digest(first.replace("avx", "avx avx512f"))
    assert digest(first) != digest(first.replace("Intel", "AMD"))
    assert instruction_set(tmp_path / "absent") == instruction_set(tmp_path / "absent")


def test_workers_use_the_drivers_backend_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert common_env(1)["KERAS_BACKEND"] == "jax"
    used = types.SimpleNamespace(backend=types.SimpleNamespace(backend=lambda: "torch"))
    monkeypatch.setitem(sys.modules, "keras", used)
    with LocalBackend(num_workers=1, device="cpu") as backend:
        assert result_of(backend.submit(0, os.getenv, "KERAS_BACKEND")) == "torch"
