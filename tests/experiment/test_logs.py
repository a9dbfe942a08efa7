"""Logs of experiments: what trials print, kept in the store with the time."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.backend import LocalBackend
from hopyard.errors import NotFoundError, UsageError
from hopyard.experiment import logs as logging_of
from hopyard.experiment import read_logs
from hopyard.experiment.logs import FOLDER, Recorder, parse_since, read_page
from hopyard.hopper.journal import Journal
from hopyard.hopper.state import RunState
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.testing import Fault, FaultyStore
from hopyard.tune import Run

Definition = Callable[..., Path]
Experiment = Callable[..., Run]

PRINTS = """
import os

def main(context):
    for report in range(2):
        print("report", report, "of", context.get_hparam("lr"), flush=True)
        os.write(2, b"from C\\n")
        context.report(accuracy=report)
"""
FUNCTION = {
    "entrypoint": "model_def:main",
    "hyperparameters": {"lr": {"type": "categorical", "vals": [1, 2]}},
    "searcher": {"name": "grid", "metric": "accuracy"},
}


def header(run_id: str = "r") -> dict[str, Any]:
    return {"r": "run", "run_id": run_id}


def begin(recorder: Recorder, session: int = 1, driver: str = "d") -> None:
    """Have a driver's session begin."""
    state = RunState()
    state.header, state.sessions = header(), session
    recorder(state, {"r": "session", "driver": driver})


def with_run(store: Store) -> Store:
    """The store with a run ``r`` that nobody drives."""
    journal = Journal(store.runs.at("r"))
    journal.append(header())
    journal.flush()
    journal.close()
    return store


def texts(store: Store, **options: Any) -> list[str]:
    return [line.text for line in read_logs(store, "r", **options)]


def test_what_trials_print_is_kept_with_time_trial_and_worker(
    definition: Definition, experiment: Experiment, tmp_path: Path
) -> None:
    before = datetime.now(UTC)
    run = experiment(definition(PRINTS), LocalBackend(1, device="cpu"), **FUNCTION)
    store = LocalStore(tmp_path / "store")
    found = list(read_logs(store, run.run_id))
    out = [(line.trial, line.worker, line.text) for line in found if line.stream == "stdout"]
    assert out == [(trial, 0, f"report {n} of {trial + 1}") for trial in range(2) for n in range(2)]
    assert [line.text for line in found if line.stream == "stderr"] == ["from C"] * 4
    assert all(before - timedelta(seconds=1) < line.time <= datetime.now(UTC) for line in found)
    assert [line.trial for line in read_logs(store, run.run_id, trial=1)] == [1] * 4
    assert len(list(read_logs(store, run.run_id, tail=3))) == 3
    assert list(read_logs(store, run.run_id, since=datetime.now(UTC) + timedelta(minutes=1))) == []
    assert list(read_logs(store, run.run_id, since=found[0].time)) == found


def test_why_trials_failed_is_among_what_they_print(
    definition: Definition, experiment: Experiment, tmp_path: Path
) -> None:
    code = """
    def main(context):
        lr = context.get_hparam("lr")
        context.report(accuracy=lr)
        if lr == 2:
            print("now", flush=True)
            raise ValueError("on\\npurpose")
        context.report(accuracy=lr)
    """
    run = experiment(definition(code), LocalBackend(1, device="cpu"), **FUNCTION, max_restarts=1)
    found = list(read_logs(LocalStore(tmp_path / "store"), run.run_id))
    assert {(line.trial, line.worker) for line in found} == {(1, 0)}
    failed = [line.text for line in found if line.stream == "stderr"]
    assert [line for line in failed if line.startswith("failed")] == [
        "failed, and goes on from its last state: ValueError: on",
        "failed: ValueError: on",
    ]
    assert failed.count('    raise ValueError("on\\npurpose")') == 2
    assert [line.text for line in found if line.stream == "stdout"] == ["now"] * 2


def test_lines_are_shown_too_and_tags_are_taken_off(capsys: pytest.CaptureFixture[str]) -> None:
    store = with_run(MemoryStore())
    with Recorder(store.runs) as recorder:
        recorder.hear(1, "stdout", "[worker 1] checked")  # before the run begins
        begin(recorder)
        recorder.hear(0, "stdout", "[trial 3 · worker 0] [trial 4 · worker 1] no tag")
        recorder.hear(0, "stderr", "[trial 3, 5 · worker 0] together")
    shown = capsys.readouterr()
    assert shown.out == "[worker 1] checked\n[trial 3 · worker 0] [trial 4 · worker 1] no tag\n"
    assert shown.err == "[trial 3, 5 · worker 0] together\n"
    found = [(line.trial, line.worker, line.stream, line.text) for line in read_logs(store, "r")]
    assert found == [
        (None, 1, "stdout", "checked"),
        (3, 0, "stdout", "[trial 4 · worker 1] no tag"),
        (3, 0, "stderr", "together"),
        (5, 0, "stderr", "together"),
    ]


