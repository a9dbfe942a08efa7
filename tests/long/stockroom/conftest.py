"""A stockroom in a folder of its own, apart from the user's git."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import conftest, forked
from tests.stockroom.git.conftest import own_configuration as own_configuration
from tests.stockroom.remotes.conftest import local as local
from tests.stockroom.remotes.conftest import remote as remote
from tests.stockroom.remotes.conftest import store as store

from hopyard import StockRoom
from hopyard.stockroom.git import driver


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[StockRoom]:
    with StockRoom.init(tmp_path / "stock") as made:
        yield made


@pytest.fixture(autouse=True)
def forked_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Git merges a hundred times here: its driver is forked, too."""
    if conftest.FORKS:
        command = f"{forked.COMMAND} -m hopyard {' '.join(driver.ARGUMENTS)}"
        monkeypatch.setattr(driver, "_command", lambda: command)
