"""Tests on two mounts of one export, which the environment names; ``test_mounts`` boots the server for them."""

from __future__ import annotations

import os
import threading
import uuid
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from tests.nfs_facts import Clients, NfsFacts
from tests.nfs_like import TurnsStore
from tests.stockroom.nfs_walks import StockroomOnNfs
from tests.storage.test_conformance import OwnSuite
from tests.tune.nfs_walks import RunsOnNfs

from hopyard.storage import LocalStore, Store, files

_SECONDS = 3.2  # the mounts' attribute cache, and a little


@pytest.fixture
def mounts() -> tuple[Path, Path]:
    """A new folder, as the two clients have it."""
    name = uuid.uuid4().hex
    a, b = (Path(os.environ[f"NFS_{mount}"]) / name for mount in "AB")
    a.mkdir()
    assert files.look_anew(b)
    return a, b


def clients_of(mounts: tuple[Path, Path]) -> Clients:
    return Clients(*(partial(nullcontext, mount) for mount in mounts), wait)


def wait() -> None:
    threading.Event().wait(_SECONDS)


class TestMounts(NfsFacts):
    @pytest.fixture
    def clients(self, mounts: tuple[Path, Path]) -> Clients:
        return clients_of(mounts)


class TestLocalStoreOnMounts(OwnSuite):
    @pytest.fixture
    def store(self, mounts: tuple[Path, Path]) -> Store:
        return TurnsStore(*((nullcontext, LocalStore(mount / "store")) for mount in mounts))


class TestStockroomOnMounts(StockroomOnNfs):
    @pytest.fixture
    def clients(self, mounts: tuple[Path, Path]) -> Clients:
        return clients_of(mounts)


class TestRunsOnMounts(RunsOnNfs):
    @pytest.fixture
    def clients(self, mounts: tuple[Path, Path]) -> Clients:
        return clients_of(mounts)
