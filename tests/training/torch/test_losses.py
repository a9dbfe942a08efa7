"""The loss of many batches is the loss of all their rows, for every loss of PyTorch and its weighting arguments."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hopyard.errors import EstimatorError, MetricError
from hopyard.training.estimator import Context, OneBatch, Visit
from hopyard.training.torch.estimator import TorchEstimator

ROWS, CLASSES = 37, 4
CUTS = (0, 3, 4, 17, 30, 37)  # of uneven partitions
CLASS_WEIGHT = torch.tensor([0.2, 3.0, 1.0, 0.0])
POSITIVE = torch.tensor([0.5, 2.0, 1.0, 3.0])


class Outputs(nn.Module):
    """Gives what the features hold, in the form that a loss takes."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.form = form
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.form(features * self.scale)


def log_softmax(features: torch.Tensor) -> torch.Tensor:
    return features.log_softmax(1)


def identity(features: torch.Tensor) -> torch.Tensor:
    return features


def pixels(features: torch.Tensor) -> torch.Tensor:
    """(n, CLASSES, 3) from (n, CLASSES)."""
    return torch.stack([features, features.roll(1, 1), -features], dim=2)


def first(features: torch.Tensor) -> torch.Tensor:
    return features[:, 0]


def labels_of(kind: str) -> np.ndarray:
    rng = np.random.default_rng(7)
    if kind == "classes":
        classes = rng.integers(0, CLASSES, ROWS)
        classes[[0, 5, 6, 29]] = 1  # the ignored one, unevenly over partitions
        return classes
    if kind == "pixels":
        return rng.integers(0, CLASSES, (ROWS, 3))
    made = {
        "numbers": rng.normal(size=(ROWS, CLASSES)),
        "counts": rng.poisson(2, (ROWS, CLASSES)),
        "answers": rng.integers(0, 2, (ROWS, CLASSES)),
        "signs": rng.choice([-1.0, 1.0], (ROWS, CLASSES)),
        "shares": rng.dirichlet(np.ones(CLASSES), ROWS),
        "number": rng.normal(size=ROWS),
    }
    return made[kind].astype(np.float32)


CASES: dict[str, tuple[Any, Any, str]] = {
    "cross entropy": (nn.CrossEntropyLoss(), identity, "classes"),
    "of weighted classes": (nn.CrossEntropyLoss(CLASS_WEIGHT), identity, "classes"),
    "without an ignored class": (nn.CrossEntropyLoss(ignore_index=1), identity, "classes"),
    "with all arguments": (
        nn.CrossEntropyLoss(POSITIVE, ignore_index=1, label_smoothing=0.1), identity, "classes",
    ),
    "of pixels": (nn.CrossEntropyLoss(CLASS_WEIGHT, ignore_index=2), pixels, "pixels"),
    "of shares": (nn.CrossEntropyLoss(CLASS_WEIGHT), identity, "shares"),
    "as a function": (functional.cross_entropy, identity, "classes"),
    "as a function with arguments": (
        partial(functional.cross_entropy, weight=CLASS_WEIGHT, ignore_index=1), identity, "classes",
    ),
    "sum of a function": (partial(functional.cross_entropy, reduction="sum"), identity, "classes"),
    "sum": (nn.CrossEntropyLoss(CLASS_WEIGHT, reduction="sum"), identity, "classes"),
    "negative log likelihood": (nn.NLLLoss(CLASS_WEIGHT, ignore_index=1), log_softmax, "classes"),
    "nll as a function": (partial(functional.nll_loss, ignore_index=1), log_softmax, "classes"),
    "binary": (nn.BCELoss(POSITIVE), torch.sigmoid, "answers"),
    "binary of logits": (nn.BCEWithLogitsLoss(POSITIVE, pos_weight=POSITIVE.flip(0)), identity, "answers"),
    "binary function": (functional.binary_cross_entropy_with_logits, identity, "answers"),
    "squares": (nn.MSELoss(), identity, "numbers"),
    "squares of one number": (nn.MSELoss(), first, "number"),
    "differences": (nn.L1Loss(), identity, "numbers"),
    "smooth": (nn.SmoothL1Loss(beta=0.3), identity, "numbers"),
    "huber": (nn.HuberLoss(delta=0.3), identity, "numbers"),
    "poisson": (nn.PoissonNLLLoss(full=True), identity, "counts"),
    "divergence of elements": (nn.KLDivLoss(), log_softmax, "shares"),
    "divergence": (nn.KLDivLoss(reduction="batchmean"), log_softmax, "shares"),
    "margins": (nn.MultiMarginLoss(margin=0.5, weight=CLASS_WEIGHT), identity, "classes"),
    "margins of labels": (nn.MultiLabelSoftMarginLoss(POSITIVE), identity, "answers"),
    "soft margin": (nn.SoftMarginLoss(), identity, "signs"),
    "hinge": (nn.HingeEmbeddingLoss(), identity, "signs"),
}  # fmt: skip


