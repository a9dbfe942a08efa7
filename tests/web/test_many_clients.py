"""Many who ask at once: those who wait for a journal, or for work, keep nobody from what takes no time."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.web.conftest import RUN, Client

from hopyard.hopper.journal import JournalFollower
from hopyard.tune.listing import list_runs
from hopyard.web import run_pages

CLIENTS = 60
"""More than there are threads that answer."""


def test_who_waits_for_a_journal_to_be_read_keeps_nobody_waiting(
    place: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, whole = threading.Event(), JournalFollower.records

    def waiting(follower: JournalFollower) -> Iterator[dict[str, Any]]:
        assert go.wait(60)
        yield from whole(follower)

    monkeypatch.setattr(JournalFollower, "records", waiting)
    ways = ("/curves", "/schedule", "/importance", "/trials/0")
    with serve([str(place)]) as client, ThreadPoolExecutor(CLIENTS) as pool:
        try:
            asked = [pool.submit(client.get, f"/api/runs/0/{RUN}{ways[n % 4]}") for n in range(CLIENTS)]
            told = [client.events(f"/api/runs/0/{RUN}/events") for _ in range(CLIENTS)]
            assert {next(each)[0] for each in told} == {"reading"}
            assert client.get("/api/places").json["places"][0]["error"] is None
            assert client.get("/api/runs").json["runs"][0]["run"] == RUN
            assert client.get(f"/api/runs/0/{RUN}").json["reading"] == 0
            assert not any(each.done() for each in asked)
        finally:
            go.set()
        assert {each.result().status for each in asked} == {200}
        for each in told:
            each.close()


def test_pages_that_follow_the_list_share_one_look(
    place: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def counted(store: Any) -> list[str]:
        looks.append(store.url)
        return list_runs(store)

    monkeypatch.setattr(run_pages, "list_runs", counted)
    with serve([str(place)]) as client, ExitStack() as closing, ThreadPoolExecutor(CLIENTS) as pool:
        pages = [client.events("/api/runs/events") for _ in range(CLIENTS)]
        for page in pages:
            closing.callback(page.close)
        assert {kind for kind, _ in pool.map(next, pages)} == {"runs"}
    assert len(looks) < CLIENTS / 4


def test_clients_that_read_nothing_and_say_half_of_what_they_want_hold_nobody_up(
    place: Path, serve: Any
) -> None:
    with serve([str(place)]) as client, ExitStack() as closing:
        for number in range(4 * CLIENTS):
            path = (f"/api/runs/0/{RUN}/events", "/api/runs/events", f"/api/runs/0/{RUN}")[number % 3]
            lines = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n"
            one = closing.enter_context(socket.create_connection(("127.0.0.1", client.port)))
            one.sendall((lines if number % 4 == 0 else f"{lines}\r\n").encode())
        assert client.get("/api/places").status == 200
        assert client.get(f"/api/runs/0/{RUN}").json["num_trials"] == 12


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_is_ended_while_pages_are_open_says_nothing_more(
    place: Path, sign: signal.Signals
) -> None:
    command = [sys.executable, "-m", "hopyard", "web", str(place), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        while "Ctrl-C ends it" not in process.stdout.readline():
            pass
        client = Client(int(said.rpartition(":")[2]))
        pages = [client.events(path) for path in ("/api/runs/events", f"/api/runs/0/{RUN}/events")]
        assert [next(page)[0] for page in pages] == ["runs", "changes"]
        process.send_signal(sign)
        for page in pages:
            assert list(page) == [], "it ended as an answer does"
        assert process.stdout.read() == ""
