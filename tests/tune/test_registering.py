"""Models of searches as versions of registered models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard import StockRoom, load_model, open_run
from hopyard.errors import ConflictError, NotFoundError, TrialError, UsageError
from hopyard.stockroom.catalog.registry import ModelVersion
from hopyard.storage import LocalStore
from hopyard.tune import Model, hp_choice
from hopyard.tune.registering import in_a_block


@pytest.fixture
def stock(tmp_path: Path) -> StockRoom:
    return StockRoom.init(tmp_path / "repo")


@pytest.fixture
def model(search: Any, make_rows: Any, tmp_path: Path) -> Model:
    found: Model = search(LocalStore(tmp_path / "store")).fit(make_rows())
    return found


def same_files(a: Path, b: Path) -> bool:
    names = [sorted(path.relative_to(top) for path in top.rglob("*") if path.is_file()) for top in (a, b)]
    return names[0] == names[1] and all(
        (a / name).read_bytes() == (b / name).read_bytes() for name in names[0]
    )


def test_a_model_registers_itself_and_downloads_as_what_it_saves(
    model: Model, stock: StockRoom, make_rows: Any, tmp_path: Path
) -> None:
    version = model.register(stock, "digits", description="the best", labels=["production"])
    assert stock.log()[0].message == "model/digits/1 added"
    assert (version.number, version.labels, version.params) == (1, ("production",), model.params)
    epoch = int(model.info.epoch)
    assert version.metrics == {name: values[epoch - 1] for name, values in model.get_history().items()}
    assert version.metrics["val_accuracy"] == model.info.value
    source = version.source
    assert (source.run, source.trial, source.epoch) == (model.run_id, model.trial, model.info.epoch)
    assert (source.commit, source.data) == (None, {"train": model.run.settings["data"]})
    folder = stock.registry["digits"].latest.download(tmp_path / "out")
    assert same_files(folder, model.save(tmp_path / "saved"))
    rows = make_rows(20, seed=1)
    np.testing.assert_array_equal(load_model(folder).predict(rows), model.predict(rows))
    assert stock.verify().ok
    (tmp_path / "file").touch()
    for target, text in [
        ("out", r"the folder .*out is not empty\. Give another one, or empty it\."),
        ("file", r"a folder was to be written to .*file, but a file is there\. Give another one\."),
        ("..", r"\.\.' is no name of a file or folder that can be made\. Give one that is\."),
    ]:
        with pytest.raises(UsageError, match=text):
            version.download(tmp_path / target)
    with pytest.raises(UsageError, match=r"'\.' is no name of a file or folder that can be made"):
        version.download(".")
    (tmp_path / "empty").mkdir()
    assert same_files(version.download(tmp_path / "empty"), folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "empty",
        "file",
        "out",
        "repo",
        "saved",
        "store",
    ]


def test_the_outcome_of_a_search_is_not_written_again(
    search: Any, make_rows: Any, stock: StockRoom, tmp_path: Path
) -> None:
    model = search(LocalStore(tmp_path / "store"), stock=stock).fit(make_rows())
    outcome = stock.head.commit
    best = model.register(stock, "digits")
    other = model.get_all_models()[1].register(stock, "digits")
    with stock.enable_write():
        by_run = stock.registry.register("digits", run=model.run_id)
    assert [each.number for each in (best, other, by_run)] == [1, 2, 3]
    assert (best.source.commit, best.source.model) == (outcome, model.run_id)
    assert other.source.commit is None
    assert best.digest == by_run.digest == stock.model.record(model.run_id).tree
    assert (by_run.metrics, by_run.params, by_run.source.trial) == (
        best.metrics,
        best.params,
        best.source.trial,
    )
    assert (best.is_loadable, by_run.is_loadable) == (True, False)


def test_a_clone_without_bytes_downloads(
    model: Model, stock: StockRoom, make_rows: Any, tmp_path: Path
) -> None:
    model.register(stock, "digits")
    stock.push(tmp_path / "remote")
    with StockRoom.clone(tmp_path / "remote", tmp_path / "clone") as clone:
        version = clone.registry["digits"].latest
        assert version.params == model.params
        rows = make_rows(20, seed=1)
        predicted = load_model(version.download(tmp_path / "out")).predict(rows)
        np.testing.assert_array_equal(predicted, model.predict(rows))


def test_within_a_block_it_is_committed_at_its_end(model: Model, stock: StockRoom) -> None:
    def fails() -> None:
        with stock.enable_write():
            model.register(stock, "digits")
            raise RuntimeError("undo")

    with pytest.raises(RuntimeError, match="undo"):
        fails()
    assert list(stock.registry) == []
    with stock.enable_write("two"):
        model.register(stock, "digits")
        model.register(stock, "digits")
    assert list(stock.registry["digits"]) == [1, 2]
    assert [commit.message for commit in stock.log()] == ["two"]


def test_a_registration_begins_again_where_another_was_faster(stock: StockRoom) -> None:
    counts: list[int] = []

    def register() -> ModelVersion:
        counts.append(len(counts))
        version = stock.registry.register("digits", {"w": np.zeros(3)})
        if len(counts) < 3:
            with StockRoom(stock.place.root) as other, other.enable_write():
                other.registry.register("digits", {"w": np.full(3, len(counts))})
        return version

    assert in_a_block(stock, register).number == 3
    assert [stock.model[f"digits/{number}"]["w"][0] for number in (1, 2, 3)] == [1, 2, 0]
    assert len(counts) == 3


def test_other_conflicts_than_of_the_number_end_a_registration(stock: StockRoom) -> None:
    def register() -> ModelVersion:
        stock.experiment["lr"] = 1
        with StockRoom(stock.place.root) as other, other.enable_write():
            other.registry.register("digits", {"w": np.ones(3)})
            other.experiment["lr"] = 2
        return stock.registry.register("digits", {"w": np.zeros(3)})

    with pytest.raises(ConflictError, match="experiment/lr: both added"):
        in_a_block(stock, register)
    with StockRoom(stock.place.root) as again:
        assert (again.experiment["lr"], list(again.registry["digits"])) == (2, [1])


def test_a_model_that_was_loaded_registers_by_the_path_of_a_stockroom(
    model: Model, stock: StockRoom, tmp_path: Path
) -> None:
    loaded = load_model(model.save(tmp_path / "saved"))
    version = loaded.register(stock.place.root, "digits")
    assert (version.source.run, version.source.data) == (model.run_id, {})
    with StockRoom(stock.place.root) as again:
        assert same_files(again.registry["digits"].latest.download(tmp_path / "out"), tmp_path / "saved")


def test_what_cannot_be_registered(
    model: Model, search: Any, make_rows: Any, stock: StockRoom, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="its last part is a number"):
        model.register(stock, "digits/3")
    with pytest.raises(NotFoundError, match="is in no stockroom: neither it nor a folder above"):
        model.register(tmp_path / "store", "digits")
    with pytest.raises(NotFoundError, match=r"has no model of trial 9; the trials with a result are"):
        model.run.model(9)
    for path in (tmp_path / "store" / "runs" / model.run_id).rglob("*.safetensors"):
        path.unlink()
    with pytest.raises(NotFoundError, match=f"the weights of trial {model.trial} were not kept"):
        model.register(stock, "digits")
    assert stock.head.commit is None


def test_a_run_of_which_every_trial_failed_has_nothing_to_register(
    search: Any, make_rows: Any, stock: StockRoom, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    space = {"width": hp_choice([4, 8]), "lr": hp_choice([1e38])}  # weights are infinite after a step
    with pytest.raises(TrialError):
        search(store, search_space=space, num_models=2, run_id="failed").fit(make_rows())
    with pytest.raises(
        TrialError, match=r"run failed has no model: 2 of 2 trials failed\. See run\.trials\(\)"
    ):
        open_run(store, "failed").best.register(stock, "digits")
    assert stock.head.commit is None
