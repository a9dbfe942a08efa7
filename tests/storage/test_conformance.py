"""Every store passes the suite."""

from pathlib import Path

import pytest

from hopyard.storage import LocalStore, MemoryStore, ObjectStore, Store
from hopyard.storage.faults import FaultyStore
from hopyard.storage.testing import StoreSuite


class TestLocalStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "store")


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestPrefixStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "store").at("some/prefix")


class TestFaultyStoreWithoutFaults(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FaultyStore(LocalStore(tmp_path / "store"))


class TestObjectStore(StoreSuite):
    @pytest.fixture
    def store(self, s3_url: str) -> Store:
        return ObjectStore(s3_url)
