"""Numbers of things, durations, texts of others, and names that were nearly given, in sentences."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_UNSEEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
)
_STYLES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_UNSAFE = re.compile(f"[{_UNSEEN}\ud800-\udfff\U000e0000-\U000e007f]")
_UNSAFE_IN_LINE = re.compile(f"[\t\n{_UNSEEN}\ud800-\udfff\U000e0000-\U000e007f]")


def visible(text: str) -> str:
    """``text`` for a terminal: characters that steer one, turn the text around them, have no width, or cannot be
    written (halves of surrogate pairs) become escapes such as ``\\x1b``. Tabs and line breaks stay.
    """
    if not _UNSAFE.search(text):
        return text
    return _UNSAFE.sub(_escaped, text.replace("\r\n", "\n"))


def unstyled(text: str) -> str:
    """``text`` of a library without the colours, links and other sequences of ECMA-48 that it has for terminals."""
    return _STYLES.sub("", text)


def beginning(text: str) -> str:
    """``text`` as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def one_line(text: str) -> str:
    """``text`` as ``visible`` gives it, without line breaks and tabs: for names and the like within a line."""
    return _UNSAFE_IN_LINE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def shown(value: object) -> str:
    """The ``repr`` of what a user gave, for a message; of what is nested too deeply for that, or has a ``repr`` that
    fails, its type."""
    try:
        return repr(value)
    except RecursionError:
        return f"<{type(value).__name__}, nested too deeply to be shown>"
    except Exception as error:
        return f"<{type(value).__name__}, whose repr fails: {type(error).__name__}>"


def shortened(text: str, most: int = 60) -> str:
    """``text``, which ends with ``...`` where it had more than ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def brief(value: object, most: int = 60) -> str:
    """The ``repr`` of a value; of one whose ``repr`` is long, as ``Linear(...)``; of a long text, its beginning."""
    text = shown(value)
    if len(text) > most and isinstance(value, str):
        return shown(shortened(value, most - 2))
    return text if len(text) <= most else f"{type(value).__name__}(...)"


def counted(count: int, noun: str) -> str:
    """``1 sample``, ``2,000 samples``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def some_lines(lines: Sequence[str], most: int, total: int | None = None) -> list[str]:
    """The first lines, and in words how many follow of ``total``; None: of the lines given."""
    total = len(lines) if total is None else total
    return list(lines) if total <= most else [*lines[:most], f"and {total - most:,} more"]


def listed(values: Iterable[object]) -> str:
    """The ``repr`` of each value, with commas."""
    return ", ".join(map(repr, values))


def some_names(names: Sequence[str], most: int = 30) -> str:
    """The first names within a sentence, and how many follow; "none" if there are none."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more


def are(count: int) -> str:
    """The verb that follows so many things."""
    return "is" if count == 1 else "are"


def describe_bytes(count: float) -> str:
    """A size as people say it, in powers of 1000."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def describe_seconds(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def nearest(name: str, options: Iterable[str], otherwise: str = "") -> str:
    """``"; did you mean 'x'?"`` for the closest of ``options``, or ``otherwise``: ``"."`` where a sentence ends."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else otherwise
