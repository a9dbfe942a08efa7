"""Opens the store at a URL or path."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from hopyard.errors import UsageError
from hopyard.storage.base import Store
from hopyard.storage.hdfserrors import HDFS_SCHEMES
from hopyard.storage.local import LocalStore
from hopyard.storage.memory import MemoryStore
from hopyard.storage.object import SCHEMES, ObjectStore
from hopyard.wording import nearest

STORE_SCHEMES = ("memory", *SCHEMES, *HDFS_SCHEMES)
"""What URLs of stores begin with, besides ``file``."""

_SCHEMES = ("file", *STORE_SCHEMES)


def open_store(url: str | os.PathLike[str] | Store) -> Store:
    """The store at a path, a ``file://`` URL, ``memory://name``, in a bucket or on HDFS. A store is returned as it is.

    Raises:
        MissingExtraError: the extra for stores of that kind is not installed.
        UsageError: it is none of these; the URL's scheme is unknown.
    """
    if isinstance(url, Store):
        return url
    if not isinstance(url, (str, os.PathLike)):
        raise UsageError(
            f"A store is a path, a URL or a Store, but {type(url).__qualname__} was given. Give for example "
            "'experiments' or 's3://bucket/prefix'."
        )
    text = os.fspath(url)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
    if scheme is None or scheme[1].lower() == "file":
        return LocalStore(text)
    if scheme[1].lower() == "memory":
        parts = urlsplit(text)
        return _memory(parts.netloc, parts.path.strip("/"))
    if scheme[1].lower() in SCHEMES:
        return ObjectStore(text)
    if scheme[1].lower() in HDFS_SCHEMES:
        from hopyard.storage.hdfs import HDFSStore  # few programs need it

        return HDFSStore(text)
    raise _unknown_scheme(text, scheme[1].lower())


def _memory(name: str, prefix: str) -> Store:
    return MemoryStore(name or None).at(prefix)


def _unknown_scheme(url: str, scheme: str) -> UsageError:
    return UsageError(
        f"the store {url!r} has the scheme {scheme!r}, but a store is a path or begins with one of "
        f"{', '.join(s + '://' for s in _SCHEMES)}{nearest(scheme, _SCHEMES, '.')} Give one of these."
    )