def test_without_a_run_nothing_is_written(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with Recorder(store.runs, echo=False) as recorder:
        recorder.hear(0, "stdout", "[worker 0] a check")
    assert list(store.list()) == []


def test_files_follow_one_another_and_each_is_written_until_it_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging_of, "FILE_BYTES", 300)
    store = with_run(MemoryStore())
    with Recorder(store.runs, echo=False, every=0) as recorder:
        begin(recorder)
        for number in range(20):
            recorder.hear(0, "stdout", f"[trial 0 · worker 0] line {number}")
    assert texts(store) == [f"line {number}" for number in range(20)]
    sizes = [entry.size for entry in store.runs.at("r").list(FOLDER)]
    assert len(sizes) > 4
    assert all(300 <= size < 500 for size in sizes[:-1])


def test_drivers_write_files_of_their_own_in_their_order() -> None:
    store = with_run(MemoryStore())
    for session, driver in ((1, "zebra"), (2, "ant")):
        with Recorder(store.runs, echo=False) as recorder:
            begin(recorder, session, driver)
            recorder.hear(0, "stdout", f"[trial 0 · worker 0] {driver}")
    assert texts(store) == ["zebra", "ant"]


def test_more_than_a_trial_may_print_is_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging_of, "TRIAL_BYTES", 1000)
    store = with_run(MemoryStore())
    with Recorder(store.runs, echo=False) as recorder:
        begin(recorder)
        for number in range(100):
            recorder.hear(0, "stdout", f"[trial 0 · worker 0] line {number}")
        recorder.hear(0, "stdout", "[trial 1 · worker 0] another trial")
    *kept, cut, other = texts(store)
    assert kept == [f"line {number}" for number in range(len(kept))]
    assert 5 < len(kept) < 15
    assert cut == "(more than 1 kB were printed; what follows is not kept)"
    assert other == "another trial"


def test_a_store_that_fails_costs_no_training_and_gets_the_lines_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inner = with_run(MemoryStore())
    faulty = FaultyStore(inner, Fault("error", match="*logs*"))
    with Recorder(faulty.runs, echo=False, every=0) as recorder:
        begin(recorder)
        recorder.hear(0, "stdout", "[trial 0 · worker 0] one")
        while not texts(inner):  # the first write fails, and the next does not
            recorder._closing.wait(0.01)
        recorder.hear(0, "stdout", "[trial 0 · worker 0] two")
    assert texts(inner) == ["one", "two"]
    with caplog.at_level(logging.WARNING, "hopyard"):
        broken = FaultyStore(inner, Fault("full", times=10_000, match="*logs*"))
        with Recorder(broken.runs, echo=False) as recorder:
            begin(recorder, 2)
            recorder.hear(0, "stdout", "[trial 0 · worker 0] lost")
    assert "what trials print is not kept for now; the experiment goes on." in caplog.text
    assert texts(inner) == ["one", "two"]


