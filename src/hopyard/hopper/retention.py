"""Which states are kept: as long as something needs them.

A running trial needs its last durable state and the weights of its best epoch. What an ended trial
keeps depends on the policy:

===============  ============================================================================
``"completed"``  completed trials: best weights and last full state; others: nothing
``"best"``       the ``keep_n`` best trials: best weights and last full state; others: nothing
``"all"``        every ended trial: best weights and last full state
===============  ============================================================================

The best weights of the run are kept under every policy.
"""

from __future__ import annotations

import heapq

from hopyard.hopper.state import RunState, TrialState
from hopyard.objects import StateRef
from hopyard.storage import Store


def trial_folder(number: int) -> str:
    """Where the states of a trial are, below the run's folder."""
    return f"{number:05d}"


class Retention:
    """Knows which state files exist and which of them nothing needs any more."""

    def __init__(self, store: Store, state: RunState, keep: str, keep_n: int) -> None:
        self._store, self._state, self._keep, self._keep_n = store, state, keep, keep_n
        self._present: dict[int, set[str]] = {}
        self._best: int | None = None

    def sweep(self) -> None:
        """Delete state files that no record of the journal needs (a kill left them behind)."""
        for trial in self._state.trials.values():
            self.sweep_trial(trial)

    def sweep_trial(self, trial: TrialState) -> None:
        """Like ``sweep`` for one trial, by listing its folder."""
        needed = self._needed(trial)
        folder = self._store.at(trial_folder(trial.number))
        for entry in folder.list():
            if entry.name not in needed:
                folder.delete(entry.name)
        self._present[trial.number] = needed

    def released(self, numbers: tuple[int, ...], ended: bool = False) -> list[str]:
        """Files (below the run's folder) that are not needed since the last call.

        Args:
            numbers: trials whose states have changed.
            ended: whether one of them has ended, which can change what others may keep.
        """
        best = self._state.best
        others = [number for number in (self._best, best) if number is not None]
        self._best = best
        if ended and self._keep == "best":
            others += self._present.keys()
        gone: list[str] = []
        for number in dict.fromkeys((*numbers, *others)):
            needed = self._needed(self._state.trials[number])
            dropped = self._present.get(number, set()) - needed
            self._present[number] = needed
            gone += [f"{trial_folder(number)}/{name}" for name in sorted(dropped)]
        return gone

    def _needed(self, trial: TrialState) -> set[str]:
        return {name for reference in self._references(trial) for name in reference.files}

    def _references(self, trial: TrialState) -> list[StateRef]:
        if trial.running or self._is_kept(trial):
            return trial.live_states()
        is_best = trial.best is not None and self._state.best == trial.number
        return [trial.best.state] if is_best and trial.best else []

    def _is_kept(self, trial: TrialState) -> bool:
        if self._keep == "all":
            return True
        if self._keep == "completed":
            return trial.status == "completed"
        ended = (t for t in self._state.trials.values() if not t.running and t.best is not None)
        return trial in heapq.nsmallest(self._keep_n, ended, key=self._state.rank)
