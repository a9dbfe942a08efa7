"""SIGKILL at any moment, the same script again: the same result, nothing done twice."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sampling import moments
from tests.tune.conftest import contents, random_search

from hopyard.errors import StorageError
from hopyard.hopper.journal import read_records
from hopyard.storage import LocalStore, MemoryStore
from hopyard.storage.faults import Fault, FaultyStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Callback, GridSearch, hp_choice, list_runs
from hopyard.tune.listing import summary
from hopyard.tune.progress import ProgressDisplay

WALK = """
import json, os, pickle, sys
import numpy as np, torch, torch._dynamo
import hopyard.tune.tensorboard
from hopyard.backend import InlineBackend
from hopyard.hopper.journal import read_records
from hopyard.storage import LocalStore
from hopyard.storage.faults import Fault, FaultyStore
from hopyard.torch import TorchEstimator
from hopyard.tune import RandomSearch, hp_choice, hp_log

root = sys.argv[1]
random = np.random.default_rng(0)
features = random.standard_normal((64, 4)).astype(np.float32)
data = {"features": features, "label": (features.sum(axis=1) > 0).astype(np.int64)}

def estimator(params):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2))
    return TorchEstimator(model, torch.optim.Adam, torch.nn.CrossEntropyLoss(), ["accuracy"], params["batch"],
                          {"lr": params["lr"]})

def fit(store):
    return RandomSearch(InlineBackend(), store, estimator, {"lr": hp_log(1e-3, 1e-1), "batch": hp_choice([4, 8])},
                        num_models=2, num_epochs=2, num_partitions=2, progress=False).fit(data).run

def contents(run):
    return {n: (t.params, t.history, t.best.value, t.best.state.digest) for n, t in run.state.trials.items()}

def in_child(task, *args):
    # Forked before torch has computed anything; all that a run imports is imported once, above.
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        task(*args)
        os._exit(0)
    return os.waitpid(pid, 0)[1]

def undisturbed():
    with open(f"{root}/expected", "wb") as file:
        pickle.dump(contents(fit(LocalStore(f"{root}/undisturbed"))), file)

def again(folder):
    run = fit(LocalStore(folder))
    with open(f"{root}/expected", "rb") as file:
        assert contents(run) == pickle.load(file), folder
    assert run.broken_rules() == [], folder
    records = read_records(LocalStore(folder).runs.at(run.run_id))
    units = [(trial, record["v"]) for record in records if record["r"] == "unit" for trial in record["t"]]
    assert len(units) == len(set(units)) == run.state.units, f"{folder}: a finished unit was done twice"

assert in_child(undisturbed) == 0
for moment in json.loads(sys.argv[2]):
    action = ("kill_before", "kill_after")[moment % 2]
    folder = f"{root}/{action}-{moment}"
    status = in_child(fit, FaultyStore(LocalStore(folder), Fault(action, at=moment)))
    if status == 0:
        break
    assert os.WTERMSIG(status) == 9, status
    assert in_child(again, folder) == 0, folder
print(moment - 1)
"""


def test_a_driver_killed_at_any_write_goes_on_to_the_same_result(tmp_path: Path) -> None:
    """Walks through the writes of a run: data files, manifests, states, journal segments."""
    at = json.dumps([1 + moment for moment in itertools.islice(moments("driver", quick=9, ci=9), 999)])
    walk = subprocess.run(
        [sys.executable, "-c", WALK, str(tmp_path), at], capture_output=True, text=True, check=False
    )
    assert walk.returncode == 0, walk.stderr
    assert int(walk.stdout) > 25, "a run should have that many writes to be killed at"


@pytest.fixture(scope="module")
def undisturbed(make_rows: Any) -> dict[int, Any]:
    """The contents of the search's run to which nothing happens."""
    return contents(random_search(MemoryStore()).fit(make_rows()).run)


