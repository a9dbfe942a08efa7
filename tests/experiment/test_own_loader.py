"""Loaders of the trial's own that give another number of batches than they say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hopyard.experiment.lengths import Visits, visits_of
from hopyard.experiment.own_loader import OwnLoader


class Batches:
    """A loader of ``true`` batches that says that there are ``said``."""

    def __init__(self, said: int, true: int) -> None:
        self._said, self._true = said, true

    def __len__(self) -> int:
        return self._said

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._true))


def read(loader: Batches, place: dict[str, int] | None = None) -> list[int]:
    """The batches of three epochs of a trial, two visits each."""
    own = OwnLoader(loader, Visits(2, 6, "epochs", 3), 1)
    if place is not None:
        own.go_to(place)
    return [batch for _ in range(own.place.visits, 6) for batch in own.read_visit(0)]


@pytest.mark.parametrize(
    ("said", "true", "numbers"),
    [
        (100, 8, "says that a pass has 100 batches, but pass 1 ended after 8"),
        (9, 8, "says that a pass has 9 batches, but pass 1 ended after 8"),
        (1, 8, "says that a pass has 1 batches, but pass 1 has 2 or more"),
        (7, 8, "says that a pass has 7 batches, but pass 1 has 8 or more"),
    ],
)
def test_a_loader_with_another_length_than_it_says_is_warned_of_once(
    said: int, true: int, numbers: str
) -> None:
    with pytest.warns(UserWarning, match="the training data loader") as caught:
        batches = read(Batches(said, true))
    assert batches == [number % true for number in range(3 * said)]
    rule = "Epochs are as long as it says: have its __len__ return how many batches it gives."
    message = f"the training data loader, a Batches, {numbers}. {rule}"
    assert [str(each.message) for each in caught] == [message]


def test_a_trial_that_goes_on_within_a_pass_counts_the_batches_before() -> None:
    with pytest.warns(UserWarning, match=r"a pass has 10 batches, but pass 2 ended after 8\.") as caught:
        read(Batches(10, 8), {"visits": 2, "number": 1, "batches": 2})
    assert len(caught) == 1


def test_a_loader_of_the_length_that_it_says_is_not_warned_of() -> None:
    assert read(Batches(5, 5)) == [*range(5)] * 3


def test_a_loader_whose_passes_have_several_lengths_is_not_warned_of() -> None:
    class Growing(Batches):
        def set_epoch(self, number: int) -> None:
            self._said = self._true = 4 + number

    assert read(Growing(4, 4))[:9] == [*range(4), *range(5)]


class Changing(Batches):
    """A loader whose passes have ever more batches."""

    def set_epoch(self, number: int) -> None:
        self._said = self._true = 4 + number


@pytest.mark.parametrize("begin", range(5))
def test_a_length_in_batches_is_exact_if_passes_have_several_lengths(begin: int) -> None:
    visits = visits_of({"batches": 11}, 1, 3, 4, 1)
    expected = [*range(4), *range(5), *range(2)]
    own = OwnLoader(Changing(4, 4), visits, 1)
    before = [batch for _ in range(begin) for batch in own.read_visit(0)]
    other = OwnLoader(Changing(4, 4), visits, 1)
    other.go_to(vars(own.place))
    assert before + [batch for _ in range(begin, visits.total) for batch in other.read_visit(0)] == expected
