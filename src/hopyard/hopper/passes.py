"""Passes over a loader of a trial's own, divided into visits: after which visits they end, and how far a trial is."""

from __future__ import annotations

import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class Passes:
    """Division of a trial into visits of about equal numbers of batches. Every pass ends with a visit, and every round
    does, after which the searcher decides; between two such ends batches are spread evenly.

    Attributes:
        visits: of a pass.
        batches: of a pass.
        round_visits, round_batches: of a round.
        rounds: of a trial that trains to the end.
    """

    visits: int
    batches: int
    round_visits: int
    round_batches: int
    rounds: int = 1

    @property
    def total(self) -> int:
        """Batches of all rounds."""
        return self.rounds * self.round_batches

    def before(self, visits: int) -> int:
        """Batches of the first so many visits."""
        beyond = visits - self.rounds * self.round_visits
        if beyond > 0:
            return self.total + beyond * self.batches // self.visits
        (begin, read), (end, will_be_read) = self._end_before(visits), self._end_after(visits)
        return read + (visits - begin) * (will_be_read - read) // (end - begin)

    def fits(self, most: int | None = None) -> bool:
        """Whether passes and rounds end in the same order when counted in visits as when counted in batches, and every
        visit has a batch or more.

        Args:
            most: batches of a visit, at most; None: any number.
        """
        for number in range(1, self.rounds + 1):
            visits, batches = number * self.round_visits, number * self.round_batches
            passes, more = divmod(visits, self.visits)
            if passes != batches // self.batches or (more > 0) != (batches % self.batches > 0):
                return False
            parts = [(self._end_before(visits - 1), (visits, batches))]
            if number < self.rounds:
                parts.append(((visits, batches), self._end_after(visits)))
            for (begin, read), (end, will_be_read) in parts:
                each = will_be_read - read
                if each < end - begin or (most is not None and each > most * (end - begin)):
                    return False
        return self.batches >= self.visits

    def _end_before(self, visits: int) -> tuple[int, int]:
        """Visits and batches at the last end of a pass or a round that is not after so many visits."""
        passes, rounds = visits // self.visits, visits // self.round_visits
        return max(
            (passes * self.visits, passes * self.batches),
            (rounds * self.round_visits, rounds * self.round_batches),
        )

    def _end_after(self, visits: int) -> tuple[int, int]:
        """Visits and batches at the first end of a pass or a round that is after so many visits."""
        passes, rounds = visits // self.visits + 1, visits // self.round_visits + 1
        return min(
            (passes * self.visits, passes * self.batches),
            (rounds * self.round_visits, rounds * self.round_batches),
        )


def divided(batches: int, round_batches: int, rounds: int, most: int) -> Passes:
    """The division with the fewest visits of at most so many batches.

    Args:
        batches: of a pass.
        round_batches, rounds: of a trial.
        most: batches of a visit.
    """
    for visits in itertools.count(-(-batches // most)):
        down = round_batches * visits // batches
        for round_visits in (down, down + 1):
            found = Passes(visits, batches, max(round_visits, 1), round_batches, rounds)
            if found.fits(most):
                return found
    raise AssertionError("a visit for each batch always fits")
