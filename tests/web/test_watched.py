"""Watching costs the watched run nothing."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.web.conftest import RUN, rows, search
from tests.web.test_runs import schedule

from hopyard.backend import LocalBackend
from hopyard.documents.runs import totals_json
from hopyard.errors import CorruptError, StorageError
from hopyard.hopper.journal import Journal, read_records
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.wrappers import CountingStore, ReadOnlyStore
from hopyard.tune import Callback, TrialInfo
from hopyard.tune.run import Run
from hopyard.web.runs import changes_json, schedule_bytes
from hopyard.web.watched import MARKS, WatchedRun

_TIMES = ("a", "z", "created", "offset", "seconds", "unit_seconds", "driver", "host", "pid", "output")


def recorded(run: Store) -> list[str]:
    """What the journal holds after its header but times, in an order that does not depend on these."""
    records = [
        {name: value for name, value in record.items() if name not in _TIMES} for record in read_records(run)
    ]
    return sorted(json.dumps(record, sort_keys=True) for record in records[1:])


def written(store: Store) -> dict[str, bytes]:
    """All that a run wrote but its journal, what tells who drives it, and its program, which has the callback in it."""
    names = [entry.name for entry in store.list()]
    return {name: store.get(name) for name in names if not name.startswith(("journal/", "lease", "program/"))}


def test_a_watched_run_writes_what_an_unwatched_one_writes(tmp_path: Path, serve: Any) -> None:
    stores = {name: LocalStore(tmp_path / name) for name in ("watched", "alone")}
    search(stores["alone"], packing="serial").fit(rows())
    (tmp_path / "watched").mkdir()
    looks, found = threading.Event(), list[str]()

    class Patient(Callback):
        """Lets the run go on once it was looked at."""

        def on_trial_end(self, trial: TrialInfo) -> None:
            assert looks.wait(30)

    with serve([str(tmp_path / "watched")]) as client:

        def watch() -> None:
            for kind, document in client.events("/api/runs/events"):
                if kind == "runs" and any(row["run"] == RUN for row in document["runs"]):
                    break
            for kind, _ in client.events(f"/api/runs/0/{RUN}/events"):
                client.get(f"/api/runs/0/{RUN}/schedule")
                looks.set()
                found.append(kind)
                if kind == "end":
                    return

        watching = threading.Thread(target=watch)
        watching.start()
        search(stores["watched"], callbacks=[Patient()], packing="serial").fit(rows())
        watching.join(60)
        assert not watching.is_alive()
    assert found[-1] == "end"
    watched, alone = (store.runs.at(RUN) for store in stores.values())
    assert written(watched) == written(alone)
    assert recorded(watched) == recorded(alone)


def test_a_look_is_four_small_requests_and_writes_nothing(place: Path) -> None:
    counted = CountingStore(MemoryStore())
    journal = Journal(counted.runs.at(RUN))
    records = list(read_records(LocalStore(place).runs.at(RUN)))[:-1]
    for record in records[:-1]:
        journal.append(record)
    journal.flush()
    now = [0.0]
    run = WatchedRun(ReadOnlyStore(counted), RUN, 0.5, lambda: now[0])
    run.refresh()
    counted.reset()
    for _ in range(10):
        now[0] += 1
        run.refresh()
        run.refresh()
    assert counted.calls == {"list": 20, "get": 10, "size": 10}, (
        "that many requests to a bucket, says docs/web.md"
    )
    journal.append(records[-1])
    journal.flush()
    now[0] += 1
    run.refresh()
    assert run.count == len(records)
    journal.close()


@pytest.mark.parametrize("more", [0, 1, 5])
def test_a_run_that_is_begun_anew_while_it_is_looked_at_is_not_taken_for_the_old_one(
    place: Path, more: int
) -> None:
    records = list(read_records(LocalStore(place).runs.at(RUN)))[:-1]
    store, now = MemoryStore(), [0.0]

    def written(created: float, count: int) -> Journal:
        journal = Journal(store.runs.at(RUN))
        for record in records[:count]:
            journal.append(record | ({"created": created} if record["r"] == "run" else {}))
            journal.flush()
        return journal

    old = written(1.0, 4)
    run = WatchedRun(store, RUN, 0.5, lambda: now[0])
    run.refresh()
    old.close()
    for entry in list(store.runs.at(RUN).list()):
        store.runs.at(RUN).delete(entry.name)
    journal = written(2.0, 2 + more)
    now[0] += 1
    with pytest.raises(
        StorageError, match=f"run {RUN} was begun anew since it was looked at. Open it again."
    ):
        run.refresh()
    assert run.is_replaced()
    journal.close()


@pytest.mark.parametrize("more", [0, 2])
def test_a_run_that_was_begun_anew_and_ended_between_two_looks_is_not_mixed_with_the_old_one(
    place: Path, more: int, serve: Any, tmp_path: Path
) -> None:
    records = list(read_records(LocalStore(place).runs.at(RUN)))
    folder = LocalStore(tmp_path).runs.at(RUN)

    def write(created: float, count: int) -> None:
        journal = Journal(folder)
        for record in records[:count]:
            journal.append(record | ({"created": created} if record["r"] == "run" else {}))
        journal.close()

    write(1.0, len(records) - 6)
    with serve([str(tmp_path)]) as client:
        before = client.get("/api/runs").json["runs"][0]
        assert (before["status"], before["begun"]) == ("interrupted", "1970-01-01T00:00:01Z")
        shutil.rmtree(tmp_path / "runs" / RUN)
        write(2.0, len(records) - 6 + more)
        looked = WatchedRun(LocalStore(tmp_path), RUN, 0.0)
        looked.refresh()
        events = client.events("/api/runs/events")
        found = (row for kind, each in events if kind == "runs" for row in each["runs"])
        now = next(row for row in found if row["begun"] != before["begun"] and row["error"] is None)
        events.close()
        assert (now["status"], now["begun"]) == ("interrupted", "1970-01-01T00:00:02Z")
        shown = client.get(f"/api/runs/0/{RUN}").json
        assert (shown["version"], shown["begun"]) == (looked.count, now["begun"])


def test_a_record_that_does_not_follow_is_told_at_each_look(place: Path) -> None:
    store = MemoryStore()
    journal = Journal(store.runs.at(RUN))
    for record in list(read_records(LocalStore(place).runs.at(RUN)))[:3]:
        journal.append(record)
    journal.append({"r": "end", "t": 77, "status": "completed"})
    journal.close()
    run = WatchedRun(store, RUN, 0.0)
    assert run.is_read()
    for _ in range(2):
        with pytest.raises(
            CorruptError, match=r"record 4 of the journal of run grid in .* does not follow .*KeyError\(77\)"
        ):
            run.refresh()


def test_a_watched_schedule_is_that_of_the_run_after_each_record(tmp_path: Path) -> None:
    """Numbers that the page was told, changes by changes, are those of a run that is opened anew."""
    prepared = LocalStore(tmp_path)
    search(prepared, [0.1, 0.01], backend=LocalBackend(num_workers=2)).fit(rows())
    records = list(read_records(prepared.runs.at(RUN)))
    now = next(number for number, record in enumerate(records) if record["r"] == "unit") + 3
    commands = [{"r": "control", "c": 1, "do": do, "z": records[now - 1]["z"]} for do in ("pause", "resume")]
    records[now:now] = commands
    store = MemoryStore()
    journal, watched, told, version, sent = Journal(store.runs.at(RUN)), None, {}, 0, dict[int, int]()
    seen = set[int]()
    for count, record in enumerate(records, 1):
        journal.append(record)
        journal.flush()
        watched = watched or WatchedRun(store, RUN, 0.0)
        watched.refresh()
        run = Run(store.runs.at(RUN), RUN, records[:count])
        changes = changes_json(watched, version, sent)
        told |= changes["schedule"]
        told |= {"alone": changes["alone"]} if changes["alone"] is not None or count == 1 else {}
        version = changes["version"]
        known = totals_json(run.totals())
        assert {**told, "alone": told["alone"] or []} == known
        seen.add(known["hops"])
        table = run.schedule()
        expected = sorted(
            (np.float32(row.start), np.float32(row.end), row.worker, row.trial) for row in table.itertuples()
        )
        (_, _, _, _, span, paused, *marks), idle, shown = schedule(
            schedule_bytes(watched, None, None, 20_000)
        )
        assert sorted(unit[:4] for unit in shown) == expected
        assert [kind for _, kind in marks] == [MARKS[each["do"]] for each in commands[: max(count - now, 0)]]
        if known["busy"] is not None:
            assert span + paused == pytest.approx(known["span_seconds"])
            assert sum(idle.values()) == pytest.approx((1 - known["busy"]) * span * len(idle))
    journal.close()
    assert max(seen) > 0, "there are hops between the two workers"
