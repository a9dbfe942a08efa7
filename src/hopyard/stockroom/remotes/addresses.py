"""The remote that an address means: by a name that is known, by a URL, or by a folder."""

from __future__ import annotations

import os
from contextlib import suppress

from hopyard.errors import CorruptError, NotFoundError, UsageError
from hopyard.stockroom.git import HEAD_NAME, at
from hopyard.stockroom.remotes.known import KnownRemote, names, open_remote, recall
from hopyard.stockroom.remotes.repository import Repository
from hopyard.storage import LocalStore, Store, open_store
from hopyard.storage.names import path_given
from hopyard.wording import nearest

_ORIGIN = "origin"


def opened_remote(local: Store, given: str | os.PathLike[str]) -> Repository:
    """The remote that is meant: a name that is known in a repository, a URL or a folder."""
    return opened(local, meant(local, given))


def opened(local: Store, known: KnownRemote) -> Repository:
    """A remote, as transfers take it."""
    if not known.name:
        return Repository.at(open_store(known.url), is_remote=True)
    return open_remote(local, known)


def meant(local: Store, given: str | os.PathLike[str] | None, name: str | None = None) -> KnownRemote:
    """The remote that is meant; one that is not known has the name ``""`` unless it is to be remembered."""
    known = names(local)
    if given is None:
        if not known:
            raise NotFoundError(
                "no remote is known here. Give its address: stock.push('s3://bucket/prefix'), or hopyard stock "
                "push URL."
            )
        if _ORIGIN not in known and len(known) > 1:
            raise UsageError(f"which remote is meant? There are {', '.join(known)}. Name one.")
        return recall(local, _ORIGIN if _ORIGIN in known else known[0])
    text = given if isinstance(given, str) else str(path_given(given))
    if text in known:
        return recall(local, text)
    if isinstance(given, str) and not any(sign in text for sign in "/\\:.") and not path_given(text).is_dir():
        raise NotFoundError(
            f"no remote {text!r} is known here{nearest(text, known, '.')} Known are: {', '.join(known) or 'none'}. "
            f"A folder is written as ./{text}."
        )
    url = store_at(text).url
    for each in known:
        with suppress(CorruptError):  # of which verify tells
            if recall(local, each).url == url:
                return recall(local, each)
    if name is not None and name in known:
        raise UsageError(
            f"the name {name!r} is that of another remote, {recall(local, name).url}. Use another name."
        )
    return KnownRemote(name or ("" if _ORIGIN in known else _ORIGIN), url)


def store_at(address: str | os.PathLike[str]) -> Store:
    """The store at the address of a remote; at the folder of a working tree, the store of that tree's objects."""
    if not isinstance(address, str):
        address = path_given(address)
    store = open_store(os.fspath(address))
    head = store.path(HEAD_NAME)
    is_worked_in = head is not None and head.is_file()
    return (
        LocalStore(at(head.parent).objects) if head is not None and is_worked_in else store
    ).without_links()
