"""Comparison of DataFrames of this process whose plans have no digest."""

from __future__ import annotations

import contextlib
import os
from typing import Any
from urllib.parse import unquote, urlsplit

from hopyard.data.frames.spark_plan import file_status


def inputs(frame: Any) -> list[Any]:
    """The files that a DataFrame reads, as they are now, as far as can be seen from here."""
    if hasattr(frame, "_jdf"):
        return [file_status(frame.sparkSession, url) for url in sorted(frame.inputFiles())]
    found: list[Any] = []
    for url in sorted(frame.inputFiles()):
        with contextlib.suppress(OSError):
            status = os.stat(unquote(urlsplit(url).path))  # noqa: PTH116
            found.append([url, status.st_size, status.st_mtime_ns])
            continue
        found.append([url])
    return found


def is_same_plan(frame: Any, other: Any) -> bool:
    """Whether two DataFrames of this process have the same rows in columns of the same names and types."""
    if type(frame) is not type(other) or frame.schema != other.schema:
        return False
    return frame is other or bool(frame.sameSemantics(other))
