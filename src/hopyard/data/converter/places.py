"""Places of converters' files: the parent directory from Spark's configuration, and the forms of its URL."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import quote

from hopyard.errors import UsageError
from hopyard.storage import open_store
from hopyard.storage.base import Store

PARENT_CACHE_DIR_URL_CONF = "spark.hopyard.converter.parentCacheDirUrl"
_ALSO = (
    "hopyard.converter.parentCacheDirUrl",
    "hopyard.spark.converter.parentCacheDirUrl",
    "petastorm.spark.converter.parentCacheDirUrl",
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_MOUNTED = ("/dbfs", "/Volumes")  # of Databricks: paths of these are understood without a scheme


def parent_url(session: Any) -> str:
    """The directory that a session's converters write below, as a URL without a slash at its end.

    Raises:
        UsageError: it is not set, has no scheme, or is no directory that several processes share.
    """
    for key in (PARENT_CACHE_DIR_URL_CONF, *_ALSO):
        if value := session.conf.get(key, None):
            return cache_url(value, key)
    raise UsageError(
        f"{PARENT_CACHE_DIR_URL_CONF} is not set, so there is no place for the converter's files. Set a directory that "
        f"the executors and this machine share: spark.conf.set({PARENT_CACHE_DIR_URL_CONF!r}, "
        "'file:///dbfs/tmp/cache')."
    )


def cache_url(url: str, key: str = PARENT_CACHE_DIR_URL_CONF) -> str:
    """A parent directory's URL in its one form: ``file:///path``, or that of a bucket.

    ``dbfs:/x``, ``dbfs:///x``, ``/dbfs/x`` and ``file:/dbfs/x`` are ``file:///dbfs/x``; ``/Volumes/x`` and
    ``dbfs:/Volumes/x`` are ``file:///Volumes/x``.

    Raises:
        UsageError: it has no scheme, or one that processes do not share or Hopyard does not open.
    """
    text = plain_path(url)
    if isinstance(text, str) and not text.startswith(("/", "file:")) and _SCHEME.match(text) is None:
        raise _without_scheme(url, key)
    if text.startswith("/"):
        if not text.startswith(tuple(f"{place}/" for place in _MOUNTED)):
            raise _without_scheme(url, key)
        return f"file://{quote(text)}"
    if text.startswith("memory:"):
        raise UsageError(
            f"{key} is {url!r}, but memory is not shared with Spark's executors. Set a directory that they and this "
            "machine share, as 'file:///dbfs/tmp/cache', or a bucket."
        )
    return store_url(open_store(text))


def plain_path(url: str) -> str:
    """A URL of a local file system or of Databricks as a path; any other as it is, without slashes at its end."""
    if not isinstance(url, (str, os.PathLike)) or not os.fspath(url):
        raise UsageError(f"{url!r} is no URL of a directory. Give one, as 'file:///dbfs/tmp/cache'.")
    text = os.fspath(url)
    found = _SCHEME.fullmatch(text)
    if found is not None and found[1].lower() == "dbfs":
        path = "/" + found[2].strip("/")
        return path if path.startswith(_MOUNTED[1] + "/") else _MOUNTED[0] + path
    if found is not None and found[1].lower() == "file":
        path = found[2].rstrip("/")
        return f"file://{path}" if not path.startswith("//") else f"file:{path}"
    return text.rstrip("/") or text


def store_url(store: Store) -> str:
    """The URL of a store, also of a directory."""
    return store.url if "://" in store.url else f"file://{quote(store.url)}"


def _without_scheme(url: str, key: str) -> UsageError:
    path = os.path.abspath(url)  # noqa: PTH100
    return UsageError(
        f"{key} is the scheme-less {url!r}, which executors and this machine may take for different places. Write "
        f"'file://{path}', 'dbfs:/...' or the URL of a bucket."
    )
