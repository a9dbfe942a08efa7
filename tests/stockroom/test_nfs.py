"""Two machines of the model write one stockroom."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.nfs_facts import Clients
from tests.nfs_like import SECONDS, Machine, Nfs
from tests.stockroom.nfs_walks import StockroomOnNfs


class TestStockroom(StockroomOnNfs):
    @pytest.fixture(params=[False, True], ids=["old", "stale"])
    def clients(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Clients]:
        (tmp_path / "shared").mkdir()
        with Nfs(tmp_path / "shared", forgets=request.param).mounted() as nfs:
            yield Clients(Machine(nfs).at_work, Machine(nfs).at_work, partial(nfs.wait, SECONDS))
