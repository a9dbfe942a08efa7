"""Metrics equal scikit-learn's over all rows, however the rows are split and merged."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from hopyard.errors import MetricError
from hopyard.training.metric import MetricSet, StreamingMetric
from hopyard.training.metrics import (
    _ALIASES,
    _COUNTING,
    _OTHERS,
    FunctionMetric,
    ObjectMetric,
    canonical,
    metric_mode,
    metric_named,
)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def binary(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    # One digit after the point: many ties.
    return rng.normal(size=n).round(1).astype(np.float32), rng.integers(0, 2, n).astype(np.float32)


def classes(rng: np.random.Generator, n: int, c: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(n, c)).astype(np.float32), rng.integers(0, c, n)


def regression(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.normal(1e4, 3, n)  # far from 0: sums of squares would cancel
    return (labels + rng.normal(size=n)).astype(np.float64), labels


Expected = Callable[[np.ndarray, np.ndarray, np.ndarray | None], float]

BINARY: dict[str, Expected] = {
    "accuracy": lambda o, y, w: sk.accuracy_score(y, o > 0, sample_weight=w),
    "precision": lambda o, y, w: sk.precision_score(y, o > 0, sample_weight=w, zero_division=0),
    "recall": lambda o, y, w: sk.recall_score(y, o > 0, sample_weight=w, zero_division=0),
    "f1": lambda o, y, w: sk.f1_score(y, o > 0, sample_weight=w, zero_division=0),
    "auc": lambda o, y, w: sk.roc_auc_score(y, o, sample_weight=w) if len(set(y)) == 2 else float("nan"),
}
MULTI: dict[str, Expected] = {
    "acc": lambda o, y, w: sk.accuracy_score(y, o.argmax(1), sample_weight=w),
    "precision": lambda o, y, w: sk.precision_score(
        y, o.argmax(1), average="macro", sample_weight=w, zero_division=0
    ),
    "recall": lambda o, y, w: sk.recall_score(
        y, o.argmax(1), average="macro", sample_weight=w, zero_division=0
    ),
    "f1": lambda o, y, w: sk.f1_score(y, o.argmax(1), average="macro", sample_weight=w, zero_division=0),
    "top_2_accuracy": lambda o, y, w: sk.top_k_accuracy_score(y, o, k=2, labels=range(4), sample_weight=w),
}
REGRESSION: dict[str, Expected] = {
    "mse": lambda o, y, w: sk.mean_squared_error(y, o, sample_weight=w),
    "rmse": lambda o, y, w: sk.root_mean_squared_error(y, o, sample_weight=w),
    "mae": lambda o, y, w: sk.mean_absolute_error(y, o, sample_weight=w),
    "mape": lambda o, y, w: sk.mean_absolute_percentage_error(y, o, sample_weight=w),
    "r2": lambda o, y, w: sk.r2_score(y, o, sample_weight=w),
}


def measured(make: Callable[[], StreamingMetric], o: Any, y: Any, w: Any, cuts: list[int]) -> float:
    """Every part by a metric of its own, each part in two batches; merged in order."""
    total = make()
    bounds = [0, *sorted(cuts), len(o)]
    for start, stop in pairwise(bounds):
        part, middle = make(), (start + stop) // 2
        for rows in (slice(start, middle), slice(middle, stop)):
            if rows.start < rows.stop:
                part.update(o[rows], y[rows], None if w is None else w[rows])
        total.merge(part)
    return total.compute()


splits = st.lists(st.integers(0, 60), max_size=4)


@given(st.integers(0, 10**6), splits, st.booleans(), st.integers(2, 60))
def test_any_split_gives_scikit_learns_value(seed: int, cuts: list[int], weighted: bool, n: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.1, 3, n) if weighted else None
    cuts = [min(cut, n) for cut in cuts]
    for make, table in (
        (lambda: binary(rng, n), BINARY),
        (lambda: classes(rng, n, 4), MULTI),
        (lambda: regression(rng, n), REGRESSION),
    ):
        outputs, labels = make()
        for name, expected in table.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # scikit-learn warns of one class only
                value = expected(outputs, labels, weights)
            found = measured(
                lambda name=name: metric_named(name, logits=True), outputs, labels, weights, cuts
            )  # type: ignore[misc]
            assert found == pytest.approx(value, rel=1e-9, abs=1e-12, nan_ok=True), name


@pytest.mark.parametrize("average", ["two classes", "many classes", "labels"])
def test_auc_of_several_outputs(average: str) -> None:
    rng = np.random.default_rng(1)
    outputs, labels = classes(rng, 200, 2 if average == "two classes" else 4)
    if average == "two classes":
        expected = sk.roc_auc_score(labels, softmax(outputs)[:, 1])
    elif average == "many classes":
        expected = sk.roc_auc_score(labels, softmax(outputs.astype(float)), multi_class="ovr")
        shares = measured(lambda: metric_named("auc"), softmax(outputs.astype(float)), labels, None, [50])
        assert shares == pytest.approx(expected, rel=1e-12)
    else:
        labels = rng.integers(0, 2, (200, 4)).astype(np.float32)
        expected = sk.roc_auc_score(labels, outputs, average="macro")
    assert measured(lambda: metric_named("auc"), outputs, labels, None, [30, 90]) == pytest.approx(
        expected, rel=1e-12
    )


def test_auc_of_one_class_is_undefined() -> None:
    assert np.isnan(measured(lambda: metric_named("auc"), np.array([0.1, 0.9]), np.ones(2), None, [1]))


def test_f1_of_two_outputs_is_that_of_class_one() -> None:
    outputs, labels = classes(np.random.default_rng(2), 99, 2)
    for name, function in (
        ("f1", sk.f1_score),
        ("precision", sk.precision_score),
        ("recall", sk.recall_score),
    ):
        found = measured(lambda name=name: metric_named(name), outputs, labels, None, [40])  # type: ignore[misc]
        assert found == pytest.approx(function(labels, outputs.argmax(1)))


def test_multilabel_accuracy_counts_answers_and_f1_averages_labels() -> None:
    rng = np.random.default_rng(3)
    outputs, labels = rng.normal(size=(50, 3)), rng.integers(0, 2, (50, 3))
    accuracy = measured(
        lambda: metric_named("accuracy", logits=True), outputs, labels.astype(float), None, [20]
    )
    assert accuracy == pytest.approx(((outputs > 0) == labels).mean())
    f1 = measured(lambda: metric_named("f1", logits=True), outputs, labels.astype(float), None, [20])
    assert f1 == pytest.approx(sk.f1_score(labels, outputs > 0, average="macro"))


def test_whether_outputs_are_logits_is_never_guessed() -> None:
    labels, outputs = np.array([1.0, 1.0, 0.0, 0.0]), np.array([0.9, 0.3, 0.2, 0.1])
    assert measured(lambda: metric_named("accuracy", logits=False), outputs, labels, None, [2]) == 0.75
    assert measured(lambda: metric_named("accuracy", logits=True), outputs, labels, None, [2]) == 0.5
    for name in ("accuracy", "precision", "recall", "f1"):
        message = rf"The {name} of yes/no answers, .* the loss does not say which. Give the estimator logits=True or"
        with pytest.raises(MetricError, match=message):
            measured(lambda name=name: metric_named(name), outputs, labels, None, [2])  # type: ignore[misc]


def test_segmentation_counts_every_pixel_with_its_rows_weight() -> None:
    rng = np.random.default_rng(4)
    outputs, labels, weights = (
        rng.normal(size=(6, 3, 4, 4)),
        rng.integers(0, 3, (6, 4, 4)),
        rng.uniform(size=6),
    )
    right = (outputs.argmax(1) == labels).mean(axis=(1, 2))
    found = measured(lambda: metric_named("accuracy"), outputs, labels, weights, [3])
    assert found == pytest.approx(np.average(right, weights=weights))


def test_negative_labels_are_not_counted() -> None:
    outputs, labels = np.eye(3)[[0, 1, 2, 1]], np.array([0, 2, -100, 1])
    assert measured(lambda: metric_named("accuracy"), outputs, labels, None, [2]) == pytest.approx(2 / 3)
    assert measured(lambda: metric_named("recall"), outputs, labels, None, [2]) == pytest.approx(2 / 3)


def test_a_nan_output_is_never_among_the_top() -> None:
    outputs = np.array([[np.nan, 1.0, 2.0], [0.0, 3.0, 1.0]])
    assert measured(lambda: metric_named("top2_accuracy"), outputs, np.array([0, 2]), None, []) == 0.5


def test_r2_of_constant_labels_is_scikit_learns() -> None:
    for outputs, expected in (([2.0, 2.0], 1.0), ([2.0, 3.0], 0.0)):
        assert (
            measured(lambda: metric_named("r2"), np.array(outputs), np.array([2.0, 2.0]), None, [1])
            == expected
        )


@pytest.mark.parametrize(
    ("name", "mode"),
    [("accuracy", "max"), ("val_acc", "max"), ("loss", "min"), ("val_loss", "min"), ("top_3_accuracy", "max"),
     ("auc", "max"), ("rmse", "min"), ("r2", "max"), ("perplexity", None)],
)  # fmt: skip
def test_every_metric_knows_its_mode(name: str, mode: str | None) -> None:
    assert metric_mode(name) == mode


def test_an_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(MetricError, match="'acuracy' is unknown; did you mean 'accuracy'"):
        metric_named("acuracy")


def test_labels_of_another_size_are_refused() -> None:
    with pytest.raises(
        MetricError, match=r"outputs \(4, 2\) and labels float64 \(4,\), but needs integer labels"
    ):
        metric_named("mse").update(np.zeros((4, 2)), np.zeros(4))


def gini(outputs: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(outputs - labels))


@pytest.mark.parametrize("cuts", [[], [1], [1, 2]])
def test_a_function_is_averaged_by_rows_whatever_they_weigh(cuts: list[int]) -> None:
    outputs, labels = np.array([1.0, 2.0, 6.0]), np.zeros(3)
    assert measured(lambda: FunctionMetric(gini), outputs, labels, None, cuts) == 3.0
    weights = np.array([1.0, 0.0, 1.0])
    assert measured(lambda: FunctionMetric(gini), outputs, labels, weights, cuts) == 3.0


class Largest:
    """A user's metric."""

    mode = "max"

    def __init__(self) -> None:
        self.seen = float("-inf")

    def update(self, outputs: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        self.seen = max(self.seen, float(outputs.max()))

    def merge(self, other: Largest) -> None:
        self.seen = max(self.seen, other.seen)

    def compute(self) -> float:
        return self.seen


def test_states_of_every_kind_survive_as_arrays() -> None:
    rng = np.random.default_rng(5)
    outputs, labels = classes(rng, 60, 4)
    template = {
        "accuracy": metric_named("accuracy"),
        "auc": metric_named("auc"),
        "f1": metric_named("f1"),
        "gini": FunctionMetric(lambda o, y: float(o.mean())),
        "largest": ObjectMetric(Largest()),
    }
    parts = []
    for rows in (slice(0, 20), slice(20, 60)):
        found = MetricSet(template)
        found.mean("loss", 2.0 * (rows.stop - rows.start), rows.stop - rows.start)
        for name in template:
            found.metrics[name].update(outputs[rows], labels[rows], None)
        parts.append(found.states())
    assert all(
        type(array) is np.ndarray for part in parts for state in part.values() for array in state.values()
    )
    values = MetricSet(template).merged(parts)
    assert values["loss"] == 2.0
    assert values["largest"] == outputs.max()
    assert values["accuracy"] == sk.accuracy_score(labels, outputs.argmax(1))
    assert values["gini"] == pytest.approx(outputs.mean(), rel=1e-6)


def test_metrics_of_no_rows_are_undefined() -> None:
    names = [*BINARY, *REGRESSION, "top_2_accuracy"]
    assert all(np.isnan(metric_named(name).compute()) for name in names)


def test_every_metric_with_a_name_is_compared_with_scikit_learn() -> None:
    compared = {canonical(name) for table in (BINARY, MULTI, REGRESSION) for name in table}
    assert {*_COUNTING, *_OTHERS, "top_2_accuracy"} == compared
    assert set(_ALIASES.values()) - {"top_5_accuracy"} <= compared
