"""Callbacks and ``model_update_fn``: the user's functions of whole epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

keras = pytest.importorskip("keras")

from hopyard.errors import EstimatorError  # noqa: E402
from hopyard.keras import KerasEstimator  # noqa: E402
from hopyard.training.keras.callbacks import Callbacks  # noqa: E402
from hopyard.training.unit import residents  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation"
)  # TensorFlow, as Keras reads its tensors
layers = keras.layers


def mlp() -> Any:
    return keras.Sequential(
        [keras.Input((12,)), layers.Dense(8, activation="relu"), layers.Dense(3, activation="softmax")]
    )


def estimator(**options: Any) -> KerasEstimator:
    optimizer = keras.optimizers.SGD(0.1)
    return KerasEstimator(mlp(), optimizer, "sparse_categorical_crossentropy", batch_size=64, **options)


class Noting(keras.callbacks.Callback):
    """Counts, and sets a rate by what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.told = ""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.calls += 1
        self.told += f"begin {epoch} "

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls += 1
        self.told += f"end {epoch} {sorted(logs)} {logs['val_loss']} "
        self.model.optimizer.learning_rate = logs["val_loss"] / 10


def rate(state: Any) -> float:
    (name,) = [name for name in state["optimizer"] if name.endswith("/learning_rate")]
    return float(state["optimizer"][name].array())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_callbacks_see_epochs_and_what_they_keep_hops(chain: Callable[..., Any], elsewhere: bool) -> None:
    hopping = chain(lambda params: estimator(callbacks=[Noting()]))
    values = ({}, {"train_loss": 0.5, "val_loss": 2.0}, {"train_loss": 0.4, "val_loss": 1.0})
    for epoch, history in enumerate(values):
        for partition in range(3):
            if elsewhere:
                residents.clear()
            hopping.train(epoch, partition, history=(history,))
    state = hopping.state()
    told = "begin 0 end 0 ['loss', 'val_loss'] 2.0 begin 1 end 1 ['loss', 'val_loss'] 1.0 begin 2 "
    kept = Noting()
    Callbacks([kept], mlp(), 3).load(state["callbacks"])
    assert (kept.calls, kept.told) == (5, told)
    assert rate(state) == pytest.approx(0.1)


def test_a_plateau_is_seen_across_workers(chain: Callable[..., Any]) -> None:
    def plateau(params: dict[str, Any]) -> KerasEstimator:
        return estimator(callbacks=[keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=2, min_lr=0.0)])

    hopping = chain(plateau)
    for epoch in range(5):
        residents.clear()
        hopping.train(epoch, 0, history=({"val_loss": 1.0, "train_loss": 1.0} if epoch else {},))
        residents.clear()
        hopping.train(epoch, 1)
        hopping.train(epoch, 2)
    assert rate(hopping.state()) == pytest.approx(
        0.05
    )  # best in epoch 0, two epochs without better, one more began


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="JAX's optimizers train all that they were built for"
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_layers_are_freed_in_a_later_epoch(chain: Callable[..., Any], elsewhere: bool) -> None:
    def frozen_first(params: dict[str, Any]) -> KerasEstimator:
        def update(model: Any, epoch: int, params: dict[str, Any]) -> None:
            model.layers[0].trainable = epoch >= params["free_from"]
            model.optimizer.learning_rate = model.optimizer.learning_rate * 0.5  # once an epoch

        return estimator(model_update_fn=update)

    hopping = chain(frozen_first, free_from=1)
    kernels = []
    for epoch in range(2):
        for partition in range(3):
            if elsewhere:
                residents.clear()
            hopping.train(epoch, partition)
            (kernel,) = [name for name in hopping.state()["model"] if name.endswith("dense/kernel")]
            kernels.append(hopping.state()["model"][kernel].digest)
    assert len(set(kernels[:3])) == 1
    assert len(set(kernels)) == 4
    assert rate(hopping.state()) == pytest.approx(0.025)


REFUSED = {
    "EarlyStopping": (lambda: keras.callbacks.EarlyStopping(), "give the search patience="),
    "ModelCheckpoint": (
        lambda: keras.callbacks.ModelCheckpoint("x.keras"),
        "the search keeps weights, see keep=",
    ),
    "LambdaCallback": (
        lambda: keras.callbacks.LambdaCallback(on_train_batch_end=print),
        "has on_train_batch_",
    ),
    "text": (lambda: "plateau", "must be a list of keras.callbacks.Callback"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_callbacks_that_have_no_place_are_refused(name: str) -> None:
    make, text = REFUSED[name]
    with pytest.raises(EstimatorError) as caught:
        estimator(callbacks=[make()])
    assert text in str(caught.value)


def test_stopping_is_the_searchs(chain: Callable[..., Any]) -> None:
    class Stopping(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    hopping = chain(lambda params: estimator(callbacks=[Stopping(), Stopping()]))
    with pytest.raises(AssertionError, match=r"Stopping set stop_training, but .* give it patience="):
        hopping.train(0, 0)
