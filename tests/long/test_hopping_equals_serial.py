"""Whole searches, on any backend, workers and partitions, train what a plain PyTorch loop trains: bit for bit.

The loop below shares with the product only what is documented: ``derive_seed``, ``rotating_order`` and the loader
of a partition. Everything else it does itself, in one process, one trial after the other.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from tests.sampling import sample
from torch import nn
from torch.optim import lr_scheduler

from hopyard.backend import InlineBackend
from hopyard.data import open_dataset, prepare
from hopyard.hopper.orders import rotating_order
from hopyard.objects import derive_seed
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

BATCH, EPOCHS, SEED, ROWS = 16, 2, 3, 420


class Attention(nn.Module):
    """Embedded tokens, attention with dropout, and an output that shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.tokens = nn.Linear(8, 12, bias=False)
        self.tokens.weight = self.embedding.weight
        self.head = nn.Linear(12 + 6, 3)

    def forward(self, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return self.head(torch.cat([self.tokens(x.mean(dim=1)), features], dim=1))


class Convolution(nn.Module):
    """Batch normalisation and both kinds of dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout1d(0.2), nn.Flatten(), nn.Dropout(0.2)
        )
        self.head = nn.LazyLinear(3)
        self.head(self.layers(torch.zeros(2, 1, 6)))

    def forward(self, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(features[:, None]))


def one_cycle(optimizer: torch.optim.Optimizer, steps_per_epoch: int, num_epochs: int) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps_per_epoch * num_epochs)


def halving(optimizer: torch.optim.Optimizer, steps_per_epoch: int, num_epochs: int) -> Any:
    return lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


@dataclass(frozen=True)
class Recipe:
    """A training, as arguments of the estimator and of the plain loop."""

    model: Callable[[], nn.Module]
    optimizer: Any = torch.optim.SGD
    params: dict[str, Any] = field(default_factory=lambda: {"lr": 0.05, "momentum": 0.9})
    scheduler: Any = None
    interval: str = "step"
    accumulate: int = 1
    clip: float | None = None

    def estimator(self) -> TorchEstimator:
        return TorchEstimator(
            self.model(), self.optimizer, nn.CrossEntropyLoss(), ["accuracy"], BATCH, self.params,
            scheduler=self.scheduler, scheduler_interval=self.interval,
            accumulate=self.accumulate, gradient_clip=self.clip,
        )  # fmt: skip


RECIPES = {
    "convolution, momentum, one cycle": Recipe(Convolution, scheduler=one_cycle),
    "attention, Adam, accumulated": Recipe(Attention, torch.optim.Adam, {"lr": 0.01}, accumulate=3, clip=0.5),
    "convolution, AdamW, by epoch": Recipe(
        Convolution, torch.optim.AdamW, {"lr": 0.02}, halving, "epoch", accumulate=2
    ),
    "attention, RMSprop": Recipe(Attention, torch.optim.RMSprop, {"lr": 0.005, "momentum": 0.5}),
}


def make(params: dict[str, Any]) -> TorchEstimator:
    return RECIPES[params["recipe"]].estimator()


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((ROWS, 6)).astype(np.float32)
    tokens = rng.integers(0, 12, (ROWS, 5))
    label = np.digitize(features[:, 0] + features[:, 1] * features[:, 2], [-0.4, 0.4]).astype(np.int64)
    return {"features": features, "tokens": tokens, "label": label, "held_out": np.arange(ROWS) % 7 == 0}


@pytest.fixture(scope="module")
def prepared(data: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The training data as it is prepared for every search below."""
    store = LocalStore(tmp_path_factory.mktemp("reference"))
    prepare(data, store, validation="held_out", seed=SEED,
            feature_columns=["features", "tokens"], label_columns=["label"])  # fmt: skip
    return open_dataset(store, "train")


@contextmanager
def as_on_a_worker() -> Any:
    """One thread and deterministic algorithms; afterwards all generators as before."""
    threads, states = (
        torch.get_num_threads(),
        (random.getstate(), np.random.get_state(), torch.get_rng_state()),
    )
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def seed_all(*parts: int | str) -> None:
    value = derive_seed(*parts)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def train(recipe: Recipe, trial: int, dataset: Any, partitions: int) -> list[dict[str, torch.Tensor]]:
    """The weights after each epoch of serial training."""
    parts, order = dataset.partitions(partitions), rotating_order(partitions, partitions, SEED)
    seed_all(SEED, trial, "init")
    model = recipe.model()
    fused = {} if recipe.optimizer is torch.optim.RMSprop else {"fused": True}
    optimizer = recipe.optimizer(model.parameters(), **recipe.params, **fused)

    def batches_of(number: int, epoch: int) -> list[dict[str, torch.Tensor]]:
        seed = derive_seed(SEED, "order", number)
        options = {"shuffle": True, "seed": seed, "epoch": epoch, "tail": "join", "output": "torch"}
        return list(parts[number].loader(BATCH, **options))

    steps = sum(-(-len(batches_of(number, 0)) // recipe.accumulate) for number in range(partitions))
    scheduler = recipe.scheduler(optimizer, steps, EPOCHS) if recipe.scheduler else None
    weights = []
    for epoch in range(EPOCHS):
        for number in order(trial % partitions, epoch):
            seed_all(SEED, trial, epoch, number, "train")
            model.train()
            batches = batches_of(number, epoch)
            for start in range(0, len(batches), recipe.accumulate):
                group = batches[start : start + recipe.accumulate]
                rows = sum(len(batch["label"]) for batch in group)
                optimizer.zero_grad()
                for batch in group:
                    outputs = model(batch["features"], batch["tokens"])
                    loss = nn.functional.cross_entropy(outputs, batch["label"])
                    (loss * (len(batch["label"]) / rows) if recipe.accumulate > 1 else loss).backward()
                if recipe.clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
                optimizer.step()
                if scheduler and recipe.interval == "step":
                    scheduler.step()
        if scheduler and recipe.interval == "epoch":
            scheduler.step()
        weights.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    return weights


@pytest.fixture(scope="module")
def serial(prepared: Any) -> Callable[[int], list[list[dict[str, torch.Tensor]]]]:
    known: dict[int, list[list[dict[str, torch.Tensor]]]] = {}

    def run(partitions: int) -> list[list[dict[str, torch.Tensor]]]:
        if partitions not in known:
            with as_on_a_worker():
                recipes = enumerate(RECIPES.values())
                known[partitions] = [train(r, trial, prepared, partitions) for trial, r in recipes]
        return known[partitions]

    return run


@pytest.fixture(scope="module")
def backends(local: Any, local_of_three: Any) -> dict[str, Any]:
    return {"inline": InlineBackend(), "local-2": local, "local-3": local_of_three}


@pytest.mark.parametrize(
    ("name", "partitions"),
    sample("hops", itertools.product(["inline", "local-2", "local-3"], [1, 2, 4, 8]), quick=3, ci=5),
)
def test_a_search_trains_what_a_plain_loop_trains(
    name: str, partitions: int, data: Any, serial: Any, backends: Any, tmp_path: Path
) -> None:
    every = "unit" if partitions in (1, 4) else "epoch"
    model = GridSearch(
        backends[name], LocalStore(tmp_path), make, {"recipe": hp_choice(list(RECIPES))}, EPOCHS, seed=SEED,
        num_partitions=partitions, validation="held_out", feature_columns=["features", "tokens"],
        evaluation_metric="loss", checkpoint_every=every, progress=False,
    ).fit(data)  # fmt: skip
    assert model.run.broken_rules() == []
    assert set(model.schedule()["worker"]) <= set(range(backends[name].num_workers))
    expected = serial(partitions)
    for found in model.get_all_models():
        weights = expected[found.trial][found.info.epoch - 1]
        state = found.torch().state_dict()
        assert list(state) == list(weights)
        for key, tensor in weights.items():
            assert torch.equal(state[key], tensor), (found.params, key)
    assert len(model.get_all_models()) == len(RECIPES)


def test_the_number_of_partitions_and_the_epoch_change_the_weights(serial: Any) -> None:
    for trial in range(len(RECIPES)):
        last = [serial(partitions)[trial][-1]["head.weight"] for partitions in (1, 2, 4, 8)]
        last.append(serial(2)[trial][0]["head.weight"])
        assert all(not torch.equal(a, b) for i, a in enumerate(last) for b in last[:i])
