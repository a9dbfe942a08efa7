"""A parent directory for converters, and rows on the executors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopyard.spark import SparkDatasetConverter

NO_LAUNCHER = ("HOROVOD", "OMPI_COMM_WORLD", "PMI")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable says that this process is one of several."""
    for name in (*(f"{of}_{what}" for of in NO_LAUNCHER for what in ("RANK", "SIZE")), "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cache(spark: Any, tmp_path: Path) -> Iterator[Path]:
    """The parent directory of this test's converters."""
    key = SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF
    spark.conf.set(key, f"file://{tmp_path}/cache")
    yield tmp_path / "cache"
    spark.conf.unset(key)
