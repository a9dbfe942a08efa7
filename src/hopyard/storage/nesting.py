"""Names that would be both an object and a prefix, in stores that would take them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

MANY = 1000
"""Names of one look below a prefix; of a directory with as many nothing is remembered."""


class Nesting:
    """Refuses such names, as far as this process can see.

    A bucket has no directories and takes ``a`` beside ``a/b``. Looking before every write would cost two
    more requests. So the first write into a directory looks, what it saw is remembered, and what this
    process writes is added; only a name that seems to be nested is looked at again before it is refused.

    Args:
        size: of an object; None if there is none.
        below: up to ``MANY`` names below a prefix.
        error: makes what is raised, of the name, the outer and the inner one.
    """

    def __init__(
        self,
        size: Callable[[str], int | None],
        below: Callable[[str], Sequence[str]],
        error: Callable[[str, str, str], Exception],
    ) -> None:
        self._size, self._below, self._error = size, below, error
        # Directory -> its directories; None where they are too many to know.
        self._known: dict[str, set[str] | None] = {}
        self._lock = threading.Lock()

    def check(self, name: str) -> None:
        """Check a name before a write of it. Raises the error that ``error`` makes."""
        directory = name.rpartition("/")[0]
        if directory not in self._known:
            self._look_at(name, directory)
        inside = self._known.get(directory)
        if inside is None or name in inside:
            nested = self._below(name)
            if nested:
                raise self._error(name, name, nested[0])
            self._forget_below(name)
        self._remember(name)

    def _look_at(self, name: str, directory: str) -> None:
        above = directory
        while above:
            if above not in self._known and self._size(above) is not None:
                raise self._error(name, above, name)
            above = above.rpartition("/")[0]
        found = self._below(directory)
        skip = len(directory) + 1 if directory else 0
        ends = [(other, other.find("/", skip)) for other in found]
        self._known[directory] = (
            None if len(found) >= MANY else {other[:end] for other, end in ends if end >= 0}
        )

    def _forget_below(self, name: str) -> None:
        """``name`` becomes an object, so facts known of the directory no longer hold."""
        with self._lock:
            for known in [d for d in self._known if d == name or d.startswith(name + "/")]:
                del self._known[known]

    def _remember(self, name: str) -> None:
        """Note the directories that ``name`` is in."""
        inner = name.rpartition("/")[0]
        while inner:
            above = inner.rpartition("/")[0]
            with self._lock:
                inside = self._known.get(above)
                if inside is not None:
                    inside.add(inner)
            inner = above
