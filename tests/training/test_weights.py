"""Rows that weigh nothing: ignored labels, classes without a weight of their own, weights of zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, top_k_accuracy_score
from torch import nn

from hopyard.errors import EstimatorError
from hopyard.training.class_weights import class_weights
from hopyard.training.keras.weights import class_table
from hopyard.training.metrics import metric_named
from hopyard.training.torch.loss import Loss

CPU = torch.device("cpu")


def rows(seed: int, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (60,), generator=made)
    labels[::7] = -100
    return torch.randn(60, classes, generator=made), labels, torch.rand(60, generator=made)


@pytest.mark.parametrize("weight", [{0: 3.0, 1: 0.5}, {0: 3.0, 1: 0.5, 2: 1.0, 3: 1.0}, [3.0, 0.5, 1.0, 1.0]])
def test_class_weights_multiply_losses_in_training_and_the_mean_stays_one_over_rows(weight: Any) -> None:
    outputs, labels, row_weights = rows(0)
    loss = Loss(nn.CrossEntropyLoss(), weight, True, CPU)
    kept = labels >= 0
    of_class = torch.tensor([3.0, 0.5, 1.0, 1.0])[labels[kept]]
    losses = nn.functional.cross_entropy(outputs[kept], labels[kept], reduction="none")
    torch.testing.assert_close(loss(outputs, labels, None, True)[0], (losses * of_class).mean())
    weights = row_weights[kept]
    expected = (losses * of_class * weights).sum() / weights.sum()
    torch.testing.assert_close(loss(outputs, labels, row_weights, True)[0], expected)


def test_class_weights_count_in_training_only_as_in_keras() -> None:
    outputs, labels, row_weights = rows(0)
    weighted = Loss(nn.CrossEntropyLoss(), {0: 3.0}, True, CPU)
    plain = Loss(nn.CrossEntropyLoss(), None, True, CPU)
    for weights in (None, row_weights):
        assert weighted(outputs, labels, weights, False) == plain(outputs, labels, weights, False)


def test_ignored_rows_have_no_part_in_a_weighted_mean() -> None:
    outputs, labels, weights = rows(1)
    loss = Loss(nn.CrossEntropyLoss(), None, True, CPU)
    kept = labels >= 0
    found, total = loss(outputs, labels, weights, True)
    expected, expected_total = loss(outputs[kept], labels[kept], weights[kept], True)
    torch.testing.assert_close((found, total), (expected, expected_total))


@pytest.mark.parametrize("weight", [{"0": 1.0}, {-1: 1.0}, {True: 2.0}, {0.5: 1.0}])
def test_keys_that_are_no_classes_are_refused(weight: Any) -> None:
    with pytest.raises(EstimatorError, match=r"its keys must be classes: ints from 0"):
        Loss(nn.CrossEntropyLoss(), weight, False, CPU)


@pytest.mark.parametrize("weight", [{0: -1.0}, [1.0, -0.5], [1.0, float("nan")], ["a"]])
def test_weights_of_classes_below_zero_are_refused(weight: Any) -> None:
    with pytest.raises(
        EstimatorError, match=r"class_weight=.* was given, but weights are numbers of at least 0\."
    ):
        class_weights(weight)


@pytest.mark.parametrize(
    "weight", [[1.0, 5.0], (1, 5), np.array([1, 5]), torch.tensor([1.0, 5.0]), {0: 1, 1: np.float32(5)}]
)
def test_class_weights_may_come_in_any_container(weight: Any) -> None:
    assert class_weights(weight) == ({0: 1.0, 1: 5.0}, isinstance(weight, dict))


@pytest.mark.parametrize("weight", ["balanced", 3])
def test_class_weights_that_are_no_weights_say_how_to_make_some(weight: Any) -> None:
    with pytest.raises(
        EstimatorError,
        match=r"class_weight=.* it must be a dict of classes and weights.* that balance .*rows / ",
    ):
        class_weights(weight)


@pytest.mark.parametrize(
    ("weight", "labels", "said"),
    [
        (
            {0: 9.0},
            [0.37, 1.0],
            r"the labels hold 0\.37, and classes are whole .* Use sample_weight_column",
        ),
        ({0: 9.0}, [-2.0, 1.0], r"the labels hold -2, and classes"),
        (
            [1.0, 2.0],
            [0, 1, 2],
            r"a sequence of 2, but the labels hold class 2\. Give it a weight for",
        ),
    ],
)
def test_labels_that_class_weights_cannot_weigh_are_named(
    weight: Any, labels: list[float], said: str
) -> None:
    given = np.array(labels, np.float32 if isinstance(labels[0], float) else np.int64)
    with pytest.raises(EstimatorError, match=said):
        class_table(weight)(given)
    loss = nn.MSELoss() if isinstance(labels[0], float) else nn.CrossEntropyLoss()
    with pytest.raises(EstimatorError, match=said):
        Loss(loss, weight, False, CPU).check_classes(torch.from_numpy(given))


def test_metrics_do_not_count_rows_with_labels_below_zero() -> None:
    outputs, labels = (tensor.numpy() for tensor in rows(2)[:2])
    kept = labels >= 0
    top = metric_named("top_2_accuracy")
    top.update(outputs, labels)
    assert top.compute() == pytest.approx(top_k_accuracy_score(labels[kept], outputs[kept], k=2))
    auc = metric_named("auc")
    auc.update(outputs, labels)
    shares = np.exp(outputs[kept].astype(np.float64))
    shares /= shares.sum(axis=1, keepdims=True)
    assert auc.compute() == pytest.approx(roc_auc_score(labels[kept], shares, multi_class="ovr"))


@pytest.mark.parametrize("name", ["accuracy", "precision", "recall", "f1", "auc", "top_2_accuracy"])
def test_metrics_of_rows_without_weight_are_undefined(name: str) -> None:
    outputs, labels = (tensor.numpy() for tensor in rows(3)[:2])
    metric = metric_named(name)
    metric.update(outputs, labels, np.zeros(60))
    assert np.isnan(metric.compute())
