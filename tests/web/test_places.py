"""Which places are shown, and what is said of those that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.web.conftest import RUN, rows, search

from hopyard.errors import NotFoundError
from hopyard.storage import LocalStore
from hopyard.web.places import find_places, missing_places


def test_a_place_that_is_not_there_hides_no_other_and_is_shown_once_it_is(
    place: Path, serve: Any, tmp_path: Path
) -> None:
    late = tmp_path / "late"
    given = [str(late), str(place)]
    assert missing_places(find_places(given)) == (
        f"{late} is no directory, so there is nothing to show there. Give the path that LocalStore(...) was given, or "
        "the folder of a stockroom; a directory that is made later is shown once it is there."
    )
    with serve(given) as client:
        missing, there = client.get("/api/places").json["places"]
        assert there["error"] is None
        assert missing["error"].startswith(f"{late} is no directory, so it holds no runs.")
        assert [row["place"] for row in client.get("/api/runs").json["runs"]] == ["1"]
        search(LocalStore(late), [0.1]).fit(rows())
        assert client.get("/api/places").json["places"][0]["error"] is None
        assert client.get(f"/api/runs/0/{RUN}").json["num_trials"] == 3
    assert not missing_places(find_places(given))


def test_if_no_place_is_there_all_are_named(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with pytest.raises(
        NotFoundError, match=f"{a}, {b} are no directories, so there is nothing to show there"
    ):
        find_places([str(a), str(b)])
    with pytest.raises(NotFoundError, match=f"{a} is no directory.* Give the path that") as found:
        find_places([str(a)])
    assert "again" not in str(found.value), "it is the first start"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A folder of two Parquet files that nobody prepared."""
    folder = tmp_path / "plain"
    folder.mkdir()
    for number in range(2):
        table = pa.table(
            {"x": np.arange(5, dtype=np.float32) + 5 * number, "name": [f"{n}" for n in range(5)]}
        )
        pq.write_table(table, folder / f"part-{number}.parquet")
    return folder


def test_parquet_files_as_they_are_are_listed_described_and_shown(plain: Path, serve: Any) -> None:
    with serve([str(plain)]) as client:
        assert client.get("/api/data/0").json["datasets"] == [{"path": "", "prepared": False, "error": None}]
        [split] = client.get("/api/data/0/describe?path=").json
        assert (split["rows"], split["files"], split["prepared"]) == (10, 2, False)
        assert len(client.get("/api/data/0/samples?path=&split=train").json["rows"]) == 10


def test_a_folder_without_data_lists_none(tmp_path: Path, serve: Any) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with serve([str(tmp_path)]) as client:
        assert client.get("/api/data/0").json["datasets"] == []


def test_prepared_data_is_listed_as_such_and_what_is_unknown_of_it_has_a_reason(client: Any) -> None:
    listed = client.get("/api/data/0").json["datasets"]
    assert len(listed) == 2
    assert {each["prepared"] for each in listed} == {True}
    [split] = client.get(f"/api/data/0/describe?path={listed[0]['path']}").json
    assert (split["places"], split["order_quality"]) == (None, None)
    assert split["places_unknown"] == (
        "the files are in this machine's file system, where there are no hosts to tell apart; HDFS has some"
    )
    assert split["order_quality_unknown"] == (
        f"it has {split['rows']} rows; how well batches of 256 are mixed is told from two of them on"
    )
