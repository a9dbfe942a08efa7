"""What every test shares: the same examples on every machine, and one rule for services that are missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

# The same examples everywhere and every time; no deadline, since machines differ and some are busy.
settings.register_profile("hopyard", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("hopyard")


@pytest.fixture(autouse=True, scope="session")
def own_node_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests decode goes to a cache of theirs, not to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPYARD_CACHE", str(tmp_path_factory.mktemp("node-cache") / "cache"))
        yield


@pytest.fixture
def needs() -> Callable[[object, str], None]:
    """``needs(available, what)``: without ``what`` a test is skipped at home and fails where ``CI=true``."""

    def require(available: object, what: str) -> None:
        if available:
            return
        message = f"this test needs {what}, which is not available here"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)

    return require
