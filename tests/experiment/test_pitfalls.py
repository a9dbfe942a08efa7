"""What went wrong for users of Determined, as their journeys through experiments here.

The table in docs/determined.md has all of them. Those that concern one part alone are tested with it: transfers in
``test_downloads.py``, streams in ``test_streams.py``, mounts in ``test_mounts.py``, files of the model definition in
``test_definition.py`` and ``test_ignoring.py``, several processes in ``test_ranks.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import S3Server
from tests.experiment.conftest import TRIAL
from tests.wire import Wire

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.errors import TrialError
from hopyard.experiment import complete, create, read_logs
from hopyard.experiment.mounts import Mount, check
from hopyard.storage import LocalStore, open_store
from hopyard.tune import Run

Definition = Callable[..., Path]
Experiment = Callable[..., Run]

FUNCTION = {"entrypoint": "model_def:main", "searcher": {"name": "single", "metric": "accuracy"}}


def grid(name: str, values: list[Any], **fields: Any) -> dict[str, Any]:
    """Fields of an experiment with a function that is tried with each of these values."""
    return {
        **FUNCTION,
        "hyperparameters": {name: {"type": "categorical", "vals": values}},
        "searcher": {"name": "grid", "metric": "accuracy", "smaller_is_better": False, **fields},
    }


# Object storage


@pytest.fixture
def wire(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Wire]:
    """Counts the bytes between the server and all processes, which share an empty cache."""
    wire = Wire(s3.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", wire.url)
    monkeypatch.setenv("HOPYARD_CACHE", str(tmp_path / "cache"))
    yield wire
    wire.close()


DOWNLOADS = """
import pathlib

def main(context):
    mark = pathlib.Path(context.get_data_config()["mark"])
    url = context.get_data_config()["url"]
    shared = context.download(url)
    own = context.download(url, f"data-rank{context.distributed.get_rank()}")
    if context.get_hparam("number") == 2 and not mark.exists():
        mark.touch()
        raise ConnectionError("the trial is tried again")
    own.write_bytes(b"mine")
    context.report(accuracy=len(shared.read_bytes()))
