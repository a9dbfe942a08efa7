"""The loss of many batches is the loss of all their rows, for every loss of Keras and its weighting arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from tests.sampling import sample  # noqa: E402

from hopyard.errors import EstimatorError, MetricError  # noqa: E402
from hopyard.keras import KerasEstimator  # noqa: E402
from hopyard.training.estimator import Context, OneBatch, Visit  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation"
)  # TensorFlow, as Keras reads its tensors
layers, losses, ops = keras.layers, keras.losses, keras.ops

ROWS, CLASSES = 37, 4
CUTS = (0, 3, 4, 17, 30, 37)  # of uneven partitions


def labels_of(kind: str) -> np.ndarray:
    rng = np.random.default_rng(7)
    if kind == "class":
        classes = rng.integers(0, CLASSES, ROWS)
        classes[[0, 1, 2, 5, 6, 29]] = 1  # the ignored one, unevenly over partitions
        return classes
    made = {
        "numbers": rng.normal(size=(ROWS, CLASSES)),
        "number": rng.normal(size=ROWS),
        "counts": rng.poisson(2, (ROWS, CLASSES)),
        "answers": rng.integers(0, 2, (ROWS, CLASSES)),
        "answer": rng.integers(0, 2, ROWS),
        "one hot": np.eye(CLASSES)[rng.integers(0, CLASSES, ROWS)],
        "shares": rng.dirichlet(np.ones(CLASSES), ROWS),
        "texts": rng.integers(1, CLASSES, (ROWS, 2)),
    }
    return made[kind].astype(np.int64 if kind == "texts" else np.float32)


# By case: the loss for a reduction, the last activation, and the labels.
CASES: dict[str, tuple[Callable[..., Any], str, str]] = {
    "squares": (losses.MeanSquaredError, "linear", "numbers"),
    "squares of one number": (losses.MeanSquaredError, "linear", "number"),
    "differences": (losses.MeanAbsoluteError, "linear", "numbers"),
    "percentages": (losses.MeanAbsolutePercentageError, "linear", "numbers"),
    "logarithms": (losses.MeanSquaredLogarithmicError, "softplus", "counts"),
    "cosines": (losses.CosineSimilarity, "linear", "numbers"),
    "huber": (lambda **how: losses.Huber(delta=0.3, **how), "linear", "numbers"),
    "log cosh": (losses.LogCosh, "linear", "numbers"),
    "hinge": (losses.Hinge, "linear", "answers"),
    "squared hinge": (losses.SquaredHinge, "linear", "answers"),
    "hinge of classes": (losses.CategoricalHinge, "linear", "one hot"),
    "divergence": (losses.KLDivergence, "softmax", "shares"),
    "poisson": (losses.Poisson, "softplus", "counts"),
    "binary": (lambda **how: losses.BinaryCrossentropy(label_smoothing=0.1, **how), "sigmoid", "answers"),
    "binary of one logit": (lambda **how: losses.BinaryCrossentropy(from_logits=True, **how), "linear", "answer"),
    "binary focal": (
        lambda **how: losses.BinaryFocalCrossentropy(apply_class_balancing=True, alpha=0.3, **how), "sigmoid",
        "answers",
    ),
    "classes": (lambda **how: losses.CategoricalCrossentropy(label_smoothing=0.1, **how), "softmax", "one hot"),
    "focal": (
        lambda **how: losses.CategoricalFocalCrossentropy(alpha=[0.2, 0.8, 0.5, 1.0], **how), "softmax", "one hot"
    ),
    "generalized": (losses.CategoricalGeneralizedCrossEntropy, "softmax", "class"),
    "class numbers": (losses.SparseCategoricalCrossentropy, "softmax", "class"),
    "without an ignored class": (
        lambda **how: losses.SparseCategoricalCrossentropy(ignore_class=1, from_logits=True, **how), "linear",
        "class",
    ),
    "texts": (losses.CTC, "texts", "texts"),
}  # fmt: skip
OF_WHOLE_BATCHES = {"Circle", "Dice", "Tversky"}  # see docs/keras.md
IGNORING = "without an ignored class"
ALL = [
    ("sum_over_batch_size", False), ("mean_with_sample_weight", True), ("sum_over_batch_size", True),
    ("mean_with_sample_weight", False), ("sum", False), ("sum", True),
]  # fmt: skip


def model_of(form: str, width: int) -> Any:
    keras.utils.set_random_seed(3)
    features = keras.Input((CLASSES,), name="features")
    if form == "texts":
        return keras.Model(features, layers.Reshape((5, CLASSES))(layers.Dense(5 * CLASSES)(features)))
    return keras.Model(
        features, layers.Dense(width, activation=form, kernel_initializer="glorot_normal")(features)
    )


def table(**labels: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    return {
        "features": rng.normal(size=(ROWS, CLASSES)).astype(np.float32),
        "weight": rng.uniform(0, 2, ROWS).astype(np.float32),
        **labels,
    }


class Batches(OneBatch):
    """Rows in memory in batches of 11."""

    def batches(self, *_: Any, **options: Any) -> Any:
        (every,) = super().batches(1, columns=options.get("columns"))
        for start in range(0, len(self), 11):
            yield {name: values[start : start + 11] for name, values in every.items()}


def validated(
    estimator: KerasEstimator, columns: dict[str, np.ndarray], labels: tuple[str, ...] = ("label",)
) -> tuple[dict[str, float], dict[str, float]]:
    """The values over the states of uneven parts, each validated by itself, and those of ``evaluate``."""
    features = tuple(name for name in columns if name not in labels)
    replica = estimator.replica(Context(features, labels, "cpu", (ROWS,), 1))
    parts = [
        replica.validate(
            Visit(Batches({name: values[start:stop] for name, values in columns.items()}), 0, 0, 0)
        )
        for start, stop in itertools.pairwise(CUTS)
    ]
    history = parts[0].merged([part.states() for part in parts])
    return history, replica.evaluate(Batches(columns).batches())


def of_keras(model: Any, x: Any, y: Any, weights: Any = None) -> dict[str, float]:
    """Keras' own values over all rows in one batch."""
    found: dict[str, float] = model.evaluate(
        x, y, sample_weight=weights, batch_size=ROWS, verbose=0, return_dict=True
    )
    return found


