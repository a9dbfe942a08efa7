"""Files that rows of a dataset name, by a path or a URL, read as a whole."""

from __future__ import annotations

import errno
import os
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from hopyard.data.files.found import is_url
from hopyard.errors import NotFoundError, UsageError
from hopyard.storage import open_store
from hopyard.storage.base import Store
from hopyard.storage.oserrors import read_error
from hopyard.wording import shortened

Root: TypeAlias = str | Store | None
"""What relative paths are relative to: an absolute path, a URL or a store; None: nothing."""

_STORES = 64  # buckets and the like that names lead to; each keeps connections


def checked_root(root: str | os.PathLike[str] | Store | None) -> Root:
    """The root that a user gave, a path as an absolute one.

    Raises:
        UsageError: it is neither a path nor a URL nor a store.
    """
    if root is None:
        return None
    if isinstance(root, Store):
        # One of this machine as its folder: others named the files in it, maybe as no store would.
        there = root.path("file")
        return root if there is None else str(there.parent)
    if not isinstance(root, (str, os.PathLike)) or not isinstance(os.fspath(root), str):
        raise UsageError(
            f"root={root!r} must be the folder, the URL or the store that names of files are relative to, or None."
        )
    text = os.fspath(root)
    return text if is_url(text) else str(Path(_local(text)).absolute())


def described_root(root: Root) -> str | None:
    """The root for digests."""
    return root.url if isinstance(root, Store) else root


def read_named(name: str, root: Root) -> bytes:
    """The bytes of the file or object of that path or URL; a relative path is one below ``root``.

    Raises:
        NotFoundError: there is none.
        StorageError: it cannot be read.
        UsageError: the path is relative, and there is no root; no store has URLs of that kind.
    """
    if is_url(name):
        parts = urlsplit(name)
        place, key = f"{parts.scheme}://{parts.netloc}", name.partition("://")[2].partition("/")[2]
        return _store(place).get(key)
    path = _local(name)
    if not os.path.isabs(path):  # noqa: PTH117, the name is a text
        if root is None:
            raise UsageError(
                f"the file {name!r} is named by a relative path, and nothing says what it is relative to. Give "
                "image(root=...): a folder, a URL or a store; or name files by absolute paths or URLs."
            )
        if isinstance(root, Store):
            return root.foreign().get(name)
        if is_url(root):
            return _store(root).get(name)
        path = f"{root}/{path}"
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"there is no file {path}. Mend the name, or remove the row.") from error
    except (IsADirectoryError, ValueError) as error:  # a null byte in the name
        why = "is a directory" if isinstance(error, IsADirectoryError) else f"is no name of a file ({error})"
        raise NotFoundError(f"{path!r} {why}. Mend the name, or remove the row.") from error
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise NotFoundError(
                f"there is no file {shortened(path)} ({error.strerror}). Mend the name, or remove the row."
            ) from error
        raise read_error(name, error) from error


def _local(name: str) -> str:
    return unquote(urlsplit(name).path) if name.startswith("file://") else name


@lru_cache(_STORES)
def _store(url: str) -> Store:
    return open_store(url).foreign()
