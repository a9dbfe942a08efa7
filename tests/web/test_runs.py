"""Documents of runs: those of the command line, curves, schedules, changes."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.web.conftest import HOSTILE, RUN, TOKEN, Client, rows, search
from typer.testing import CliRunner

from hopyard.cli import app
from hopyard.hopper.journal import Journal, JournalFollower, read_records
from hopyard.hopper.segments import Segments
from hopyard.storage import LocalStore
from hopyard.tune import open_run
from hopyard.web.runs import schedule_bytes
from hopyard.web.watched import WatchedRun

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


def printed(*words: str) -> Any:
    """The JSON that a command prints."""
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def curves(data: bytes) -> dict[int, list[tuple[float, float]]]:
    """Points of each trial, as the page reads them."""
    magic, trials, points = struct.unpack_from("<4sII", data)
    assert magic == b"HYC1"
    numbers = np.frombuffer(data, "<u4", trials, 12)
    counts = np.frombuffer(data, "<u4", trials, 12 + 4 * trials)
    epochs = np.frombuffer(data, "<f4", points, 12 + 8 * trials)
    values = np.frombuffer(data, "<f4", points, 12 + 8 * trials + 4 * points)
    assert len(data) == 12 + 8 * trials + 8 * points
    ends = np.cumsum(counts)
    return {
        int(number): list(
            zip(epochs[end - count : end].tolist(), values[end - count : end].tolist(), strict=True)
        )
        for number, count, end in zip(numbers, counts, ends, strict=True)
    }


def schedule(data: bytes) -> tuple[tuple[Any, ...], dict[int, float], list[tuple[Any, ...]]]:
    """Begin, end, bound, expected end, span and seconds paused, then marks; idle seconds by worker; units, as the page
    reads them."""
    magic, count, *numbers_of, workers, marks = struct.unpack_from("<4sIddddddII", data)
    assert magic == b"HYS2"
    at = struct.calcsize("<4sIddddddII")
    numbers = np.frombuffer(data, "<u4", workers, at)
    idle = np.frombuffer(data, "<f8", workers, at + 4 * workers)
    at += 12 * workers
    moments, kinds = np.frombuffer(data, "<f8", marks, at), np.frombuffer(data, "<u4", marks, at + 8 * marks)
    facts = (*numbers_of, *zip(moments.tolist(), kinds.tolist(), strict=True))
    at += 12 * marks
    columns = []
    for kind, size in (("<f4", 4), ("<f4", 4), ("<u4", 4), ("<u4", 4), ("<u4", 4), ("u1", 1)):
        columns.append(np.frombuffer(data, kind, count, at).tolist())
        at += size * count
    assert len(data) == at + -at % 4
    return (
        tuple(facts),
        dict(zip(numbers.tolist(), idle.tolist(), strict=True)),
        list(zip(*columns, strict=True)),
    )


def test_the_list_is_that_of_the_command_line(client: Client, place: Path) -> None:
    (listed,) = client.get("/api/runs").json["runs"]
    (known,) = printed("run", "list", str(place))
    assert {name: listed[name] for name in known} == known
    assert (listed["place"], listed["progress"], listed["ended_trials"], listed["kind"]) == (
        "0",
        1.0,
        12,
        "grid",
    )


def test_a_run_is_that_of_the_command_line(client: Client, place: Path) -> None:
    shown = client.get(f"/api/runs/0/{RUN}").json
    known = printed("run", "describe", str(place), RUN)
    for trial in shown["trials"]:
        assert trial.pop("stopped") is None
    assert {name: shown[name] for name in known} == known
    assert shown["metrics"][0] == "val_accuracy"
    assert set(shown["metrics"]) == {"val_accuracy", "val_loss", "train_loss"}
    assert shown["broken_rules"] == []
    assert shown["settings"]["num_epochs"] == 2


def test_runs_are_compared_as_on_the_command_line(client: Client, place: Path) -> None:
    assert client.get(f"/api/runs/compare?run=0/{RUN}").json == printed("run", "compare", str(place), RUN)


def test_curves_are_the_histories(client: Client, place: Path) -> None:
    for metric in ("val_accuracy", "train_loss"):
        shown = curves(client.get(f"/api/runs/0/{RUN}/curves?metric={metric}").body)
        histories = open_run(str(place), RUN).histories()
        expected = {
            number: [(index + 1.0, float(np.float32(value))) for index, value in enumerate(history[metric])]
            for number, history in histories.items()
            if history
        }
        assert shown == expected
    found = client.get(f"/api/runs/0/{RUN}/curves?metric=nothing")
    assert (found.status, found.error) == (
        404,
        f"run {RUN} has no metric 'nothing'; it has val_accuracy, train_loss, val_loss. Choose one of them.",
    )


def test_the_schedule_is_that_of_the_run(client: Client, place: Path) -> None:
    (begin, end, bound, expected, span, paused), idle, shown = schedule(
        client.get(f"/api/runs/0/{RUN}/schedule").body
    )
    run = open_run(str(place), RUN)
    table = run.schedule()
    phases = {"train": 0, "validate": 1}
    known = sorted(
        (np.float32(row.start), np.float32(row.end), row.worker, row.trial, row.partition, phases[row.phase])
        for row in table.itertuples()
    )
    assert sorted(shown) == known
    assert begin == 0.0
    assert end == run.state.clock
    assert np.isnan(expected), "it has ended"
    together = table.drop_duplicates(["worker", "start", "end"])  # trials of a pack are in one unit
    assert len(together) < len(table)
    worked = float((together["end"] - together["start"]).sum())
    assert span == pytest.approx(table["end"].max() - table["start"].min())
    assert paused == 0.0
    assert idle == {0: pytest.approx(span - worked)}
    busy = client.get(f"/api/runs/0/{RUN}").json["schedule"]["busy"]
    assert sum(idle.values()) / (span * len(idle)) == pytest.approx(1 - busy)
    assert bound == pytest.approx(worked), "one worker has to do it all"


def test_a_part_of_the_schedule_merges_units_that_are_narrower_than_a_pixel(place: Path) -> None:
    run = WatchedRun(LocalStore(place), RUN, 0.0)
    run.refresh()
    _, _, fine = schedule(schedule_bytes(run, None, None, 20_000))
    _, _, coarse = schedule(schedule_bytes(run, None, None, 3))
    assert len(coarse) < len(fine)
    assert min(unit[0] for unit in coarse) == min(unit[0] for unit in fine)
    assert max(unit[1] for unit in coarse) == max(unit[1] for unit in fine)
    covered = np.zeros(3)
    width = run.state.clock / 3
    for begin, end, *_ in coarse:
        covered[int(begin / width) : int(min(end / width, 2)) + 1] = 1
    assert covered.all(), "what was busy is shown busy"
    middle = fine[len(fine) // 2]
    _, _, part = schedule(schedule_bytes(run, middle[0], middle[1], 20_000))
    assert middle in part
    assert len(part) < len(fine)


def test_a_trial_has_its_history(client: Client, place: Path) -> None:
    shown = client.get(f"/api/runs/0/{RUN}/trials/0").json
    assert shown["history"] == open_run(str(place), RUN).histories()[0]
    assert shown["epoch"] == [1, 2]
    found = client.get(f"/api/runs/0/{RUN}/trials/99")
    assert (found.status, found.error) == (
        404,
        f"run {RUN} has no trial 99; it has 12, the first is 0. Choose one of the table.",
    )


def test_failures_are_shown_with_their_tracebacks(client: Client) -> None:
    failed = [
        trial for trial in client.get(f"/api/runs/0/{RUN}").json["trials"] if trial["status"] == "failed"
    ]
    assert len(failed) == 4
    assert {trial["error"]["message"] for trial in failed} == {f"three is not enough {HOSTILE}"}
    assert all("raise ValueError" in json.dumps(trial["error"]) for trial in failed)


def test_importances_are_told_or_why_not(client: Client, place: Path, serve: Any, tmp_path: Path) -> None:
    found = client.get(f"/api/runs/0/{RUN}/importance").json
    assert found["error"] is None
    assert {each["name"] for each in found["importances"]} == {"width", "lr"}
    assert sum(each["importance"] for each in found["importances"]) == pytest.approx(1.0)
    search(LocalStore(tmp_path), [0.1], run_id="few").fit(rows())
    with serve([str(tmp_path)]) as other:
        found = other.get("/api/runs/0/few/importance").json
    assert found["importances"] == []
    assert found["error"].endswith("the importance of hyperparameters is told from 8 on. Wait for more.")


def test_importances_of_the_same_results_are_told_by_one_process(
    place: Path, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(place, tmp_path / "store")
    shutil.copytree(place / "runs" / RUN, tmp_path / "store" / "runs" / "twin")
    begun: list[bytes] = []

    def run(command: list[str], *, input: bytes, **options: Any) -> Any:
        begun.append(input)
        return begin(command, input=input, **options)

    begin = subprocess.run
    monkeypatch.setattr(subprocess, "run", run)
    with serve([str(tmp_path / "store")]) as client, ThreadPoolExecutor(8) as pool:
        asked = [f"/api/runs/0/{name}/importance" for name in (RUN, "twin") * 12]
        (told,) = {found.body for found in pool.map(client.get, asked)}
        assert {each["name"] for each in json.loads(told)["importances"]} == {"width", "lr"}
        assert len(begun) == 1
        search(LocalStore(tmp_path / "store"), num_epochs=6).fit_on_prepared_data()
        later = client.get(asked[0]).json
        assert {each["name"] for each in later["importances"]} == {"width", "lr"}
        assert client.get(asked[1]).body == told
        assert len(begun) == 2, "results have changed"


def test_a_process_that_cannot_tell_importances_is_told_of(
    place: Path, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_processes: None
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no memory >&2\nexit 3\n")
    program.chmod(0o755)
    with serve([str(place)]) as client:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "executable", str(program))
            found = client.get(f"/api/runs/0/{RUN}/importance")
            assert found.status == 503
            assert found.error == (
                "the process that tells the importance of hyperparameters ended with 3 (no memory). Look whether this "
                "machine has memory for it (about 250 MB), and ask again."
            )
        assert client.get(f"/api/runs/0/{RUN}/importance").json["error"] is None


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/api/runs/0/nothing", 404, "holds no run 'nothing'"),
        ("/api/runs/7/grid", 404, "there is no store number 7; there are 0, 1. /api/places lists them."),
        ("/api/runs/1/grid", 400, "is a stockroom, which holds no runs of its own. Look at its versions."),
        (
            f"/api/runs/0/{RUN}/schedule?begin=soon",
            400,
            "begin is 'soon', which is no finite number. Give one,",
        ),
        (f"/api/runs/0/{RUN}/schedule?pixels=0", 400, "pixels is '0'; give a whole number from 1 to 20000."),
        (f"/api/runs/0/{RUN}/logs?most=0", 400, "most is '0'; give a whole number from 1 to 5000."),
        (
            f"/api/runs/0/{RUN}/logs?after=-1",
            400,
            f"after is '-1', which is no place in the log of run {RUN}.",
        ),
        ("/api/runs/compare", 400, "0 runs are to be compared; choose from 1 to 50."),
        ("/api/nothing", 404, "there is no /api/nothing. /api/places says what is shown here."),
    ],
)
def test_what_is_wrong_is_said_with_the_next_step(client: Client, path: str, status: int, text: str) -> None:
    found = client.get(path)
    assert found.status == status
    assert text in found.error


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"[]", 'what was sent is no JSON object. Send one, such as {"do": "pause"}.'),
        (b"x" * 70_000, "more than 65536 bytes were sent; a command is a small JSON object. Send that."),
        ({"do": "dance"}, "{'do': 'dance'} is no command for a run: there is no 'dance'"),
        ({"do": "stop", "trial": 77}, f"run {RUN} has no trial 77; it has 12"),
    ],
)
def test_a_command_that_is_none_is_refused(client: Client, sent: Any, text: str) -> None:
    found = client.post(f"/api/runs/0/{RUN}/commands", sent, **AUTHORIZED)
    assert found.status in (400, 404)
    assert text in found.error


def test_a_command_to_a_run_that_has_ended_says_so(client: Client) -> None:
    found = client.post(f"/api/runs/0/{RUN}/commands", {"do": "pause"}, **AUTHORIZED)
    assert found.json == {"said": f"run {RUN} is not running, so there is nothing to pause."}


def test_events_begin_with_what_has_changed_since(client: Client) -> None:
    version = client.get(f"/api/runs/0/{RUN}").json["version"]
    kind, nothing = next(client.events(f"/api/runs/0/{RUN}/events?since={version}"))
    assert (kind, nothing["trials"], nothing["points"]) == ("changes", [], {})
    assert (nothing["version"], nothing["status"], nothing["num_trials"]) == (version, "completed", 12)
    _, everything = next(client.events(f"/api/runs/0/{RUN}/events?since=0"))
    assert len(everything["trials"]) == 12
    _, resumed = next(client.events(f"/api/runs/0/{RUN}/events?since=0", Last_Event_ID=str(version)))
    assert resumed["trials"] == [], "a browser that connects again says where it was"


def test_the_end_is_told_when_the_driver_gives_the_run_back(place: Path, serve: Any, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path / "store")
    journal = Journal(LocalStore(tmp_path / "store").runs.at(RUN))
    with serve([str(tmp_path / "store")]) as client:
        events = client.events(f"/api/runs/0/{RUN}/events?since=0")
        name, changes = next(events)
        assert (name, changes["status"]) == ("changes", "completed")
        assert changes["driver"]["pid"] == os.getpid()
        journal.close()
        name, changes = next(events)
        assert (name, changes["driver"]) == ("changes", None)
        assert next(events) == ("end", {"status": "completed"})


def test_a_command_that_waits_for_a_driver_is_an_event(place: Path, serve: Any, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path / "store")
    with serve([str(tmp_path / "store")]) as client:
        events = client.events(f"/api/runs/0/{RUN}/events?since=0")
        assert next(events)[1]["waiting"] == []
        for epochs in (5, 6):
            done = CliRunner().invoke(
                app, ["run", "extend", str(tmp_path / "store"), RUN, "--num-epochs", f"{epochs}"]
            )
            assert "the command is kept until it goes on" in done.output
            name, changes = next(events)
            assert (name, changes["trials"], changes["status"]) == ("changes", [], "completed")
            assert changes["waiting"][-1] == f"extend num_epochs={epochs}"
            assert client.get(f"/api/runs/0/{RUN}").json["waiting"] == changes["waiting"]
        driver = Journal(LocalStore(tmp_path / "store").runs.at(RUN))
        name, changes = next(events)
        assert (name, changes["waiting"], changes["driver"]["pid"]) == ("changes", [], os.getpid())
        driver.close()
        events.close()


def test_a_run_that_is_deleted_is_said_to_be_gone_and_its_successor_is_shown(
    place: Path, serve: Any, tmp_path: Path
) -> None:
    shutil.copytree(place, tmp_path / "store")
    with serve([str(tmp_path / "store")]) as client:
        events = client.events(f"/api/runs/0/{RUN}/events?since=0")
        assert next(events)[0] == "changes"
        shutil.rmtree(tmp_path / "store" / "runs" / RUN)
        kind, gone = next(events)
        assert kind == "gone"
        assert f"holds no run '{RUN}'" in gone["error"]
        assert client.get("/api/runs").json == {"runs": []}
        search(LocalStore(tmp_path / "store"), [0.1]).fit(rows())
        assert client.get(f"/api/runs/0/{RUN}").json["num_trials"] == 3


def test_a_run_that_has_come_in_the_place_of_another_is_shown(serve: Any, tmp_path: Path) -> None:
    search(LocalStore(tmp_path), [0.1]).fit(rows())
    with serve([str(tmp_path)]) as client:
        before = client.get(f"/api/runs/0/{RUN}").json
        shutil.rmtree(tmp_path / "runs" / RUN)
        search(LocalStore(tmp_path), [0.1], seed=5).fit(rows())
        after = client.get(f"/api/runs/0/{RUN}").json
        assert (before["seed"], after["seed"]) == (0, 5)
        assert client.get("/api/runs").json["runs"][0]["best"] == after["trials"][0]["value"]


def test_a_damaged_run_hides_no_other(place: Path, serve: Any, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path / "store")
    shutil.copytree(place / "runs" / RUN, tmp_path / "store" / "runs" / "damaged")
    first = min((tmp_path / "store" / "runs" / "damaged" / "journal").iterdir())
    first.write_bytes(first.read_bytes()[:-9] + b"123456789")
    with serve([str(tmp_path / "store")]) as client:
        listed = {row["run"]: row for row in client.get("/api/runs").json["runs"]}
        assert listed[RUN]["status"] == "completed"
        assert listed["damaged"]["status"] == "unreadable"
        assert "journal" in listed["damaged"]["error"]
        assert client.get("/api/runs/0/damaged").status == 503


@pytest.mark.parametrize(
    "line",
    [b"hello", b"[1]", b"[" * 100_000, b'{"r":"run","created":%b}' % (b"9" * 5000)],
    ids=lambda line: str(line[:9]),
)
@pytest.mark.parametrize("looked", [False, True])
def test_a_journal_with_what_is_no_record_hides_no_other_run_and_may_be_mended(
    line: bytes, looked: bool, place: Path, serve: Any, tmp_path: Path
) -> None:
    shutil.copytree(place, tmp_path / "store")
    shutil.copytree(place / "runs" / RUN, tmp_path / "store" / "runs" / "odd")
    journal = LocalStore(tmp_path / "store").runs.at("odd/journal")
    kept = {entry.name: journal.get(entry.name) for entry in journal.list()}
    with serve([str(tmp_path / "store")]) as client:
        if looked:
            assert client.get("/api/runs/0/odd").json["num_trials"] == 12
        for name in kept:
            journal.delete(name)
        Segments(LocalStore(tmp_path / "store").runs.at("odd")).append(line + b"\n")
        for _ in range(2):
            listed = {row["run"]: row for row in client.get("/api/runs").json["runs"]}
            assert listed[RUN]["status"] == "completed"
            assert (listed["odd"]["status"], "has a line that is no record" in listed["odd"]["error"]) == (
                "unreadable",
                True,
            )
            found = client.get("/api/runs/0/odd")
            assert (found.status, "has a line that is no record, but" in found.error) == (503, True)
        journal.delete("000000000001")
        for name, data in kept.items():
            journal.put(name, data)
        assert client.get("/api/runs/0/odd").json["num_trials"] == 12


def test_a_store_that_vanishes_is_said_to_be_gone(place: Path, serve: Any, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path / "store")
    with serve([str(tmp_path / "store"), str(place)]) as client:
        shutil.rmtree(tmp_path / "store")
        gone, there = client.get("/api/places").json["places"]
        assert there["error"] is None
        assert gone["error"].startswith(
            f"{tmp_path / 'store'} is no directory, so it holds no runs. Give the path"
        )
        assert {row["place"] for row in client.get("/api/runs").json["runs"]} == {"1"}
        found = client.get(f"/api/runs/0/{RUN}")
        assert (found.status, found.error) == (404, gone["error"])


def test_a_bucket_that_does_not_answer_is_said_among_the_places(
    place: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "x",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with serve([str(place), "s3://nobody-answers/x"]) as client:
        assert [row["place"] for row in client.get("/api/runs").json["runs"]] == ["0"]
        local, bucket = client.get("/api/places").json["places"]
        assert local["error"] is None
        assert "s3://nobody-answers/x" in bucket["error"]


def test_of_a_run_whose_journal_is_still_read_the_share_is_said(
    place: Path, tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    records = list(read_records(LocalStore(place).runs.at(RUN)))
    journal = Journal(store.runs.at(RUN))
    for record in records[:-1]:  # all but that of its end
        journal.append(record)
    journal.close()
    go, whole = threading.Event(), JournalFollower.records

    def waiting(follower: JournalFollower) -> Iterator[dict[str, Any]]:
        for number, record in enumerate(whole(follower)):
            assert number < 3 or go.wait(60)
            yield record

    monkeypatch.setattr(JournalFollower, "records", waiting)
    with serve([str(tmp_path)]) as client:
        events = client.events(f"/api/runs/0/{RUN}/events")
        described = client.get(f"/api/runs/0/{RUN}").json
        assert described["trials"] == []
        assert 0 < described["reading"] <= 1
        assert next(events) == ("reading", {"share": described["reading"]})
        [listed] = client.get("/api/runs").json["runs"]
        assert re.fullmatch(rf"run {RUN} is still read: \d+% of its journal. Wait a little.", listed["error"])
        go.set()
        curves(client.get(f"/api/runs/0/{RUN}/curves").body)  # it waits
        described = client.get(f"/api/runs/0/{RUN}").json
        assert described["reading"] is None
        assert len(described["trials"]) == len(open_run(place, RUN).state.trials)
        [listed] = client.get("/api/runs").json["runs"]
        assert (listed["error"], listed["status"]) == (None, "interrupted")
        assert next(found for kind, found in events if kind == "changes")["status"] == "interrupted"
        events.close()