def test_every_loss_of_keras_is_in_the_table() -> None:
    classes = {
        name
        for name, each in vars(losses).items()
        if isinstance(each, type) and issubclass(each, losses.Loss) and each is not losses.Loss
    }
    assert classes == {type(loss()).__name__ for loss, _, _ in CASES.values()} | OF_WHOLE_BATCHES


@pytest.mark.parametrize(
    ("case", "reduction", "weighted"),
    sample("losses of Keras", [(case, *how) for case in CASES for how in ALL], quick=22, ci=30),
)
def test_the_validation_loss_is_the_loss_over_the_validation_set(
    case: str, reduction: str, weighted: bool
) -> None:
    loss, form, kind = CASES[case]
    columns = table(label=labels_of(kind))
    model = model_of(form, 1 if kind in ("number", "answer") else CLASSES)
    more = {"sample_weight_column": "weight"} if weighted else {}
    how = {"metrics": ["mse"], "weighted_metrics": ["mae"]} if kind == "number" else {}
    estimator = KerasEstimator(
        model, "sgd", loss(reduction=reduction), inputs=["features"], run_eagerly=True, **how, **more
    )
    history, evaluated = validated(estimator, columns)
    label = columns["label"][:, None] if kind in ("number", "answer") else columns["label"]
    expected = of_keras(model, columns["features"], label, columns["weight"] if weighted else None)
    assert history == pytest.approx(expected, rel=1e-5)
    assert evaluated == pytest.approx(expected, rel=1e-5)


def masked() -> Any:
    """Two outputs, of sequences whose zeros are masked, with losses that layers and regularisers add."""
    words = keras.Input((6,), name="words")
    hidden = layers.Embedding(9, 4, mask_zero=True, embeddings_regularizer="l2")(words)
    hidden = layers.ActivityRegularization(l2=0.1)(layers.Dense(3)(hidden))
    return keras.Model(words, [layers.Dense(1, name="sizes")(hidden), layers.Dense(5, name="kinds")(hidden)])


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight"])
def test_masks_several_outputs_and_added_losses_count_over_all_rows(reduction: str, eagerly: bool) -> None:
    rng = np.random.default_rng(9)
    words = rng.integers(1, 9, (ROWS, 6)) * (np.arange(6) < rng.integers(0, 7, (ROWS, 1)))
    sizes = rng.normal(size=(ROWS, 6, 1)).astype(np.float32)
    columns = {"words": words, "sizes": sizes, "kinds": rng.integers(0, 5, (ROWS, 6))}
    keras.utils.set_random_seed(3)
    model = masked()
    estimator = KerasEstimator(
        model, "sgd", run_eagerly=eagerly, loss_weights={"sizes": 0.5, "kinds": 3.0}, metrics={"sizes": ["mae"]},
        loss={
            "sizes": losses.MeanSquaredError(reduction=reduction),
            "kinds": losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=3, reduction=reduction),
        },
    )  # fmt: skip
    history, evaluated = validated(estimator, columns, ("sizes", "kinds"))
    expected = of_keras(model, words, [sizes, columns["kinds"]])
    assert history == pytest.approx(expected, rel=1e-5)
    assert evaluated == pytest.approx(expected, rel=1e-5)