@pytest.mark.parametrize(("action", "trial"), [("kill_before", 0), ("kill_after", 1), ("kill_after", 2)])
def test_a_worker_killed_while_it_saves_a_state_costs_no_result(
    action: Any,
    trial: int,
    search: Any,
    make_rows: Any,
    contents_of: Any,
    undisturbed: Any,
    local: Any,
    tmp_path: Path,
) -> None:
    fault = Fault(action, match=f"runs/*/{trial:05d}/*", once=tmp_path / "killed")
    store = FaultyStore(LocalStore(tmp_path / "store"), fault)
    model = search(store, local).fit(make_rows())
    assert (tmp_path / "killed").exists()
    assert contents_of(model.run) == undisturbed
    assert model.run.broken_rules() == []
    lost = [record for record in read_records(store.runs.at(model.run_id)) if record["r"] == "lost"]
    assert len(lost) == 1
    assert trial in lost[0]["t"], "with those that trained together with it"


def move(cache: str) -> str:
    """On a worker: be on a machine of its own. Gives the cache that it had."""
    before, os.environ["HOPYARD_CACHE"] = os.environ["HOPYARD_CACHE"], cache
    return before


@pytest.fixture
def local_apart(local: Any, tmp_path: Path) -> Iterator[Any]:
    """Two workers, each on a machine of its own."""
    before = [local.submit(worker, move, str(tmp_path / f"cache-{worker}")).result() for worker in range(2)]
    yield local
    for worker in range(2):
        local.submit(worker, move, before[worker]).result()


def test_partitions_stay_where_they_live_when_a_worker_is_lost(
    search: Any, make_rows: Any, contents_of: Any, local_apart: Any, tmp_path: Path
) -> None:
    undisturbed = search(LocalStore(tmp_path / "undisturbed"), num_partitions=4).fit(make_rows())
    fault = Fault("kill_before", match="runs/*/00001/*", once=tmp_path / "killed")
    store = FaultyStore(LocalStore(tmp_path / "store"), fault)
    run = search(store, local_apart, num_partitions=4).fit(make_rows()).run
    assert contents_of(run) == contents_of(undisturbed.run)
    assert run.broken_rules() == []
    records = list(read_records(store.runs.at(run.run_id)))
    (lost,) = [record for record in records if record["r"] == "lost"]
    after = records[records.index(lost) :]
    were_in_it = set(lost["t"])
    again = next(record["v"] for record in after if record["r"] == "unit" and were_in_it & set(record["t"]))
    stayed = [unit for unit in run.units() if unit["v"] != again or not were_in_it & set(unit["t"])]
    assert {(unit["p"], unit["w"]) for unit in stayed} == {(0, 0), (1, 0), (2, 1), (3, 1)}


