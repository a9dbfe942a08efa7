"""Batches that go through a model together are those that would go one by one."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from hopyard.errors import EstimatorError  # noqa: E402
from hopyard.keras import KerasEstimator  # noqa: E402
from hopyard.training.estimator import Context, OneBatch, Visit  # noqa: E402
from hopyard.training.keras import steps  # noqa: E402
from hopyard.training.keras.metrics import results  # noqa: E402

layers = keras.layers
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation"
)  # TensorFlow and PyTorch, as Keras reads their tensors


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


def _tensorflow_step(self: Any, data: Any) -> dict[str, Any]:
    import tensorflow as tf

    x, y, weights = data if len(data) == 3 else (*data, None)
    with tf.GradientTape() as tape:
        y_pred = self(x, training=True)
        loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=weights)
    trainable = self.trainable_variables
    self.optimizer.apply(tape.gradient(loss, trainable), trainable)
    for metric in self.metrics:
        if metric.name == "loss":
            metric.update_state(loss)
        else:
            metric.update_state(y, y_pred, sample_weight=weights)
    return {metric.name: metric.result() for metric in self.metrics}


def _torch_step(self: Any, data: Any) -> dict[str, Any]:
    import torch

    x, y, weights = data if len(data) == 3 else (*data, None)
    self.zero_grad()
    y_pred = self(x, training=True)
    loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=weights)
    loss.backward()
    trainable = list(self.trainable_weights)
    gradients = [variable.value.grad for variable in trainable]
    with torch.no_grad():
        self.optimizer.apply(gradients, trainable)
    for metric in self.metrics:
        if metric.name == "loss":
            metric.update_state(loss)
        else:
            metric.update_state(y, y_pred, sample_weight=weights)
    return {metric.name: metric.result() for metric in self.metrics}


def _jax_step(self: Any, state: Any, data: Any) -> tuple[dict[str, Any], Any]:
    import jax

    trainable, fixed, optimizer, metrics = state
    x, y, weights = data if len(data) == 3 else (*data, None)

    def loss_and_updates(trainable: Any, fixed: Any, x: Any, y: Any) -> Any:
        y_pred, fixed = self.stateless_call(trainable, fixed, x, training=True)
        return self.compute_loss(x, y, y_pred, weights), (y_pred, fixed)

    differentiated = jax.value_and_grad(loss_and_updates, has_aux=True)
    (loss, (y_pred, fixed)), gradients = differentiated(trainable, fixed, x, y)
    trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
    updated: list[Any] = []
    logs = {}
    for metric in self.metrics:
        own = metrics[len(updated) : len(updated) + len(metric.variables)]
        if metric.name == "loss":
            own = metric.stateless_update_state(own, loss)
        else:
            own = metric.stateless_update_state(own, y, y_pred, sample_weight=weights)
        logs[metric.name] = metric.stateless_result(own)
        updated += own
    return logs, (trainable, fixed, optimizer, updated)


STEP = {"tensorflow": _tensorflow_step, "torch": _torch_step, "jax": _jax_step}[keras.backend.backend()]


class Guide(keras.Model):  # type: ignore[misc]
    """Of Keras' guide "Customizing what happens in fit()", for the backend of this process."""

    train_step = STEP


class Owning(Guide):
    """Of the same guide: with metrics of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.of_loss = keras.metrics.Mean(name="loss")
        self.of_errors = keras.metrics.MeanAbsoluteError(name="mae")

    @property
    def metrics(self) -> list[Any]:
        return [self.of_loss, self.of_errors]


class Validating(Guide):
    """Of the same guide: with a test step of its own."""

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data[:2]
        y_pred = self(x, training=False)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


@pytest.mark.parametrize(
    ("cls", "weighted"),
    [(Guide, False), (Guide, True)]
    + [(Owning, False), (Validating, False)]
    * (keras.backend.backend() != "jax"),  # whose steps are without state there
)
def test_steps_of_keras_guide_do_as_in_fit(cls: type[Any], weighted: bool) -> None:
    rng = np.random.default_rng(4)
    columns = {
        "x": rng.normal(size=(48, 3)).astype(np.float32),
        "y": rng.normal(size=48).astype(np.float32),
        "w": rng.uniform(0, 2, 48).astype(np.float32),
    }

    def made() -> Any:
        keras.utils.set_random_seed(5)
        x = keras.Input((3,))
        model = cls(x, layers.Dense(1)(layers.Dense(4, activation="relu")(x)))
        model.compile(
            keras.optimizers.Adam(0.05), "mse", metrics=["mae"], weighted_metrics=["mse"], jit_compile="auto"
        )
        return model

    class Batches(OneBatch):
        def batches(self, *_: Any, **options: Any) -> Any:
            (every,) = super().batches(1, columns=options.get("columns"))
            for start in range(0, len(self), 16):
                yield {name: values[start : start + 16] for name, values in every.items()}

    model = made()
    more = {"sample_weight_column": "w", "inputs": ["x"]} if weighted else {}
    features = ("x", "w") if weighted else ("x",)
    replica = KerasEstimator(model, **more).replica(Context(features, ("y",), "cpu", (48,), 1))
    replica.check_labels(Visit(Batches(columns), 0, 0, 0))
    trained = replica.train(Visit(Batches(columns), 0, 0, 0))
    evaluated = replica.evaluate(Batches(columns).batches())

    other = made()
    weights = columns["w"] if weighted else None
    y = columns["y"][:, None]
    logs = other.fit(columns["x"], y, 16, verbose=0, shuffle=False, sample_weight=weights).history
    assert {name: total / rows for name, (total, rows) in trained.items()} == pytest.approx(
        {name: value for name, (value,) in logs.items()}, rel=1e-5
    )
    expected = other.evaluate(columns["x"], y, 16, verbose=0, return_dict=True, sample_weight=weights)
    assert evaluated == pytest.approx(expected, rel=1e-5)
    assert all(
        np.allclose(one.numpy(), two.numpy(), atol=1e-6)
        for one, two in zip(replica.module.weights, other.weights, strict=True)
    )


def test_a_model_without_a_loss_to_validate_by_is_refused() -> None:
    x = keras.Input((3,))
    model = Guide(x, layers.Dense(1)(x))
    model.compile("sgd")
    replica = KerasEstimator(model).replica(Context(("x",), ("y",), "cpu", (4,), 1))
    rows = OneBatch({"x": np.zeros((4, 3), np.float32), "y": np.zeros(4, np.float32)})
    with pytest.raises(
        EstimatorError,
        match=r"The model \(Guide\) was compiled without a loss, .* Give compile the loss, or the class a test_step",
    ):
        replica.check_labels(Visit(rows, 0, 0, 0))
