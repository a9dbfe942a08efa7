"""Stores: bytes under names, below one prefix. The contract is in ``storage.base``."""

from typing import NoReturn

from hopyard.errors import no_name
from hopyard.storage.base import Entry, Store
from hopyard.storage.local import LocalStore
from hopyard.storage.memory import MemoryStore
from hopyard.storage.object import ObjectStore
from hopyard.storage.opening import open_store

__all__ = ["Entry", "LocalStore", "MemoryStore", "ObjectStore", "Store", "open_store"]


def __getattr__(name: str) -> NoReturn:
    raise no_name(__name__, name, __all__)
