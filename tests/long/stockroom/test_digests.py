"""Equal content has equal digests, whichever versions of libraries wrote it."""

from __future__ import annotations

from pathlib import Path

from tests.long.stockroom.digests import main


def test_the_digest_is_the_one_that_other_versions_of_pyarrow_gave(tmp_path: Path) -> None:
    """PyArrow 20.0, 25.0 and 26.0 did, though the Parquet files that they import differ byte by byte."""
    assert main(tmp_path) == "b6fe63fefb0de62e430aa5f79a480e0df6fb718d9632e9ef07133409ff93b719"
