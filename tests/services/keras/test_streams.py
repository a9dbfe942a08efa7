"""Streams of an experiment as Keras' datasets, on every backend of Keras."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from tests.sampling import sample

PROGRAM = """
import pickle, sys
import numpy as np
import keras
from hopyard.experiment.streams import stream

def decode(data):
    rows = np.frombuffer(data, "<f4").reshape(-1, 3)
    return rows[:, :2], rows[:, 2]

data = stream(sys.argv[1], decode, record_bytes=12, batch_size=16)
x = np.concatenate([x for x, _ in data])
for workers in (1, 3):
    batches = data.as_keras(workers)
    assert isinstance(batches, keras.utils.Sequence)
    assert len(batches) == 7 == len(pickle.loads(pickle.dumps(batches)))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(batches, epochs=2, verbose=0)
    seen = model.predict(batches, verbose=0)
    print(keras.backend.backend(), seen.shape, np.abs(seen - model.predict(x, verbose=0)).max() < 1e-5)
"""


@pytest.mark.parametrize("backend", sample("backends of streams", ["tensorflow", "torch", "jax"], 1, 2))
def test_keras_trains_and_predicts_on_a_stream(
    tmp_path: Path, backend: str, needs: Callable[[object, str], None]
) -> None:
    needs(find_spec("keras"), "Keras")
    needs(find_spec(backend), backend)
    rows = np.random.default_rng(0).standard_normal((100, 3)).astype("<f4")
    (tmp_path / "rows").write_bytes(rows.tobytes())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "rows")],
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{backend} (100, 1) True\n" * 2, done.stderr[-4000:]