"""


def test_trials_restarts_and_later_experiments_share_one_download(
    s3_url: str, wire: Wire, definition: Definition, experiment: Experiment, tmp_path: Path
) -> None:
    whole = np.random.default_rng(0).bytes(3_000_000)
    open_store(s3_url).put("data.bin", whole)
    before = wire.received
    fields = grid("number", [1, 2, 3, 4]) | {
        "data": {"url": f"{s3_url}/data.bin", "mark": str(tmp_path / "mark")}
    }
    for seed in (0, 1):
        run = experiment(definition(DOWNLOADS), LocalBackend(num_workers=2), seed=seed, **fields)
        found = [trial.history["val_accuracy"] for trial in run.state.trials.values()]
        assert found == [[len(whole)]] * 4
        assert sum(trial.restarts for trial in run.state.trials.values()) == (seed == 0)
    assert len(whole) < wire.received - before < len(whole) + 200_000


def test_credentials_of_a_bucket_are_in_the_environment_of_trials_alone(
    s3_url: str,
    definition: Definition,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    open_store(s3_url).put("data.csv", b"0.5")
    names = {"AWS_ACCESS_KEY_ID": "BUCKET_ID", "AWS_SECRET_ACCESS_KEY": "BUCKET_KEY"}
    for name, secret in names.items():
        monkeypatch.delenv(name)
        monkeypatch.setenv(secret, f"canary-{secret}")
    code = """
    import os

    def main(context):
        assert os.environ["AWS_SECRET_ACCESS_KEY"] == "-".join(["canary", "BUCKET_KEY"])
        context.report(accuracy=float(context.download(context.get_data_config()["url"]).read_text()))
    """
    variables = {name: f"${{secret:{secret}}}" for name, secret in names.items()}
    config = complete(
        {
            **FUNCTION,
            "data": {"url": f"{s3_url}/data.csv"},
            "environment": {"environment_variables": variables},
        }
    )
    run = create(config, definition(code), LocalStore(tmp_path / "store"), LocalBackend(num_workers=1))
    assert run is not None
    assert [trial.history for trial in run.state.trials.values()] == [{"val_accuracy": [0.5]}]
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ
    said = capfd.readouterr()
    assert "canary-BUCKET" not in said.out + said.err
    written = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if b"canary-BUCKET" in path.read_bytes()]


# The model definition


def test_what_is_ignored_is_missing_in_a_test_as_it_is_in_the_experiment(
    definition: Definition, tmp_path: Path
) -> None:
    code = """
    import os

    def main(context):
        context.report(accuracy=len([name for name in os.listdir() if name.endswith(".csv")]))
        assert os.listdir("deep") == ["kept.txt"]
    """
    folder = definition(
        code, _dot_detignore="/all.csv\ndeep/*\n!deep/kept.txt\n", all_dot_csv="", some_dot_csv=""
    )
    (folder / "deep").mkdir()
    for name in ("kept.txt", "left.txt"):
        (folder / "deep" / name).touch()
    options: dict[str, Any] = {"backend": InlineBackend(), "progress": False}
    store = LocalStore(tmp_path / "store")
    assert create(complete(FUNCTION), folder, store, test=True, **options) is None
    run = create(complete(FUNCTION), folder, store, **options)
    assert run is not None
    assert [trial.history for trial in run.state.trials.values()] == [{"val_accuracy": [1.0]}]


def test_a_model_is_used_where_its_data_are_not(
    definition: Definition, experiment: Experiment, tmp_path: Path
) -> None:
    code = TRIAL.replace("def points(n, seed):", "def points(n, seed):\n    open(PLACE).close()").replace(
        "\nclass Trial(", f"PLACE = {str(tmp_path / 'data')!r}\n\n\nclass Trial("
    )
    (tmp_path / "data").touch()
    run = experiment(definition(code))
    (tmp_path / "data").unlink()
    assert run.best.torch()(torch.zeros(3, 4)).shape == (3, 2)
    with pytest.raises(TrialError, match=r"FileNotFoundError.*data(.|\n)*in points"):
        experiment(definition(code), seed=1)


# Workers of data loaders


def test_trials_have_all_shared_memory_of_the_machine_also_with_mounts(
    definition: Definition, experiment: Experiment, tmp_path: Path
) -> None:
    code = """
    import os

    def main(context):
        found = os.statvfs("/dev/shm")
        context.report(accuracy=found.f_blocks * found.f_frsize)
    """
    data = tmp_path / "data"
    data.mkdir()
    mount = {"host_path": str(data), "container_path": str(data), "read_only": True}
    if problems := check([Mount(**mount)]):  # type: ignore[arg-type]
        pytest.skip(f"trials can have no mounts of their own here: {problems[0].message}")
    run = experiment(definition(code), LocalBackend(num_workers=1), **FUNCTION, bind_mounts=[mount])
    found = os.statvfs("/dev/shm")
    [trial] = run.state.trials.values()
    assert trial.history["val_accuracy"] == [found.f_blocks * found.f_frsize]


ROWS = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, number):
        if number == 40:
            {row}
        return torch.ones(4), torch.tensor(1)


class Trial("""
READ_BY_WORKERS = TRIAL.replace(
    "DataLoader(TensorDataset(*points(100, 1)), batch_size=8)",
    "DataLoader(Rows(), batch_size=8, num_workers=3)",
)


@pytest.mark.parametrize("where", ["row", "step"])
def test_an_error_beside_workers_of_a_loader_ends_the_trial_and_has_its_traceback(
    where: str, definition: Definition, experiment: Experiment
) -> None:
    raising = 'raise ValueError("row 40 is broken")'
    code = READ_BY_WORKERS.replace("class Trial(", ROWS.format(row=raising if where == "row" else "pass"), 1)
    if where == "step":
        code = code.replace("        x, y = batch\n", f"        {raising}\n", 1)
    with pytest.raises(
        TrialError, match=r"ValueError: row 40 is broken(.|\n)*model_def\.py(.|\n)*raise ValueError"
    ):
        experiment(definition(code), LocalBackend(num_workers=1), max_restarts=0)


# Streams without a length


