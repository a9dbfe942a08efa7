"""Verify: everything that can be wrong with a repository, and repairing it from a remote."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from hopyard.errors import (
    CorruptError,
    FormatError,
    HopyardError,
    KindError,
    NotFoundError,
    NotWritableError,
    StorageError,
    UsageError,
)
from hopyard.stockroom.data.fragments import Fragment
from hopyard.stockroom.data.gathering import fragment_of
from hopyard.stockroom.data.purging import is_stand_in
from hopyard.stockroom.data.repacking import buried
from hopyard.stockroom.data.rows import encoded
from hopyard.stockroom.git import Head, Place, read, write
from hopyard.stockroom.history.commits import is_ancestor
from hopyard.stockroom.history.locks import writing
from hopyard.stockroom.history.stage import stages
from hopyard.stockroom.maintenance.checking import CheckedFile, Progress, check_all
from hopyard.stockroom.maintenance.heads import described, heads, likely, nearest, rewrite
from hopyard.stockroom.maintenance.problems import Problem, ProblemKind, Unproven, Verified
from hopyard.stockroom.maintenance.repairing import fetch, put_aside, repair_logs, set_aside
from hopyard.stockroom.maintenance.roots import Roots, folders_for_locks, roots_of_store
from hopyard.stockroom.maintenance.walk import Walk
from hopyard.stockroom.maps import decode
from hopyard.stockroom.models import read_model
from hopyard.stockroom.packfiles.layout import is_packfile
from hopyard.stockroom.packfiles.tombstones import FOLDER, Tombstone, Tombstones, unproven
from hopyard.stockroom.packfiles.tombstones import read as read_tombstone
from hopyard.stockroom.remotes import KIND, Repository, check_format, names, recall
from hopyard.stockroom.remotes.addresses import opened_remote
from hopyard.stockroom.remotes.purges import prove
from hopyard.stockroom.remotes.returning import Returned, Returning
from hopyard.storage import LocalStore, Store, files
from hopyard.storage.format import FORMAT_NAME, format_header, root_format

_HEAD = "head.stock"  # how problems call that of the working tree that is looked at


def verify_place(
    place: Place,
    repair_from: str | os.PathLike[str] | None,
    progress: Callable[[int, int], None] | None,
    repair: bool,
    remote: str | os.PathLike[str] | None,
) -> Verified:
    """Verify the repository at a place, or a remote of it; see ``StockRoom.verify_in``. All are opened anew,
    since damage may let no stockroom be opened."""
    local = Repository.at(LocalStore(place.objects), place.objects / "index.sqlite")
    source = None if repair_from is None else opened_remote(local.store, repair_from)
    if remote is None:
        return verify(local, source, place, progress=progress, repair=repair)
    return verify(opened_remote(local.store, remote), source, None, progress=progress, repair=repair)


def verify(
    repository: Repository,
    repair_from: Repository | None = None,
    place: Place | None = None,
    *,
    progress: Progress | None = None,
    repair: bool = False,
) -> Verified:
    """Check all bytes, references, stages, ``head.stock`` and what they need. Others may read and write meanwhile.

    Args:
        repair_from: a remote that has what was damaged: what is missing or damaged is fetched from it, and damaged
            packfiles are replaced. None: nothing is changed, unless ``repair``.
        place: of the working tree; None: of a repository that has none, as a remote.
        progress: told the bytes that are checked, and those of all.
        repair: without a remote, too, repair what can be repaired from what is here: FORMAT, references,
            ``head.stock``.

    Raises:
        NotFoundError: there is no repository; FormatError: one of a newer version. Damage is reported, not raised.
    """
    if not _has_lost_format(repository.store):
        check_format(repository.store)
    with _locked(repository.store, repair or repair_from is not None):
        verification = _Verification(repository, place)
        left = verification.examine(progress)
        seen = dict(left)
        while repair or repair_from is not None:
            # Again and again, since what was fetched may show that more is missing.
            if not verification.repair(repair_from):
                break
            left = verification.examine()
            seen |= left
        return verification.report(seen, left)


def _has_lost_format(store: Store) -> bool:
    """Whether a repository is there, and its FORMAT is not, or says nothing."""
    try:
        check_format(store)
    except (NotFoundError, CorruptError, KindError):  # no other kind has packfiles or references
        return next(store.list("packfiles"), None) is not None or next(store.list("refs"), None) is not None
    except FormatError:
        return False
    return False


@contextmanager
def _locked(store: Store, must: bool) -> Iterator[None]:
    """Nothing is collected meanwhile. Who may not write there, as on a medium that is read-only, can do without."""
    with ExitStack() as stack:
        try:
            stack.enter_context(writing(store))
        except NotWritableError:
            if must:
                raise
        yield


_Problems = dict[tuple[str, str], Problem]


class _Verification:
    def __init__(self, repository: Repository, place: Place | None) -> None:
        self._repository, self._store, self._place = repository, repository.store, place
        # Nothing is brought unasked, and what the caller's has read and checked before does not count.
        self._objects = repository.objects.alone()
        self._checked: dict[str, CheckedFile] = {}
        self._present: dict[str, int] = {}
        self._found: _Problems = {}
        self._walk = Walk(self._objects)
        self._lost: dict[str, str] = {}  # what should be here as it was written, and its kind
        self._away = 0
        self._roots = Roots()
        self._head: Head | None = None  # what head.stock should say, if it is damaged
        self._disproved: dict[str, str] = {}

    def examine(self, progress: Progress | None = None) -> _Problems:
        """All problems that there are now. Bytes that were found to be good are not read again."""
        known = {name: one for name, one in self._checked.items() if not one.reasons}
        self._checked = check_all(self._store, known, progress)
        self._present = {digest: size for one in self._checked.values() for digest, size in one.good.items()}
        self._found = {}
        packfiles = [one.packfile for one in self._checked.values() if one.packfile is not None]
        for name in self._objects.misremembered(packfiles):
            self._add("index", name, "the index says something else of it than its header; it is made anew")
        with suppress(StorageError):
            self._objects.rebuild()
        roots = self._roots = roots_of_store(self._store)
        self._add_heads(roots)
        self._walk = roots.walk(self._objects)
        self._add_unreadable(roots)
        self._add_lost(roots)
        for one in self._checked.values():
            for digest, reason in one.reasons.items():
                needed = self._walk.needed_by(digest) if digest not in self._present else ""
                if digest in self._present and is_packfile(one.name):
                    reason += "; it is whole in another packfile, and `hopyard stock gc` deletes this copy"
                self._add("damaged", one.name, reason, needed)
        return self._found

    def repair(self, remote: Repository | None) -> bool:
        """Put back what is known here, fetch what is lost, and replace what is damaged. Whether anything was done."""
        done = self._repair_format()
        done = repair_logs(self._store, self._roots.logs, remote) or done
        done = self._repair_head() or done
        done = self._repair_locks() or done
        done = self._repair_pending() or done
        done = self._repair_stages() or done
        return (remote is not None and self._repair_objects(remote)) or done

    def _repair_objects(self, remote: Repository) -> bool:
        done = self._repair_tombstones(remote) or self._compare_unproven(remote)
        damaged = [one for one in self._checked.values() if one.reasons and not one.is_newer]
        lost = dict(self._lost)
        for one in damaged:
            held = {} if one.packfile is None else one.packfile.objects
            lost |= {digest: place.kind for digest, place in held.items() if digest not in self._present}
            if not is_packfile(one.name):
                lost |= {digest: "file" for digest in one.reasons if digest}
        # Of a commit all metadata at once: a history that is lost is not asked for one commit after the other.
        follow = Walk(remote.objects)
        follow.commits({digest: "" for digest, kind in lost.items() if kind == "commit"})
        lost |= {
            digest: named.kind
            for digest, named in follow.found.items()
            if named.is_metadata and digest not in self._present
        }
        with suppress(StorageError):  # a tombstone that cannot be read is noted
            instead = Tombstones(self._store).instead(lost)
            lost = {instead.get(digest, digest): kind for digest, kind in lost.items()}
        came = fetch(remote, self._repository, lost)
        here = self._present.keys() | came
        packfiles = [one for one in damaged if is_packfile(one.name)]
        moved = [set_aside(self._repository, one, here) for one in packfiles]
        return bool(came or done) or any(moved)

    def _repair_tombstones(self, remote: Repository) -> bool:
        """Bring those that are damaged here. What else is purged there is accepted by fetch, not by a repair."""
        done = False
        for name in {name for name, _ in self._found if name.startswith(f"{FOLDER}/")}:
            with suppress(CorruptError, FormatError):  # neither is it one there
                size = remote.store.size(name)
                if size is not None:
                    data = read_tombstone(remote.store, name, size).encode()
                    done = self._store.size(name) != size or data != self._store.get(name) or done
                    self._store.put(name, data)
        return done

    def _compare_unproven(self, remote: Repository) -> bool:
        proved, disproved = prove(Repository(self._store, self._objects, self._repository.references), remote)
        self._disproved |= disproved
        return bool(proved or disproved)

    def _repair_format(self) -> bool:
        if not _has_lost_format(self._store):
            return False
        self._store.put(FORMAT_NAME, root_format(format_header(KIND)))
        return True

    def _repair_head(self) -> bool:
        if self._place is None or self._head is None:
            return False
        try:
            rewrite(self._place, self._head, self._store)
        except StorageError as error:
            self._add("unreadable", _HEAD, str(error))
            return False
        return True

    def _repair_locks(self) -> bool:
        """Delete empty folders that are where the files of locks should be."""
        done = False
        for name in folders_for_locks(self._store):
            path = self._store.path(name)
            if path is not None:
                with suppress(OSError):
                    files.remove_directory(path)
                    done = True
        return done

    def _repair_pending(self) -> bool:
        """Put aside what a commit was about to do, where that cannot be read; ``head.stock`` then goes where its branch
        has gone on to."""
        names = [name for name in self._roots.failures if name.endswith(".moving")]
        for name in names:
            put_aside(self._store, name)
            if self._place is not None and name == f"stage/{self._place.worktree}.moving":
                self._follow_branch(self._place)
        return bool(names)

    def _repair_stages(self) -> bool:
        """Put aside staged writes from the first one on that is damaged, or comes behind one that is missing."""
        done = False
        for stage in stages(self._store):
            if not any(
                name == stage.prefix or name.startswith(f"{stage.prefix}/") for name in self._roots.failures
            ):
                continue
            with stage.held() as log:
                last = log.intact()
                for number in reversed(stage.numbers()):
                    if last is None or number > last.number:
                        put_aside(self._store, f"{stage.prefix}/{number:012d}")
                log.keep(last)
            done = True
        return done

    def _follow_branch(self, place: Place) -> None:
        with suppress(HopyardError):
            head = read(place.head)
            tip = self._repository.references.tip(f"heads/{head.branch}").commit if head.branch else None
            if tip is not None and (head.commit is None or is_ancestor(self._objects, head.commit, tip)):
                write(place.head, Head(head.branch, tip))

    def report(self, seen: _Problems, left: _Problems) -> Verified:
        """Problems that were ``seen``, and repaired unless they are ``left``. The index heals by itself."""
        problems = [
            dataclasses.replace(problem, repaired=key not in left or problem.kind == "index")
            for key, problem in seen.items()
        ]
        problems += [Problem("purged", name, told, repaired=True) for name, told in self._disproved.items()]
        problems.sort(key=lambda problem: (problem.name, problem.reason))
        commits = sum(named.kind == "commit" for named in self._walk.found.values())
        nbytes = sum(self._present.values())
        return Verified(
            problems, len(self._present), nbytes, commits, self._away, self._unproven(), self._returned()
        )

    def _unproven(self) -> list[Unproven]:
        """The samples that rest on a remote's word, by column and purge."""
        found: dict[tuple[str, str, str, str, str], set[bytes]] = {}
        with suppress(StorageError):  # what cannot be read is noted
            every = Tombstones(self._store).all()
            for name, remote in unproven(self._store).items():
                best = every[name][0] if name in every else None
                if best is None or name in self._present or best.instead not in self._present:
                    continue  # nothing is read by it, or the fragment is here, with which it was compared
                fragment = Fragment(self._objects.read(best.instead))
                kept = [key for at, key in enumerate(encoded(fragment.keys)) if at not in fragment.purged]
                for one in best.purged if kept else ():
                    found.setdefault((best.column, remote, one.time, one.by, one.why), set()).update(kept)
        return [
            Unproven(column, [decode(key) for key in sorted(keys)], remote, time, by, why)
            for (column, remote, time, by, why), keys in sorted(found.items())
        ]

    def _returned(self) -> list[Returned]:
        """The samples that were purged and are there again, by column and purge."""
        with suppress(StorageError):  # what cannot be read is noted
            look = Returning(Tombstones(self._store).all(), self._objects)
            versions = {name: self._walk.columns.get(f"data/{name}", set()) for name in look.columns}
            return look.described(look.found(versions))
        return []

    def _add(self, kind: ProblemKind, name: str, reason: str, needed_by: str = "") -> None:
        self._found[name, reason] = Problem(kind, name, reason, needed_by)

    def _add_lost(self, roots: Roots) -> None:
        """Note what is needed and is not here as it was written, unless it is data that a remote has."""
        found, walk = self._walk.found, self._walk
        instead: dict[str, str] = {}
        with suppress(StorageError):  # one that cannot be read is noted
            instead = Tombstones(self._store).instead(found)
        lost = {
            digest: named.kind
            for digest, named in found.items()
            if digest not in self._present and instead.get(digest) not in self._present
        }
        away: set[str] = set()
        if any(not found[digest].is_metadata for digest in lost) and any(True for _ in names(self._store)):
            pushed = Walk(self._objects)
            with suppress(StorageError):  # a reference that cannot be read is noted
                pushed.commits(self._at_remotes())
            away = {digest for digest, named in pushed.found.items() if not named.is_metadata} & lost.keys()
        damaged = {digest for one in self._checked.values() for digest in one.reasons}
        had = self._objects.lost()
        was_here = {digest for digest in lost if digest in had or instead.get(digest) in had}
        away -= {digest for digest in lost if digest in damaged or instead.get(digest) in damaged} | was_here
        self._away = len(away)
        self._lost = {digest: kind for digest, kind in lost.items() if digest not in away}
        for digest, kind in self._lost.items():
            if digest not in damaged:
                how = "was here, and is not any more" if digest in was_here else "is not here"
                self._add("missing", digest, f"the {kind} {how}", walk.needed_by(digest))
        for digest, (record, entry) in walk.fragments.items():
            if digest in self._present:
                with self._noted(digest):
                    data = self._objects.read(digest, verify=False)
                    fragment_of(record, entry, data).check_content()
        for digest, (thing, model) in walk.models.items():
            if digest in self._present and digest not in walk.failures:
                with self._noted(digest):
                    content = read_model(self._objects, model, thing)
                    tensors = [entry.digest for entry in content.entries if entry.digest in self._present]
                    for reason in content.misfits(self._objects.locate_many(tensors)):
                        self._add("unreadable", digest, reason, walk.needed_by(digest))
        for digest, error in walk.failures.items():
            if digest in self._present:
                self._add("unreadable", digest, str(error), walk.needed_by(digest))

    def _at_remotes(self) -> dict[str, str]:
        """Commits that a remote has, as far as is known here, and the references that say so."""
        references = self._repository.references
        found = {commit: f"remotes/{name}" for name, commit in references.names("remotes").items()}
        here = references.names("tags")
        for remote in names(self._store):
            with suppress(HopyardError):  # one that cannot be read is noted
                tags = recall(self._store, remote).tags
                found |= {commit: f"tags/{tag}" for tag, commit in tags.items() if here.get(tag) == commit}
        return found

    def _add_heads(self, roots: Roots) -> None:
        """Note which ``head.stock`` cannot be read; where that of this working tree is, is needed."""
        self._head = None
        for file in [] if self._place is None else heads(self._place):
            own = self._place is not None and file == self._place.head
            try:
                head = read(file)
            except UsageError:
                continue  # a conflict of git, which says itself what to do
            except StorageError as error:
                reason = str(error).rstrip(".")
                if own and self._place is not None:
                    self._head = likely(self._place, roots.logs)
                    reason += f". Most likely it said {described(self._head)}: --repair writes that."
                self._add("unreadable", _HEAD if own else str(file), reason)
                continue
            if not own or head.commit is None:
                continue
            near = nearest(head.commit, roots.logs) if self._objects.missing([head.commit]) else None
            if near is None:
                roots.commits.setdefault(head.commit, _HEAD)
                continue
            self._head = Head(head.branch, near)
            self._add(
                "unreadable", _HEAD,
                f"it names the commit {head.commit}, which is not here. Most likely it said {described(self._head)}, "
                "and a digit has changed: --repair writes that.",
            )  # fmt: skip

    def _add_unreadable(self, roots: Roots) -> None:
        if _has_lost_format(self._store):
            with self._noted(FORMAT_NAME):
                check_format(self._store)
        for name, error in roots.failures.items():
            self._add("unreadable", name, str(error))
        tombstones = Tombstones(self._store)
        with self._noted(FOLDER):
            for several in tombstones.all().values():
                for tombstone in several:
                    self._check_tombstone(tombstone)
        for name, reason in tombstones.refused.items():
            self._add("unreadable", name, reason)
        with self._noted(FOLDER):
            for digest in sorted(buried(self._objects, tombstones)):
                self._add("purged", digest, "it was purged, but is still here; gc removes it")
        for remote in names(self._store):
            with self._noted(f"remotes/{remote}"):
                recall(self._store, remote)

    def _check_tombstone(self, tombstone: Tombstone) -> None:
        """Compare it with the fragment, or what stands in, whichever is here."""
        here = [one for one in (tombstone.object, tombstone.instead) if one in self._present]
        for digest in here:
            if not is_stand_in(self._objects.read(digest), tombstone):
                self._add(
                    "unreadable", tombstone.name, f"it is not true: {tombstone.instead} is not the fragment "
                    f"{tombstone.object} without the samples that it names. Delete this file",
                )  # fmt: skip

    @contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        """Make a problem of each error inside."""
        try:
            yield
        except HopyardError as error:
            self._add("unreadable", name, str(error))
