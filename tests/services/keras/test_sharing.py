"""Trials of one architecture share a compiled model, and notice nothing of each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.sampling import LEVEL

keras = pytest.importorskip("keras")

from hopyard.keras import KerasEstimator  # noqa: E402
from hopyard.objects import digest_json  # noqa: E402
from hopyard.training.keras import compiled, session  # noqa: E402
from hopyard.training.keras.architecture import architecture  # noqa: E402
from hopyard.training.unit import residents  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation"
)  # TensorFlow, as Keras reads its tensors
layers = keras.layers
PARTITIONS = [range(3), range(3)] if LEVEL == "exhaustive" else [[0], [1]]
"""By epoch; Keras traces the model for each visit where nothing is shared."""


class Scaled(layers.Layer):
    """A layer of a user's whose configuration does not say all."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def call(self, x: Any) -> Any:
        return x * self.factor

    def get_config(self) -> dict[str, Any]:
        return {}


def mlp(width: int = 8, rate: float = 0.3, factor: float = 1.0) -> Any:
    return keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(width, activation="relu"),
            layers.Dropout(rate),
            Scaled(factor),
            layers.Dense(3, activation="softmax"),
        ]
    )


def estimator(params: dict[str, Any]) -> KerasEstimator:
    optimizer = keras.optimizers.Adam(params["lr"], beta_1=params.get("beta", 0.9))
    return KerasEstimator(
        mlp(params.get("width", 8)), optimizer, "sparse_categorical_crossentropy", ["acc"], batch_size=64
    )


@pytest.fixture(autouse=True)
def _nothing_shared() -> None:
    compiled._last.clear()


def visits(chain: Callable[..., Any], alone: bool, folder: str) -> list[Any]:
    """Two trials in turns, whose states come from memory; or in new processes, as far as they can tell."""
    chains = [chain(estimator, trial=trial, folder=folder, lr=0.01 / (trial + 1)) for trial in range(2)]
    found: list[Any] = []
    for epoch, partitions in enumerate(PARTITIONS):
        for partition in partitions:
            for each in chains:
                if alone:
                    residents.clear()
                    compiled._last.clear()
                each.train(epoch, partition)
                state = each.state()
                kept = {
                    part: {n: t.digest for n, t in state[part].items()} for part in ("model", "optimizer")
                }
                found.append(digest_json(kept, "test"))
        found += [each.validate(epoch) for each in chains]
    return found


def module_of(hopping: Any) -> Any:
    resident = residents.look((hopping.store.url, hopping.name, hopping.trial))
    assert resident is not None
    assert resident.replica is not None
    return resident.replica.module


def test_shared_models_give_each_trial_its_own_result(chain: Callable[..., Any]) -> None:
    assert visits(chain, alone=False, folder="together") == visits(chain, alone=True, folder="alone")


@pytest.mark.parametrize(
    ("other", "shares"), [({"lr": 0.5}, True), ({"beta": 0.8}, False), ({"width": 4}, False)]
)
def test_who_shares(chain: Callable[..., Any], other: dict[str, Any], shares: bool) -> None:
    first = chain(estimator, trial=0, lr=0.1)
    second = chain(estimator, trial=1, **{"lr": 0.1, **other})
    first.train(0, 0)
    second.train(0, 0)
    assert (module_of(first) is module_of(second)) == shares


def digest_of(loss: Any = "mse", frozen: bool = False, **options: Any) -> str | None:
    keras.utils.clear_session(free_memory=False)  # names begin anew, as in a session
    model = mlp(**options)
    model.layers[0].trainable = not frozen
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.optimizer.build(model.trainable_variables)
    return architecture(model, loss)


def scaled(factor: float) -> Any:
    return lambda true, given: factor * keras.ops.mean(keras.ops.square(true - given))


def test_what_counts() -> None:
    plain = digest_of()
    assert plain is not None
    assert digest_of() == plain
    others = [digest_of(rate=0.4), digest_of(factor=2.0), digest_of(frozen=True), digest_of(loss="mae")]
    others += [digest_of(loss=scaled(2.0)), digest_of(loss=scaled(3.0))]
    assert None not in others
    assert len({plain, *others}) == 1 + len(others)
    assert digest_of(loss=scaled(2.0)) == others[-2]
    assert digest_of(loss=threading.Lock()) is None  # says nothing of itself


class Counting(layers.Layer):
    """Keeps in an attribute what a state does not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def call(self, x: Any) -> Any:
        self.calls += 1
        return x * (1.0 if self.calls < 8 else 0.5)


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="others run a model's Python once, to trace it"
)
def test_what_a_layer_counts_is_not_carried(chain: Callable[..., Any]) -> None:
    def counting(params: dict[str, Any]) -> KerasEstimator:
        model = keras.Sequential([keras.Input((12,)), Counting(), layers.Dense(3, activation="softmax")])
        return KerasEstimator(model, "sgd", "sparse_categorical_crossentropy", batch_size=64)

    def digests(folder: str, elsewhere: bool) -> list[Any]:
        hopping = chain(counting, folder=folder)
        found = []
        for partition in range(3):
            if elsewhere:
                residents.clear()
                compiled._last.clear()
            hopping.train(0, partition)
            found.append([tensor.digest for tensor in hopping.state()["model"].values()])
        return found

    assert digests("here", elsewhere=False) == digests("elsewhere", elsewhere=True)


class Noise(layers.Layer):
    """Draws without a seed."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x + keras.random.normal(keras.ops.shape(x)) if training else x


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX refuses to draw without a seed")
def test_what_is_drawn_without_a_seed_depends_on_the_unit_only(
    chain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def noisy(params: dict[str, Any]) -> KerasEstimator:
        model = keras.Sequential([keras.Input((12,)), Noise(), layers.Dense(3, activation="softmax")])
        return KerasEstimator(model, "sgd", "sparse_categorical_crossentropy", batch_size=64)

    def digests(folder: str, elsewhere: bool) -> list[Any]:
        hopping = chain(noisy, folder=folder)
        found = []
        for partition in range(3):
            if elsewhere:  # in a new process, as far as it can tell
                residents.clear()
                compiled._last.clear()
                monkeypatch.setattr(session._unseeded, "_generator", None)
            hopping.train(0, partition)
            found.append([tensor.digest for tensor in hopping.state()["model"].values()])
        return found

    keras.utils.set_random_seed(5)
    expected = keras.ops.convert_to_numpy(keras.random.uniform((4,))).tolist()
    assert digests("here", elsewhere=False) == digests("elsewhere", elsewhere=True)
    keras.utils.set_random_seed(5)
    digests("again", elsewhere=False)
    assert keras.ops.convert_to_numpy(keras.random.uniform((4,))).tolist() == expected
