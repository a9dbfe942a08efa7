"""Which places are shown, and what is said of those that are not there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Where buckets are on this machine: a server that answers nothing until the event is set, then that they are
    empty."""
    answers = threading.Event()

    class Silent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.wait()
            body = b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>"
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "x",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    yield answers
    answers.set()
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_bucket_that_does_not_answer_keeps_no_other_store_waiting(
    bucket: threading.Event, place: Path, serve: Any
) -> None:
    with serve(["s3://silent/x", str(place)]) as client:
        for _ in range(2):
            assert [row["place"] for row in client.get("/api/runs").json["runs"]] == ["1"]
            silent, there = client.get("/api/places").json["places"]
            assert there["error"] is None
            assert silent["error"] == (
                "s3://silent/x has not told its runs yet. They appear here once it does; if it does not answer at all, "
                "the reason appears here."
            )
        events = client.events("/api/runs/events")
        _, first = next(events)
        assert ([row["place"] for row in first["runs"]], first["places"]) == (["1"], ["0"])
        assert not bucket.is_set()
        bucket.set()
        assert next(events) == ("runs", {"runs": [], "gone": [], "places": ["0"]})
        events.close()
        assert [each["error"] for each in client.get("/api/places").json["places"]] == [None, None]


def test_that_a_store_without_runs_vanishes_and_comes_back_is_an_event(
    place: Path, serve: Any, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with serve([str(empty), str(place)]) as client:
        events = client.events("/api/runs/events")
        _, first = next(events)
        assert ([row["place"] for row in first["runs"]], first["places"]) == (["1"], [])
        for is_there in (False, True):
            if is_there:
                empty.mkdir()
            else:
                empty.rmdir()
            assert next(events) == ("runs", {"runs": [], "gone": [], "places": ["0"]})
            assert (client.get("/api/places").json["places"][0]["error"] is None) == is_there
        events.close()
