"""Retention of states: each is kept as long as something needs it.

A running trial, also one that waits, needs its last durable state and the weights of its best epoch; one that
is a copy of another needs that one's state until it has a state of its own. What an ended trial keeps depends
on the policy:

===============  ============================================================================
``"completed"``  completed trials: best weights and last full state; others: nothing
``"best"``       the ``keep_n`` best trials: best weights and last full state; others: nothing
``"all"``        every ended trial: best weights and last full state
===============  ============================================================================

The best weights of the run are kept under every policy; with replicates also those of a point as long as one of its
trials runs, and of the best point whose trials have all ended: a replicate that fails may make them the run's best.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable

from hopyard.errors import SettingsError
from hopyard.hopper.state import RunState, TrialState, trial_folder
from hopyard.objects import StateRef
from hopyard.objects.states import is_lent
from hopyard.storage import Store


def check_states_are_kept(store: Store, state: RunState, num_epochs: int) -> None:
    """Raise SettingsError if a completed trial could not train on to ``num_epochs``, because its state is gone."""
    for trial in state.trials.values() if num_epochs > state.num_epochs else ():
        files = trial.durable.state.files if trial.status == "completed" and trial.durable.state else ()
        if not all(store.exists(f"{trial_folder(trial.number)}/{name}") for name in files):
            raise SettingsError(
                f"num_epochs is {num_epochs} now and was {state.num_epochs}, but the state of trial {trial.number} was "
                "not kept, so it cannot train on. Give another run_id; keep='completed' keeps these states."
            )


class Retention:
    """Knows which state files there are, and deletes files that nothing needs any more.

    A file is deleted once the record that ended the need for it is durable, and only while no unit of
    its trial is under way: names follow from content, so a unit may come back to an earlier state, and
    would not write again what it finds there.

    Args:
        keep, keep_n: see the module's text.
    """

    def __init__(self, store: Store, state: RunState, keep: str, keep_n: int) -> None:
        self._store, self._state, self._keep, self._keep_n = store, state, keep, keep_n
        self._needed: dict[int, set[str]] = {}
        self._dropped: dict[int, dict[str, int]] = {}
        """For each trial the files that are no longer needed, and the record by which they were not."""
        self._queue: deque[tuple[int, int]] = deque()
        """(record, trial) of the same, in order."""
        ended = (trial for trial in state.trials.values() if not trial.running and trial.best is not None)
        self._best_ended = sorted((state.rank(trial), trial.number) for trial in ended)[:keep_n]
        self._candidates = state.candidates
        self._borrowers: dict[int, set[int]] = {}
        """For each trial the trials that still live on its state."""
        for trial in state.trials.values():
            self._note_borrowing(trial)

    def sweep(self) -> None:
        """Delete state files that the state does not need (a kill left them behind), by listing the folder.

        Nothing may be writing states, and the state must be durable.
        """
        self._needed = {number: self._files(trial) for number, trial in self._state.trials.items()}
        self._dropped.clear()
        self._queue.clear()
        known = {trial_folder(number): files for number, files in self._needed.items()}
        for entry in list(self._store.list()):
            folder, _, name = entry.name.partition("/")
            if folder in known and name not in known[folder]:
                self._store.delete(entry.name)

    def changed(self, trial: TrialState, record: int) -> None:
        """The states of ``trial`` have changed, or it has ended, by the record of that number."""
        for lender in self._note_borrowing(trial):
            self._look_again(self._state.trials[lender], record)
        ended = self._best_ended
        if self._keep == "best" and not trial.running and trial.best is not None:
            ended[:] = [other for other in ended if other[1] != trial.number]  # it trained on since
            bisect.insort(ended, (self._state.rank(trial), trial.number))
        self._look_again(trial, record)
        for _, number in ended[self._keep_n :]:
            self._look_again(self._state.trials[number], record)
        del ended[self._keep_n :]
        candidates, self._candidates = self._candidates, self._state.candidates
        for number in candidates - self._candidates:
            self._look_again(self._state.trials[number], record)
        if not trial.running:
            for sibling in self._state.replicates_of(trial.number // self._state.replicates):
                if sibling is not trial and not sibling.running:
                    self._look_again(sibling, record)

    def delete(self, durable: int, under_way: Callable[[int], bool]) -> None:
        """Delete the files that may go by now.

        Args:
            durable: number of the last durable record.
            under_way: whether a unit of that trial may be writing states.
        """
        while self._queue and self._queue[0][0] <= durable:
            trial = self._queue.popleft()[1]
            if not under_way(trial):
                self.delete_of(trial, durable)

    def delete_of(self, trial: int, durable: int) -> None:
        """Delete the files of one trial that may go by now; no unit of the trial is under way."""
        dropped = self._dropped.get(trial, {})
        for name in [name for name, record in dropped.items() if record <= durable]:
            self._store.delete(f"{trial_folder(trial)}/{name}")
            del dropped[name]

    def _look_again(self, trial: TrialState, record: int) -> None:
        needed = self._files(trial)
        dropped = self._needed.get(trial.number, set()) - needed
        self._needed[trial.number] = needed
        files = self._dropped.setdefault(trial.number, {})
        for name in files.keys() & needed:
            del files[name]
        if dropped:
            files.update(dict.fromkeys(dropped, record))
            self._queue.append((record, trial.number))

    def _note_borrowing(self, trial: TrialState) -> list[int]:
        """Note the lender whose state the trial lives on. Returns the lenders for whom that has changed."""
        if trial.source is None:
            return []
        lender = trial.durable.home if trial.borrows else None
        if lender is not None:
            borrowers = self._borrowers.setdefault(lender, set())
            if trial.number in borrowers:
                return []
            borrowers.add(trial.number)
            return [lender]
        paid = [number for number, borrowers in self._borrowers.items() if trial.number in borrowers]
        for number in paid:
            self._borrowers[number].discard(trial.number)
            if not self._borrowers[number]:
                del self._borrowers[number]
        return paid

    def _files(self, trial: TrialState) -> set[str]:
        borrowers = (self._state.trials[number] for number in self._borrowers.get(trial.number, ()))
        lent = [borrower.durable.state for borrower in borrowers if borrower.durable.state is not None]
        needed = [*self._references(trial), *lent]
        return {name for reference in needed for name in reference.files if not is_lent(name)}

    def _references(self, trial: TrialState) -> list[StateRef]:
        if trial.running:
            return [*trial.live_states(), *trial.progress.metric_states()]
        if self._is_kept(trial):
            return trial.live_states()
        may_be_best = trial.number in self._state.candidates or self._has_running_replicates(trial)
        return [trial.best.state] if trial.best is not None and may_be_best else []

    def _has_running_replicates(self, trial: TrialState) -> bool:
        """Whether trials of the same point run, which may leave it the best one."""
        return any(each.running for each in self._state.replicates_of(trial.number // self._state.replicates))

    def _is_kept(self, trial: TrialState) -> bool:
        if self._keep == "best":
            return any(number == trial.number for _, number in self._best_ended[: self._keep_n])
        return self._keep == "all" or trial.status == "completed"
