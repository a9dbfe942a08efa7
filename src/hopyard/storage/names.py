"""Names that a store may hold, and the reasons.

A name must mean the same object on a disk, in a bucket and on HDFS, and must be readable in a
listing. Every rule below excludes something that one of them treats differently.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hopyard.errors import InvalidNameError, UsageError

TEMPORARY_PREFIX = ".tmp-"
"""Segments that begin so are a store's own unfinished writes; no listing shows them."""

SILLY_RENAMED = re.compile(r"\.nfs[0-9a-f]{24}")
"""Segments by which Linux's client of NFS calls a deleted file that is still open on its machine."""

_LONGEST_PATH = 4096
_LONGEST_PART = 255
MAX_SEGMENT = 200
MAX_NAME = 800

_PLAIN = re.compile(
    r"[A-Za-z0-9_+=@,-][A-Za-z0-9._+=@,-]*(?:/[A-Za-z0-9_+=@,-][A-Za-z0-9._+=@,-]*)*", re.ASCII
)
_FORBIDDEN_CHARACTER = re.compile(r"[^A-Za-z0-9._+=@,/-]", re.ASCII)


def validate_name(name: str) -> str:
    """``name`` itself if a store may hold it.

    Raises:
        InvalidNameError: says which rule the name breaks and why there is such a rule.
    """
    # The common case in one match: no segment begins with a dot, and all is short.
    if len(name) <= MAX_SEGMENT and _PLAIN.fullmatch(name):
        return name
    problem = _problem(name)
    if problem:
        raise InvalidNameError(f"the name {name!r} cannot be stored: {problem}")
    return name


def path_given(path: str | os.PathLike[str]) -> Path:
    """The path that a user gave.

    Raises:
        UsageError: it is no path, or no file can be called so.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise UsageError(
            f"a path was given as {type(path).__name__}. Give it as text or as a pathlib.Path, for example "
            "'data/project'."
        )
    try:
        text = os.fsdecode(path)
    except Exception as error:  # of what is a path by its own word
        raise UsageError(
            f"a path was given as {type(path).__name__}, which cannot be made a text: {type(error).__name__}. Give it "
            "as text or as a pathlib.Path."
        ) from error
    try:
        data = os.fsencode(text)
        if len(data) >= _LONGEST_PATH or any(len(part) > _LONGEST_PART for part in data.split(b"/")):
            raise UsageError(
                f"a path of {len(data)} bytes was given, {text[:40]!r}..., but paths have less than {_LONGEST_PATH}, "
                f"and no name in them more than {_LONGEST_PART}. Give the path of a file or folder."
            )
        if b"\0" not in data:
            return Path(text)
    except UnicodeEncodeError:
        pass
    raise UsageError(
        f"{text!r} is no path: it holds a null character, or half of a surrogate pair, which no name of a file has. "
        "Give the path as the file system has it."
    )


def validate_prefix(prefix: str) -> str:
    """Like :func:`validate_name`, and the empty prefix (the whole store) is one too."""
    return prefix and validate_name(prefix)


def _problem(name: str) -> str | None:
    if not name:
        return "it is empty; give the object a name"
    if name.startswith("/"):
        return "it begins with '/', but names are relative to the store; leave the '/' out"
    forbidden = _FORBIDDEN_CHARACTER.search(name)
    if forbidden:
        return (
            f"it contains {forbidden.group()!r}, but only ASCII letters, digits and . _ + = @ , - are the "
            "same in every file system, bucket and URL; replace the character, for instance by '-'"
        )
    if len(name) > MAX_NAME:
        return (
            f"it has {len(name)} bytes, but buckets take 1024 with the store's prefix; use at most {MAX_NAME}"
        )
    for segment in name.split("/"):
        problem = _segment_problem(segment)
        if problem:
            return problem
    return None


def _segment_problem(segment: str) -> str | None:
    if not segment:
        return "it has an empty segment ('//' or '/' at the end), which directories drop and buckets keep"
    if segment in (".", ".."):
        return f"its segment {segment!r} points at another directory; spell the name out"
    if segment.startswith(TEMPORARY_PREFIX):
        return f"segments that begin with {TEMPORARY_PREFIX!r} are a store's own unfinished writes; rename it"
    if SILLY_RENAMED.fullmatch(segment):
        return f"NFS calls deleted files that are still open so, as its segment {segment!r}; rename it"
    if len(segment) > MAX_SEGMENT:
        return (
            f"its segment {segment[:20] + '...'!r} has {len(segment)} bytes, but file systems take 255 and "
            f"temporary names need some of them; use at most {MAX_SEGMENT}"
        )
    return None
