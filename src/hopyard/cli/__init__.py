"""The command line: thin; every number it shows comes from a function that users can call.

A command is imported when it runs (``tree``), and what git calls for every merge without the parser too.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopyard.cli.early import worker_started_early
from hopyard.cli.warned import said_warnings
from hopyard.errors import HopyardError
from hopyard.missing import imported_later

if TYPE_CHECKING:
    from hopyard.cli.tree import app as app

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_MERGE_DRIVER = ["stock", "merge-driver"]


def main() -> None:
    """The ``hopyard`` command. An error that a user can mend ends it with its message and status 1."""
    words = sys.argv[1:]
    if words[:2] == _MERGE_DRIVER and len(words) == 6 and not any(word.startswith("-") for word in words):
        _run(lambda: _merge(*words[2:]))
    else:
        with worker_started_early(words):
            from hopyard.cli.tree import app

            _run(app)


def stock_main() -> None:
    """The ``stock`` command, which is ``hopyard stock``."""
    from hopyard.cli.stock import app

    _run(app)


def _merge(base: str, ours: str, theirs: str, path: str) -> None:
    from hopyard.stockroom.session.git_driver import run_driver

    with said_warnings():
        sys.exit(run_driver(Path(base), Path(ours), Path(theirs), Path(path)))


def _run(command: Callable[[], Any]) -> None:
    try:
        command()
    except HopyardError as error:
        from hopyard.cli.terminal import complain

        complain(f"{type(error).__name__}: {error}")
        sys.exit(1)
    except OSError as error:
        # One of a file has its name, and one of a store is a HopyardError, so this is of standard output.
        from hopyard.cli.terminal import complain

        if isinstance(error, FileNotFoundError) and not _has_working_directory():
            complain("the working directory is gone. Change to one that exists.")
            sys.exit(1)
        if error.errno not in _NO_SPACE or error.filename is not None:
            raise
        complain(
            f"standard output cannot be written to ({error.strerror}), so the rest is not shown; what the command has "
            "done stays done. Make space there, or let it write elsewhere."
        )
        sys.exit(1)
    except KeyboardInterrupt:  # of what runs without the parser, which would end the command so
        sys.exit(130)


def _has_working_directory() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake
    # ``app``, the tree of all commands, is imported when it is first asked for.
    __getattr__, __dir__ = imported_later(__name__, {"app": ".tree"}, ("app",))
