"""A span in which random numbers, threads and determinism are ours; afterwards all is as before.

Every unit runs in one, also inside the user's own process, whose generators, thread count and
flags must not notice. A framework takes part through ``training/<framework>/session.py`` once it
is imported; none is imported for this.
"""

from __future__ import annotations

import importlib
import random
import sys
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from hopyard.objects import derive_seed

_FRAMEWORKS = {"torch": "hopyard.training.torch.session", "keras": "hopyard.training.keras.session"}


class FrameworkSession(Protocol):
    """Session of one framework, as ``open_session(threads)`` of its session module returns it."""

    def seed(self, value: int) -> None: ...

    def reset(self) -> None: ...

    def hint(self, error: Exception) -> str:
        """Advice on an error of a user's function, if the framework's own text gives none; else empty."""
        ...

    def close(self) -> None: ...


class Session:
    """Use with ``with``. See the module's text."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._open: dict[str, FrameworkSession] = {}

    def __enter__(self) -> Self:
        self._random = random.getstate()
        self._numpy = np.random.get_state()
        self.admit()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for session in self._open.values():
            session.close()
        self._open.clear()
        np.random.set_state(self._numpy)
        random.setstate(self._random)

    def admit(self) -> bool:
        """Let frameworks take part that were imported meanwhile; True if there are any."""
        new = [name for name in _FRAMEWORKS if name in sys.modules and name not in self._open]
        for name in new:
            module = importlib.import_module(_FRAMEWORKS[name])
            self._open[name] = module.open_session(self._threads)
        return bool(new)

    def reset(self) -> None:
        """Undo settings of frameworks by a user's function: another trial's comes next."""
        for session in self._open.values():
            session.reset()

    def hint(self, error: Exception) -> str:
        """Advice on an error of a user's function; empty: the error's text gives it, or none is known."""
        return " ".join(filter(None, (session.hint(error) for session in self._open.values())))

    def seed(self, *parts: int | str) -> None:
        """Seed the global generators of Python, NumPy and the frameworks from ``parts``."""
        value = derive_seed(*parts)
        random.seed(value)
        np.random.seed(value % 2**32)
        for session in self._open.values():
            session.seed(value)
