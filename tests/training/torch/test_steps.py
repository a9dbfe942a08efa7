"""Steps of the user's own: weights of batches, another step for validation, and no label columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from hopyard.backend import InlineBackend
from hopyard.errors import EstimatorError, TrialError
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, Run, hp_choice

ROWS, LENGTH, WORDS = 40, 6, 5


def texts() -> dict[str, np.ndarray[Any, Any]]:
    """Rows of tokens; behind the end of a text they are -100."""
    random = np.random.default_rng(3)
    tokens = random.integers(0, WORDS, (ROWS, LENGTH))
    ends = random.integers(1, LENGTH + 1, ROWS)
    ends[:4] = 0  # no token at all
    return {"tokens": np.where(np.arange(LENGTH) < ends[:, None], tokens, -100)}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Embedding(WORDS, WORDS)


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean over the tokens that are there, and their number."""
    outputs = model(tokens.clamp(min=0))
    count = tokens.ne(-100).sum()
    total = cross_entropy(outputs.transpose(1, 2), tokens, ignore_index=-100, reduction="sum")
    return total / count.clamp(min=1), count


def by_tokens(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
    loss, count = loss_of(model, batch["tokens"])
    return {"loss": loss, "twice": 2 * loss.detach(), "weight": count}


def search(folder: Path, step: Any = by_tokens, metric: str = "loss", **changes: Any) -> Run:
    arguments = {"batch_size": 4, "metrics": ["twice"], **changes}

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            network(), lambda model: torch.optim.SGD(model.parameters(), lr=0.5), step=step, **arguments
        )

    found = GridSearch(
        InlineBackend(),
        LocalStore(folder),
        estimator,
        {"seed": hp_choice([0])},
        2,
        feature_columns=["tokens"],
        label_columns=[],
        evaluation_metric=metric,
        mode="max" if metric == "twice" else None,
        validation=0.25,
        num_partitions=1,
        progress=False,
    )
    return found.fit(texts()).run


def batches_of(run: Run, folder: Path, epoch: int) -> list[torch.Tensor]:
    from hopyard.data import open_dataset
    from hopyard.objects import derive_seed

    train = open_dataset(LocalStore(folder), "train").partitions(1)[0]
    seed = derive_seed(run.state.header["seed"], "order", 0)
    loader = train.batches(4, shuffle=True, seed=seed, tail="join", epoch=epoch)
    return [torch.as_tensor(batch["tokens"]) for batch in loader]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_weights_count_in_steps_in_epochs_and_in_validation(accumulate: int, tmp_path: Path) -> None:
    run = search(tmp_path, accumulate=accumulate)
    (trial,) = run.state.trials.values()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(2):
        batches, total, weight = batches_of(run, tmp_path, epoch), 0.0, 0
        for first in range(0, len(batches), accumulate):
            group = torch.cat(batches[first : first + accumulate])
            for batch in batches[first : first + accumulate]:
                with torch.no_grad():
                    loss, count = loss_of(model, batch)
                total, weight = total + float(loss * count), weight + int(count)
            optimizer.zero_grad()
            loss_of(model, group)[0].backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert trial.history["train_loss"][epoch] == pytest.approx(total / weight, rel=1e-5)
        assert trial.history["train_twice"][epoch] == pytest.approx(2 * total / weight, rel=1e-5)
        from hopyard.data import open_dataset

        held = torch.as_tensor(open_dataset(LocalStore(tmp_path), "val")[:]["tokens"])
        with torch.no_grad():
            expected = float(loss_of(model, held)[0])
        assert trial.history["val_loss"][epoch] == pytest.approx(expected, rel=1e-5)
        assert trial.history["val_twice"][epoch] == pytest.approx(2 * expected, rel=1e-5)
    found = run.best.torch().state_dict()["weight"] if trial.best and trial.best.epoch == 2 else None
    if found is not None:
        torch.testing.assert_close(found, model.state_dict()["weight"], rtol=1e-5, atol=1e-6)


def test_another_step_validates(tmp_path: Path) -> None:
    def validate(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
        assert not model.training
        assert not torch.is_grad_enabled()
        return {"twice": float(len(batch["tokens"]))}

    run = search(tmp_path, metric="twice", validate_step=validate)
    (trial,) = run.state.trials.values()
    assert "val_loss" not in trial.history
    assert trial.history["val_twice"] == pytest.approx([(4 * 4 + 4 * 4 + 2 * 2) / 10] * 2)


@pytest.mark.parametrize(
    ("step", "changes", "message"),
    [
        (
            lambda model, batch: {"loss": loss_of(model, batch["tokens"])[0], "weight": torch.ones(2)},
            {},
            r"returned a tensor of shape \(2,\) as 'weight', but it must be one number of at least 0 without gradient",
        ),
        (
            lambda model, batch: {"loss": loss_of(model, batch["tokens"])[0], "weight": -1},
            {},
            r"returned -1 as 'weight', but .* Return labels\.ne\(-100\)\.sum\(\)",
        ),
        (
            by_tokens,
            {"validate_step": lambda model, batch: 3},
            r"validate_step=fn\(model, batch\) returned int, but must return a dict of metrics",
        ),
    ],
)
def test_what_steps_return_wrongly_is_named(step: Any, changes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(TrialError, match=message):
        search(tmp_path, step, metrics=[], **changes)


def test_a_step_for_validation_alone_is_refused() -> None:
    with pytest.raises(
        EstimatorError, match=r"validate_step was given without step, whose place it takes\. Give step="
    ):
        TorchEstimator(network(), torch.optim.SGD, torch.nn.CrossEntropyLoss(), validate_step=by_tokens)


def test_a_loss_needs_label_columns(tmp_path: Path) -> None:
    with pytest.raises(
        TrialError, match=r"label_columns is \[\], but loss= compares outputs with labels\. Name their"
    ):
        search(tmp_path, None, metrics=[], loss=torch.nn.CrossEntropyLoss())