def table(kind: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    return {
        "features": rng.normal(size=(ROWS, CLASSES)).astype(np.float32),
        "label": labels_of(kind),
        "weight": rng.uniform(0, 2, ROWS).astype(np.float32),
    }


def validated(
    estimator: TorchEstimator, columns: dict[str, np.ndarray], cuts: tuple[int, ...]
) -> dict[str, float]:
    """The values over the states of all parts, each validated by itself in batches of 5 rows."""
    context = Context(("features", "weight"), ("label",), "cpu", (ROWS,), 1)
    replica = estimator.replica(context)
    parts = [
        replica.validate(
            Visit(Batches({name: values[start:stop] for name, values in columns.items()}), 0, 0, 0)
        )
        for start, stop in itertools.pairwise(cuts)
    ]
    return parts[0].merged([part.states() for part in parts])


class Batches(OneBatch):
    """Rows in memory in batches of 5."""

    def loader(self, *_: Any, **options: Any) -> Any:
        (every,) = super().loader(1, columns=options.get("columns"))
        for start in range(0, len(self), 5):
            yield {name: values[start : start + 5] for name, values in every.items()}


def estimator(loss: Any, form: Any, **more: Any) -> TorchEstimator:
    return TorchEstimator(Outputs(form), torch.optim.SGD, loss, inputs=["features"], **more)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
@pytest.mark.parametrize("case", CASES)
def test_the_validation_loss_is_the_loss_over_the_validation_set(case: str) -> None:
    loss, form, kind = CASES[case]
    columns = table(kind)
    found = validated(estimator(loss, form), columns, CUTS)["loss"]
    outputs, labels = form(torch.from_numpy(columns["features"])), torch.from_numpy(columns["label"])
    expected = float(loss(outputs, labels))
    if "sum" in case:
        expected /= ROWS
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
@pytest.mark.parametrize("case", CASES)
def test_a_row_of_weight_two_counts_as_two_rows(case: str) -> None:
    loss, form, kind = CASES[case]
    columns = table(kind) | {"weight": np.resize([1.0, 2.0, 0.0, 1.0], ROWS).astype(np.float32)}
    found = validated(estimator(loss, form, sample_weight_column="weight"), columns, CUTS)["loss"]
    repeated = {
        name: np.repeat(values, columns["weight"].astype(int), axis=0) for name, values in columns.items()
    }
    expected = validated(estimator(loss, form), repeated, (0, len(repeated["label"])))["loss"]
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_partition_whose_labels_are_all_ignored_counts_nothing() -> None:
    columns = table("classes")
    columns["label"][:3] = -100
    found = validated(estimator(nn.CrossEntropyLoss(), identity), columns, CUTS)["loss"]
    rest = {name: values[3:] for name, values in columns.items()}
    assert found == pytest.approx(
        validated(estimator(nn.CrossEntropyLoss(), identity), rest, (0, 34))["loss"]
    )


@pytest.mark.parametrize("loss", [nn.BCEWithLogitsLoss(), functional.binary_cross_entropy_with_logits])
def test_yes_no_labels_beyond_0_and_1_are_refused_in_every_batch(loss: Any) -> None:
    columns = table("answers")
    columns["label"][30] = 2.0
    with pytest.raises(
        EstimatorError, match=r"takes labels from 0 \(no\) to 1 \(yes\), not 2; store the label column as"
    ):
        validated(estimator(loss, identity), columns, CUTS)


@pytest.mark.parametrize("weight", [-0.5, np.nan])
def test_row_weights_below_zero_are_refused(weight: float) -> None:
    columns = table("classes")
    columns["weight"][20] = weight
    with pytest.raises(
        EstimatorError, match=r"'weight', which holds (-0.5|nan), but weights are numbers of at least 0. Give"
    ):
        validated(estimator(nn.CrossEntropyLoss(), identity, sample_weight_column="weight"), columns, CUTS)


@pytest.mark.parametrize(
    ("loss", "right"),
    [(functional.binary_cross_entropy_with_logits, 0.0), (partial(functional.mse_loss), 0.5), (nn.HuberLoss(), 0.5),
     (nn.SoftMarginLoss(), 0.0)],
)  # fmt: skip
def test_functions_of_pytorch_say_what_outputs_are(loss: Any, right: float) -> None:
    columns = table("answers")
    columns["features"] = np.abs(columns["features"]) / 10  # all within 0 to 1, whatever they are
    found = validated(estimator(loss, identity, metrics=["accuracy"]), columns, CUTS)["accuracy"]
    assert found == pytest.approx(((columns["features"] > right) == columns["label"]).mean())


def test_a_loss_of_the_users_asks_for_logits() -> None:
    def own(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs - labels).square().mean()

    columns = table("answers")
    with pytest.raises(MetricError, match=r"Give the estimator logits=True or logits=False"):
        validated(estimator(own, identity, metrics=["accuracy"]), columns, CUTS)
    found = validated(estimator(own, identity, metrics=["accuracy"], logits=True), columns, CUTS)["accuracy"]
    assert found == pytest.approx(((columns["features"] > 0) == columns["label"]).mean())
