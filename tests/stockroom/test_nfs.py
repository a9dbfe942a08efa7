"""Two machines of the model write one stockroom."""

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.nfs_facts import Clients
from tests.nfs_like import SECONDS, Machine, Nfs
from tests.stockroom.nfs_walks import StockroomOnNfs

from hopyard.stockroom import StockRoom
from hopyard.stockroom.git import find, mark_of


class TestStockroom(StockroomOnNfs):
    @pytest.fixture
    def clients(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Clients]:
        (tmp_path / "shared").mkdir()
        forgets = "beside git" in request.node.name  # which is another question, but each walk is to see both
        with Nfs(tmp_path / "shared", forgets).mounted() as nfs:
            yield Clients(Machine(nfs).at_work, Machine(nfs).at_work, partial(nfs.wait, SECONDS))

    def test_what_was_staged_in_a_new_worktree_of_git_is_not_taken_for_that_of_an_older_one(
        self, clients: Clients
    ) -> None:
        def git(root: Path, *arguments: str) -> None:
            subprocess.run(["git", "-C", str(root / "room"), *arguments], check=True, capture_output=True)

        with clients.a() as root:
            (root / "room").mkdir()
            git(root, "init", "-b", "main")
            with StockRoom.init(root / "room") as stock, stock.enable_write():
                stock.data["samples"] = {0: 0}
            git(root, "add", "head.stock")
            git(root, "-c", "user.name=A", "-c", "user.email=a@b", "commit", "-m", "first")
            git(root, "worktree", "add", str(root / "tree"))
        with clients.b() as root:
            mark = mark_of(find(root / "tree"))
            assert mark is not None
            assert not mark.exists()
        with clients.a() as root, StockRoom(root / "tree", enable_write=True) as stock:
            stock.data["samples"].update({1: 1})
        with clients.b() as root, StockRoom(root / "tree", enable_write=True) as stock:
            assert list(stock.data["samples"].keys()) == [0, 1]
