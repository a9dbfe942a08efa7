"""The remotes a repository knows, each a JSON object ``remotes/<name>``, without secrets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.errors import CorruptError, NotFoundError, UsageError
from hopyard.stockroom.history.references import check_name
from hopyard.stockroom.records import parsing
from hopyard.stockroom.records.quoting import quoted, unquoted
from hopyard.stockroom.remotes.repository import Repository
from hopyard.storage import Store, open_store
from hopyard.storage.format import check_format, format_header
from hopyard.storage.small import get_small
from hopyard.wording import nearest

_KIND = "remote"
_MOST = 1 << 26  # bytes: about 600,000 tags


@dataclass(frozen=True)
class KnownRemote:
    """A remote.

    Attributes:
        name: here.
        url: where it is.
        default: its default branch; None: not known.
        claimed: of how many fragments it said, when it was fetched from last, that samples were purged, which nobody
            accepted here.
        tags: its tags, as they were last seen, and their commits.
    """

    name: str
    url: str
    default: str | None = None
    claimed: int = 0
    tags: dict[str, str] = field(default_factory=dict)


def remember(local: Store, remote: KnownRemote) -> None:
    """Write it down, durably; what was known under the name is replaced.

    Raises:
        UsageError: it is no name for a remote.
    """
    if "/" in remote.name:
        raise UsageError(
            f"the remote's name {remote.name!r} has a slash. Use a plain name, such as 'origin'."
        )
    check_name(f"remotes/{remote.name}/x")
    value = {
        "claimed": remote.claimed,
        "default": remote.default,
        "format": format_header(_KIND),
        "tags": remote.tags,
        "url": remote.url,
    }
    local.put(_object(remote.name), json.dumps(value, sort_keys=True).encode())


def forget(local: Repository, name: str, by: str = "") -> None:
    """Forget a remote, and what its branches were.

    Raises:
        NotFoundError: there is none of this name.
    """
    recall(local.store, name)
    for branch in local.references.names("remotes"):
        if branch.startswith(f"{name}/"):
            local.references.set(f"remotes/{branch}", None, by)
    local.store.delete(_object(name))


def names(local: Store) -> list[str]:
    """The names of all remotes, in order."""
    return sorted(unquoted(entry.name.partition("/")[2]) for entry in local.list("remotes"))


def recall(local: Store, name: str) -> KnownRemote:
    """A remote as it is known here.

    Raises:
        NotFoundError: there is none of this name; CorruptError: it cannot be read.
    """
    if not local.exists(_object(name)):
        known = names(local)
        raise NotFoundError(
            f"no remote {name!r} is known here{nearest(name, known, '.')} Known are: {', '.join(known) or 'none'}. "
            "Give the address of one: stock.push('s3://bucket/prefix')."
        )
    where = f"{local.url}/{_object(name)}"
    try:
        value = json.loads(get_small(local, _object(name), _MOST))
        check_format(value["format"], _KIND, where=where)
        tags = {tag: parsing.digest(commit) for tag, commit in value["tags"].items()}
        return KnownRemote(name, value["url"], value["default"], parsing.whole(value["claimed"]), tags)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"{where} cannot be read ({type(error).__name__}: {error}). Delete it, and give the remote's address "
            "again."
        ) from error


def open_remote(local: Store, known: KnownRemote, store: Store | None = None) -> Repository:
    """The remote, as transfers take it; what its packfiles hold is remembered here.

    Args:
        store: the remote's, if it was opened already.
    """
    return Repository.at(store or open_store(known.url), index_of(local, known.name), name=known.name)


def index_of(local: Store, name: str) -> Path | None:
    """The SQLite file for what a remote's packfiles hold; None: the repository is not of files."""
    return local.path(f"index-{quoted(name)}.sqlite")


def _object(name: str) -> str:
    return f"remotes/{quoted(name)}"
