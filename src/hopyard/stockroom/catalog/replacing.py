"""Files and folders that appear, or are replaced, when they are whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from hopyard.errors import UsageError
from hopyard.storage.oserrors import write_errors
from hopyard.storage.temporary import temporary_name


def replaced(file: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` write a file or folder, which then replaces what is at ``file``: a file, or an empty folder.

    Raises:
        UsageError: a folder with something in it is there.
    """
    temporary = file.with_name(file.name + temporary_name())
    try:
        with write_errors(file):
            write(temporary)
            if file.is_dir() and any(file.iterdir()):
                raise UsageError(f"the folder {file} is not empty. Give another one, or empty it.")
            if file.is_dir():
                file.rmdir()
            temporary.replace(file)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)
