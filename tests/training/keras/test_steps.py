"""Batches that go through a model together are those that would go one by one."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from hopyard.training.keras import steps  # noqa: E402
from hopyard.training.keras.metrics import results  # noqa: E402

layers = keras.layers


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 3), max_size=12), limit=st.integers(0, 40))
def test_groups_are_of_equal_neighbours_in_their_order(sizes: list[int], limit: int) -> None:
    batches = [(np.full((size, 2), i, np.float32), np.full(size, i)) for i, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "_GROUP_BYTES", limit)
        found = list(steps.groups(iter(batches)))
    assert [int(x[0, 0]) for group in found for x, _ in group] == list(range(len(sizes)))
    for group in found:
        assert len({x.shape for x, _ in group}) == 1
        assert sum(x.nbytes + y.nbytes for x, y in group[:-1]) < max(limit, 1)
    if limit == 0:
        assert all(len(group) == 1 for group in found)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="others take batches one by one")
def test_a_step_of_ones_own_gives_what_its_last_batch_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(1, kernel_initializer="ones")

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            logs = super().train_step(data)
            return {**logs, "first": data[0][0, 0], "rows": keras.ops.shape(data[0])[0], "nothing": None}

    batches = [(np.full((size, 3), i, np.float32), np.zeros(size)) for i, size in enumerate((4, 4, 4, 2))]

    def trained(limit: int) -> tuple[dict[str, float], list[Any]]:
        monkeypatch.setattr(steps, "_GROUP_BYTES", limit)
        model = Own()
        model.compile(keras.optimizers.Adam(0.1), "mse", jit_compile=False)
        model._symbolic_build(data_batch=batches[0])
        logs = steps.steps_of(model).run("train", batches)
        return results(model, {**logs, "nothing": None}), [w.numpy() for w in model.weights]

    together, weights = trained(1 << 20)
    one_by_one, same_weights = trained(0)
    assert together == one_by_one
    assert (together["first"], together["rows"]) == (3.0, 2.0)
    assert all(np.array_equal(a, b) for a, b in zip(weights, same_weights, strict=True))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's warning")
def test_many_architectures_are_traced_without_a_warning() -> None:
    import tensorflow as tf

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    tf.get_logger().addHandler(handler)
    try:
        for width in range(1, 9):
            model = keras.Sequential([keras.Input((3,)), layers.Dense(width), layers.Dense(1)])
            model.compile("sgd", "mse", jit_compile=False)
            batch = np.zeros((4, 3), np.float32), np.zeros(4, np.float32)
            model._symbolic_build(data_batch=batch)
            steps.steps_of(model).run("test", [batch, batch])
    finally:
        tf.get_logger().removeHandler(handler)
    assert said == []