ENDLESS = TRIAL.replace(
    "class Trial(",
    """class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            x = torch.randn(4)
            yield x, (x.sum() > 0).long()


class Trial(""",
).replace(
    "DataLoader(TensorDataset(*points(100, 1)), batch_size=8)",
    "DataLoader(Endless(), batch_size=8)",
)
STUMBLES = """
    def train_batch(self, batch, model):
        import os, pathlib
        self.count = getattr(self, "count", 0) + 1
        mark = pathlib.Path(self.context.get_data_config()["mark"])
        if self.count == 13 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
        x, y = batch
"""


def test_a_dataset_without_length_goes_on_at_its_place_after_a_kill(
    definition: Definition, experiment: Experiment, tmp_path: Path
) -> None:
    code = ENDLESS.replace("    def train_batch(self, batch, model):\n        x, y = batch\n", STUMBLES)
    assert "os.kill" in code
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 24}}
    found = []
    (tmp_path / "calm-mark").touch()
    for name, backend in (("calm", InlineBackend()), ("killed", LocalBackend(num_workers=1))):
        mark = tmp_path / f"{name}-mark"
        run = experiment(definition(code), backend, name, searcher=searcher, data={"mark": str(mark)})
        assert mark.exists()
        [trial] = run.state.trials.values()
        weights = run.best.torch().state_dict()
        found.append((trial.history, {key: value.tolist() for key, value in weights.items()}))
    assert found[0] == found[1]
    assert trial.progress.trained == 5  # visits of 5, 5, 5, 5 and 4 batches


# Trials that end in all ways


KNOBS = """
import fcntl, math, os, pathlib, signal

def main(context):
    knobs = context.get_data_config()
    value = context.get_hparam("knob")
    with open(knobs["lock"], "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails beside another trial
        with open(knobs["began"], "a") as began:
            began.write(f"{value}\\n")
        if value == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        print(f"before\\0after {value}")
        for epoch in range(3):
            context.report(accuracy=math.nan if value == "nan" else float(value) + epoch)
            if value is True:
                return
"""


@pytest.fixture
def knobs(definition: Definition, experiment: Experiment, tmp_path: Path) -> Callable[..., Run]:
    """Runs trials that do what the values of ``knob`` say, one after the other."""

    def run(values: list[Any], **searcher: Any) -> Run:
        data = {"lock": str(tmp_path / "lock"), "began": str(tmp_path / "began")}
        fields = grid("knob", values, max_concurrent_trials=1, **searcher) | {"data": data, "max_restarts": 0}
        return experiment(definition(KNOBS), LocalBackend(num_workers=2), **fields)

    return run


def test_a_trial_that_is_killed_makes_room_for_the_next_and_is_replaced_by_none(
    knobs: Callable[..., Run], tmp_path: Path
) -> None:
    run = knobs(["killed", 1])
    assert [trial.status for trial in run.state.trials.values()] == ["failed", "completed"]
    assert (tmp_path / "began").read_text().split() == ["killed", "killed", "1"]


def test_trials_that_return_early_are_completed(knobs: Callable[..., Run]) -> None:
    run = knobs([True, False])
    assert [(trial.status, trial.history["val_accuracy"]) for trial in run.state.trials.values()] == [
        ("completed", [1.0]),
        ("completed", [0.0, 1.0, 2.0]),
    ]


def test_a_metric_that_is_no_number_makes_no_best_trial(knobs: Callable[..., Run]) -> None:
    run = knobs(["nan", 1])
    first, _ = run.state.trials.values()
    assert (first.status, first.best) == ("completed", None)
    assert np.isnan(first.history["val_accuracy"]).tolist() == [True] * 3
    assert run.best.trial == 1


def test_the_order_of_trials_is_reversed_with_the_direction(knobs: Callable[..., Run]) -> None:
    values = [2, 0, 3, 1]
    up, down = (knobs(values, smaller_is_better=smaller) for smaller in (False, True))
    order = [trial.params["knob"] for trial in up.state.ranked()]
    assert order == [3, 2, 1, 0]
    assert [trial.params["knob"] for trial in down.state.ranked()] == order[::-1]


def test_a_line_with_a_null_byte_is_kept_as_it_was(knobs: Callable[..., Run], tmp_path: Path) -> None:
    run = knobs([1])
    lines = [line.text for line in read_logs(tmp_path / "store", run.run_id, trial=0)]
    assert lines == ["before\0after 1"]
