"""A machine dies within a commit to a stockroom on NFS, and another one goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.long.stockroom.crashes import dying
from tests.nfs_like import Machine, Nfs
from tests.sampling import moments

from hopyard.stockroom import StockRoom


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("staged", [False, True])
def test_a_machine_that_dies_within_a_commit_leaves_it_to_the_other_to_end_or_undo(
    tmp_path: Path, forgets: bool, staged: bool
) -> None:
    with Nfs(tmp_path, forgets).mounted() as nfs:
        dead, other = Machine(nfs), Machine(nfs)
        with other.at_work(), StockRoom.init(tmp_path / "room") as stock, stock.enable_write():
            stock.data["samples"] = {-1: -1}
        with other.at_work():
            kept = StockRoom(tmp_path / "room")
        there, number = {-1}, 0
        for at in moments(f"dead machine {staged}", quick=6, ci=2):
            with (
                dead.at_work(),
                dying(at) as counter,
                StockRoom(tmp_path / "room", enable_write=staged) as stock,
            ):
                if staged:
                    stock.data["samples"].update({number: number})
                    stock.commit("staged")
                else:
                    with stock.enable_write():
                        stock.data["samples"].update({number: number})
            with other.at_work(), kept.enable_write():
                kept.data["samples"].update({number + 1: number + 1})
            there.add(number + 1)
            with other.at_work():
                found = set(kept.data["samples"].keys())
                assert found - {number} == there, at
                assert kept.status().branch == "main"
                assert kept.verify().problems == [], at
            with dead.at_work(), StockRoom(tmp_path / "room") as stock:
                assert set(stock.data["samples"].keys()) == found
            there, number = found, number + 2
            if not counter.is_dead:
                assert number - 2 in found
                return
