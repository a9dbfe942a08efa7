"""Every store passes the suite."""

from pathlib import Path

import pytest

from hopyard.errors import CorruptError, InvalidNameError, UsageError
from hopyard.storage import LocalStore, MemoryStore, ObjectStore, Store
from hopyard.storage.faults import FaultyStore
from hopyard.storage.testing import StoreSuite


class OwnSuite(StoreSuite):
    """Our stores say more than the contract asks."""

    def test_a_range_beyond_the_end_says_how_many_bytes_there_are(self, store: Store) -> None:
        store.put("a", b"0123456789")
        with pytest.raises(
            CorruptError, match=r"bytes 8\.\.11 of .*a.* were asked for, but it has only 10\. "
        ):
            store.get("a", 8, 3)

    def test_a_name_that_is_a_prefix_already_says_so(self, store: Store) -> None:
        store.put("a/b", b"x")
        with pytest.raises(InvalidNameError, match="would be both an object and a prefix of"):
            store.put("a", b"y")


class TestLocalStore(OwnSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "store")


class TestMemoryStore(OwnSuite):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestPrefixStore(OwnSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "store").at("some/prefix")


class TestFaultyStoreWithoutFaults(OwnSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FaultyStore(LocalStore(tmp_path / "store"))


class TestObjectStore(OwnSuite):
    @pytest.fixture
    def store(self, s3_url: str) -> Store:
        return ObjectStore(s3_url)


def test_a_memory_store_of_another_process_says_which_stores_can_be_used_there() -> None:
    unpickled, (name, pid) = MemoryStore("mine").__reduce__()
    with pytest.raises(
        UsageError,
        match=rf"MemoryStore\('mine'\) lives in the memory of process {pid + 1} and cannot be used in another\. "
        "Use InlineBackend with it, or a LocalStore that other processes can see",
    ):
        unpickled(name, pid + 1)
