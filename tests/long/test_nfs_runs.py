"""Drivers on several machines of the model go on with one run."""

from functools import partial
from pathlib import Path

import pytest
from tests.nfs_facts import Clients
from tests.nfs_like import SECONDS, Machine, Nfs
from tests.tune.nfs_walks import RunsOnNfs


class TestRuns(RunsOnNfs):
    @pytest.fixture(params=[False, True], ids=["old", "stale"])
    def clients(self, tmp_path: Path, request: pytest.FixtureRequest) -> Clients:
        (tmp_path / "shared").mkdir()
        nfs = Nfs(tmp_path / "shared", forgets=request.param)  # machines are in processes of their own
        return Clients(Machine(nfs).at_work, Machine(nfs).at_work, partial(nfs.wait, SECONDS))
