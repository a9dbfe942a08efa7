"""Scripts that are told to end, by real signals, at every stage of a search; the same script again goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sampling import diagonal

from hopyard.errors import UsageError
from hopyard.hopper.journal import read_records
from hopyard.storage import LocalStore, MemoryStore
from hopyard.tune import list_runs, open_run

SCRIPT = """
import os, signal, threading
from pathlib import Path
import numpy as np, torch
from hopyard.backend import InlineBackend, LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Callback, RandomSearch, hp_log

os.environ["DRIVER"] = str(os.getpid())
TOLD = "told"

# At the stage that STAGE names, a signal goes to the driver, once; or, if there is none, a line says that it is there.
def tell(*stages):
    stage = os.environ.get("STAGE")
    if stage in stages:
        try:
            Path(TOLD).touch(exist_ok=False)
        except FileExistsError:
            return
        if stage == "group":  # until the signal is here, too
            reading, writing = os.pipe()
            os.set_blocking(writing, False)
            signal.set_wakeup_fd(writing)
            print("waiting", flush=True)
            os.read(reading, 1)
            signal.set_wakeup_fd(-1)
        elif os.environ["SIGNAL"]:
            os.kill(int(os.environ["DRIVER"]), int(os.environ["SIGNAL"]))
        else:
            print("waiting", flush=True)
        if stage == "long unit":
            threading.Event().wait()

class Rows:
    def __iter__(self):
        random = np.random.default_rng(0)
        for number in range(48):
            if number == 40:
                tell("data")
            features = random.standard_normal(4).astype(np.float32)
            yield {"features": features, "label": int(features.sum() > 0)}

def seen(batch, rng):
    if os.path.exists("hopping-" + os.environ["DRIVER"]):  # not yet while one batch is checked
        tell("unit", "long unit", "group")
    return batch

def estimator(params):
    tell("check")
    return TorchEstimator(torch.nn.Linear(4, 2), torch.optim.Adam, torch.nn.CrossEntropyLoss(), ["accuracy"], 8, params,
                          transform=seen)

class Tell(Callback):
    def on_run_start(self, run_id, settings):
        Path("hopping-" + os.environ["DRIVER"]).touch()

    def on_epoch_end(self, trial, epoch, metrics):
        tell("callback")

    def on_run_end(self, run_id, best):
        tell("end")

backend = LocalBackend(num_workers=2, device="cpu") if os.environ["BACKEND"] == "local" else InlineBackend()
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)
try:
    search = RandomSearch(backend, LocalStore("store"), estimator, {"lr": hp_log(1e-3, 1e-1)}, num_models=2,
                          num_epochs=2, num_partitions=2, progress=False, callbacks=[Tell()],
                          grace=float(os.environ.get("GRACE", "60")))
    model = search.fit(Rows())
finally:
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)) == before
    assert not backend.running or os.environ["BACKEND"] == "inline"
found = {n: (t.history, t.best.state.digest) for n, t in model.run.state.trials.items()}
print("result", found, model.run.state.units, model.run.broken_rules())
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


def started(folder: Path, **variables: str) -> subprocess.Popen[str]:
    (folder / "search.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, "search.py"],
        cwd=folder, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=variables.get("STAGE") == "group",
    )  # fmt: skip


def run(folder: Path, **variables: str) -> tuple[int, list[str], str]:
    """Status, lines of output, and errors of the script."""
    process = started(folder, **variables)
    said, errors = process.communicate(timeout=600)
    return process.returncode, said.splitlines(), errors


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    status, said, errors = run(tmp_path_factory.mktemp("undisturbed"), BACKEND="inline")
    assert (status, errors) == (0, "")
    [result] = said
    assert result.endswith(f" {2 * 2 * (2 + 2)} []")
    return result


STAGES = {
    "check": r"before its first unit; run the same script again to go on\.",
    "data": r"before its first unit; run the same script again to go on\.",
    "unit": r"after (?P<done>\d+ units?); run the same script again to go on \(run (?P<run>random-\w+)\)\.",
    "long unit": r"after (?P<done>\d+ units?); run the same script again to go on \(run (?P<run>random-\w+)\)\.",
    "callback": r"after (?P<done>\d+ units?); run the same script again to go on \(run (?P<run>random-\w+)\)\.",
    "end": r"with run (?P<run>random-\w+) completed; run the same script again, which returns its result at once\.",
}
SIGNALS = [signal.SIGTERM, signal.SIGUSR1]


