"""Adapters over one base, as searches and a plain loop with PEFT train them; for every kind of backend."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from tests.long.test_hopping_equals_serial import EPOCHS, SEED, Recipe, as_on_a_worker, train
from torch import nn

from hopyard.data import open_dataset, prepare
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, Model, hp_choice

peft = pytest.importorskip("peft")

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

WIDTH, ROWS, PARTITIONS = 96, 240, 3


class Network(nn.Module):
    """Tokens and features through attention, whose output shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, WIDTH)
        self.query, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.tokens = nn.Linear(WIDTH, 40, bias=False)
        self.tokens.weight = self.embedding.weight
        self.head = nn.Linear(40 + 6, 3)

    def forward(self, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        attended = torch.softmax(self.query(x) @ x.transpose(1, 2), -1) @ self.value(x)
        x = self.norm(x + self.dropout(attended))
        return torch.as_tensor(self.head(torch.cat([self.tokens(x.mean(dim=1)), features], dim=1)))


def network() -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return Network()


GIVEN = network()


@dataclass(frozen=True)
class Adapted(Recipe):
    """A training of what is added to a base."""

    model: Callable[[], nn.Module] = nn.Module
    inject: Callable[[nn.Module], nn.Module] = nn.Module
    base: Any = network
    optimizer: Any = torch.optim.Adam
    params: dict[str, Any] = field(default_factory=lambda: {"lr": 0.01})

    def estimator(self, **more: Any) -> TorchEstimator:
        return TorchEstimator(
            self.inject,
            self.optimizer,
            nn.CrossEntropyLoss(),
            ["accuracy"],
            16,
            self.params,
            base=self.base,
            **more,
        )


def adapted(config: Any, base: Any = network, unfrozen: str = "", **more: Any) -> Adapted:
    def inject(module: nn.Module) -> nn.Module:
        made: nn.Module = peft.get_peft_model(module, config())
        for name, parameter in made.named_parameters():
            if unfrozen and unfrozen in name:
                parameter.requires_grad_(True)
        return made

    return Adapted(model=lambda: inject(network()), inject=inject, base=base, **more)


def lora(**options: Any) -> Callable[[], Any]:
    return lambda: peft.LoraConfig(**{"r": 4, "target_modules": ["query", "value"], **options})


RECIPES = {
    "LoRA with dropout": adapted(lora(lora_dropout=0.1), GIVEN),
    "LoRA, another rank": adapted(lora(r=2), GIVEN, params={"lr": 0.02}),
    "DoRA": adapted(lora(use_dora=True)),
    "IA3": adapted(lambda: peft.IA3Config(target_modules=["value"], feedforward_modules=[])),
    "LoRA and a norm": adapted(lora(), unfrozen="norm"),
    "LoRA and a head": adapted(lora(modules_to_save=["head"]), optimizer=torch.optim.AdamW),
}


def make(params: dict[str, Any]) -> TorchEstimator:
    return RECIPES[params["recipe"]].estimator()


def rows() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((ROWS, 6)).astype(np.float32)
    return {
        "features": features,
        "tokens": rng.integers(0, 40, (ROWS, 5)),
        "label": np.digitize(features[:, 0] + features[:, 1], [-0.4, 0.4]).astype(np.int64),
        "held_out": np.arange(ROWS) % 6 == 0,
    }


def search(
    backend: Any,
    store: Any,
    recipes: list[str] | None = None,
    estimator_gen_fn: Callable[[dict[str, Any]], TorchEstimator] = make,
    **more: Any,
) -> Model:
    """The outcome of a search over recipes (None: all)."""
    return GridSearch(
        backend, store, estimator_gen_fn, {"recipe": hp_choice(recipes or list(RECIPES))}, EPOCHS, seed=SEED,
        num_partitions=PARTITIONS, validation="held_out", feature_columns=["features", "tokens"],
        evaluation_metric="loss", progress=False, keep="all", **more,
    ).fit(rows())  # fmt: skip


def by_hand(folder: Path, recipes: list[str] | None = None) -> list[list[dict[str, torch.Tensor]]]:
    """The weights of each recipe after each epoch of a plain loop with PEFT, in one process."""
    store = LocalStore(folder)
    prepare(rows(), store, validation="held_out", seed=SEED,
            feature_columns=["features", "tokens"], label_columns=["label"])  # fmt: skip
    dataset = open_dataset(store, "train")
    with as_on_a_worker():
        return [
            train(RECIPES[name], trial, dataset, PARTITIONS) for trial, name in enumerate(recipes or RECIPES)
        ]


def check(model: Model, expected: list[list[dict[str, torch.Tensor]]]) -> None:
    """Compare the models of a search with those of the plain loop, to the last bit."""
    assert model.run.broken_rules() == []
    models = model.get_all_models()
    assert len(models) == len(expected)
    for each in models:
        weights, state = expected[each.trial][each.info.epoch - 1], each.torch().state_dict()
        assert list(state) == list(weights)
        for key, tensor in weights.items():
            assert torch.equal(state[key], tensor), (each.params, key)
