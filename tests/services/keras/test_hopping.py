"""Hopping gives the model that Keras' own ``fit`` gives over the same batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.sampling import LEVEL, sample

keras = pytest.importorskip("keras")

from hopyard.keras import KerasEstimator  # noqa: E402
from hopyard.objects import derive_seed  # noqa: E402
from hopyard.training.keras.metrics import results  # noqa: E402
from hopyard.training.keras.state import as_numpy  # noqa: E402
from hopyard.training.session import Session  # noqa: E402
from hopyard.training.unit import residents  # noqa: E402

TRIAL, BATCH, SEED = 4, 32, 5
# Keras traces the model for each visit.
ORDERS = [[0, 2, 1], [1, 0, 2]] if LEVEL == "exhaustive" else [[2, 0], [0]]
ON_JAX = keras.backend.backend() == "jax"
layers = keras.layers
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation"
)  # TensorFlow, as Keras reads its tensors


@keras.saving.register_keras_serializable("hopyard-tests")
class Scaled(layers.Layer):
    """A layer of a user's, with a weight, an activity loss, and an attribute."""

    def __init__(self, factor: float, **options: Any) -> None:
        super().__init__(**options)
        self.factor = factor

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(self.scale)))
        return x * self.scale * self.factor

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factor": self.factor}


