"""Searches on datasets of Ray Data, and predictions by its tasks."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from tests.tune import missing

from hopyard.backend import RayBackend
from hopyard.backend.testing import PATIENCE
from hopyard.data.frames.ray_frame import warn_if_full
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(missing)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture
def ray(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    ray = importlib.import_module("ray")
    monkeypatch.setattr(ray.data.DataContext.get_current(), "enable_progress_bars", False)
    return ray


def test_a_ray_dataset_is_searched_on_and_predicted(
    ray: Any,
    search: Callable[..., Any],
    make_rows: Callable[..., dict[str, np.ndarray[Any, Any]]],
    tmp_path: Path,
) -> None:
    rows = make_rows()
    table = pa.table({"features": rows["features"].tolist(), "label": rows["label"]})
    dataset = ray.data.from_arrow([table[:50], table[50:]])
    trunk = torch.nn.Linear(4, 8)

    def heads(params: dict[str, Any]) -> TorchEstimator:
        head = torch.nn.Linear(8, 2)
        return TorchEstimator(head, torch.optim.SGD, torch.nn.CrossEntropyLoss(), ["accuracy"], trunk=trunk)

    # Its two workers hold all CPUs that there are, except while Ray Data reads and writes.
    model = search(
        LocalStore(tmp_path), RayBackend(threads_per_worker=2), num_models=1, estimator_gen_fn=heads
    ).fit(dataset)
    found = model.set_output_columns(["scores"]).transform(dataset)
    assert found.columns() == ["features", "label", "scores"]
    batch = found.take_batch(len(rows["label"]), batch_format="numpy")
    # Ray Data gives blocks in the order in which they are ready.
    features = np.stack(batch["features"])
    here, there = np.lexsort(rows["features"].T), np.lexsort(features.T)
    assert np.array_equal(features[there], rows["features"][here])
    assert np.array_equal(batch["label"][there], rows["label"][here])
    np.testing.assert_allclose(np.stack(batch["scores"]), model.predict(features), rtol=1e-5, atol=1e-6)


def test_missing_values_follow_the_rule_of_one_process(ray: Any, tmp_path: Path) -> None:

    def of(frame: pd.DataFrame) -> Any:  # a block that holds nothing but nulls does not say what they are
        return ray.data.from_pandas([frame[start : start + 12] for start in range(0, len(frame), 12)])

    missing.check_fit(of, tmp_path)
    missing.check_predictions(of, lambda found: found.to_pandas(), tmp_path)


def test_reading_that_waits_for_a_cpu_says_so(ray: Any, caplog: pytest.LogCaptureFixture) -> None:
    with RayBackend(threads_per_worker=2):
        deadline = time.monotonic() + PATIENCE
        while not caplog.records:  # Ray tells a moment later what is free
            warn_if_full()
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)
    assert "No CPU of the Ray cluster is free, so reading the dataset waits" in caplog.text
    assert "let the search start it (no `with`), or give it fewer num_workers" in caplog.text
