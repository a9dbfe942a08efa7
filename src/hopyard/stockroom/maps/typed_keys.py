"""Keys of samples as people type them on a command line.

A text is an int if it is written as Python writes that int: ``3`` and ``-1``, not ``003``. Anything else is a string,
and so is a text in quotes. A column that has no sample under the int may have one under the string, so a text stands
for several keys, the likeliest first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

from hopyard.stockroom.maps import Key

_PART = re.compile(r"""(?:'[^']*'|"[^"]*")(?=,|\Z)|[^,]*""")
_INT = re.compile(r"0|-?[1-9][0-9]*")


@dataclass(frozen=True)
class TypedKey:
    """One key as it was typed; of nested columns also a pair, ``a,1``."""

    text: str

    def keys(self, nested: bool) -> list[Key]:
        """The keys that the text may stand for, the likeliest first.

        Args:
            nested: of a nested column, whose keys are pairs, or samples for all their parts.
        """
        parts = split_at_commas(self.text)
        if nested and len(parts) == 2:
            return list(product(_meanings(parts[0]), _meanings(parts[1])))
        return list(_meanings(self.text))

    def __str__(self) -> str:
        return self.text


def typed(key: Key) -> str:
    """A text that stands for a key, as people type it."""
    parts = key if isinstance(key, tuple) else (key,)
    return ",".join(map(_typed, parts))


def _typed(part: int | str) -> str:
    is_plain = isinstance(part, int) or (_meanings(part)[0] == part and split_at_commas(part) == [part])
    return str(part) if is_plain else f'"{part}"' if "'" in str(part) else f"'{part}'"


def split_at_commas(text: str) -> list[str]:
    """The parts of a text between commas that are not in quotes."""
    parts = []
    at = 0
    while True:
        found = _PART.match(text, at)
        assert found is not None  # it matches the empty text
        parts.append(found[0])
        if found.end() == len(text):
            return parts
        at = found.end() + 1


def _meanings(text: str) -> list[int | str]:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return [text[1:-1]]
    if _INT.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 63:
        return [int(text), text]
    return [text]
