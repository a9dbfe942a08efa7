"""The calls of model selection as users type them: every keyword name is a promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.datasets import load_wine

import hopyard
from hopyard.backend import InlineBackend, LocalBackend
from hopyard.storage import LocalStore, MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import (
    GridSearch,
    RandomSearch,
    hp_choice,
    hp_int,
    hp_log,
    hp_loguniform,
    hp_qloguniform,
    hp_quniform,
    hp_uniform,
)
from hopyard.tune.arguments import DEFAULTS
from hopyard.tune.search import Common


def wine() -> dict[str, Any]:
    data = load_wine()
    return {"features": (data.data - data.data.mean(axis=0)) / data.data.std(axis=0), "label": data.target}


def classifier(params: dict[str, Any]) -> TorchEstimator:
    model = torch.nn.Sequential(
        torch.nn.Linear(13, params["width"]), torch.nn.ReLU(), torch.nn.Linear(params["width"], 3)
    )
    return TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=torch.nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        batch_size=params["batch_size"],
    )


@pytest.fixture(scope="module")
def wine_model(tmp_path_factory: Any) -> Any:
    search = RandomSearch(
        backend=InlineBackend(),
        store=LocalStore(tmp_path_factory.mktemp("wine")),
        estimator_gen_fn=classifier,
        search_space={
            "width": hp_choice([8, 16]),
            "lr": hp_loguniform(-3, -1),
            "batch_size": hp_choice([16, 32]),
        },
        num_models=3,
        num_epochs=3,
        num_partitions=4,
        validation=0.25,
        evaluation_metric="accuracy",
        feature_columns=["features"],
        label_columns=["label"],
        seed=0,
        progress=False,
    )
    return search.fit(wine())


def test_a_model_tells_what_it_is(wine_model: Any) -> None:
    model = wine_model
    assert sorted(model.get_history()) == ["train_loss", "val_accuracy", "val_loss"]
    assert max(model.get_history()["val_accuracy"]) > 0.9
    assert [type(one) for one in model.get_all_models()] == [type(model)] * 3
    assert sorted(model.get_all_model_history()) == [0, 1, 2]
    assert set(model.params) == {"width", "lr", "batch_size"}
    assert model.run.run_id == model.run_id
    assert (model.run.best.trial, len(model.run.models)) == (model.trial, 3)
    assert isinstance(model.torch(), torch.nn.Module)
    assert model.trials()["number"][0] == model.run.trials()["number"][0] == model.trial
    assert len(model.schedule()) == len(model.run.schedule()) == 3 * 3 * 8


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "dict"])
def test_transform_gives_back_what_it_was_given(wine_model: Any, kind: str) -> None:
    data = wine()
    rows = {"features": list(data["features"]), "label": data["label"]}
    frames = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table, "dict": dict}
    frame = frames[kind](rows)
    out = wine_model.set_output_columns(["label_predicted"]).transform(frame)
    assert type(out) is type(frame)
    column = out["label_predicted"]
    cells = np.array(column.to_pylist() if kind == "pyarrow" else list(column))
    np.testing.assert_array_equal(cells.astype(np.float32), wine_model.predict(data["features"]))
    assert "label_predicted" not in (
        frame.column_names if kind == "pyarrow" else list(frame.keys() if kind == "dict" else frame.columns)
    )


def test_predict_evaluate_save_and_load(wine_model: Any, tmp_path: Path) -> None:
    data = wine()
    predicted = wine_model.predict(data["features"])
    assert predicted.shape == (178, 3)
    assert wine_model.evaluate(data)["accuracy"] == np.mean(predicted.argmax(axis=1) == data["label"])
    wine_model.save(tmp_path / "best")
    loaded = hopyard.load_model(tmp_path / "best")
    assert np.array_equal(loaded.predict(torch.from_numpy(data["features"])), predicted)
    assert (loaded.params, loaded.trial, loaded.run_id) == (
        wine_model.params,
        wine_model.trial,
        wine_model.run_id,
    )


def test_spaces_are_nested_and_grids_are_whole() -> None:
    seen: list[Any] = []

    def linear(params: dict[str, Any]) -> TorchEstimator:
        seen.append(params)
        optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[params["optimizer"]["name"]]
        return TorchEstimator(
            torch.nn.Linear(13, 3), optimizer, torch.nn.CrossEntropyLoss(), optimizer_params={"lr": 0.1}
        )

    momenta = hp_choice([0.0, 0.9])
    space = {
        "optimizer": hp_choice([{"name": "sgd", "momentum": momenta}, {"name": "adam"}]),
        "n": hp_int(1, 2),
    }
    search = GridSearch(InlineBackend(), MemoryStore(), linear, space, 1, num_partitions=2, progress=False)
    assert len(search.fit(wine()).trials()) == 6
    first = {"optimizer": {"name": "adam"}, "n": 2}
    search = GridSearch(
        InlineBackend(),
        MemoryStore(),
        linear,
        space,
        1,
        num_partitions=2,
        progress=False,
        initial_params=[first],
    )
    assert search.fit(wine()).run.state.trials[0].params == first


def test_every_dimension_gives_what_it_says() -> None:
    space = {
        "a": hp_choice(["x", "y"]),
        "b": hp_uniform(0, 1),
        "c": hp_quniform(10, 50, 10),
        "d": hp_int(1, 5),
        "e": hp_log(1e-4, 1e-1),
        "f": hp_loguniform(-4, -1),
        "g": hp_qloguniform(1, 3, 5),
    }
    drawn: list[dict[str, Any]] = []

    def linear(params: dict[str, Any]) -> TorchEstimator:
        drawn.append(params)
        return TorchEstimator(
            torch.nn.Linear(13, 3),
            torch.optim.SGD,
            torch.nn.CrossEntropyLoss(),
            optimizer_params={"lr": params["e"]},
        )

    RandomSearch(
        InlineBackend(),
        MemoryStore(),
        linear,
        space,
        num_models=4,
        num_epochs=1,
        num_partitions=1,
        progress=False,
    ).fit(wine())
    for params in drawn:
        assert isinstance(params["c"], int)
        assert isinstance(params["d"], int)
        assert params["c"] in (10, 20, 30, 40, 50)
        assert 1e-4 <= params["e"] <= 1e-1
        assert 1e-4 <= params["f"] <= 1e-1
        assert params["g"] % 5 == 0


def test_all_common_arguments_are_taken(tmp_path: Path) -> None:
    search = RandomSearch(
        backend=LocalBackend(num_workers=1, device="cpu", gpus_per_worker=1, threads_per_worker=1),
        store=LocalStore(prefix_path=tmp_path / "all", logs_path=tmp_path / "logs"),
        estimator_gen_fn=lambda params: None,
        search_space={"lr": hp_uniform(0, 1)},
        num_models=2,
        num_epochs=1,
        evaluation_metric="val_acc",
        mode="max",
        feature_columns=["features"],
        label_columns=["label"],
        validation=0.25,
        num_partitions=8,
        order_groups=None,
        seed=None,
        logdir=tmp_path / "tensorboard",
        stock=None,
        run_id="mine",
        fresh=False,
        reproducible=True,
        packing="auto",
        keep="best",
        keep_n=2,
        checkpoint_every=30,
        time_budget=60,
        patience=3,
        initial_params=[{"lr": 0.5}],
        init_from=None,
        callbacks=(),
        progress=True,
        nulls="error",
        ragged="error",
    )
    assert search.arguments.options.keep_n == 2
    assert not list(tmp_path.iterdir())


def test_editors_know_the_arguments_that_have_defaults() -> None:
    assert Common.__annotations__.keys() == DEFAULTS.keys()
