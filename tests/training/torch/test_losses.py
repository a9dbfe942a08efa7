"""The loss of many batches is the loss of all their rows, for every loss of PyTorch and its weighting arguments."""

from __future__ import annotations

import copy
import inspect
import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.sampling import diagonal, sample
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
    if kind == "sets":  # of classes, ended by -1
        sizes, classes = rng.integers(1, 4, (ROWS, 1)), np.tile(np.arange(CLASSES), (ROWS, 1))
        return np.where(np.arange(CLASSES) < sizes, rng.permuted(classes, axis=1), -1)
    if kind == "pixels":
        return rng.integers(0, CLASSES, (ROWS, 3))
    made = {
        "numbers": rng.normal(size=(ROWS, CLASSES)),
        "counts": rng.poisson(2, (ROWS, CLASSES)),
        "answers": rng.integers(0, 2, (ROWS, CLASSES)),
        "signs": rng.choice([-1.0, 1.0], (ROWS, CLASSES)),
        "shares": rng.dirichlet(np.ones(CLASSES), ROWS),
        "number": rng.normal(size=ROWS),
        "logarithms": np.log(rng.dirichlet(np.ones(CLASSES), ROWS)),
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
    "margins of sets": (nn.MultiLabelMarginLoss(), identity, "sets"),
    "soft margin": (nn.SoftMarginLoss(), identity, "signs"),
    "hinge": (nn.HingeEmbeddingLoss(), identity, "signs"),
    "counts of pixels": (nn.PoissonNLLLoss(log_input=False, eps=1e-3), nn.functional.softplus, "counts"),
    "divergence of logarithms": (nn.KLDivLoss(log_target=True), log_softmax, "logarithms"),
    "weighted nll of pixels": (nn.NLLLoss(CLASS_WEIGHT, ignore_index=2), lambda x: log_softmax(pixels(x)), "pixels"),
    "smooth shares": (nn.CrossEntropyLoss(POSITIVE, label_smoothing=0.1), identity, "shares"),
}  # fmt: skip
OF_MORE_THAN_LABELS = {
    *("CTCLoss", "CosineEmbeddingLoss", "GaussianNLLLoss", "MarginRankingLoss", "TripletMarginLoss"),
    "TripletMarginWithDistanceLoss",
}
"""They take lengths, variances, or several outputs besides: for ``step=``."""
OF_THEIR_OWN = {"LinearCrossEntropyLoss"}
"""They have parameters of their own, and are refused."""
RENAMED = {"NLLLoss2d"}

FUNCTIONS: dict[str, tuple[Any, str]] = {
    "binary_cross_entropy": (torch.sigmoid, "answers"),
    "binary_cross_entropy_with_logits": (identity, "answers"),
    "cross_entropy": (identity, "classes"),
    "hinge_embedding_loss": (identity, "signs"),
    "huber_loss": (identity, "numbers"),
    "kl_div": (log_softmax, "shares"),
    "l1_loss": (identity, "numbers"),
    "mse_loss": (identity, "numbers"),
    "multi_margin_loss": (identity, "classes"),
    "multilabel_margin_loss": (identity, "sets"),
    "multilabel_soft_margin_loss": (identity, "answers"),
    "nll_loss": (log_softmax, "classes"),
    "poisson_nll_loss": (identity, "counts"),
    "smooth_l1_loss": (identity, "numbers"),
    "soft_margin_loss": (identity, "signs"),
}
FUNCTIONS_OF_MORE = {
    *(
        "cosine_embedding_loss",
        "ctc_loss",
        "gaussian_nll_loss",
        "linear_cross_entropy",
        "margin_ranking_loss",
    ),
    *("triplet_margin_loss", "triplet_margin_with_distance_loss"),
    "embedding_bag",  # no loss
}


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
    """The values over the states of all parts, each validated by itself in batches of 5 rows, as histories have them;
    they are those of ``evaluate``, too."""
    context = Context(("features", "weight"), ("label",), "cpu", (ROWS,), 1)
    replica = estimator.replica(context)
    parts = [
        replica.validate(
            Visit(Batches({name: values[start:stop] for name, values in columns.items()}), 0, 0, 0)
        )
        for start, stop in itertools.pairwise(cuts)
    ]
    history = parts[0].merged([part.states() for part in parts])
    evaluated = replica.evaluate(Batches(columns).batches())
    assert evaluated == pytest.approx(history, rel=1e-5)
    return history


class Batches(OneBatch):
    """Rows in memory in batches of 5."""

    def batches(self, *_: Any, **options: Any) -> Any:
        (every,) = super().batches(1, columns=options.get("columns"))
        for start in range(0, len(self), 5):
            yield {name: values[start : start + 5] for name, values in every.items()}


def estimator(loss: Any, form: Any, **more: Any) -> TorchEstimator:
    return TorchEstimator(Outputs(form), torch.optim.SGD, loss, inputs=["features"], **more)


