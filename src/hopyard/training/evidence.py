"""Evidence of a failed trial: exception, trimmed traceback, last lines of output."""

from __future__ import annotations

import importlib
import sysconfig
import traceback
from pathlib import Path

import hopyard
from hopyard.errors import Evidence, HopyardError, UsageError
from hopyard.masking import masked
from hopyard.wording import unstyled

_OURS = str(Path(hopyard.__file__).parent)
_OTHERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def gather(error: BaseException, phase: str, partition: int | None, log_tail: str = "") -> Evidence:
    """The evidence of ``error``, raised in ``phase`` on ``partition``; call it in the handler."""
    return Evidence(
        kind=type(error).__name__,
        message=masked(unstyled(str(error))),
        traceback=masked(unstyled(trimmed_traceback(error))),
        log=masked(unstyled(_last_lines(log_tail))),
        partition=partition,
        phase=phase,
    )


def trimmed_traceback(error: BaseException) -> str:
    """The traceback without frames of installed libraries, but for the innermost, which raised, and without those of
    ours through which users' code was called.

    Of an error of ours that explains another, it is the other's: what ours says stands above it already. Of one that
    says what is wrong with users' code, it has no frames of ours, and is empty if it explains nothing and there are no
    frames of that code.
    """
    about_their_code = isinstance(error, UsageError)
    if isinstance(error, HopyardError) and error.__cause__ is not None:
        error = error.__cause__
    whole: traceback.TracebackException | None = traceback.TracebackException.from_exception(error)
    assert whole is not None
    if isinstance(error, UsageError):
        theirs = [frame for frame in whole.stack if _is_theirs(frame.filename)]
        lines = traceback.StackSummary.from_list(theirs).format()
        return "".join(["Traceback (most recent call last):\n", *lines]) if theirs else ""
    is_kept = _is_theirs if about_their_code else _is_telling
    formatted, seen = whole, set[int]()
    while whole is not None and id(whole) not in seen:
        seen.add(id(whole))
        last = len(whole.stack) - 1
        begin = next((i for i, frame in enumerate(whole.stack) if _is_theirs(frame.filename)), 0)
        kept = [
            frame
            for i, frame in enumerate(whole.stack)
            if i == last or (i >= begin and is_kept(frame.filename))
        ]
        whole.stack[:] = kept
        whole = whole.__cause__ or whole.__context__
    return "".join(formatted.format())


def _is_telling(filename: str) -> bool:
    return filename.startswith(_OURS) or not filename.startswith(_OTHERS)


def _is_theirs(filename: str) -> bool:
    """Whether a file is of users' code."""
    return not filename.startswith((_OURS, "<frozen ", *_OTHERS))


def _last_lines(hook: str) -> str:
    if not hook:
        return ""
    module, _, function = hook.partition(":")
    lines: list[str] = getattr(importlib.import_module(module), function)()
    return "\n".join(lines)
