"""Roots of history: everything that leads to commits, and so to the objects that must stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.errors import CorruptError, HopyardError, NotFoundError, StorageError, UsageError
from hopyard.stockroom.git import Place, commits_in_history, read
from hopyard.stockroom.history.locks import read_commits
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.stockroom.history.pending import read_pending
from hopyard.stockroom.history.references import ReferenceLog, logs
from hopyard.stockroom.history.stage import read_entry, stages
from hopyard.stockroom.maintenance.heads import heads
from hopyard.stockroom.maintenance.walk import Walk, is_missing
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.records import parse
from hopyard.storage import Store
from hopyard.storage.small import get_small

_DIGEST = re.compile(rb"(?<![0-9A-Za-z])[0-9a-f]{64}(?![0-9A-Za-z])")


@dataclass
class Roots:
    """The names and writes that lead to commits.

    Attributes:
        commits: digest to what names it. They should be here.
        others: the same of commits that need not be here: git's history may name those of another clone.
        staged: store's name and write, of all stages.
        failures: by the store's name, what could not be read.
        logs: of all references.
    """

    commits: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    staged: list[tuple[str, WriteOperation]] = field(default_factory=list)
    failures: dict[str, HopyardError] = field(default_factory=dict)
    logs: list[ReferenceLog] = field(default_factory=list)

    def walk(self, objects: Objects) -> Walk:
        """Go through all that they need."""
        walk = Walk(objects)
        walk.commits(self.commits)
        for name, operation in self.staged:
            try:
                for shelf, thing, value in operation.things:
                    if value is not None:
                        walk.record(f"{shelf}/{thing}", parse(value, f"{shelf}/{thing}"), name)
            except HopyardError as error:
                self.failures[name] = error
        known = set(walk.found)
        walk.commits(self.others)
        for digest in walk.found.keys() - known:
            # What another clone has and this one has not is no damage here.
            if digest in walk.failures and is_missing(walk.failures[digest]):
                del walk.failures[digest]
                del walk.found[digest]
        return walk


def roots_of_store(store: Store) -> Roots:
    """The roots of the repository itself: branches, tags, remote-tracking references, logs of working trees, stages."""
    roots = Roots()
    roots.logs, foreign = logs(store)
    roots.failures |= foreign
    for log in roots.logs:
        roots.failures |= log.failures
        # Of a working tree all commits at which it ever was: no branch may have them.
        last = list(log.entries.values())[-1:]
        for move in log.entries.values() if log.name.startswith("worktrees/") else last:
            if move.commit is not None:
                roots.commits.setdefault(move.commit, log.name)
    _add_stages(store, roots)
    return roots


def _add_stages(store: Store, roots: Roots) -> None:
    for entry in store.list("stage"):
        parts = entry.name.split("/")
        if parts[-1].endswith(".lock"):
            continue
        if len(parts) != 4:  # a commit that is under way
            try:
                data = get_small(store, entry.name)
                roots.others.update((digest, entry.name) for digest in _digests(data))
                read_pending(store, entry.name)
            except NotFoundError:
                continue
            except StorageError as error:
                roots.failures[entry.name] = error
            continue
        if re.fullmatch("[0-9a-f]{64}", parts[2]):
            roots.commits.setdefault(parts[2], f"stage/{parts[1]}")
        try:
            # Also what was cleared, and is not deleted yet: it does no harm.
            roots.staged += [
                (entry.name, WriteOperation.decode(each)) for each in read_entry(store, entry.name).operations
            ]
        except NotFoundError:
            continue
        except StorageError as error:
            roots.failures[entry.name] = error
    roots.failures |= folders_for_locks(store)
    for stage in stages(store):
        if not any(name.startswith(f"{stage.prefix}/") for name in roots.failures):
            try:
                stage.entries()
            except StorageError as error:
                roots.failures[stage.prefix] = error


def folders_for_locks(store: Store) -> dict[str, CorruptError]:
    """By the name of a lock of working trees: that it is a folder."""
    folder = store.path("stage")
    found = sorted(path for path in folder.glob("*.lock") if path.is_dir()) if folder is not None else []
    return {
        f"stage/{path.name}": CorruptError(
            "it is a folder, and should be the file of a lock, so nothing can be written. Delete it; if it is empty, "
            "--repair does so"
        )
        for path in found
    }


def all_roots(store: Store, place: Place | None) -> Roots:
    """The roots of a store, of git and of readers. For who holds ``collecting``.

    Raises:
        StorageError: git's history cannot be read, so it is not known what is needed.
    """
    roots = roots_of_store(store)
    roots.others.update((commit, "an open reader") for commit in read_commits(store))
    if place is not None:
        roots.others.update((commit, "git's history") for commit in commits_in_history(place))
        for file in heads(place):
            _add_head(roots, file)
    return roots


def _add_head(roots: Roots, file: Path) -> None:
    """All digests in a ``head.stock``, also where git has left a conflict. What says nothing may have said much."""
    try:
        read(file)
    except UsageError:
        pass
    except StorageError as error:
        roots.failures[str(file)] = error
        return
    roots.others.update((digest, str(file)) for digest in _digests(file.read_bytes()))


def check(roots: Roots, walk: Walk, url: str) -> None:
    """See that all that is needed is known.

    Raises:
        CorruptError: it is not; lists what cannot be read.
    """
    failed = [f"{name}: {error}" for name, error in roots.failures.items()]
    failed += [f"{walk.needed_by(name)}: {error}" for name, error in walk.failures.items()]
    if failed:
        listed = "".join(f"\n    {line}" for line in failed[:5])
        raise CorruptError(
            f"not everything in {url} can be read, so what is needed is not known, and nothing was deleted:{listed}\n"
            "Verify lists all of it, and repairs it from a remote: hopyard stock verify"
        )


def _digests(data: bytes) -> Iterator[str]:
    return (found.decode() for found in _DIGEST.findall(data.lower()))
