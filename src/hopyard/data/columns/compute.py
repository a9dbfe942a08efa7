"""Functions of ``pyarrow.compute``, which is imported when one of them is first asked for.

It wraps hundreds of functions and writes their docstrings, which takes 30 ms: a program that reads samples of numbers
needs none of them, and has its first one after 5 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.missing import imported_later

if TYPE_CHECKING:
    from pyarrow.compute import (
        all,
        count_distinct,
        equal,
        if_else,
        index,
        list_value_length,
        run_end_decode,
    )

__all__ = ["all", "count_distinct", "equal", "if_else", "index", "list_value_length", "run_end_decode"]

if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake
    __getattr__, __dir__ = imported_later(__name__, dict.fromkeys(__all__, "pyarrow.compute"), __all__)
