"""What ``hopyard run ... --json`` prints of real runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import Hopyard
from tests.cli.shapes import document, lines, shape, undocumented
from typer.testing import CliRunner

from hopyard.backend import InlineBackend
from hopyard.cli import app
from hopyard.cli.run_lines import RunLines
from hopyard.hopper.journal import read_records
from hopyard.hopper.state import RunState
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, compare, hp_choice, list_runs, open_run

LISTED = {
    "run": "text",
    "status": "text",
    "begun": "text",
    "num_trials": "int",
    "metric": "text",
    "mode": "text",
    "best": "float",
    "driver": None,
    "driven_seconds": "float",
    "unit_seconds": "float",
    "error": None,
}


@pytest.fixture
def place(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(finished)
    return finished


def typed(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    found = (
        [document(line) for line in done.stdout.splitlines()]
        if "watch" in arguments
        else document(done.stdout)
    )
    assert undocumented(" ".join(arguments[:2]), found) == set()
    return done.stdout


def the_run() -> str:
    [found] = list_runs(LocalStore("store"))
    return found


def test_list(place: Path) -> None:
    [run] = document(typed("run", "list", "store"))
    assert shape(run) == LISTED
    opened = open_run(LocalStore("store"), run["run"])
    assert run["best"] == opened.best.info.value
    assert run["num_trials"] == len(opened.state.trials) == 6


def test_list_of_a_store_without_runs_is_an_empty_array(tmp_path: Path) -> None:
    assert typed("run", "list", str(tmp_path)) == "[]\n"


def test_list_has_the_reason_in_the_place_of_a_damaged_run(place: Path, tmp_path: Path) -> None:
    shutil.copytree("store", tmp_path / "store")
    run_id = the_run()
    other = tmp_path / "store" / "runs" / "broken"
    shutil.copytree(tmp_path / "store" / "runs" / run_id, other)
    for segment in (other / "journal").iterdir() if (other / "journal").is_dir() else [other / "journal"]:
        segment.write_bytes(b"no journal at all\n" * 9)
    broken, whole = document(typed("run", "list", str(tmp_path / "store")))
    assert shape(whole) == LISTED
    assert shape(broken) == {**dict.fromkeys(LISTED), "run": "text", "status": "text", "error": "text"}
    assert (broken["run"], broken["status"]) == ("broken", "unreadable")


def test_describe(place: Path) -> None:
    run_id = the_run()
    run = open_run(LocalStore("store"), run_id)
    found = document(typed("run", "describe", "store", run_id))
    trials, schedule = found.pop("trials"), found["schedule"]
    packs, alone = schedule.pop("packs"), schedule.pop("alone")  # whether trials gain by it is measured
    assert sum(each["trials"] * each["visits"] for each in packs) == schedule["units"]
    assert shape(packs) == [{"trials": "int", "visits": "int"}]
    assert shape(alone) in ([], [{"trials": ["int"], "why": "text"}])
    assert shape(found) == {
        "run": "text",
        "status": "text",
        "driver": None,
        "kind": "text",
        "seed": "int",
        "begun": "text",
        "search_space": {"width": {"hp_choice": ["int"]}, "lr": {"hp_choice": ["float"]}},
        "trained_on": None,
        "frozen_at": [],
        "metric": "text",
        "mode": "text",
        "epochs": "int",
        "partitions": "int",
        "num_trials": "int",
        "progress": "float",
        "expected_end_seconds": None,
        "schedule": {
            "units": "int",
            "workers": "int",
            "span_seconds": "float",
            "paused_seconds": "float",
            "busy": "float",
            "hops": "int",
            "states_read_bytes": "int",
            "states_written_bytes": "int",
            "data_read_bytes": "int",
            "data_beside_bytes": None,
            "data_away_bytes": None,
        },
        "waiting": [],
        "broken_rules": [],
        "error": None,
    }
    assert [trial["trial"] for trial in trials] == [trial.number for trial in run.state.ranked()]
    whole, failed = trials[0], trials[-1]
    assert shape(whole) == {
        "trial": "int",
        "status": "text",
        "value": "float",
        "best_epoch": "int",
        "epochs": "int",
        "unit_seconds": "float",
        "copy_of": None,
        "clone_of": None,
        "params": {"width": "int", "lr": "float"},
        "metrics": dict.fromkeys(("train_loss", "val_loss", "val_accuracy"), "float"),
        "error": None,
    }
    assert (failed["status"], failed["value"], failed["metrics"]) == ("failed", None, {})
    assert failed["error"]["kind"] == "ValueError"
    assert failed["error"]["message"] == "three is not enough"
    assert set(failed["error"]) == {"kind", "message", "traceback", "log", "worker", "partition", "phase"}
    assert found["schedule"]["states_written_bytes"] == run.totals().traffic.written
    assert found["schedule"]["busy"] == run.totals().busy


def test_describe_has_as_many_trials_as_asked_for_and_says_how_many_there_are(place: Path) -> None:
    found = document(typed("run", "describe", "store", the_run(), "--most", "2"))
    assert (len(found["trials"]), found["num_trials"]) == (2, 6)


def test_a_killed_run(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(killed)
    [run] = document(typed("run", "list", "store"))
    assert (run["status"], run["driver"]) == ("interrupted", None)
    found = document(typed("run", "describe", "store", run["run"]))
    assert found["status"] == "interrupted"
    began, ended = lines(typed("run", "watch", "store", run["run"]))
    assert (began["event"], ended["event"], ended["status"]) == ("run", "end", "interrupted")


def test_commands_that_wait_for_a_killed_run_are_listed(
    killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(killed, tmp_path / "own")
    monkeypatch.chdir(tmp_path / "own")
    [run] = document(typed("run", "list", "store"))
    before = document(typed("run", "describe", "store", run["run"]))
    assert before["waiting"] == []
    assert 0 < before["progress"] < 1
    assert before["expected_end_seconds"] is None, "nobody drives it"
    for words in (
        ["extend", "store", run["run"], "--num-epochs", "50"],
        ["stop", "store", run["run"], "--trial", "0"],
    ):
        assert CliRunner().invoke(app, ["run", *words]).exit_code == 0
    assert document(typed("run", "describe", "store", run["run"]))["waiting"] == [
        "extend num_epochs=50",
        "stop trial=0",
    ]
    text = CliRunner().invoke(app, ["run", "describe", "store", run["run"]]).output
    assert f"; {before['progress']:.0%} done" in text
    assert "waits until it goes on: extend num_epochs=50" in text
    assert "waits until it goes on: stop trial=0" in text


def test_compare(place: Path) -> None:
    run_id = the_run()
    [row] = document(typed("run", "compare", "store", run_id))
    assert shape(row) == {
        "run": "text",
        "kind": "text",
        "status": "text",
        "data": "text",
        "metric": "text",
        "settings": {},
        "num_trials": "int",
        "epochs": "int",
        "best": "float",
        "params": {"width": "int", "lr": "float"},
        "driven_seconds": "float",
        "note": None,
    }
    [frame] = compare([open_run(LocalStore("store"), run_id)]).to_dict("records")
    assert row["driven_seconds"] == frame["seconds"]


def test_watch_of_a_run_that_has_ended(place: Path) -> None:
    began, ended = lines(typed("run", "watch", "store", the_run()))
    assert shape(began) == {
        "event": "text",
        "run": "text",
        "metric": "text",
        "mode": "text",
        "epochs": "int",
        "partitions": "int",
        "workers": "int",
        "num_trials": "int",
    }
    assert shape(ended) == {
        "event": "text",
        "status": "text",
        "num_trials": "int",
        "best_trial": "int",
        "best": "float",
        "driven_seconds": "float",
    }


def test_events_of_a_run_that_is_watched(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, events = RunState(), RunLines()
    for record in read_records(LocalStore("store").runs.at(the_run())):
        state.apply(record)
        events(state, record)
    found = lines(capsys.readouterr().out)
    validations = [event for event in found if event["event"] == "validation"]
    assert len(validations) == 8
    assert shape(validations[0]) == {
        "event": "text",
        "trial": "int",
        "epoch": "float",
        "metrics": dict.fromkeys(("train_loss", "val_loss", "val_accuracy"), "float"),
        "worker": "int",
        "run_seconds": "float",
    }
    ends = [event for event in found if event["event"] == "trial"]
    assert sorted(event["status"] for event in ends) == ["completed"] * 4 + ["failed"] * 2
    assert {event["error"]["kind"] for event in ends if event["error"]} == {"ValueError"}
    assert len(found) == 14


def _estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        torch.nn.Linear(4, 2),
        torch.optim.SGD,
        torch.nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        batch_size=8,
        optimizer_params={"lr": params["größe"]},
    )


def test_names_beyond_ascii_are_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((32, 4)).astype("float32")
    store = LocalStore(tmp_path / "Größen")
    GridSearch(
        InlineBackend(), store, _estimator, {"größe": hp_choice([0.1]), "名前": hp_choice(["ü"])},
        num_epochs=1, num_partitions=2, run_id="named", progress=False,
    ).fit({"features": features, "label": (features.sum(axis=1) > 0).astype("int64")})  # fmt: skip
    text = typed("run", "describe", str(tmp_path / "Größen"), "named")
    assert '"größe": 0.1' in text
    assert '"名前": "ü"' in text
    assert document(text)["run"] == "named"


def test_an_error_is_on_stderr_and_nothing_is_on_stdout(place: Path, hopyard: Hopyard) -> None:
    done = hopyard("run", "describe", "store", "no-such", "--json", cwd=place)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "holds no run 'no-such'" in done.stderr
