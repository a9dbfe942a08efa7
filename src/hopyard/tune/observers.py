"""Observers of a run: the display, TensorBoard files, the user's callbacks."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

from hopyard.hopper.hopper import Observer
from hopyard.hopper.state import RunState
from hopyard.storage import Store
from hopyard.storage.hdfserrors import HDFS_SCHEMES
from hopyard.storage.oserrors import write_errors
from hopyard.tune.arguments import Arguments
from hopyard.tune.callbacks import observer_of
from hopyard.tune.progress import ProgressDisplay


def observers_of(arguments: Arguments, progress: ProgressDisplay, state: RunState) -> list[Observer]:
    """The observers that a search's arguments ask for."""
    observers: list[Observer] = [progress]
    logs = _logs(arguments.store, arguments.logdir)
    if logs is not None:
        from hopyard.tune.tensorboard import TensorBoard  # takes long to import

        observers.append(TensorBoard(logs, state.header["created"]))
    return observers + observer_of(arguments.callbacks)


def import_ahead(store: Store, logdir: str | os.PathLike[str] | None = None) -> None:
    """Import what ``observers_of`` takes long to import, while others do something else."""
    if _logs(store, logdir) is not None:
        threading.Thread(target=_import_tensorboard, name="hopyard-import", daemon=True).start()


def _import_tensorboard() -> None:
    with suppress(Exception):  # whoever needs it says so
        import_module("hopyard.tune.tensorboard")


def _logs(store: Store, logdir: str | os.PathLike[str] | None) -> Path | Store | None:
    """Directory of TensorBoard files, or a store that takes them; None for other stores, without ``logdir``."""
    logs = logs_directory(store, logdir)
    if logs is None and urlsplit(store.logs.url).scheme in HDFS_SCHEMES:
        return store.logs
    return logs


def check_logs(arguments: Arguments) -> None:
    """Raise NotWritableError, or another error of stores, if logs cannot be written where they should go."""
    logs = logs_directory(arguments.store, arguments.logdir)
    if logs is None:
        return
    with write_errors(logs):
        logs.mkdir(parents=True, exist_ok=True)
        if not os.access(logs, os.W_OK):
            raise PermissionError(errno.EACCES, "no right to write")


def logs_directory(store: Store, logdir: str | os.PathLike[str] | None) -> Path | None:
    """Directory of TensorBoard files; None for a store that is no directory, without ``logdir``."""
    if logdir is not None:
        return Path(logdir).expanduser().absolute()
    inside = store.logs.path("run")
    return None if inside is None else inside.parent
