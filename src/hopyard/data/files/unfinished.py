"""Files of a preparation before its manifest is there, under names that nobody takes for a dataset's.

Where a store has paths, a file ends in ``.parquet.unfinished`` until all are written; then all are renamed, and the
manifest is written. A store without paths cannot rename: there, files have their names at once, and only that the
manifest is missing tells them from a dataset. What a killed preparation left is found again by the next one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

from hopyard.data.files.listed import is_whole
from hopyard.data.files.stored import StoredFile
from hopyard.data.layout import METADATA_KEY
from hopyard.data.manifest import MANIFEST_NAME, Manifest
from hopyard.errors import CorruptError, DataError, NotFoundError
from hopyard.storage import files
from hopyard.storage.base import Store
from hopyard.wording import counted

UNFINISHED = ".unfinished"

_OWN_NAME = re.compile(r"[0-9a-f]{64}\.parquet")


def unfinished_name(store: Store, name: str) -> str:
    """Name of a file of a dataset until the manifest is about to be written."""
    return name if store.path(name) is None else name + UNFINISHED


def finish_names(store: Store, manifest: Manifest) -> None:
    """Give all files of a dataset their names."""
    folders = set()
    for entry in manifest.files:
        path, unfinished = store.path(entry.name), store.path(entry.name + UNFINISHED)
        if path is None or unfinished is None or not unfinished.exists():
            continue
        if is_whole(store, entry):
            files.unlink_quietly(unfinished)  # another preparation of the same data was faster
            continue
        # Another preparation of the same data, which writes the same bytes, may give the file its name at any moment.
        with contextlib.suppress(FileNotFoundError):
            files.rename(unfinished, path)
            folders.add(path.parent)
    for folder in folders:
        files.sync(folder)


def written_sizes(store: Store, manifest: Manifest) -> dict[str, int]:
    """The files of a dataset under the names that they have now, with their sizes."""
    return {
        entry.name if store.size(entry.name) == entry.size else unfinished_name(store, entry.name): entry.size
        for entry in manifest.files
    }


def refuse_leftovers(names: Iterable[str], store: Store | None, where: str) -> None:
    """Look whether files that stand side by side with no manifest are leftovers of a preparation.

    Args:
        names: of files; at paths if ``store`` is None.

    Raises:
        DataError: some are; says what to do.
    """
    names = list(names)
    with_manifest = {_folder(name) for name in names if _base(name) == MANIFEST_NAME}
    alone = [name for name in names if _folder(name) not in with_manifest]
    unfinished = [name for name in alone if _OWN_NAME.fullmatch(_base(name).removesuffix(UNFINISHED))]
    left = [name for name in unfinished if name.endswith(UNFINISHED) or _is_own(store, name)]
    if left:
        raise DataError(
            f"{where} holds {counted(len(left), 'file')} of a prepared dataset, such as {_base(left[0])}, but no "
            f"{MANIFEST_NAME} beside them: the preparation was not finished, or the manifest was deleted, so nobody "
            "knows whether all rows are there. Prepare the same data with the same arguments again: it takes up what "
            "is there and finishes the dataset. (Or delete these files.)"
        )


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _is_own(store: Store | None, name: str) -> bool:
    """Whether Hopyard wrote the file; True also if it cannot be read."""
    if store is None and not Path(name).is_file():
        return False
    try:
        return METADATA_KEY in (StoredFile.open(store, name).footer.metadata or {})
    except CorruptError:
        return True
    except NotFoundError:
        return False
