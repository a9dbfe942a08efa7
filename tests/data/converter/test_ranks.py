"""Shares that contradict the launcher are errors."""

from __future__ import annotations

import pytest

from hopyard.data.converter.ranks import checked_share
from hopyard.errors import UsageError

LAUNCHERS = [
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("RANK", "WORLD_SIZE"),
]


@pytest.fixture(params=LAUNCHERS, ids=lambda names: names[0])
def launched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Process 1 of 3."""
    names: tuple[str, str] = request.param
    for name, value in zip(names, "13", strict=True):
        monkeypatch.setenv(name, value)
    return names


def test_a_share_that_agrees_is_taken(launched: tuple[str, str]) -> None:
    assert checked_share(1, 3) == (1, 3)


@pytest.mark.parametrize("share", [(0, 3), (1, 2), (2, 4)])
def test_a_share_that_contradicts_is_an_error(launched: tuple[str, str], share: tuple[int, int]) -> None:
    text = rf"{launched[0]} and {launched[1]} say that this is process 1 of 3.*cur_shard=1, shard_count=3"
    with pytest.raises(UsageError, match=text):
        checked_share(*share)


def test_no_share_among_several_processes_is_an_error(launched: tuple[str, str]) -> None:
    with pytest.raises(
        UsageError, match=r"each would read all rows\. Give cur_shard=1, shard_count=3; or cur_sh"
    ):
        checked_share(None, None)


def test_all_rows_in_each_process_can_be_asked_for(launched: tuple[str, str]) -> None:
    assert checked_share(0, 1) == (0, 1)


def test_without_a_launcher_any_share_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked_share(None, None) == (0, 1)
    assert checked_share(2, 4) == (2, 4)
    monkeypatch.setenv("HOROVOD_RANK", "0")  # alone it says nothing
    assert checked_share(2, 4) == (2, 4)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        ((1, None), r"cur_shard=1 and shard_count=None were given.*Give both or neither"),
        ((None, 2), r"cur_shard=None and shard_count=2"),
        ((4, 4), r"shards are 0 to 3"),
        ((-1, 4), r"cur_shard=-1, but it must be an integer of at least 0"),
        (("1", 4), r"cur_shard='1', but it must be an integer"),
        ((0, 0), r"shard_count=0, but it must be an integer of at least 1"),
    ],
)
def test_impossible_shares_are_errors(share: tuple[int | None, int | None], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        checked_share(*share)
