"""Drivers of experiments: processes of their own, which go on without the one that started them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.errors import RunError, TrialError, UsageError
from hopyard.experiment import complete, create, list_experiments, open_experiment, resume
from hopyard.experiment.definition import pack
from hopyard.experiment.driver import Driving, backend_named
from hopyard.experiment.driver import _why as why
from hopyard.hopper.journal import JournalFollower, holder
from hopyard.storage import LocalStore, MemoryStore
from hopyard.tune import open_run
from hopyard.tune.asking import WAIT

Definition = Callable[..., Path]

WAITS = """
def main(context):
    print("waiting", flush=True)
    with open(context.get_data_config()["go"]):  # a pipe that nobody has opened to write to
        pass
    context.report(accuracy=1)
"""


def config(**fields: Any) -> dict[str, Any]:
    return {
        "entrypoint": "model_def:main",
        "searcher": {"name": "single", "metric": "accuracy"},
        "resources": {"workers": 1},
        **fields,
    }


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def until(happens: Callable[[], bool]) -> None:
    """Wait for what another process does; at most two minutes."""
    for _ in range(2400):
        if happens():
            return
        WAIT(0.05)
    pytest.fail("two minutes were not enough")


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """A pipe on which functions wait until it is opened to be written to."""
    path = tmp_path / "go"
    os.mkfifo(path)
    return path


def let_go(go: Path) -> None:
    """Have nobody wait from now on."""
    go.unlink()
    go.touch()


def until_nobody_drives(store: LocalStore, experiment: str) -> None:
    until(lambda: holder(store.runs.at(experiment)) is None)


def test_a_detached_driver_goes_on_in_a_session_of_its_own(
    definition: Definition, store: LocalStore, go: Path
) -> None:
    folder = definition(WAITS)
    made = complete(config(data={"go": str(go)}))
    started = Driving(made, pack(folder, store).digest, store, "local", 1).detached()
    run = open_experiment(store, started.experiment)
    assert run.status == "running"
    assert run.holder is not None
    assert run.holder["pid"] == started.pid
    assert os.getsid(started.pid) == started.pid != os.getsid(0)
    assert started.length == "as long as the function runs"
    go.write_text("")  # once the function waits
    until_nobody_drives(store, started.experiment)
    assert open_experiment(store, started.experiment).status == "completed"
    until(lambda: started.output.read_text().endswith(f"{started.experiment}: completed\n"))
    assert "waiting" not in started.output.read_text()  # that is in the store
    # A finished one is returned at once.
    again = create(made, folder, store, detach=True)
    assert again is not None
    assert (again.run_id, again.status, again.state.sessions) == (started.experiment, "completed", 1)


def test_what_keeps_an_experiment_from_beginning_is_raised_here(
    definition: Definition, store: LocalStore
) -> None:
    broken = definition("raise ValueError('on purpose')")
    with pytest.raises(
        TrialError, match=r"the trial cannot be built, so no experiment was begun(.|\n)*on purpose"
    ):
        create(config(), broken, store, detach=True)


def test_a_driver_that_ends_without_a_word_leaves_what_it_printed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {number}" for number in range(30)))
    error = why({}, -9, log)
    assert isinstance(error, RunError)
    assert str(error).startswith(
        f"the driver's process ended with status -9 before the experiment began. What it said is in {log}:\nline 10\n"
    )
    assert type(why({"error": ["UsageError", "text"]}, 1, log)) is UsageError


def test_only_what_another_process_can_have_is_detached(definition: Definition, store: LocalStore) -> None:
    folder = definition(WAITS)
    with pytest.raises(
        UsageError,
        match=r"the store memory://\S+ is in the memory of this process, so that no other can drive its experiments\. "
        "Use a directory or a URL, or do without detach",
    ):
        create(config(), folder, MemoryStore(), detach=True)
    with pytest.raises(
        UsageError,
        match=r"detach was asked for with InlineBackend\(.*\), which is of this process\. Give the name of a backend: "
        "'local', 'ray', 'spark'",
    ):
        create(config(), folder, store, InlineBackend(), detach=True)
    assert list_experiments(store) == []


def test_backends_have_names() -> None:
    backend = backend_named("local", 3)
    assert isinstance(backend, LocalBackend)
    assert backend.num_workers == 3
    with pytest.raises(
        UsageError,
        match=r"the backend is 'locl', but it must be one of 'local', 'ray', 'spark'; did you mean 'local'\?",
    ):
        backend_named("locl", None)


def test_kill_ends_units_under_way_and_resume_does_them_again(
    definition: Definition, store: LocalStore, go: Path
) -> None:
    run = create(config(data={"go": str(go)}), definition(WAITS), store, detach=True)
    assert run is not None
    tail = JournalFollower(store.runs.at(run.run_id))
    until(lambda: any(record["r"] == "trial" for record in tail.new()))
    assert (
        run.kill()
        == f"run {run.run_id} ends now: units under way are given up, and done again if it goes on."
    )
    until_nobody_drives(store, run.run_id)
    assert open_experiment(store, run.run_id).status == "stopped"
    let_go(go)
    again = resume(store, run.run_id, InlineBackend(), progress=False)
    assert (again.status, again.state.sessions) == ("completed", 2)
    assert again.kill() == f"run {run.run_id} is not running, so there is nothing to kill."


def test_a_killed_driver_leaves_an_experiment_that_goes_on_where_it_was_driven(
    definition: Definition, store: LocalStore, go: Path
) -> None:
    fields = config(data={"go": str(go)}, resources={"workers": None})
    driving = Driving(complete(fields), pack(definition(WAITS), store).digest, store, "local", 1)
    started = driving.detached()
    os.kill(started.pid, signal.SIGKILL)
    until_nobody_drives(store, started.experiment)
    assert open_run(store, started.experiment).status == "interrupted"
    let_go(go)
    run = resume(store, started.experiment, progress=False, detach=True)
    until_nobody_drives(store, run.run_id)
    assert open_experiment(store, run.run_id).status == "completed"
    sessions = [
        record for record in JournalFollower(store.runs.at(run.run_id)).new() if record["r"] == "session"
    ]
    assert [(each["backend"], each["workers"]) for each in sessions] == [("local", 1), ("local", 1)]
