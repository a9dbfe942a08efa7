"""Stores: bytes under names, below one prefix. The contract is in ``storage.base``."""

from hopyard.storage.base import Buffer, Entry, Store
from hopyard.storage.hdfs import HDFSStore
from hopyard.storage.local import LocalStore
from hopyard.storage.memory import MemoryStore
from hopyard.storage.object import ObjectStore
from hopyard.storage.opening import open_store

__all__ = ["Buffer", "Entry", "HDFSStore", "LocalStore", "MemoryStore", "ObjectStore", "Store", "open_store"]
