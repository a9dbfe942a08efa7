"""Early stopping, around any searcher."""

from __future__ import annotations

from hopyard.search.base import Operation, Searcher, Stop, Train
from hopyard.search.fixed import positive


class Patience(Searcher):
    """``searcher``, with every trial stopped whose value has not become smaller for ``patience`` epochs.

    A trial that has trained as far as the searcher let it is left to the searcher. NaN is no improvement.
    """

    def __init__(self, searcher: Searcher, patience: int) -> None:
        self._searcher = searcher
        self._patience = positive("patience", patience)
        self._best: dict[int, tuple[float, int]] = {}
        self._allowed: dict[int, int] = {}

    def start(self) -> list[Operation]:
        return self._noted(self._searcher.start())

    def validated(self, trial: int, epoch: int, value: float) -> list[Operation]:
        operations = self._noted(self._searcher.validated(trial, epoch, value))
        best, since = self._best.setdefault(trial, (float("inf"), epoch))
        if value < best:
            self._best[trial] = value, epoch
            return operations
        stalled = epoch - since >= self._patience
        if not stalled or epoch >= self._allowed[trial] or Stop(trial) in operations:
            return operations
        return [
            *(each for each in operations if not (isinstance(each, Train) and each.trial == trial)),
            Stop(trial),
        ]

    def exited(self, trial: int, reason: str) -> list[Operation]:
        self._best.pop(trial, None)
        self._allowed.pop(trial, None)
        return self._noted(self._searcher.exited(trial, reason))

    def _noted(self, operations: list[Operation]) -> list[Operation]:
        self._allowed.update({each.trial: each.epochs for each in operations if isinstance(each, Train)})
        return operations
