"""Content of the node cache, by the files that it was decoded from."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hopyard.data.cache.node import CacheEntry, NodeCache
from hopyard.terminal import Shown
from hopyard.wording import describe_bytes, visible

_UNNAMED = "(no file named)"


@dataclass(frozen=True)
class CachedFile:
    """Data of one file in the node cache, in all versions and choices of columns that were read.

    Attributes:
        file: path or URL of the file; of small files that are kept together, their folder.
        entries: number of entries; row_groups: number of row groups in them.
        nbytes: bytes of all entries; used: time when one was used last, seconds since the epoch.
    """

    file: str
    entries: int
    row_groups: int
    nbytes: int
    used: float


@dataclass(frozen=True)
class CacheListing(Shown):
    """A node cache: its place, its limit in bytes, and its content, most recently used files first."""

    path: str
    limit: int
    files: tuple[CachedFile, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return sum(each.nbytes for each in self.files)

    def __rich__(self) -> RenderableType:
        entries = sum(each.entries for each in self.files)
        used = f"{describe_bytes(self.nbytes)} of at most {describe_bytes(self.limit)}"
        said = f"{self.path}: {entries:,} entries, {used}"
        if not self.files:
            return Text(said)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("last used", "entries", "row groups", "size", "decoded from"):
            table.add_column(
                title, justify="left" if title in ("last used", "decoded from") else "right", no_wrap=True
            )
        table.columns[-1].no_wrap = False
        table.columns[-1].overflow = "fold"
        for each in self.files:
            used = datetime.datetime.fromtimestamp(each.used).strftime("%Y-%m-%d %H:%M")
            cells = (
                used,
                f"{each.entries:,}",
                f"{each.row_groups:,}",
                describe_bytes(each.nbytes),
                each.file,
            )
            table.add_row(*map(Text, map(visible, cells)))
        return Group(table, Text(said))


def list_cache(cache: NodeCache | None = None) -> CacheListing:
    """List the content of a node cache, by default of this machine's. Entries do not count as used by that.

    Raises:
        UsageError: the directory holds other files and is not a cache's.
    """
    cache = cache or NodeCache()
    files = _by_file(cache.entries())
    return CacheListing(str(cache.path), cache.limit, tuple(sorted(files, key=lambda each: -each.used)))


def _row_groups(entry: CacheEntry) -> dict[str, list[Any]]:
    """Row groups that an entry was decoded from, by file."""
    found: dict[str, list[Any]] = entry.description.get("row_groups", {})
    return found


def _source(files: Sequence[str]) -> str:
    """A file, or the folder of several."""
    if len(files) < 2:
        return files[0] if files else _UNNAMED
    folders = zip(*(file.split("/")[:-1] for file in files), strict=False)
    return "/".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, folders)) or _UNNAMED


def _by_file(entries: Iterable[CacheEntry]) -> list[CachedFile]:
    by_file: dict[str, list[CacheEntry]] = {}
    for entry in entries:
        by_file.setdefault(_source(list(_row_groups(entry))), []).append(entry)
    return [
        CachedFile(
            file,
            len(its),
            len(
                {(name, group) for entry in its for name, all in _row_groups(entry).items() for group in all}
            ),
            sum(entry.nbytes for entry in its),
            max(entry.used for entry in its),
        )
        for file, its in by_file.items()
    ]
