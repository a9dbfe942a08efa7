"""Cerebro's documentation as it stands, on a real cluster: its snippet, its data prepared beforehand, and one result on
every backend. What differs are names (``TorchEstimator``) and sizes."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from hopyard.backend import InlineBackend, SparkBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import HyperOpt, RandomSearch, hp_choice, hp_loguniform, hp_quniform

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def estimator_gen_fn(params: dict[str, Any]) -> TorchEstimator:
    model = torch.nn.Sequential(torch.nn.Linear(692, 100), torch.nn.Linear(100, 1), torch.nn.Sigmoid())
    return TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=torch.nn.BCELoss(),
        metrics=["acc"],
        batch_size=params["batch_size"],
    )


@pytest.fixture(scope="module")
def backend(spark_if_there: Any) -> Iterator[Any]:
    if spark_if_there is None:
        yield None
        return
    backend = SparkBackend(spark_context=spark_if_there.sparkContext, num_workers=2)
    with backend:  # its processes serve all tests of this file
        yield backend


@pytest.fixture(scope="module")
def make_frames() -> Callable[[Any], list[Any]]:
    """Rows like those of Spark's ``sample_libsvm_data.txt``: 100 images of 692 pixels as sparse vectors."""

    def make(spark: Any) -> list[Any]:
        from pyspark.ml.linalg import Vectors

        random = np.random.default_rng(0)
        rows = []
        for number in range(100):
            pixels = np.sort(random.choice(692, 120, replace=False))
            label = float(number % 2)
            values = random.integers(1, 256, 120) / 255 + label * (pixels < 300)
            rows.append((label, Vectors.sparse(692, pixels.tolist(), values.tolist())))
        frames: list[Any] = spark.createDataFrame(rows, ["label", "features"]).randomSplit([0.8, 0.2], seed=1)
        return frames

    return make


def test_the_snippet_of_cerebros_documentation(
    spark: Any,
    backend: Any,
    make_frames: Callable[[Any], list[Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train_df, test_df = make_frames(spark)
    store = LocalStore(prefix_path=str(tmp_path / "experiments"))
    search_space = {"lr": hp_choice([0.01, 0.001, 0.0001]), "batch_size": hp_quniform(16, 256, 16)}
    model_selection = HyperOpt(
        backend=backend, store=store, estimator_gen_fn=estimator_gen_fn, search_space=search_space,
        num_models=3, num_epochs=2, validation=0.25, evaluation_metric="loss",
        feature_columns=["features"], label_columns=["label"], logdir=str(tmp_path / "logs"),
    )  # fmt: skip

    model = model_selection.fit(train_df)
    model_history = model.get_history()
    assert {len(model_history[name]) for name in ("train_loss", "val_loss", "val_acc")} == {2}

    capsys.readouterr()
    output_df = model.set_output_columns(["label_predicted"]).transform(test_df)
    output_df.select("label", "label_predicted").show(n=10)
    shown = capsys.readouterr().out
    assert "|label|label_predicted|" in shown
    rows = test_df.collect()
    features = np.array([row["features"].toArray() for row in rows], np.float32)
    predicted = [row["label_predicted"] for row in output_df.collect()]
    assert np.allclose(predicted, model.predict(features)[:, 0], atol=1e-6)
    assert output_df.schema["features"] == test_df.schema["features"]

    all_models = model.get_all_models()
    all_model_training_history = model.get_all_model_history()
    assert (len(all_models), sorted(all_model_training_history)) == (3, [0, 1, 2])
    torch_model = model.torch()
    assert torch_model(torch.ones(1, 692)).shape == (1, 1)
    torch.save(torch_model.state_dict(), tmp_path / "checkpoint.pt")
    assert len([m.torch() for m in all_models]) == 3
    assert list((tmp_path / "logs").rglob("events.out.tfevents.*"))

    assert model_selection.fit(train_df).run_id == model.run_id  # the same rows again: found by their content


@pytest.mark.filterwarnings(
    "ignore:Do not pass an `input_shape`/`input_dim` argument:UserWarning",
    "ignore:The structure of `inputs` doesn't match the expected structure:UserWarning",
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",
)
def test_the_snippet_with_keras(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warnings are Keras' own, of ``input_dim`` and of a list for one input."""
    import tensorflow as tf

    script = Path(__file__).parents[3] / "examples" / "cerebro" / "quickstart.py"
    options = ["--models", "2", "--epochs", "2", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [str(script), *options])
    found = runpy.run_path(str(script), run_name="__main__")

    history = found["model_history"]
    assert {len(history[name]) for name in ("train_loss", "train_acc", "val_loss", "val_acc")} == {2}
    assert (len(found["all_models"]), len(found["all_model_training_history"])) == (2, 2)
    loaded = tf.keras.models.load_model(found["ckpt_path"])
    assert np.array_equal(loaded.predict(np.ones([1, 692], np.float32)), found["pred"])
    assert len({each.count_params() for each in found["all_models_keras"]}) == 1
    features = np.array([row["features"].toArray() for row in found["test_df"].collect()], np.float32)
    predicted = [row["label_predicted"] for row in found["output_df"].collect()]
    assert np.allclose(predicted, found["keras_model"].predict(features)[:, 0], atol=1e-6)
    assert list((tmp_path / "logs").rglob("events.out.tfevents.*"))


def leaderboard(model: Any) -> dict[int, Any]:
    return {
        number: (trial.params, trial.history, trial.best and trial.best.state.digest)
        for number, trial in model.run.state.trials.items()
    }


def test_prepared_data_gives_the_same_bits_on_every_backend(
    spark: Any, backend: Any, local: Any, make_frames: Callable[[Any], list[Any]], tmp_path: Path
) -> None:
    train_df, _ = make_frames(spark)
    paths = {"train_path": str(tmp_path / "training_dataset"), "val_path": str(tmp_path / "val_dataset")}
    store = LocalStore(**paths)
    backend.prepare_data(store, train_df, validation=0.25, feature_column="features", label_column="label")
    found = []
    for number, each in enumerate((InlineBackend(), local, backend)):
        model_selection = RandomSearch(
            backend=each, store=LocalStore(prefix_path=str(tmp_path / str(number)), **paths),
            estimator_gen_fn=estimator_gen_fn,
            search_space={"lr": hp_loguniform(-4, -2), "batch_size": hp_quniform(16, 64, 16)},
            num_models=2, num_epochs=2, evaluation_metric="loss", num_partitions=2, progress=False,
        )  # fmt: skip
        model_selection_output = model_selection.fit_on_prepared_data()
        found.append(leaderboard(model_selection_output))
    assert found[0] == found[1] == found[2]
