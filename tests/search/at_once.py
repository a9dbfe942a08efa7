"""How many trials of a played search were allowed to train at once."""

from __future__ import annotations

from hopyard.search.base import Train
from hopyard.search.testing import Played


def most_at_once(played: Played) -> int:
    training: set[int] = set()
    most = 0
    for (_, *arguments), answer in zip(played.calls, played.answers, strict=True):
        training -= set(arguments[:1])
        for operation in answer:
            if isinstance(operation, Train):
                assert operation.trial not in training
                training.add(operation.trial)
                most = max(most, len(training))
    return most
