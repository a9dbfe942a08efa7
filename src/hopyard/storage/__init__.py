"""Stores: bytes under names, below one prefix. The contract is in ``storage.base``."""

from hopyard.missing import name_of_later
from hopyard.storage.base import Buffer, Entry, Store
from hopyard.storage.local import LocalStore
from hopyard.storage.memory import MemoryStore
from hopyard.storage.object import ObjectStore
from hopyard.storage.opening import open_store

__all__ = ["Buffer", "Entry", "LocalStore", "MemoryStore", "ObjectStore", "Store", "open_store"]


def __getattr__(name: str) -> type:
    return name_of_later(__name__, name, __all__)
