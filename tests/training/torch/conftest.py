"""What every test of trunks starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.data.combining import computed


@pytest.fixture(autouse=True)
def nothing_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No outputs of a trunk in a node cache or in memory."""
    monkeypatch.setenv("HOPYARD_CACHE", str(tmp_path / "node-cache"))
    computed._held.clear()
