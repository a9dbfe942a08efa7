"""Evidence of a failed trial: exception, trimmed traceback, last lines of output."""

from __future__ import annotations

import importlib
import sysconfig
import traceback
from pathlib import Path

import hopyard
from hopyard.errors import Evidence, HopyardError
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
    """The traceback without frames of installed libraries, but for the innermost, which raised.

    Of an error of ours that explains another, it is the other's: what ours says stands above it already.
    """
    if isinstance(error, HopyardError) and error.__cause__ is not None:
        error = error.__cause__
    whole: traceback.TracebackException | None = traceback.TracebackException.from_exception(error)
    formatted, seen = whole, set[int]()
    while whole is not None and id(whole) not in seen:
        seen.add(id(whole))
        last = len(whole.stack) - 1
        kept = [frame for i, frame in enumerate(whole.stack) if i == last or _is_telling(frame.filename)]
        whole.stack[:] = kept
        whole = whole.__cause__ or whole.__context__
    assert formatted is not None
    return "".join(formatted.format())


def _is_telling(filename: str) -> bool:
    return filename.startswith(_OURS) or not filename.startswith(_OTHERS)


def _last_lines(hook: str) -> str:
    if not hook:
        return ""
    module, _, function = hook.partition(":")
    lines: list[str] = getattr(importlib.import_module(module), function)()
    return "\n".join(lines)
