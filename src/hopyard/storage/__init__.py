"""Stores: bytes under names, below one prefix. The contract is in ``storage.base``."""

from typing import TYPE_CHECKING

from hopyard.missing import imported_later
from hopyard.storage.base import Buffer, Entry, Part, Store
from hopyard.storage.local import LocalStore
from hopyard.storage.memory import MemoryStore
from hopyard.storage.names import validate_name
from hopyard.storage.object import ObjectStore
from hopyard.storage.opening import open_store

if TYPE_CHECKING:
    from hopyard.storage.checking import StoreCheck, StoreReport, check_store
    from hopyard.storage.hdfs import HDFSStore

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

if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake
    # Names that few programs use are imported when first asked for.
    _PLACES = dict.fromkeys(("StoreCheck", "StoreReport", "check_store"), ".checking")
    __getattr__, __dir__ = imported_later(__name__, {"HDFSStore": ".hdfs", **_PLACES}, __all__)