class Subclassed(keras.Model):
    """A model of a user's own class, which knows no shapes before it sees a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(16, activation="tanh")
        self.head = layers.Dense(3, activation="softmax")

    def call(self, x: Any) -> Any:
        return self.head(self.hidden(x))


def mlp() -> Any:
    return keras.Sequential(
        [keras.Input((12,)), layers.Dense(16, activation="relu"), layers.Dense(3, activation="softmax")]
    )


def unbuilt() -> Any:
    return keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(3, activation="softmax")])


def normalized() -> Any:
    return keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(16, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3)),
            layers.BatchNormalization(),
            Scaled(0.5),
            layers.Dense(3, activation="softmax"),
        ]
    )


def frozen() -> Any:
    model = normalized()
    model.layers[0].trainable = False
    return model


def two_heads() -> Any:
    features, tokens = keras.Input((12,), name="features"), keras.Input((6,), name="tokens", dtype="int32")
    embedded = layers.Flatten()(layers.Embedding(20, 4)(tokens))
    x = layers.Dense(16, activation="relu")(layers.Concatenate()([features, embedded]))
    label = layers.Dense(3, activation="softmax", name="label")(x)
    return keras.Model([tokens, features], [label, layers.Dense(1, name="target")(x)])


def half() -> Any:
    keras.config.set_dtype_policy("mixed_float16")
    return keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(16, activation="relu"),
            layers.Dense(3, activation="softmax", dtype="float32"),
        ]
    )


@dataclass
class Case:
    """A training, as arguments of the estimator."""

    model: Callable[[], Any] = mlp
    optimizer: Callable[[], Any] = lambda: keras.optimizers.SGD(0.05, momentum=0.9)
    features: tuple[str, ...] = ("features",)
    labels: tuple[str, ...] = ("label",)
    loss: Any = "sparse_categorical_crossentropy"
    options: dict[str, Any] = field(default_factory=lambda: {"metrics": ["acc"]})

    def estimator(self, params: dict[str, Any]) -> KerasEstimator:
        return KerasEstimator(self.model(), self.optimizer(), self.loss, batch_size=BATCH, **self.options)


def decaying() -> Any:
    return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 40))


CASES = {
    "sgd": Case(),
    "subclassed-rmsprop": Case(Subclassed, lambda: keras.optimizers.RMSprop(0.01)),
    "unbuilt-adamw": Case(unbuilt, lambda: keras.optimizers.AdamW(0.01)),
    "custom-layer-adam-schedule": Case(normalized, decaying),
    "frozen-clipped": Case(frozen, lambda: keras.optimizers.Adam(0.01, clipnorm=0.5)),
    "two-inputs-two-outputs": Case(
        two_heads,
        features=("features", "tokens"),
        labels=("target", "label"),
        loss={"label": "sparse_categorical_crossentropy", "target": "mse"},
        options={"metrics": {"label": ["acc"]}, "loss_weights": {"label": 1.0, "target": 0.3}},
    ),
    "class-weights": Case(options={"class_weight": {1: 3.0}, "weighted_metrics": ["acc"]}),
    "mixed-precision": Case(half, lambda: keras.optimizers.Adam(0.01)),
    "averaged": Case(half, lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)),
    "accumulated": Case(optimizer=lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=3)),
}


def batches(case: Case, rows: Any, **options: Any) -> list[Any]:
    """What ``fit`` is given of a partition."""
    columns = [*case.features, *case.labels]
    found = []
    for batch in rows.loader(BATCH, columns=columns, **options):
        batch = {name: each.astype("f4") if each.dtype.kind == "f" else each for name, each in batch.items()}
        inputs = {name: batch[name] for name in case.features}
        labels = {name: batch[name] for name in case.labels}
        if len(labels) == 1:
            found.append((inputs["features"], labels["label"]))
        else:
            found.append(((inputs["tokens"], inputs["features"]), (labels["label"], labels["target"])))
    return found


class Fixed(keras.utils.PyDataset):
    def __init__(self, batches: list[Any]) -> None:
        super().__init__()
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return self._batches[index]


def plain_fit(case: Case, program: Any) -> tuple[Any, dict[str, float]]:
    """Serial training by Keras itself: partitions in the order of visits, documented seeds."""
    options = dict(case.options)
    class_weight = options.pop("class_weight", None)
    with Session(1):
        random.seed(derive_seed(SEED, TRIAL, "init"))
        model, optimizer = case.model(), case.optimizer()
        model.compile(optimizer, case.loss, jit_compile="auto" if ON_JAX else False, **options)
        if class_weight is not None:
            class_weight = {number: class_weight.get(number, 1.0) for number in range(3)}
        data: list[Any] = []
        for epoch, order in enumerate(ORDERS):
            for partition in order:
                seed = derive_seed(SEED, "order", partition)
                rows = program.train_partitions[partition]
                data += batches(case, rows, shuffle=True, seed=seed, tail="join", epoch=epoch)
        model.fit(Fixed(data), verbose=0, shuffle=False, class_weight=class_weight)
        parts = [each for rows in program.val_partitions for each in batches(case, rows)]
        # In one batch: Keras' own averages of several losses count a short batch like a full one.
        whole = Fixed([keras.tree.map_structure(lambda *arrays: np.concatenate(arrays), *parts)])
        return model, model.evaluate(whole, verbose=0, return_dict=True)


# Other backends choose some by name (test_backends.py).
TRIED = sample("models of Keras", CASES, quick=3, ci=4) if keras.backend.backend() == "tensorflow" else CASES


@pytest.mark.parametrize("name", TRIED)
def test_hopping_equals_fit(name: str, chain: Callable[..., Any]) -> None:
    case = CASES[name]
    hopping = chain(case.estimator, features=case.features, labels=case.labels, trial=TRIAL)
    for epoch, order in enumerate(ORDERS):
        for partition in order:
            residents.clear()  # each visit is on another worker
            hopping.train(epoch, partition)
    values = hopping.validate(1)
    model, expected = plain_fit(case, hopping.program)

    tree = hopping.state()["model"]
    assert list(tree) == [variable.path for variable in model.weights]
    for variable, tensor in zip(model.weights, tree.values(), strict=True):
        own = as_numpy(variable.value)
        if ON_JAX:
            np.testing.assert_allclose(tensor.array(), own, atol=1e-6, err_msg=variable.path)
        else:
            np.testing.assert_array_equal(tensor.array(), own, err_msg=variable.path)
    for metric, value in expected.items():
        assert values[metric] == pytest.approx(value, rel=1e-5), metric


def test_results_are_the_models(chain: Callable[..., Any]) -> None:
    """The history's training values are those that ``fit`` shows."""
    case = CASES["sgd"]
    hopping = chain(case.estimator, trial=TRIAL)
    found = hopping.train(0, 1).metrics[0]
    with Session(1):
        random.seed(derive_seed(SEED, TRIAL, "init"))
        model = case.estimator({}).compiled_model()
        rows = hopping.program.train_partitions[1]
        seed = derive_seed(SEED, "order", 1)
        model.fit(Fixed(batches(case, rows, shuffle=True, seed=seed, tail="join")), verbose=0, shuffle=False)
        expected = results(model)
    assert found == {
        name: [pytest.approx(value * len(rows), rel=1e-6), len(rows)] for name, value in expected.items()
    }
