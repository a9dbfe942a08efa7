"""Searches and the stockroom: training from a commit, committing the outcome, training it again."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard import StockRoom, tune
from hopyard.backend import InlineBackend
from hopyard.data import open_dataset, prepare
from hopyard.errors import (
    EstimatorError,
    FormatError,
    HopyardError,
    NotFoundError,
    RunInterruptedError,
    UsageError,
)
from hopyard.hopper.state import TrialState
from hopyard.search import Budget, FullLength, RandomPoints, Searcher
from hopyard.storage import LocalStore
from hopyard.tune import Callback, RandomSearch
from hopyard.tune.inputs import inputs_of
from hopyard.tune.reproduce import reproduce


@pytest.fixture
def stock(tmp_path: Path) -> StockRoom:
    return StockRoom.init(tmp_path / "repo")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def columns(stock: StockRoom, make_rows: Any) -> StockRoom:
    """The stockroom with the rows as two columns."""
    with stock.enable_write():
        for name, values in make_rows().items():
            stock.data[name] = values
    return stock


@pytest.fixture
def datasets(stock: StockRoom, make_rows: Any, tmp_path: Path) -> StockRoom:
    """The stockroom with the rows as prepared datasets."""
    prepared = prepare(make_rows(), LocalStore(tmp_path / "elsewhere"), validation=0.25)
    with stock.enable_write():
        stock.data["train"], stock.data["val"] = prepared.train, prepared.val
    stock.tag("v1")
    return stock


def copied(store: LocalStore) -> bool:
    """Whether data was prepared into the store."""
    return any(next(folder.list(), None) is not None for folder in (store.train_data, store.val_data))


# Training from a commit


def test_datasets_of_a_commit_are_trained_on_where_they_lie(
    datasets: StockRoom, store: LocalStore, search: Any, make_rows: Any, contents_of: Any
) -> None:
    model = search(store).fit(datasets.data["train"], datasets.data["val"])
    assert not copied(store)
    plain = search(LocalStore(f"{store.url}-2")).fit(make_rows())  # the same rows, split and shuffled alike
    assert contents_of(model.run) == contents_of(plain.run)
    commit = datasets.log()[0].digest[:12]
    assert model.run.state.header["data"] == {
        "train": f"dataset 'train' of {commit}",
        "val": f"dataset 'val' of {commit}",
    }


def test_a_validation_set_is_split_off_a_dataset_where_it_lies(
    datasets: StockRoom, store: LocalStore, search: Any
) -> None:
    run = search(store, num_models=1).fit(datasets.data["train"]).run
    assert not copied(store)
    assert run.broken_rules() == []
    old = datasets.at("v1")
    again = search(store, num_models=1).fit(old.data["train"]).run
    assert again.run_id == run.run_id  # the same rows: found finished
    other = search(store, num_models=1, seed=1).fit(old.data["train"]).run
    assert other.state.header["data"]["train"] == f"dataset 'train' of v1 ({old.commit.digest[:12]})"


def test_samples_of_columns_are_trained_on_where_they_lie(
    columns: StockRoom, store: LocalStore, search: Any, local: Any, contents_of: Any, tmp_path: Path
) -> None:
    samples = columns.data[["features", "label"]]
    inline = search(store).fit(samples).run
    assert not copied(store)
    assert "'features', 'label' of " + columns.log()[0].digest[:12] in inline.state.header["data"]["train"]
    other = search(LocalStore(tmp_path / "other"), local).fit(samples).run
    assert (other.run_id, contents_of(other)) == (inline.run_id, contents_of(inline))


def test_the_same_rows_in_another_commit_are_the_same_run(
    columns: StockRoom, store: LocalStore, search: Any, make_rows: Any
) -> None:
    names = ["features", "label"]
    first = search(store, num_models=1).fit(columns.data[names]).run_id
    with columns.enable_write():
        columns.experiment["note"] = "unrelated"
    assert search(store, num_models=1).fit(columns.data[names]).run_id == first
    with columns.enable_write():
        columns.data["features"][0] = np.zeros(4, np.float32)
    assert search(store, num_models=1).fit(columns.data[names]).run_id != first
    assert search(store, num_models=1).fit(columns.at("HEAD~1").data[names]).run_id == first


@pytest.mark.parametrize("kind", ["dataset", "samples"])
def test_equal_rows_of_a_version_are_on_the_side_on_which_a_frame_has_them(
    stock: StockRoom, store: LocalStore, search: Any, make_rows: Any, tmp_path: Path, kind: str
) -> None:
    rows = {name: np.concatenate([values] * 3) for name, values in make_rows(64).items()}
    with stock.enable_write():
        if kind == "dataset":
            made = prepare(rows, LocalStore(tmp_path / "made"), validation=None)
            stock.data["rows"] = made.train
        else:
            for name, values in rows.items():
                stock.data[name] = values
    given = stock.data["rows"] if kind == "dataset" else stock.data[list(rows)]
    splits = inputs_of(given, None, search(store, validation=0.25, seed=3).arguments).prepare(None, print)
    assert not copied(store)
    frame = prepare(rows, LocalStore(tmp_path / "frame"), validation=0.25, seed=3)
    sides = [sorted(map(bytes, part[:]["features"])) for part in (splits.train, splits.val)]
    assert sides == [sorted(map(bytes, part[:]["features"])) for part in (frame.train, frame.val)]
    assert len(splits.train) + len(splits.val) == 192
    assert not set(sides[0]) & set(sides[1])
    batches = [*splits.train.loader(16, shuffle=True, seed=1)]  # also when it is shuffled and dealt to models
    assert sorted(bytes(row) for batch in batches for row in batch["features"]) == sides[0]
    parts = [part[:]["features"] for part in splits.val.partitions(2)]
    assert sorted(map(bytes, np.concatenate(parts))) == sides[1]


def test_samples_and_a_frame_for_validation(
    columns: StockRoom, store: LocalStore, search: Any, make_rows: Any
) -> None:
    model = search(store, num_models=1).fit(columns.data[["features", "label"]], make_rows(24, seed=1))
    assert len(model.get_history()["val_loss"]) == 2


# The outcome as a commit


def test_the_outcome_is_one_commit(stock: StockRoom, store: LocalStore, search: Any, make_rows: Any) -> None:
    model = search(store, stock=stock).fit(make_rows())
    id = model.run_id
    (commit,) = stock.log()
    assert commit.message == f"search {id}: val_accuracy {model.info.value:.6g} by trial {model.trial} of 3"
    module = model.torch()
    module.load_state_dict(stock.model[id])
    assert stock.data[f"{id}/train"].fingerprint == stock.data[f"{id}/val"].fingerprint
    assert len(stock.data[f"{id}/train"]) + len(stock.data[f"{id}/val"]) == 96
    run = stock.experiment.run(id)
    assert run.params == model.params
    assert run.tags["value"] == model.info.value
    assert run.links["model"].keys() == {id}
    assert run.links["data"].keys() == {f"{id}/train", f"{id}/val"}
    for number, history in model.get_all_model_history().items():
        for metric, values in history.items():
            steps, stored = run.metrics[f"trial {number}: {metric}"]
            assert steps.tolist() == [1, 2]
            assert stored.tolist() == values
    about = json.loads(run.read("search.json"))
    assert [trial["number"] for trial in about["trials"]] == model.run.trials()["number"].tolist()
    assert about["settings"] == model.run.settings


def test_a_finished_search_is_not_committed_again(
    stock: StockRoom, store: LocalStore, search: Any, make_rows: Any
) -> None:
    search(store).fit(make_rows())
    assert stock.log() == []
    search(store, stock=stock.place.root).fit(make_rows())  # committed without training
    search(store, stock=stock.place.root).fit(make_rows())
    stock = StockRoom(stock.place.root)
    assert len(stock.log()) == 1
    search(store, stock=stock).fit(make_rows())
    assert len(stock.log()) == 1


def test_an_extended_run_is_committed_once_more(
    stock: StockRoom, store: LocalStore, search: Any, make_rows: Any
) -> None:
    search(store, stock=stock, run_id="mine", num_models=1).fit(make_rows())
    search(store, stock=stock, run_id="mine", num_models=2).fit(make_rows())
    assert len(stock.log()) == 2
    run = stock.experiment.run("mine")
    assert run.tags["trials"] == 2
    assert json.loads(run.read("search.json"))["settings"]["num_models"] == 2
    assert reproduce(stock, trust=True, progress=False, num_workers=0).equal
    assert list(stock.data) == ["mine/train", "mine/val"]


def test_a_run_that_a_command_extended_is_reproduced_as_it_ended(
    stock: StockRoom, store: LocalStore, search: Any, make_rows: Any
) -> None:
    first = search(store, stock=stock, run_id="mine", num_models=1).fit(make_rows()).run
    first.extend(num_models=2, num_epochs=3)
    run = search(store, stock=stock, run_id="mine", num_models=1).fit(make_rows()).run
    assert {number: trial.epochs for number, trial in run.state.trials.items()} == {0: 3, 1: 3}
    settings = json.loads(stock.experiment.run("mine").read("search.json"))["settings"]
    assert (settings["num_models"], settings["num_epochs"]) == (2, 3)
    done = reproduce(stock, trust=True, progress=False, num_workers=0)
    assert done.equal
    assert done.num_series == sum(len(trial.history) for trial in run.state.trials.values())


def test_data_of_the_stockroom_is_not_stored_again(
    columns: StockRoom, store: LocalStore, search: Any
) -> None:
    id = search(store, stock=columns, num_models=1).fit(columns.data[["features", "label"]]).run_id
    assert list(columns.data) == ["features", "label"]
    assert columns.experiment.run(id).links["data"].keys() == {"features", "label"}
    with columns.enable_write():
        columns.data["features"][0] = np.zeros(4, np.float32)
    old = columns.at("HEAD~1").data[["features", "label"]]
    id = search(store, stock=columns, num_models=1, seed=1).fit(old).run_id
    assert list(columns.data) == ["features", "label", f"{id}/train/features"]


def test_a_run_that_is_not_completed_is_not_committed(
    stock: StockRoom, store: LocalStore, search: Any, make_rows: Any
) -> None:
    with pytest.raises(RunInterruptedError):
        search(store, stock=stock, time_budget=1e-9).fit(make_rows())
    assert stock.log() == []
    search(store, stock=stock).fit(make_rows())
    assert len(stock.log()) == 1


def test_what_is_in_the_way_is_said_before_training(
    columns: StockRoom, store: LocalStore, search: Any, make_rows: Any, tmp_path: Path
) -> None:
    def refused(kind: type[HopyardError], text: str, **changes: Any) -> None:
        with pytest.raises(kind, match=text):
            search(store, **changes).fit(make_rows())
        assert next(store.list(), None) is None

    refused(NotFoundError, "is in no stockroom", stock=tmp_path)
    columns.tag("v1")
    columns.switch("v1")
    refused(UsageError, r"commits there are on no branch\. Make one first: stock\.branch", stock=columns)
    columns.switch("main")
    head = columns.place.head.read_text()
    columns.place.head.write_text(f"<<<<<<< ours\n{head}=======\n{head}>>>>>>> theirs\n")
    refused(UsageError, "holds a merge conflict of git", stock=columns)


def test_code_that_cannot_be_committed_is_said_before_training(
    stock: StockRoom, store: LocalStore, search: Any, make_rows: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "with_a_lock.py").write_text("import threading\nlock = threading.Lock()\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("with_a_lock")

    def estimator(params: Any) -> Any:
        with module.lock:
            return None

    with pytest.raises(EstimatorError, match=r"cannot be committed with all its code .*make locks"):
        search(store, stock=stock, estimator_gen_fn=estimator).fit(make_rows())
    assert next(store.list(), None) is None


def test_foreign_parquet_cannot_be_committed(
    stock: StockRoom, store: LocalStore, search: Any, make_rows: Any, tmp_path: Path
) -> None:
    pandas = pytest.importorskip("pandas")
    rows = make_rows()
    frame = pandas.DataFrame({"features": rows["features"][:, 0], "label": rows["label"]})
    frame.to_parquet(tmp_path / "rows.parquet")
    data = open_dataset(tmp_path / "rows.parquet")
    with pytest.raises(
        UsageError, match="this train data cannot be: Parquet files that Hopyard did not prepare"
    ):
        search(store, stock=stock, validation=None).fit_on_parquet(tmp_path / "rows.parquet")
    with pytest.raises(UsageError, match="this train data cannot be"):
        search(store, stock=stock).fit(data, data)


def test_a_commit_that_fails_loses_nothing(
    stock: StockRoom, store: LocalStore, search: Any, make_rows: Any
) -> None:
    class Close(Callback):
        def on_trial_end(self, trial: TrialState) -> None:
            stock.close()

    arguments = {"num_models": 1, "num_epochs": 1}
    with pytest.raises(UsageError, match="this stockroom was closed") as caught:
        search(store, stock=stock, callbacks=[Close()], **arguments).fit(make_rows())
    assert "finished and safe in its store" in caught.value.__notes__[0]
    again = StockRoom(stock.place.root)
    search(store, stock=again, backend=NoBackend(), **arguments).fit(make_rows())
    assert len(again.log()) == 1


class NoBackend(InlineBackend):
    """Trains nothing."""

    def submit(self, *_: Any) -> Any:
        raise AssertionError("something was trained")


SCRIPT = """
import os, signal, sys
import numpy as np, torch
from hopyard import StockRoom
from hopyard.backend import InlineBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Callback, GridSearch, hp_choice
import architecture

