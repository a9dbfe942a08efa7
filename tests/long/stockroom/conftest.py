"""A stockroom in a folder of its own, apart from the user's git."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stockroom.git.conftest import own_configuration as own_configuration
from tests.stockroom.remotes.conftest import local as local
from tests.stockroom.remotes.conftest import remote as remote
from tests.stockroom.remotes.conftest import store as store

from hopyard import StockRoom


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[StockRoom]:
    with StockRoom.init(tmp_path / "stock") as made:
        yield made