def test_a_traced_loss_is_the_loss_over_the_validation_set_and_training_keeps_keras_own() -> None:
    columns = table(label=labels_of("class"))
    model = model_of("linear", CLASSES)
    loss = losses.SparseCategoricalCrossentropy(ignore_class=1, from_logits=True)
    replica = KerasEstimator(model, keras.optimizers.SGD(0.0), loss).replica(
        Context(("features",), ("label",), "cpu", (ROWS,), 1)
    )
    trained = replica.train(Visit(Batches(columns), 0, 0, 0))["loss"]
    by_rows = sum(
        len(batch["label"]) * of_keras(model, batch["features"], batch["label"])["loss"]
        for batch in Batches(columns).batches()
    )
    assert trained == pytest.approx([by_rows, ROWS], rel=1e-5)
    expected = of_keras(model, columns["features"], columns["label"])["loss"]
    assert replica.evaluate(Batches(columns).batches())["loss"] == pytest.approx(expected, rel=1e-5)


def test_all_rows_ignored_in_a_part_count_nothing() -> None:
    columns = table(label=labels_of("class"))
    columns["label"][:3] = 1
    loss = losses.SparseCategoricalCrossentropy(ignore_class=1, from_logits=True)
    history, _ = validated(
        KerasEstimator(model_of("linear", CLASSES), "sgd", loss, run_eagerly=True), columns
    )
    rest = {name: values[3:] for name, values in columns.items()}
    other = model_of("linear", CLASSES)
    other.compile("sgd", loss, run_eagerly=True)
    expected = of_keras(other, rest["features"], rest["label"])
    assert history["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def exp_rmspe(y_true: Any, y_pred: Any) -> Any:
    """Of Cerebro's script for Rossmann."""
    pct = ops.square((ops.exp(y_true) - ops.exp(y_pred)) / ops.exp(y_true))
    return ops.sqrt(ops.mean(pct))


def squared(y_true: Any, y_pred: Any) -> Any:
    """A loss of each element."""
    return ops.square(y_true - y_pred)


def apart(y_true: Any, y_pred: Any) -> Any:
    """A number for each row."""
    return ops.mean(ops.abs(y_true - y_pred), axis=-1)


@pytest.mark.parametrize("functional", [True, False])
def test_functions_of_scalar_labels_compare_each_row_with_itself(functional: bool) -> None:
    columns = table(label=labels_of("number"))
    dense = layers.Dense(1, kernel_initializer="ones")
    x = keras.Input((CLASSES,))
    model = keras.Model(x, dense(x)) if functional else keras.Sequential([dense])
    estimator = KerasEstimator(
        model, "sgd", squared, [exp_rmspe, apart], inputs=["features"],
        run_eagerly=True,
    )  # fmt: skip
    features = tuple(name for name in columns if name != "label")
    found = estimator.replica(Context(features, ("label",), "cpu", (ROWS,), 1)).evaluate([columns])
    guess, label = columns["features"].sum(1), columns["label"]
    expected = {
        "loss": np.mean((label - guess) ** 2),
        "exp_rmspe": np.sqrt(np.mean(((np.exp(label) - np.exp(guess)) / np.exp(label)) ** 2)),
        "apart": np.mean(np.abs(label - guess)),
    }
    assert found == pytest.approx(expected, rel=1e-4)


def of_flat_labels(y_true: Any, y_pred: Any) -> Any:
    """Right for labels (n,)."""
    return ops.abs(y_true - y_pred[:, 0])


def of_one_column(y_true: Any, y_pred: Any) -> Any:
    """Right for labels (n, 1)."""
    return ops.abs(y_true[:, 0] - y_pred[:, 0])


def of_reshaped(y_true: Any, y_pred: Any) -> Any:
    """Right for both."""
    return ops.equal(ops.reshape(y_true, (-1,)) > 0, ops.reshape(y_pred, (-1,)) > 0)


def of_labels(y_true: Any, y_pred: Any) -> Any:
    """Looks at labels only."""
    return ops.mean(y_true)


def test_functions_of_labels_in_another_shape_are_refused() -> None:
    columns = table(label=labels_of("number"))

    def check(*metrics: Any) -> None:
        model = model_of("linear", 1)
        given = KerasEstimator(model, "sgd", "mse", list(metrics), inputs=["features"], run_eagerly=True)
        replica = given.replica(Context(("features",), ("label",), "cpu", (ROWS,), 1))
        replica.check_labels(Visit(Batches(columns), 0, 0, 0))

    check(exp_rmspe, apart, of_one_column, of_reshaped, of_labels, "mae")
    with pytest.raises(
        MetricError,
        match=r"'of_flat_labels' compares every label with every prediction: .* reshape both of them",
    ):
        check(apart, of_flat_labels)


@pytest.mark.parametrize(
    ("loss", "form"),
    [
        ("binary_crossentropy", "sigmoid"), (losses.BinaryCrossentropy(from_logits=True), "linear"),
        (losses.BinaryFocalCrossentropy(), "sigmoid"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("bad", [-1.0, 2.0])
def test_yes_no_labels_beyond_0_and_1_are_refused_in_every_batch(loss: Any, form: str, bad: float) -> None:
    columns = table(label=labels_of("answer"))
    columns["label"][30] = bad
    estimator = KerasEstimator(model_of(form, 1), "sgd", loss, inputs=["features"], run_eagerly=True)
    replica = estimator.replica(Context(("features",), ("label",), "cpu", (ROWS,), 1))
    visit = Visit(Batches({name: values[17:] for name, values in columns.items()}), 0, 0, 0)
    last = Visit(Batches({name: values[28:] for name, values in columns.items()}), 0, 0, 0)
    text = rf"takes labels from 0 \(no\) to 1 \(yes\), not {bad:g}; store the label column as 0 and 1"
    for call in (
        lambda: replica.train(visit),
        lambda: replica.validate(visit),
        lambda: replica.check_labels(last),
        lambda: replica.evaluate(Batches(columns).batches()),
    ):
        with pytest.raises(EstimatorError, match=text):
            call()


@pytest.mark.parametrize("bad", [-1, CLASSES, 99])
def test_class_numbers_without_an_output_are_refused_in_functions_of_every_backend(bad: int) -> None:
    """JAX would take them for classes that cost nothing."""
    columns = table(label=labels_of("class"))
    columns["label"][30] = bad
    estimator = KerasEstimator(
        model_of("softmax", CLASSES),
        "sgd",
        "sparse_categorical_crossentropy",
        inputs=["features"],
        run_eagerly=True,
    )
    replica = estimator.replica(Context(("features",), ("label",), "cpu", (ROWS,), 1))
    visit = Visit(Batches({name: values[17:] for name, values in columns.items()}), 0, 0, 0)
    text = rf"from 0 to the number of outputs - 1, here {CLASSES - 1}, not {bad}; store the classes as such numbers"
    for call in (
        lambda: replica.train(visit),
        lambda: replica.validate(visit),
        lambda: replica.evaluate(Batches(columns).batches()),
    ):
        with pytest.raises(EstimatorError, match=text):
            call()


@pytest.mark.parametrize("weight", [-0.5, np.nan])
def test_row_weights_below_zero_are_refused(weight: float) -> None:
    columns = table(label=labels_of("number"))
    columns["weight"][20] = weight
    estimator = KerasEstimator(
        model_of("linear", 1),
        "sgd",
        "mse",
        inputs=["features"],
        sample_weight_column="weight",
        run_eagerly=True,
    )
    with pytest.raises(
        EstimatorError, match=r"'weight', which holds (-0.5|nan), but weights are numbers of at least 0. Give"
    ):
        validated(estimator, columns)


def with_metrics(loss: Any, **how: Any) -> Any:
    estimator = KerasEstimator(
        model_of("linear", 1), "sgd", loss, inputs=["features"], run_eagerly=True, **how
    )
    replica = estimator.replica(Context(("features",), ("label",), "cpu", (ROWS,), 1))
    replica.check_labels(Visit(Batches(table(label=labels_of("answer"))), 0, 0, 0))
    return replica


@pytest.mark.parametrize(
    "make",
    [
        lambda: "acc", lambda: "accuracy", lambda: "binary_accuracy", keras.metrics.Precision, keras.metrics.Recall,
        keras.metrics.AUC, keras.metrics.TruePositives, keras.metrics.BinaryIoU,
        lambda: keras.metrics.RecallAtPrecision(0.5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("which", ["metrics", "weighted_metrics"])
def test_metrics_that_take_logits_for_shares_are_refused(make: Any, which: str) -> None:
    with pytest.raises(
        MetricError, match=r"outputs are logits \(from_logits=True\), but the metric .* takes them for"
    ):
        with_metrics(losses.BinaryCrossentropy(from_logits=True), **{which: [make()]})


def test_metrics_of_logits_and_of_shares_are_taken() -> None:
    kinds = keras.metrics
    of_logits = [
        kinds.BinaryAccuracy(threshold=0.0),
        kinds.Precision(thresholds=0.0),
        kinds.AUC(from_logits=True),
        "mae",
    ]
    replica = with_metrics(losses.BinaryCrossentropy(from_logits=True), metrics=of_logits)
    columns = table(label=labels_of("answer"))
    outputs = replica.predict(columns)[:, 0]
    found = replica.evaluate(Batches(columns).batches())["binary_accuracy"]
    assert found == pytest.approx(((outputs > 0) == columns["label"]).mean())
    with_metrics(losses.BinaryCrossentropy(), metrics=["acc", kinds.Precision(), kinds.AUC()])