class Die(Callback):
    def on_epoch_end(self, trial, epoch, metrics):
        if not os.path.exists("lived"):
            open("lived", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

features = np.random.default_rng(0).standard_normal((96, 4)).astype("float32")
GridSearch(
    InlineBackend(), LocalStore("store"), lambda params: architecture.estimator(params["width"]),
    {"width": hp_choice([4, 8])}, num_epochs=2, num_partitions=2, callbacks=[Die()], stock="repo", progress=False,
).fit({"features": features, "label": (features.sum(axis=1) > 0).astype("int64")})
"""

ARCHITECTURE = """
import torch
from hopyard.torch import TorchEstimator
def estimator(width):
    model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 2))
    return TorchEstimator(model, torch.optim.Adam, torch.nn.CrossEntropyLoss(), batch_size=8)
"""


def test_a_killed_search_commits_once_and_is_reproduced_whatever_the_working_tree_holds(
    tmp_path: Path,
) -> None:
    stock = StockRoom.init(tmp_path / "repo")
    (tmp_path / "search.py").write_text(SCRIPT)
    (tmp_path / "architecture.py").write_text(ARCHITECTURE)

    def run() -> int:
        environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "search.py"], cwd=tmp_path, env=environ, check=False
        ).returncode

    assert run() == -9
    assert StockRoom(tmp_path / "repo").log() == []
    assert run() == 0
    assert run() == 0
    assert len(StockRoom(tmp_path / "repo").log()) == 1
    (tmp_path / "architecture.py").write_text("raise RuntimeError('changed since')")
    for file in (tmp_path / "store").rglob("*.parquet"):
        file.unlink()
    stock = StockRoom(tmp_path / "repo")
    done = reproduce(stock, trust=True, progress=False, num_workers=0)
    assert done.equal, str(done)
    assert done.environment == []


# Training it again


@pytest.fixture
def committed(stock: StockRoom, store: LocalStore, search: Any, make_rows: Any) -> StockRoom:
    search(store, stock=stock, num_models=2, run_id="mine").fit(make_rows())
    return stock


def test_a_search_is_reproduced_to_the_last_bit(committed: StockRoom) -> None:
    done = reproduce(committed, trust=True, progress=False, num_workers=2)
    assert done.equal
    assert (done.num_tensors, done.num_series) == (9, 6)
    assert str(done).endswith("reproduced: equal to the last bit")


def test_samples_and_chosen_keys_are_reproduced(columns: StockRoom, store: LocalStore, search: Any) -> None:
    search(store, stock=columns, num_models=1).fit(columns.data[["features", "label"]])
    assert reproduce(columns, trust=True, progress=False, num_workers=0).equal
    chosen = columns.data.samples(["features", "label"], keys=range(40))
    search(store, stock=columns, num_models=1).fit(chosen)
    assert reproduce(columns, trust=True, progress=False, num_workers=0).equal


def test_what_a_search_started_from_is_reproduced(
    stock: StockRoom, store: LocalStore, search: Any, make_rows: Any
) -> None:
    point = {"search_space": {"width": 4, "lr": 0.01}, "num_models": 1}
    first = search(store, **point).fit(make_rows())
    search(store, stock=stock, init_from=first, run_id="tuned", **point).fit(make_rows())
    assert list(stock.model) == ["tuned", "tuned/init_from"]
    assert reproduce(stock, trust=True, progress=False, num_workers=0).equal


def test_any_search_is_reproduced_by_its_class_and_arguments(
    stock: StockRoom, store: LocalStore, make_rows: Any, search: Any, monkeypatch: Any
) -> None:
    class Halves(RandomSearch):
        """As one that a later version brings: of ``hopyard.tune``, with an argument of its own."""

        kind = "halves"
        __module__ = "hopyard.tune.later"

        def __init__(
            self, backend: Any, store: Any, estimator_gen_fn: Any, search_space: Any, num_models: int,
            num_epochs: int, divisor: int = 2, **common: Any,
        ) -> None:  # fmt: skip
            self.divisor = divisor
            super().__init__(backend, store, estimator_gen_fn, search_space, num_models, num_epochs, **common)

        def _make_searcher(self, budget: Budget) -> Searcher:
            points = RandomPoints(self.arguments.search_space, self.arguments.seed)
            return FullLength(points, self.num_models // self.divisor, budget.visits)

    monkeypatch.setattr(tune, "Halves", Halves, raising=False)
    model = search(store, kind=Halves, divisor=3, stock=stock).fit(make_rows())
    assert model.run.settings["divisor"] == 3
    done = reproduce(stock, trust=True, progress=False, num_workers=0)
    assert done.equal
    assert done.num_series == len(model.get_history())  # of one trial, not of three
    monkeypatch.delattr(tune, "Halves")
    with pytest.raises(
        FormatError, match=r"is a 'Halves', which is none of the searches of this version .*: 0\.1\.0\."
    ):
        reproduce(stock, trust=True, progress=False, num_workers=0)


def test_a_search_of_the_users_own_is_reproduced(
    stock: StockRoom, store: LocalStore, make_rows: Any, search: Any
) -> None:
    class Mine(RandomSearch):
        kind = "mine"

        def _make_searcher(self, budget: Budget) -> Searcher:
            return FullLength(RandomPoints(self.arguments.search_space, 7), self.num_models, budget.visits)

    search(store, kind=Mine, num_models=1, stock=stock).fit(make_rows())
    assert reproduce(stock, trust=True, progress=False, num_workers=0).equal


def test_code_is_not_run_without_trust(committed: StockRoom) -> None:
    with pytest.raises(
        UsageError, match=r"to reproduce run mine is to run code that is in the commit .*trust=True"
    ):
        reproduce(committed)


def test_weights_that_were_changed_are_noticed(committed: StockRoom) -> None:
    with committed.enable_write():
        weights = committed.model["mine"]
        weights["4.bias"][0] += 0.5
        committed.model["mine"] = weights
    done = reproduce(committed, trust=True, progress=False, num_workers=0)
    (found,) = done.tensors
    assert (found.path, found.elements, found.largest) == ("4.bias", 1, pytest.approx(0.5))
    assert "4.bias: 1 of 2 elements differ, by up to 0.5" in str(done)
    assert "NOT reproduced, although versions and processor are the same" in str(done)
    assert not done.equal


def test_another_environment_is_said(committed: StockRoom, monkeypatch: Any) -> None:
    monkeypatch.setattr("hopyard.tune.environment.__version__", "9.9")
    done = reproduce(committed, trust=True, progress=False, num_workers=0)
    assert done.environment == ["hopyard: 0.1.0 (run) -> 9.9 (now)"]
    assert done.equal
    assert "not as it was: hopyard: 0.1.0 (run) -> 9.9 (now)" in str(done)


def test_a_commit_without_a_search_says_so(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path) as stock:
        with stock.enable_write():
            stock.experiment["note"] = 1
        with pytest.raises(
            NotFoundError, match=r"has no run of a search. A search commits one if it is given stock="
        ):
            reproduce(stock, trust=True)


def test_which_run_is_meant(committed: StockRoom, store: LocalStore, search: Any, make_rows: Any) -> None:
    with committed.enable_write():
        committed.experiment["note"] = 1
    search(store, stock=committed, num_models=1, run_id="other").fit(make_rows())
    assert reproduce(committed, trust=True, progress=False, num_workers=0).run_id == "other"
    assert reproduce(committed, run="mine", trust=True, progress=False, num_workers=0).run_id == "mine"
    with committed.enable_write():
        committed.experiment["note"] = 2
    with pytest.raises(NotFoundError, match=r"has 2 runs of searches with stock=.*of mine, other"):
        reproduce(committed, trust=True)
    with committed.enable_write(), committed.run() as run:
        run.log(loss=1.0)
    with pytest.raises(NotFoundError, match="is not of a search with stock="):
        reproduce(committed, run=run.id, trust=True)
