"""Ctrl-C at any step of an operation: the handle shows what a new one shows, and nothing that was staged is lost."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sampling import sample

from hopyard import StockRoom
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.stockroom.packfiles import PackfileWriter
from hopyard.stockroom.session.tree import WorkingTree
from hopyard.storage import LocalStore

Shown = tuple[dict[str, Any], dict[str, list[int]]]

STEPS = (
    (WriteOperation, "decode"), (Draft, "rebase"), (Draft, "back"), (Draft, "discard"), (ColumnDraft, "stand_on"),
    (PackfileWriter, "discard"), (WorkingTree, "state"), (WorkingTree, "stage"), (LocalStore, "get"),
    (LocalStore, "put"), (LocalStore, "put_new"), (LocalStore, "put_file"), (LocalStore, "delete"),
)  # fmt: skip
STAGED: Shown = {"old": 0, "a": 1, "b": 2}, {"n": [1, 2]}
COMMITTED: Shown = {"old": 0}, {}
WITH_BLOCK: Shown = {"old": 0, "a": 1, "b": 2, "x": 1}, {"n": [1, 2, 3], "y": [5]}


def write_block(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.experiment["x"] = 1
        stock.data["n"].extend([3])
        stock.data["y"] = [5]


def undone_block(stock: StockRoom) -> None:
    with contextlib.suppress(ZeroDivisionError), stock.enable_write():
        stock.experiment["x"] = 1
        with stock.enable_write():
            stock.data["y"] = [5]
        raise ZeroDivisionError


ACTIONS: dict[str, tuple[Callable[[StockRoom], Any], list[Shown]]] = {
    "gc": (lambda stock: stock.gc(), [STAGED]),
    "reset": (lambda stock: stock.reset(), [STAGED, COMMITTED]),
    "commit": (lambda stock: stock.commit("all"), [STAGED]),
    "block": (write_block, [STAGED, WITH_BLOCK]),
    "undone block": (undone_block, [STAGED]),
}


@contextlib.contextmanager
def interrupted(at: int, when: str) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt before or behind the step of this number; the list counts them."""
    count = [0]

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            mine = count[0]
            if mine == at and when == "before":
                raise KeyboardInterrupt
            result = real(*args, **kwargs)
            if mine == at:
                raise KeyboardInterrupt
            return result

        return step

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STEPS:
            step = counting(getattr(owner, name))
            patch.setattr(owner, name, staticmethod(step) if owner is WriteOperation else step)
        with contextlib.suppress(KeyboardInterrupt):
            yield count


def shown(stock: StockRoom) -> Shown:
    return dict(stock.experiment), {name: list(stock.data[name].values()) for name in stock.data}


@pytest.mark.parametrize(
    ("name", "when"), sample("interrupts", itertools.product(ACTIONS, ["before", "behind"]), quick=3, ci=6)
)
def test_a_handle_with_staged_writes_shows_what_there_is(tmp_path: Path, name: str, when: str) -> None:
    act, allowed = ACTIONS[name]
    count, at = [0], 0
    while count[0] >= at:
        at += 1 if at < 8 else 5
        root = tmp_path / str(at)
        stock = StockRoom.init(root)
        with stock.enable_write():
            stock.experiment["old"] = 0
        with StockRoom(root, enable_write=True) as writes:
            writes.experiment["a"] = 1
            writes.experiment["b"] = 2
            writes.data["n"] = [1, 2]
            with interrupted(at, when) as count:
                act(writes)
            found = shown(writes)
            assert found in allowed, f"at step {at}"
            with StockRoom(root, enable_write=True) as anew:
                assert found == shown(anew), f"at step {at}"
            # What follows is right, too.
            writes.experiment["last"] = 9
            if found != COMMITTED:
                assert writes.experiment["a"] == 1
            writes.commit("rest")
            assert shown(StockRoom(root)) == ({**found[0], "last": 9}, found[1]), f"at step {at}"
    assert at > 8


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_handle_that_only_read_before_its_block_shows_what_was_committed(tmp_path: Path, when: str) -> None:
    count, at = [0], 0
    while count[0] >= at:
        at += 1 if at < 8 else 5
        root = tmp_path / str(at)
        stock = StockRoom.init(root)
        with stock.enable_write():
            stock.data["n"] = [1, 2]
        with interrupted(at, when) as count:
            write_block(stock)
        found = shown(stock)
        assert found in [({}, {"n": [1, 2]}), ({"x": 1}, {"n": [1, 2, 3], "y": [5]})], f"at step {at}"
        assert found == shown(StockRoom(root)), f"at step {at}"
        with stock.enable_write():
            stock.experiment["last"] = 9
        assert shown(StockRoom(root)) == ({**found[0], "last": 9}, found[1]), f"at step {at}"
    assert at > 8