def test_a_trial_that_kills_its_worker_twice_fails_with_its_last_words_and_the_others_go_on(
    make_rows: Any, local: Any, tmp_path: Path
) -> None:
    def deadly(params: dict[str, Any]) -> TorchEstimator:
        def transform(batch: Any, rng: Any) -> Any:
            if params["deadly"] and (tmp_path / "runs").exists():  # not yet while one batch is checked
                print("these are my last words", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            return batch

        optimizer, loss = torch.optim.SGD, torch.nn.CrossEntropyLoss()
        model = torch.nn.Linear(4, 2)
        return TorchEstimator(model, optimizer, loss, optimizer_params={"lr": 0.1}, transform=transform)

    space = {"deadly": hp_choice([False, True]), "other": hp_choice([1, 2])}
    model = GridSearch(local, LocalStore(tmp_path), deadly, space, 1, progress=False, num_partitions=2).fit(
        make_rows()
    )
    assert sorted(model.trials()["state"]) == ["completed", "completed", "failed", "failed"]
    for trial in model.run.failures():
        assert "SIGKILL" in trial.error.message
        assert "these are my last words" in trial.error.describe()


@pytest.mark.parametrize("action", ["full", "unreachable"])
@pytest.mark.parametrize("match", ["runs/*/journal/*", "runs/*/0*/*", "train_data/*", "val_data/*"])
def test_a_store_that_is_full_or_away_for_a_while_pauses_the_run_and_changes_no_result(
    action: Any,
    match: str,
    search: Any,
    make_rows: Any,
    contents_of: Any,
    undisturbed: Any,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    """So while it prepares, in the middle of a unit, or of a journal segment."""
    space_made = tmp_path / "space"
    monkeypatch.setattr("hopyard.storage.waiting._FIRST_WAIT", 0.02)
    monkeypatch.setattr("hopyard.hopper.hopper.Options.retry_seconds", 0.02)
    store = FaultyStore(
        LocalStore(tmp_path / "store"), Fault(action, at=2, times=10**6, match=match, until=space_made)
    )
    said = when_paused(monkeypatch, space_made.touch)
    model = search(store).fit(make_rows())
    assert contents_of(model.run) == undisturbed
    assert sum("paused: " in message for message in said) == 1


def test_a_write_that_happened_without_an_answer_changes_no_result(
    search: Any, make_rows: Any, contents_of: Any, undisturbed: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Walks through the writes of a run. It waits, or it ends with the error and goes on when it is run again."""
    monkeypatch.setattr("hopyard.storage.waiting._FIRST_WAIT", 0.02)
    monkeypatch.setattr("hopyard.hopper.hopper.Options.retry_seconds", 0.02)
    ended = 0
    for moment in moments("unanswered", quick=12, ci=12):
        store = FaultyStore(LocalStore(tmp_path / str(moment)), Fault("unanswered", at=1 + moment))
        try:
            run = search(store).fit(make_rows()).run
        except StorageError:
            ended += 1
            run = search(store).fit(make_rows()).run
        assert contents_of(run) == undisturbed, f"write {moment}: {store.writes[moment]}"
        assert run.broken_rules() == []
        if len(store.writes) <= moment:
            break
    assert moment > 25, "a run should have that many writes"
    assert ended < moment / 2, "most are waited for"


def test_a_real_file_system_that_is_full_pauses_the_run(
    search: Any, make_rows: Any, contents_of: Any, undisturbed: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    with small_file_system(tmp_path / "small", "2m") as folder:
        ballast = folder / "ballast"

        class Fill(Callback):
            """Fills the disk after the first epoch."""

            def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
                if not ballast.exists():
                    fill(ballast)

        statuses = []

        def make_space() -> None:
            statuses.extend(
                summary(LocalStore(folder), run_id).status for run_id in list_runs(LocalStore(folder))
            )
            ballast.write_bytes(b"")

        said = when_paused(monkeypatch, make_space)
        model = search(LocalStore(folder), callbacks=[Fill()]).fit(make_rows())
        assert contents_of(model.run) == undisturbed
        assert statuses == ["waits for its store"]
        assert json.loads(LocalStore(folder).runs.at(model.run.run_id).get("lease"))["is_full"] is False
    assert any("paused: no space is left for" in message for message in said)


def test_a_full_disk_that_a_trial_writes_to_by_itself_pauses_the_run_too(
    make_rows: Any, local: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """As the caches of compilers and the files of a user's function do, on a worker's own disk."""
    monkeypatch.setattr("hopyard.hopper.hopper.Options.retry_seconds", 0.02)
    with small_file_system(tmp_path / "small", "1m") as folder:
        fill(folder / "ballast")

        def estimator(params: dict[str, Any]) -> TorchEstimator:
            def transform(batch: Any, rng: Any) -> Any:
                if (tmp_path / "store" / "runs").exists():  # not yet while one batch is checked
                    (folder / "scratch").write_bytes(b"x" * 8192)
                return batch

            optimizer, loss = torch.optim.SGD, torch.nn.CrossEntropyLoss()
            return TorchEstimator(
                torch.nn.Linear(4, 2), optimizer, loss, optimizer_params={"lr": 0.1}, transform=transform
            )

        said = when_paused(monkeypatch, lambda: (folder / "ballast").write_bytes(b""))
        search = GridSearch(
            local, LocalStore(tmp_path / "store"), estimator, {"w": hp_choice([1, 2])}, 1, progress=False,
            num_partitions=2,
        )  # fmt: skip
        model = search.fit(make_rows())
    assert model.trials()["state"].tolist() == ["completed", "completed"]
    (paused,) = [message for message in said if "paused: " in message]
    assert "for what trial " in paused
    assert (
        "writes there: [Errno 28] No space left on device. Make space there. The run goes on by itself"
        in paused
    )


def when_paused(monkeypatch: Any, make_space: Callable[[], Any]) -> list[str]:
    """Have space made as soon as the user is told that there is none. Gives the messages to the user."""
    said: list[str] = []

    def say(progress: ProgressDisplay, message: str) -> None:
        said.append(message)
        if "paused: " in message:
            make_space()

    monkeypatch.setattr(ProgressDisplay, "say", say)
    return said


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096) == 4096:
            pass


@contextlib.contextmanager
def small_file_system(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of that size; needs the right to mount."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