def with_reduction(loss: Any, reduction: str | None) -> Any:
    """The loss with another reduction; None: with its own."""
    if reduction is None:
        return loss
    if not isinstance(loss, nn.Module):
        return partial(loss, reduction=reduction)
    other = copy.copy(loss)
    other.reduction = reduction  # type: ignore[assignment]
    return other


def over_all(loss: Any, form: Any, columns: dict[str, np.ndarray]) -> float:
    """PyTorch's own, of all rows in one batch."""
    return float(loss(form(torch.from_numpy(columns["features"])), torch.from_numpy(columns["label"])))


def test_every_loss_of_pytorch_is_in_the_table() -> None:
    classes = {
        name
        for name, each in vars(nn).items()
        if inspect.isclass(each) and issubclass(each, nn.modules.loss._Loss)
    }
    listed = {type(loss).__name__ for loss, _, _ in CASES.values() if isinstance(loss, nn.Module)}
    assert listed <= classes <= listed | OF_MORE_THAN_LABELS | OF_THEIR_OWN | RENAMED


def test_every_weighting_argument_of_pytorchs_losses_is_in_the_table() -> None:
    for kind in {type(loss) for loss, _, _ in CASES.values() if isinstance(loss, nn.Module)}:
        given = [loss for loss, _, _ in CASES.values() if type(loss) is kind]
        defaults = kind()
        for name in ("weight", "pos_weight", "ignore_index", "label_smoothing"):
            if name in inspect.signature(kind).parameters:
                assert any(getattr(loss, name) is not getattr(defaults, name) for loss in given), (kind, name)


def test_every_function_of_pytorch_that_reduces_losses_is_in_the_table() -> None:
    found = {
        name
        for name, each in vars(functional).items()
        if callable(each) and ("loss" in name or _reduces(each)) and not name.startswith("_")
    }
    assert found - FUNCTIONS_OF_MORE == FUNCTIONS.keys()


def _reduces(function: Any) -> bool:
    try:
        return "reduction" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


MEANS_BY_ELEMENT = "ignore:reduction. 'mean' divides the total loss"


@pytest.mark.filterwarnings(MEANS_BY_ELEMENT)
@pytest.mark.parametrize(
    ("case", "reduction"),
    sample("losses", diagonal("losses", [*CASES, *FUNCTIONS], [None, "mean", "sum"]), quick=15, ci=50),
)
def test_the_validation_loss_is_the_loss_over_the_validation_set(case: str, reduction: str | None) -> None:
    """A sum is divided by the rows."""
    loss, form, kind = CASES[case] if case in CASES else (getattr(functional, case), *FUNCTIONS[case])
    loss, columns = with_reduction(loss, reduction), table(kind)
    expected = over_all(loss, form, columns)
    if reduction == "sum" or (reduction is None and "sum" in case):
        expected /= ROWS
    assert validated(estimator(loss, form), columns, CUTS)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings(MEANS_BY_ELEMENT)
@pytest.mark.parametrize(
    ("case", "reduction"),
    sample("weighted", diagonal("weighted losses", [*CASES, *FUNCTIONS], [None, "sum"]), quick=15, ci=50),
)
def test_a_row_of_weight_two_counts_as_two_rows(case: str, reduction: str | None) -> None:
    loss, form, kind = CASES[case] if case in CASES else (getattr(functional, case), *FUNCTIONS[case])
    loss = with_reduction(loss, reduction)
    columns = table(kind) | {"weight": np.resize([1.0, 2.0, 0.0, 1.0], ROWS).astype(np.float32)}
    found = validated(estimator(loss, form, sample_weight_column="weight"), columns, CUTS)["loss"]
    repeated = {
        name: np.repeat(values, columns["weight"].astype(int), axis=0) for name, values in columns.items()
    }
    expected = over_all(loss, form, repeated)
    if reduction == "sum" or "sum" in case:
        expected /= len(repeated["label"])
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings(MEANS_BY_ELEMENT)
@pytest.mark.parametrize(
    ("case", "weighted"),
    diagonal(
        "class weights", [case for case, (_, _, kind) in CASES.items() if kind == "classes"], [False, True]
    ),
)
def test_class_weights_do_not_count_in_validation(case: str, weighted: bool) -> None:
    loss, form, kind = CASES[case]
    how = {"sample_weight_column": "weight"} if weighted else {}
    plain = validated(estimator(loss, form, **how), table(kind), CUTS)["loss"]
    found = validated(estimator(loss, form, class_weight={0: 5.0, 2: 0.1}, **how), table(kind), CUTS)["loss"]
    assert found == pytest.approx(plain, rel=1e-6)


def test_a_loss_with_parameters_of_its_own_is_refused() -> None:
    if not hasattr(nn, "LinearCrossEntropyLoss"):
        pytest.skip("this PyTorch has no such loss")
    with pytest.raises(
        EstimatorError, match=r"LinearCrossEntropyLoss has parameters of its own \(linear.weight\), which"
    ):
        estimator(nn.LinearCrossEntropyLoss(CLASSES, CLASSES), identity)


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
