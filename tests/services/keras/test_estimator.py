"""What a user can give wrongly to KerasEstimator, and what is said of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from hopyard.errors import EstimatorError  # noqa: E402
from hopyard.keras import KerasEstimator, SparkEstimator  # noqa: E402
from hopyard.objects import StateRef  # noqa: E402
from hopyard.training.build import build_replica  # noqa: E402
from hopyard.training.check import check_trial  # noqa: E402
from hopyard.training.keras.state import values_of  # noqa: E402
from hopyard.training.session import Session  # noqa: E402
from hopyard.training.unit import residents  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation"
)  # TensorFlow, as Keras reads its tensors
layers = keras.layers


def mlp(classes: int = 3, width: int = 8) -> Any:
    return keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(width, activation="relu"),
            layers.Dense(classes, activation="softmax"),
        ]
    )


def estimator(model: Any = None, **options: Any) -> KerasEstimator:
    given = {"optimizer": "sgd", "loss": "sparse_categorical_crossentropy", "batch_size": 64, **options}
    return KerasEstimator(mlp() if model is None else model, **given)


def compiled(loss: str) -> Any:
    model = mlp()
    model.compile("adam", loss)
    return model


def test_the_old_name_is_there() -> None:
    assert SparkEstimator is KerasEstimator


WRONG: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "an argument of Cerebro's": (
        lambda: estimator(transformation_fn=lambda dataset: dataset),
        ["KerasEstimator has no argument 'transformation_fn'; write transform=fn(batch, rng)"],
    ),
    "model": (lambda: estimator("mlp"), ["model='mlp', but it must be a keras.Model"]),
    "no loss": (lambda: estimator(loss=None), ["loss= was not given, and the model is not compiled"]),
    "another loss": (
        lambda: estimator(compiled("mse")),
        [
            "compiled with loss='mse', but loss='sparse_categorical_crossentropy' was given",
            "Take one of them out",
        ],
    ),
    "half compiled": (
        lambda: KerasEstimator(compiled("mse"), metrics=["acc"]),
        ["optimizer= was not given, so that the model's own would count", "Give both optimizer= and loss="],
    ),
    "batch size": (
        lambda: estimator(batch_size=0),
        ["batch_size=0, but it must be an integer of at least 1"],
    ),
    "transform": (
        lambda: estimator(transform=3),
        ["transform=3, but it must be a function fn(batch, rng)"],
    ),
    "update": (lambda: estimator(model_update_fn=3), ["must be a function fn(model, epoch, params)"]),
    "class weight": (lambda: estimator(class_weight={"a": 1.0}), ["its keys must be classes: ints from 0"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(name: str) -> None:
    make, texts = WRONG[name]
    with pytest.raises(EstimatorError) as caught:
        make()
    for text in texts:
        assert text in str(caught.value)


def named(*names: str) -> Any:
    inputs = [keras.Input((12,), name=name) for name in names]
    x = layers.Concatenate()(inputs) if len(inputs) > 1 else inputs[0]
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def two_outputs() -> Any:
    x = keras.Input((12,))
    return keras.Model(
        x, [layers.Dense(3, activation="softmax", name="kind")(x), layers.Dense(1, name="score")(x)]
    )


SHARED = mlp()
FAILING: dict[str, tuple[Callable[[dict[str, Any]], Any], dict[str, Any], list[str]]] = {
    "too many inputs": (
        lambda params: estimator(named("left", "right")),
        {},
        [
            "inputs ['left', 'right'] match the feature columns ['features'] neither by name nor in number",
            "inputs={",
        ],
    ),
    "a sequence of layers for two columns": (
        lambda params: estimator(keras.Sequential([layers.Dense(3)])),
        {"features": ("weight", "target")},
        [
            "A Sequential without keras.Input has one input, which is a single column; for the columns",
            "begin it with keras.Input((2,), name='x') and give inputs={'x': [...]}, which stacks scalar",
        ],
    ),
    "other inputs": (
        lambda params: estimator(named("left"), inputs={"wrong": "features"}),
        {},
        ["inputs= is for ['wrong'], but the model's inputs are called ['left']"],
    ),
    "unknown column": (
        lambda params: estimator(inputs=["feature"]),
        {},
        [
            "names the column 'feature', which is not one of feature_columns ['features']; did you mean 'features'?"
        ],
    ),
    "too many outputs": (
        lambda params: estimator(two_outputs()),
        {},
        ["outputs ['kind', 'score'] match the label columns ['label'] neither by name nor in number"],
    ),
    "Keras 2": (
        lambda params: estimator(optimizer=keras.optimizers.Adam(lr=0.1)),
        {},
        ["{'lr': 0.1}", "In Keras 3 write learning_rate= instead of lr=."],
    ),
    "unknown metric": (lambda params: estimator(metrics=["acuracy"]), {}, ["acuracy"]),
    "shared model": (
        lambda params: estimator(SHARED),
        {},
        ["an earlier call returned too", "make the model inside the function"],
    ),
    "shape": (
        lambda params: estimator(keras.Sequential([keras.Input((5,)), layers.Dense(3)])),
        {},
        ["12", "5"],
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_does_not_fit_is_said(name: str, chain: Callable[..., Any]) -> None:
    make, options, texts = FAILING[name]

    def twice() -> None:
        for _ in range(2):
            residents.clear()
            chain(make, **options).train(0, 0)

    with pytest.raises(AssertionError) as caught:
        twice()
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("model", "loss", "text"),
    [
        (
            mlp,
            "categorical_crossentropy",
            "takes class numbers from 0 to the number of outputs - 1, categorical_",
        ),
        (
            lambda: mlp(classes=2),
            "sparse_categorical_crossentropy",
            "indices[0] = 2 is not in [0, 2). sparse_cate",
        ),
        (
            lambda: keras.Sequential([keras.Input((5,)), layers.Dense(3)]),
            "mse",
            ". Change the columns, the model's",
        ),
    ],
)
def test_what_a_first_batch_shows_is_said_in_short(
    model: Callable[[], Any], loss: str, text: str, chain: Callable[..., Any]
) -> None:
    if keras.backend.backend() != "tensorflow" and "indices" in text:
        pytest.skip("others don't look at class numbers, or say it in other words")
    batch = {"features": np.zeros((8, 12), np.float32), "label": np.full(8, 2)}
    failed = check_trial(chain(lambda params: estimator(model(), loss=loss)).program, {}, 0, batch).evidence
    assert failed is not None
    assert failed.message.startswith(
        "The model, its loss or its metrics failed on a first batch, inputs float32[12]"
    )
    assert text in failed.message
    assert "Arguments received" not in failed.message
    assert "\x1b" not in failed.describe()
    assert len(failed.message) < 600


def test_predicting_other_rows_than_it_knows_is_said_in_short(chain: Callable[..., Any]) -> None:
    replica = build_replica(chain(lambda params: estimator()).program, {}, 0)
    with pytest.raises(EstimatorError) as caught:
        replica.predict({"features": np.zeros((3, 5), np.float32)})
    assert str(caught.value).startswith("The model failed on inputs float32[5]: ")
    assert str(caught.value).endswith(". Give rows like those that it was trained on.")
    assert "Arguments received" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_weight_column_that_is_not_read_is_said(chain: Callable[..., Any]) -> None:
    batch = {"features": np.zeros((8, 12), np.float32), "label": np.full(8, 2)}
    program = chain(lambda params: estimator(sample_weight_column="weight")).program
    failed = check_trial(program, {}, 0, batch).evidence
    assert failed is not None
    assert "The weight column 'weight' is missing" in failed.message
    assert "Add it to feature_columns; a transform must return it too." in failed.message


def test_a_state_of_another_architecture_is_named(chain: Callable[..., Any]) -> None:
    hopping = chain(lambda params: estimator(mlp(width=params["width"])), width=8)
    hopping.train(0, 0)
    residents.clear()
    hopping.params = {"width": 4}
    with pytest.raises(AssertionError, match=r"is \(12, 8\) in the state and \(12, 4\) in the model"):
        hopping.train(0, 1)


def test_a_diverging_loss_ends_the_trial(chain: Callable[..., Any]) -> None:
    def wild(params: dict[str, Any]) -> KerasEstimator:
        model = keras.Sequential([keras.Input((12,)), layers.Dense(1)])
        return estimator(model, optimizer=keras.optimizers.SGD(1e30), loss="mse")

    diverging = chain(wild)
    with pytest.raises(
        AssertionError, match=r"DivergedError: The loss became (nan|inf) in epoch 1, partition 0"
    ):
        diverging.train(0, 0)


def test_adopting_takes_weights_and_moments_but_not_rates(chain: Callable[..., Any]) -> None:
    def make(params: dict[str, Any]) -> KerasEstimator:
        return estimator(optimizer=keras.optimizers.Adam(params["lr"]))

    donor = chain(make, trial=0, lr=0.01)
    donor.train(0, 0)
    copy = chain(make, trial=1, lr=0.02)
    copy.position, copy.ref = 1, donor.ref
    copy.train(0, 1, homes=(0,))
    assert isinstance(copy.ref, StateRef)
    state = copy.state()
    (rate,) = [tensor for name, tensor in state["optimizer"].items() if name.endswith("learning_rate")]
    assert float(rate.array()) == pytest.approx(0.02)
    (steps,) = [tensor for name, tensor in state["optimizer"].items() if name.endswith("iteration")]
    rows = hopping_rows(donor)
    assert int(steps.array()) == sum(max(1, round(count / 64)) for count in rows[:2])


def hopping_rows(hopping: Any) -> list[int]:
    return [len(partition) for partition in hopping.program.train_partitions]


def test_stacked_scalars_and_weights_of_rows(chain: Callable[..., Any]) -> None:
    """Equal to weights of one, and to columns given as one."""

    def make(params: dict[str, Any]) -> KerasEstimator:
        model = keras.Sequential([keras.Input((2,), name="both"), layers.Dense(1)])
        return estimator(
            model, loss="mse", inputs={"both": ["weight", "target"]}, sample_weight_column=params["column"],
            weighted_metrics=["mae"],
        )  # fmt: skip

    options = {"features": ("weight", "target"), "labels": ("target",)}
    weighted = chain(make, folder="weighted", column="weight", **options)
    plain = chain(make, folder="plain", column=None, **options)
    weighted.train(0, 0)
    plain.train(0, 0)
    assert weighted.state()["model"].keys() == plain.state()["model"].keys()
    assert [t.digest for t in weighted.state()["model"].values()] != [
        t.digest for t in plain.state()["model"].values()
    ]
    values = weighted.validate(0)
    assert set(values) == {"loss", "mae"}


def test_the_users_own_session_stays_as_it_was(chain: Callable[..., Any]) -> None:
    first = layers.Dense(1).name
    keras.config.set_floatx("float64")
    try:
        state = random.getstate()
        chain(lambda params: estimator()).train(0, 0)
        assert keras.config.floatx() == "float64"
        assert random.getstate() == state
        assert layers.Dense(1).name != first
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def test_bfloat16_weights_are_kept(chain: Callable[..., Any]) -> None:
    def half(params: dict[str, Any]) -> KerasEstimator:
        keras.config.set_dtype_policy("bfloat16")
        return estimator()

    hopping = chain(half)
    hopping.train(0, 0)
    residents.clear()
    hopping.train(0, 1)
    kinds = {tensor.dtype for tensor in hopping.state()["model"].values()}
    assert kinds == {"BF16"}
    with Session(1):
        model = half({}).compiled_model()
        assert {str(value.dtype) for value in values_of(model.weights)} == {"bfloat16"}
    assert np.isfinite(hopping.validate(0)["loss"])


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="test_keras_backends.py runs it on PyTorch")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_an_onnx_file_says_that_it_leaves_val_transform_out(
    chain: Callable[..., Any], tmp_path: Any, caplog: Any
) -> None:
    program = chain(lambda params: estimator(val_transform=lambda batch, rng: batch)).program
    build_replica(program, {}).export_onnx(tmp_path / "net.onnx", {"features": np.zeros((2, 12), np.float32)})
    assert "net.onnx does not do all that model.predict does; it leaves out val_transform=" in caplog.text
