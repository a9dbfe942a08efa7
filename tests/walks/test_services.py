"""One short way through every service, in each run of the tests; all else about them is in ``tests/services``."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pages
from hopyard.backend import InlineBackend, RayBackend, SparkBackend
from hopyard.storage import LocalStore

Rows = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def inline(search: Any, contents_of: Any, make_rows: Callable[..., Rows], tmp_path: Path) -> Any:
    """The results of a search in this process."""
    return contents_of(search(LocalStore(tmp_path / "inline")).fit(make_rows()).run)


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning")
def test_a_search_over_a_frame_of_spark_on_its_executors(
    spark: Any, search: Any, contents_of: Any, make_rows: Callable[..., Rows], inline: Any, tmp_path: Path
) -> None:
    rows = make_rows()
    model = search(LocalStore(tmp_path / "spark"), SparkBackend(num_workers=2)).fit(rows)
    assert contents_of(model.run) == inline
    frame = spark.createDataFrame(
        [(features.tolist(), int(label)) for features, label in zip(*rows.values(), strict=True)],
        "features array<float>, label long",
    )
    predicted = model.set_output_columns(["scores"]).transform(frame).collect()
    assert sorted(row.label for row in predicted) == sorted(rows["label"].tolist())
    features = np.array([row.features for row in predicted], np.float32)
    np.testing.assert_allclose([row.scores for row in predicted], model.predict(features), atol=1e-6)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_search_on_a_cluster_of_ray(
    cluster: Any, search: Any, contents_of: Any, make_rows: Callable[..., Rows], inline: Any, tmp_path: Path
) -> None:
    model = search(LocalStore(tmp_path / "ray"), RayBackend(num_workers=2)).fit(make_rows())
    assert contents_of(model.run) == inline


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_a_search_over_models_of_keras(
    search: Any, make_rows: Callable[..., Rows], needs: Callable[[object, str], None], tmp_path: Path
) -> None:
    needs(importlib.util.find_spec("keras"), "Keras")
    keras, faces = importlib.import_module("keras"), importlib.import_module("hopyard.keras")
    rows = make_rows()

    def classifier(params: dict[str, Any]) -> Any:
        model = keras.Sequential(
            [keras.layers.Dense(params["width"], activation="relu"), keras.layers.Dense(2)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return faces.KerasEstimator(
            model, keras.optimizers.Adam(params["lr"]), loss, ["accuracy"], 8, run_eagerly=True
        )

    model = search(LocalStore(tmp_path), InlineBackend(), estimator_gen_fn=classifier, num_models=2).fit(rows)
    scores = model.predict(rows["features"])
    accuracy = float((scores.argmax(axis=1) == rows["label"]).mean())
    assert model.evaluate(rows)["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    np.testing.assert_allclose(scores, model.keras().predict(rows["features"], verbose=0), atol=1e-5)


def test_the_quick_start(tmp_path: Path) -> None:
    done = pages.run_page(pages.read_page(pages.ROOT / "docs" / "quickstart.md"), tmp_path)
    assert done.returncode == 0, done.stdout
