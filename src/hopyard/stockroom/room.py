"""StockRoom: what users open."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from hopyard.errors import UsageError
from hopyard.stockroom.care.heads import likely
from hopyard.stockroom.care_calls import CareCalls
from hopyard.stockroom.git import at, prepare, write
from hopyard.stockroom.history.references import logs
from hopyard.stockroom.importers.registry import open_importer
from hopyard.stockroom.importers.run import Progress
from hopyard.stockroom.importing import Imported, import_columns
from hopyard.stockroom.looking.exporting import export
from hopyard.stockroom.remotes import KIND
from hopyard.storage import LocalStore
from hopyard.storage.format import FORMAT_NAME, claim_format
from hopyard.storage.names import path_given
from hopyard.storage.oserrors import write_errors


class StockRoom(CareCalls):
    """Versions of data, models and experiments, beside git.

    >>> stock = StockRoom.init("repo")
    >>> with stock.enable_write():
    ...     stock.data["image"] = images
    ...     stock.model["resnet"] = net.state_dict()
    ...     stock.experiment["lr"] = 0.01

    Opened for reading, it shows one commit, also if others are made meanwhile, until something of its own moves it: a
    block, ``switch``, ``merge``, ``pull``. Opened with ``enable_write=True``, it shows what is staged as well: what is
    written outside of a block is staged at once, durably, and read at once, until :meth:`commit`.

    What the shelves have handed out stays what it was, whatever happens to the stockroom. Threads may share a
    stockroom; a block belongs to the thread, asyncio task and process that opened it, see :meth:`enable_write`. Each
    process that writes opens its own. Pickled, one that is open for reading becomes its revision.

    Args:
        path: a folder in it; None: the current one. The nearest ``head.stock`` upwards says where it is.
        enable_write: for writing outside of blocks, too.
        fetch: ``"never"``: reading what is not here is an error, which says which call would bring it.

    Raises:
        NotFoundError: there is no stockroom, or its objects are not here. FormatError: a newer version wrote it.
    """

    @classmethod
    def init(cls, path: str | os.PathLike[str] = ".", enable_write: bool = False) -> Self:
        """Make a stockroom in a folder, which is made if need be. Its first branch is ``main``; where git is at another
        branch than ``main`` or ``master``, that of the same name.

        In a git repository its objects are kept in git's own directory; ``head.stock`` is to be added to git.

        Raises:
            UsageError: there is one already.
        """
        folder = path_given(path)
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        place = at(folder)
        store = LocalStore(place.objects).without_links()
        exists = store.exists(FORMAT_NAME)
        if place.head.is_dir():
            raise UsageError(
                f"{place.head} is a folder, but the file that says where a working tree is has that name. Move the "
                "folder away, then run this again."
            )
        if place.head.exists():
            raise UsageError(
                f"{place.root} is a stockroom already. Open it: StockRoom({str(place.root)!r})."
                if exists
                else f"{place.head} is there already, but the objects are not: git does not carry them. Bring them "
                f"from where they were pushed: hopyard stock clone URL {place.root}"
            )
        prepare(place)
        claim_format(store, KIND)
        # Objects may be there: somebody deleted head.stock.
        write(place.head, likely(place, logs(store)[0]), place.id)
        return cls(folder, enable_write)

    def import_from(
        self,
        importer: str,
        source: str | os.PathLike[str] | None = None,
        options: Mapping[str, str | bool | int] | None = None,
        processes: int = 0,
        message: str | None = None,
        watch: Callable[[Progress], None] | None = None,
        watch_download: Callable[[str, int, int | None], None] | None = None,
    ) -> Imported:
        """Import columns, and commit them. If it is interrupted, the same call goes on where it was.

        Args:
            importer: its name, as ``torchvision.cifar10`` or ``images``.
            source: a file or folder; None: downloaded, where the importer can.
            options: of the importer, as texts or values.
            processes: that read; 0: this one.
            message: of the commit; None: it names importer and source.
            watch, watch_download: told how far it is.

        Raises:
            UsageError: no such importer; something else is staged.
            DataError, CorruptError, ...: as the importer says. What was imported before stays staged.
        """
        self._check_open()
        with self.guard.write("stock.import_from()"):
            self._check_no_block("import")
        with open_importer(importer, source, options) as opened:
            opened.watch_download = watch_download
            with type(self)(self.place.root, enable_write=True) as writer:
                imported = import_columns(writer, importer, opened, processes, message, watch)
        with self.guard.write("stock.import_from()"):
            self._renew()
        return imported

    def export(self, path: str, target: str | os.PathLike[str]) -> Path:
        """Write something out of a shelf as a file; see :func:`hopyard.stockroom.looking.exporting.export`."""
        self._check_open()
        return export(self, path, target)