@pytest.mark.parametrize(
    ("stage", "backend", "number"), diagonal("notices", STAGES, ["inline", "local"], SIGNALS)
)
def test_a_script_that_is_told_to_end_ends_with_75_and_goes_on_to_the_same_result(
    stage: str, backend: str, number: int, undisturbed: str, tmp_path: Path
) -> None:
    grace = "0.05" if stage == "long unit" else "60"
    status, said, errors = run(tmp_path, BACKEND=backend, STAGE=stage, SIGNAL=str(int(number)), GRACE=grace)
    assert (status, errors) == (75, ""), said
    name = signal.Signals(number).name
    words = re.fullmatch(f"preempted by {name} {STAGES[stage]}", said[-1])
    assert words, said
    runs = list_runs(LocalStore(tmp_path / "store")) if (tmp_path / "store").exists() else []
    told = words.groupdict()
    assert runs == ([told["run"]] if told else [])
    for run_id in runs:
        found = open_run(LocalStore(tmp_path / "store"), run_id)
        assert found.status == ("completed" if stage == "end" else "preempted")
    status, said, errors = run(tmp_path, BACKEND="inline")
    assert (status, errors) == (0, "")
    assert said[-1] == undisturbed
    goes_on = told.get("done", "0 units") != "0 units"
    assert said[:-1] == ([f"run {told['run']} goes on after {told['done']}."] if goes_on else [])


def test_a_run_that_is_resumed_by_the_command_ends_as_its_script_does(tmp_path: Path) -> None:
    """The command alone is told, as by a scheduler that knows only the process that it started."""
    status, _, _ = run(tmp_path, BACKEND="inline", STAGE="unit", SIGNAL=str(int(signal.SIGTERM)))
    assert status == 75
    [run_id] = list_runs(LocalStore(tmp_path / "store"))
    (tmp_path / "told").unlink()
    command = [sys.executable, "-m", "hopyard", "run", "resume", "store", run_id]
    given = {"BACKEND": "local", "STAGE": "long unit", "SIGNAL": "", "GRACE": "0"}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, **given},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert next(line for line in process.stdout if line.endswith("waiting\n"))
        process.send_signal(signal.SIGUSR1)
        said, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (75, "")
    assert re.search(
        rf"preempted by SIGUSR1 after \d+ units?; run the same script again to go on \(run {run_id}\)\.\n$",
        said,
    )
    assert open_run(LocalStore(tmp_path / "store"), run_id).status == "preempted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_workers_outlive_a_signal_to_the_whole_group_and_end_their_units(
    number: int, undisturbed: str, tmp_path: Path
) -> None:
    with started(tmp_path, BACKEND="local", STAGE="group", SIGNAL="") as process:
        assert process.stdout is not None
        assert next(line for line in process.stdout if line.endswith("waiting\n"))
        os.killpg(process.pid, number)
        said, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (75, ""), said
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    store = LocalStore(tmp_path / "store")
    [run_id] = list_runs(store)
    records = list(read_records(store.runs.at(run_id)))
    assert {record["r"] for record in records} == {"run", "session", "trial", "unit", "finish"}
    assert records[-1]["status"] == "preempted"
    _, again, _ = run(tmp_path, BACKEND="inline")
    assert again[-1] == undisturbed


def test_a_reader_of_its_output_that_ends_first_does_not_change_how_it_ends(
    undisturbed: str, tmp_path: Path
) -> None:
    """As `python search.py | tee log` where both are told."""
    given = {"BACKEND": "local", "STAGE": "long unit", "SIGNAL": "", "GRACE": "0.05"}
    with started(tmp_path, **given) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert next(line for line in process.stdout if line.endswith("waiting\n"))
        process.stdout.close()
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert process.returncode == 75
    store = LocalStore(tmp_path / "store")
    [run_id] = list_runs(store)
    assert open_run(store, run_id).status == "preempted"


@pytest.mark.parametrize("grace", [-1, "30", None, float("nan")])
def test_a_grace_that_is_no_time_is_refused(grace: Any, search: Any) -> None:
    with pytest.raises(UsageError) as raised:
        search(MemoryStore(), grace=grace)
    assert str(raised.value) == f"grace={grace!r}, but it must be a number of seconds of at least 0."
