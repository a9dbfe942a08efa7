"""Files and folders that appear, or are replaced, when they are whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from hopyard.errors import UsageError
from hopyard.storage.oserrors import write_errors
from hopyard.storage.temporary import temporary_name


def replaced(file: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` write a file or folder, which then replaces what is at ``file``: a file, or an empty folder.

    Raises:
        UsageError: a folder with something in it is there, or a file where a folder is to be; or it has no name.
    """
    if file.name in ("", ".."):
        raise UsageError(
            f"{os.fspath(file)!r} is no name of a file or folder that can be made. Give one that is."
        )
    temporary = file.with_name(file.name + temporary_name())
    try:
        with write_errors(file):
            write(temporary)
            if file.is_dir() and any(file.iterdir()):
                raise UsageError(f"the folder {file} is not empty. Give another one, or empty it.")
            if file.is_dir():
                file.rmdir()
            elif temporary.is_dir() and os.path.lexists(file):
                raise UsageError(
                    f"a folder was to be written to {file}, but a file is there. Give another one."
                )
            temporary.replace(file)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)
