"""Texts that are not to be shown: the secrets that this process has looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

MASK = "***"
_SHORTEST = 4
"""Characters of a text that is masked, at least: shorter ones are parts of many words."""

_hidden: set[str] = set()


def hide(text: str) -> None:
    """Have ``masked`` and ``masked_output`` mask a text from now on."""
    if len(text) >= _SHORTEST:
        _hidden.add(text)


def masked(text: str) -> str:
    """``text`` with ``***`` in place of what is hidden."""
    for each in sorted(_hidden, key=len, reverse=True):
        text = text.replace(each, MASK)
    return text


@contextmanager
def masked_output(*streams: TextIO | None) -> Iterator[None]:
    """Mask what Python code writes to streams of text meanwhile. What libraries in C and other processes write is not
    seen here."""
    if not _hidden:
        yield
        return
    with ExitStack() as patches:
        for stream in streams:
            if hasattr(stream, "__dict__"):
                patches.enter_context(_patched(stream))
        yield


@contextmanager
def _patched(stream: Any) -> Iterator[None]:
    write: Callable[[str], Any] = stream.write
    own = vars(stream)  # the object itself, which handlers of logging have, too
    before = own.get("write")
    own["write"] = lambda text: write(masked(text))
    try:
        yield
    finally:
        if before is None:
            del own["write"]
        else:
            own["write"] = before
