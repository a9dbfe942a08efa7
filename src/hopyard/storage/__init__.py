"""Stores: bytes under names, below one prefix. The contract is in ``storage.base``."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hopyard.storage.base import Buffer, Entry, Part, Store
from hopyard.storage.hdfs import HDFSStore
from hopyard.storage.local import LocalStore
from hopyard.storage.memory import MemoryStore
from hopyard.storage.names import validate_name
from hopyard.storage.object import ObjectStore
from hopyard.storage.opening import open_store

if TYPE_CHECKING:
    from hopyard.storage.checking import StoreCheck, StoreReport, check_store

__all__ = [
    "Buffer",
    "Entry",
    "HDFSStore",
    "LocalStore",
    "MemoryStore",
    "ObjectStore",
    "Part",
    "Store",
    "StoreCheck",
    "StoreReport",
    "check_store",
    "open_store",
    "validate_name",
]

_OF_CHECKING = ("StoreCheck", "StoreReport", "check_store")


if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake

    def __getattr__(name: str) -> Any:
        """Names that few programs use are imported when first asked for."""
        if name not in _OF_CHECKING:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("hopyard.storage.checking"), name)
