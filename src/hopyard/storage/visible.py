"""Waiting until this machine sees what other machines have written."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from hopyard.errors import StorageError
from hopyard.storage.base import Store
from hopyard.wording import counted

_WAIT_SECONDS = 30.0
_LOOK_SECONDS = 0.1


def wait_for_objects(
    store: Store, sizes: Mapping[str, int], who: str, seconds: float = _WAIT_SECONDS
) -> None:
    """Return once all objects are to be seen here: network file systems may take a moment.

    Args:
        sizes: of each object, in bytes.
        who: wrote them, as messages call it.

    Raises:
        StorageError: some are not after so long; names them.
    """
    end = time.monotonic() + seconds
    while missing := [name for name, size in sizes.items() if store.size(name) != size]:
        if time.monotonic() > end:
            raise StorageError(
                f"{who} wrote {counted(len(sizes), 'file')} into {store.url}, but {len(missing)} of them are not there "
                f"for this machine: {', '.join(missing[:3])}. It must be a place that all machines share: a bucket, or "
                "a directory that is mounted under the same path everywhere, such as file:///dbfs/... or /Volumes/..."
            )
        threading.Event().wait(_LOOK_SECONDS)
