"""Care of a stockroom: verify, gc, purge."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hopyard.stockroom import care
from hopyard.stockroom.care import Collected, PurgeReport, Verified
from hopyard.stockroom.git import Place, find
from hopyard.stockroom.guard import exclusive
from hopyard.stockroom.history.locks import Tell
from hopyard.stockroom.maps import Key
from hopyard.stockroom.remote_calls import RemoteCalls, opened_remote
from hopyard.stockroom.remotes import Repository
from hopyard.stockroom.typed_keys import TypedKey
from hopyard.storage import LocalStore
from hopyard.storage.names import path_given


class CareCalls(RemoteCalls):
    """The calls that keep a stockroom sound and small."""

    @staticmethod
    def verify_in(
        path: str | os.PathLike[str] | None = None,
        repair_from: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        repair: bool = False,
        remote: str | os.PathLike[str] | None = None,
    ) -> Verified:
        """Check every byte that is here against its digest, and that all is here that should be; also where damage
        lets no stockroom be opened.

        Args:
            path: a folder in a stockroom; None: the current one.
            repair_from: a remote or another clone from which to bring what is damaged or missing; None: nothing is
                changed, unless ``repair``.
            progress: told the bytes that are checked, and those of all.
            repair: without a remote, too: put back references from their copies, and what ``head.stock`` most likely
                said.
            remote: look there instead; a name, URL or folder.

        Returns:
            All problems; ``.ok`` if there is none, or none is left.
        """
        place = find(None if path is None else path_given(path))
        return care.verify(*_chosen(place, repair_from, remote), progress=progress, repair=repair)

    def verify(
        self,
        repair_from: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        repair: bool = False,
        remote: str | os.PathLike[str] | None = None,
    ) -> Verified:
        """Check this stockroom as :meth:`verify_in` does, with the same arguments."""
        self._check_open()
        chosen = _chosen(self.place, repair_from, remote)
        verified = care.verify(*chosen, progress=progress, repair=repair)
        self._objects.refresh()
        return verified

    def gc(
        self, dry_run: bool = False, tell: Tell | None = None, remote: str | os.PathLike[str] | None = None
    ) -> Collected:
        """Delete what no branch, tag, remote's branch, staged write, open reader or git commit needs, and pack the rest
        anew.

        Args:
            dry_run: only say what would be done. tell: told, in words, if others are waited for.
            remote: do it there instead, where branches and tags alone lead to what is needed; a name, URL or folder.
                In a bucket only what was unneeded each time for 14 days is deleted.

        Raises:
            StorageError: somebody writes all the time, or git's history cannot be read. Nothing was deleted.
            UsageError: within a block.
        """
        if remote is not None:
            self._check_open()
            return care.gc(self._open(self._remote(remote)), None, dry_run, tell=tell)
        with self.guard.write("stock.gc()"):
            self._let_go("gc")
            collected = care.gc(self.local, self.place, dry_run, tell=tell)
            self._objects.refresh()
            return collected

    @exclusive
    def purge(
        self,
        column: str,
        key: Key | TypedKey | Sequence[Key | TypedKey],
        why: str = "no reason was given",
        shared: bool = False,
    ) -> PurgeReport:
        """Remove the values of samples from all of history, here, for good: for data that may not be kept. Commits
        stay, but the samples no longer count in them, and reading one by its key raises ``PurgedError``. Remotes follow
        when they are pushed to.

        Args:
            key: one, or a list.
            why: for the record, which stays.
            shared: purge them also from other columns which have equal samples under equal keys: these are stored as
                one. False: that is an error, which names the columns.

        Returns:
            What is gone, and where equal samples still are.

        Raises:
            NotFoundError: no version has such a sample. UsageError: within a block; or other columns share them.
                Nothing was changed.
        """
        repository = Repository(self.local.store, self._objects, self.local.references)
        with self._purging("purge"):  # what was staged of it is gone, too
            return care.purge(repository, column, key, why, self._author, self.place, shared=shared)


def _chosen(
    place: Place, repair_from: str | os.PathLike[str] | None, remote: str | os.PathLike[str] | None
) -> tuple[Repository, Repository | None, Place | None]:
    """The repository to verify, the one to repair it from, and the working tree of the first. All are opened anew,
    since damage may let no stockroom be opened."""
    local = Repository.at(LocalStore(place.objects), place.objects / "index.sqlite")
    source = None if repair_from is None else opened_remote(local.store, repair_from)
    return (local, source, place) if remote is None else (opened_remote(local.store, remote), source, None)