def test_following_goes_on_until_nobody_drives_the_run(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    journal = Journal(store.runs.at("r"))
    journal.append(header())
    journal.flush()
    recorder = Recorder(store.runs, echo=False, every=0)
    begin(recorder)
    steps = iter([lambda: recorder.hear(0, "stdout", "[trial 0 · worker 0] two"), journal.close])

    def wait(seconds: float) -> None:
        assert seconds == 0.5
        next(steps)()
        if journal._closing.is_set():
            recorder.__exit__(None, None, None)  # what is left is written

    with recorder:
        recorder.hear(0, "stdout", "[trial 0 · worker 0] one")
        found = texts(store, follow=True, wait=wait)
    assert found == ["one", "two"]


def test_a_killed_driver_leaves_what_was_written(tmp_path: Path) -> None:
    code = f"""
import os, signal, sys
from hopyard.experiment.logs import Recorder, FOLDER
from hopyard.hopper.state import RunState
from hopyard.storage import LocalStore
store = LocalStore({str(tmp_path)!r})
recorder = Recorder(store.runs, echo=False, every=0).__enter__()
state = RunState()
state.header, state.sessions = {{"run_id": "r"}}, 1
recorder(state, {{"r": "session", "driver": "d"}})
recorder.hear(0, "stdout", "[trial 0 · worker 0] kept")
while not list(store.runs.at("r").list(FOLDER)):
    recorder._closing.wait(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert texts(with_run(LocalStore(tmp_path))) == ["kept"]


def test_lines_that_a_power_failure_damaged_are_left_out() -> None:
    store = with_run(MemoryStore())
    whole = {"time": 1.0, "trials": [0], "worker": 0, "stream": "stdout", "text": "whole"}
    data = json.dumps(whole).encode()
    store.runs.at("r").put(f"{FOLDER}/000001-d-000000.jsonl", data + b"\n\0\0\0\n[]\n" + data[:20])
    assert texts(store) == ["whole"]


def test_logs_of_a_run_that_is_not_there_are_an_error() -> None:
    with pytest.raises(NotFoundError, match=r"holds no run 'q'; did you mean|holds no run 'q'"):
        read_logs(with_run(MemoryStore()), "q")


class MeasuredStore(MemoryStore):
    """Counts the bytes that are read of logs."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        found = super().get(name, start, length)
        self.nbytes += len(found) if f"/{FOLDER}/" in name else 0
        return found


def print_lines(store: Store, driver: str, session: int, count: int) -> None:
    """Some lines of each of the trials 0, of 1 and 2 that train together, and of none."""
    with Recorder(store.runs, echo=False, every=0.0) as recorder:
        begin(recorder, session, driver)
        for number in range(count):
            tag = ["[trial 0 · worker 0] ", "[trial 1, 2 · worker 0] ", "[worker 0] "][number % 3]
            recorder.hear(0, "stdout", f"{tag}{driver} {number}")


@given(sizes=st.lists(st.integers(1, 9), min_size=1), trial=st.sampled_from([None, 0, 2, 5]))
def test_pages_of_any_size_are_the_log_and_go_on_where_they_ended(
    sizes: list[int], trial: int | None
) -> None:
    store = with_run(MeasuredStore())
    assert isinstance(store, MeasuredStore)
    shown, after, sizes = list[str](), "", [*sizes, 4]

    def read_pages() -> None:
        nonlocal after
        more = True
        while more:
            most = sizes[len(shown) % len(sizes)]
            page = read_page(store, "r", trial=trial, after=after, most=most)
            assert len(page.lines) == most or not page.more
            shown.extend(line.text for line in page.lines)
            after, more = page.next, page.more

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(logging_of, "FILE_BYTES", 400)
        for session, driver in enumerate(("a", "b", "c")):
            print_lines(store, driver, session + 1, 7)
            read_pages()
            assert shown == texts(store, trial=trial)
            before = store.nbytes
            read_pages()
            assert store.nbytes == before, "nothing is read twice"


def test_a_page_of_long_lines_has_fewer_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging_of, "_PAGE_CHARACTERS", 10)
    store = with_run(MemoryStore())
    print_lines(store, "name-of-a-driver", 1, 6)
    first = read_page(store, "r")
    assert ([line.text for line in first.lines], first.more) == (["name-of-a-driver 0"], True)
    second = read_page(store, "r", after=first.next)
    assert [line.trial for line in second.lines] == [1], (
        "a page may end between lines of trials that train together"
    )
    assert [line.trial for line in read_page(store, "r", after=second.next).lines] == [2]


@pytest.mark.parametrize(
    "after",
    ["7", "-1", "000001-b-000000.jsonl:0:0", "../000001-a-000000.jsonl:0:0", "000001-a-000000.jsonl:x:0"],
)
def test_a_place_that_is_not_in_the_log_is_refused(after: str) -> None:
    store = with_run(MemoryStore())
    print_lines(store, "a", 1, 3)
    with pytest.raises(UsageError) as found:
        read_page(store, "r", after=after)
    assert str(found.value) == (
        f"after is {after!r}, which is no place in the log of run r. Give `next` of an answer about this log, or leave "
        "it out to read from the first line on."
    )


def test_times_are_spans_or_dates() -> None:
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_since("90s", now) == now - timedelta(seconds=90)
    assert parse_since("1.5h", now) == now - timedelta(minutes=90)
    assert parse_since("2d", now) == now - timedelta(days=2)
    assert parse_since("2026-01-31T10:00:00Z") == datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert parse_since("2026-01-31").tzinfo is not None
    for long_ago in ("99999999999d", "800000d", f"{'9' * 400}s"):
        assert parse_since(long_ago, now) == datetime.min.replace(tzinfo=UTC)
    with pytest.raises(ValueError, match="soon"):
        parse_since("soon")
