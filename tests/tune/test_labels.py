"""Labels that a loss, a metric or a class weight would take for something else are named, wherever they are."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torch.nn import functional

from hopyard.backend import InlineBackend
from hopyard.errors import HopyardError
from hopyard.storage import MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice

ROWS = 240
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((ROWS, 3)).astype(np.float32)
SCORE = X[:, 0] + RANDOM.standard_normal(ROWS)
YES = (SCORE > 0).astype(np.float32)


def fitted(labels: Any, validation: Any = None, outputs: int = 1, x: Any = X, **options: Any) -> Any:
    """A model of one epoch over a batch of 16 rows after the other."""
    columns = options.pop("columns", {})
    module = options.pop("model", None) or torch.nn.Linear(3, outputs)

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            model=copy.deepcopy(module),
            optimizer=torch.optim.SGD,
            optimizer_params={"lr": 1e-6},
            batch_size=16,
            inputs=["x"],
            **options,
        )

    search = GridSearch(
        InlineBackend(),
        MemoryStore(),
        estimator,
        {"none": hp_choice([0])},
        1,
        feature_columns=["x", *columns],
        label_columns=["y"],
        num_partitions=1,
        progress=False,
        validation={"x": x, "y": labels if validation is None else validation, **columns},
    )
    return search.fit({"x": x, "y": labels, **columns})


@pytest.mark.parametrize(
    ("loss", "labels", "outputs", "bad", "said"),
    [
        (torch.nn.BCEWithLogitsLoss(), YES, 1, 2, r"takes labels from 0 \(no\) to 1 \(yes\), not 2"),
        (functional.binary_cross_entropy_with_logits, YES, 1, 5, r"labels from 0 \(no\) to 1 \(yes\), not 5"),
        (torch.nn.CrossEntropyLoss(), YES.astype(np.int64), 2, -1, "takes classes 0 to 1, not -1"),
        (torch.nn.CrossEntropyLoss(), YES.astype(np.int64), 2, 7, "takes classes 0 to 1, not 7"),
    ],
)
def test_a_label_that_the_loss_cannot_take_is_named_in_whichever_batch_of_training(
    loss: Any, labels: Any, outputs: int, bad: int, said: str
) -> None:
    for row in (3, 100, ROWS - 1):
        wrong = labels.copy()
        wrong[row] = bad
        with pytest.raises(HopyardError, match=f"Labels .* do not fit the loss: .*{said}"):
            fitted(wrong, labels, outputs, loss=loss)


def test_a_class_without_a_weight_is_named_in_whichever_batch_of_training() -> None:
    labels = YES.astype(np.int64)
    labels[100] = 2
    with pytest.raises(HopyardError, match=r"a sequence of 2, but the labels hold class 2\."):
        fitted(labels, outputs=3, loss=torch.nn.CrossEntropyLoss(), class_weight=[1.0, 2.0])


@pytest.mark.parametrize("metric", ["accuracy", "precision", "recall", "f1", "auc"])
def test_metrics_of_answers_refuse_labels_that_are_numbers(metric: str) -> None:
    with pytest.raises(
        HopyardError,
        match=r"were given the label .*, but answers go from 0 .*name r2, mse, rmse, mae or mape",
    ):
        fitted((50 + 30 * SCORE).astype(np.float32), loss=torch.nn.MSELoss(), metrics=[metric], logits=True)


def test_metrics_of_answers_take_labels_of_both_kinds() -> None:
    loss = torch.nn.SoftMarginLoss()
    of_signs = fitted(2 * YES - 1, loss=loss, metrics=["accuracy"]).evaluate({"x": X, "y": 2 * YES - 1})
    model = fitted(YES, loss=torch.nn.BCEWithLogitsLoss(), metrics=["accuracy"])
    assert 0 < of_signs["accuracy"] < 1
    assert 0 < model.evaluate({"x": X, "y": YES})["accuracy"] < 1


def test_functions_that_measure_are_averaged_by_rows_whatever_the_weights_and_batches() -> None:
    def share(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs.sigmoid() - labels.reshape(outputs.shape)).abs().mean()

    weights = RANDOM.uniform(0.1, 5, ROWS)
    model = fitted(
        YES,
        loss=torch.nn.BCEWithLogitsLoss(),
        metrics=[share],
        sample_weight_column="w",
        columns={"w": weights},
    )
    outputs = model.predict({"x": X})[:, 0].astype(np.float64)
    expected = np.abs(1 / (1 + np.exp(-outputs)) - YES).mean()
    assert model.get_history()["val_share"][0] == pytest.approx(expected, abs=1e-6)
    assert model.evaluate({"x": X, "y": YES, "w": weights})["share"] == pytest.approx(expected, abs=1e-6)


def test_row_weights_with_a_step_are_refused() -> None:
    def step(model: Any, batch: Any) -> dict[str, Any]:
        return {"loss": functional.mse_loss(model(batch["x"])[:, 0], batch["y"])}

    with pytest.raises(
        HopyardError, match=r"sample_weight_column='w' was given with step, .* batch\['w'\] if it is one of"
    ):
        fitted(YES, step=step, sample_weight_column="w", columns={"w": YES})


class PerToken(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Embedding(9, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(x.long()).movedim(-1, 1)


@pytest.mark.parametrize("ignored", [0, -100])
def test_metrics_leave_out_what_the_loss_ignores(ignored: int) -> None:
    tokens = RANDOM.integers(1, 9, (ROWS, 6))
    tags = RANDOM.integers(max(ignored + 1, 0), 4, (ROWS, 6))
    tags[np.arange(6) >= RANDOM.integers(1, 7, (ROWS, 1))] = ignored
    names = ["accuracy", "f1", "auc", "top_2_accuracy"]
    model = fitted(
        tags,
        x=tokens,
        model=PerToken(),
        loss=torch.nn.CrossEntropyLoss(ignore_index=ignored),
        metrics=names,
    )
    scores = np.moveaxis(model.predict({"x": tokens}), 1, -1)[tags != ignored]
    truth = tags[tags != ignored]
    shares = np.exp(scores.astype(np.float64))
    shares /= shares.sum(axis=1, keepdims=True)
    chosen = scores.argmax(axis=1)
    own = np.take_along_axis(scores, truth[:, None], axis=1)
    areas = [roc_auc_score(truth == number, shares[:, number]) for number in np.unique(truth)]
    expected = {
        "accuracy": (chosen == truth).mean(),
        "f1": f1_score(truth, chosen, average="macro"),
        "top_2_accuracy": ((scores > own).sum(axis=1) < 2).mean(),
    }
    found = {name: values[0] for name, values in model.get_history().items()}
    for name, value in expected.items():
        assert found[f"val_{name}"] == pytest.approx(value, abs=1e-9), name
    if ignored:
        assert found["val_auc"] == pytest.approx(np.mean(areas), abs=1e-9)
    else:
        assert np.isnan(found["val_auc"]), "no element that counts is of class 0"


class AsWideAsTheBatch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(x)
        return outputs if self.training else outputs.expand(-1, len(x))


def test_predictions_of_several_widths_are_named() -> None:
    def step(model: Any, batch: Any) -> dict[str, Any]:
        return {"loss": model(batch["x"])[:, :1].square().mean()}

    model = fitted(YES, model=AsWideAsTheBatch(), step=step)
    many = np.tile(X, (60, 1))[: 4096 * 3 + 1]
    with pytest.raises(
        HopyardError, match=r"gave rows of shape \(\d+,\) for one batch and \(1,\) for another, .*Pad"
    ):
        model.predict({"x": many})


def test_integers_are_taken_for_the_floats_and_integers_of_training() -> None:
    model = fitted(YES, loss=torch.nn.BCEWithLogitsLoss(), metrics=["accuracy"])
    expected = model.evaluate({"x": X, "y": YES})
    assert model.evaluate({"x": X, "y": YES.astype(np.int64)}) == expected
    assert model.evaluate({"x": X, "y": YES.astype(np.uint8)}) == expected
    ones = np.ones((5, 3))
    assert np.array_equal(model.predict(ones.astype(np.int64)), model.predict(ones))

    def step(model: Any, batch: Any) -> dict[str, Any]:
        return {"loss": model(batch["x"]).square().mean()}

    tokens = RANDOM.integers(1, 9, (ROWS, 6))
    of_tokens = fitted(YES, x=tokens, model=PerToken(), step=step)
    for dtype in ("uint8", "int8", "uint64", "float32"):
        assert np.array_equal(of_tokens.predict(tokens.astype(dtype)), of_tokens.predict(tokens))


def test_lists_of_labels_that_are_filled_are_said(caplog: pytest.LogCaptureFixture) -> None:
    lengths = RANDOM.integers(1, 7, ROWS)
    tokens = [RANDOM.integers(1, 9, length) for length in lengths]
    data = {"x": tokens, "y": [1 + each % 3 for each in tokens]}

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        loss = torch.nn.CrossEntropyLoss(ignore_index=0)
        return TorchEstimator(PerToken(), torch.optim.SGD, loss, ["accuracy"], optimizer_params={"lr": 1e-6})

    model = GridSearch(
        InlineBackend(),
        MemoryStore(),
        estimator,
        {"none": hp_choice([0])},
        1,
        feature_columns=["x"],
        label_columns=["y"],
        ragged="pad",
        num_partitions=1,
        validation=data,
        progress=False,
    ).fit(data)
    assert (
        "the lists of the label 'y' were filled with 0 up to 6 values (ragged='pad'), which count as"
        in caplog.text
    )
    scores = model.predict({"x": tokens}).argmax(axis=1)
    right = [scores[row, : lengths[row]] == data["y"][row] for row in range(ROWS)]
    assert model.get_history()["val_accuracy"][0] == pytest.approx(np.concatenate(right).mean(), abs=1e-9)
