"""Searches over adapters of one base train what plain PEFT trains, bit for bit, and keep the base once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from tests.long.test_hopping_equals_serial import EPOCHS, SEED, Recipe, as_on_a_worker, train
from tests.long.test_kill import WALK
from tests.sampling import moments
from torch import nn

from hopyard.backend import InlineBackend
from hopyard.data import open_dataset, prepare
from hopyard.hopper.removal import remove_run
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, Model, hp_choice, load_model
from hopyard.tune.listing import find_run

peft = pytest.importorskip("peft")

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

WIDTH, ROWS = 96, 240


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

    def estimator(self) -> TorchEstimator:
        return TorchEstimator(
            self.inject, self.optimizer, nn.CrossEntropyLoss(), ["accuracy"], 16, self.params, base=self.base
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


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((ROWS, 6)).astype(np.float32)
    label = np.digitize(features[:, 0] + features[:, 1], [-0.4, 0.4]).astype(np.int64)
    return {
        "features": features,
        "tokens": rng.integers(0, 40, (ROWS, 5)),
        "label": label,
        "held_out": np.arange(ROWS) % 6 == 0,
    }


def search(backend: Any, store: LocalStore, data: Any, partitions: int = 3) -> Model:
    return GridSearch(
        backend, store, make, {"recipe": hp_choice(list(RECIPES))}, EPOCHS, seed=SEED, num_partitions=partitions,
        validation="held_out", feature_columns=["features", "tokens"], evaluation_metric="loss", progress=False,
        keep="all",
    ).fit(data)  # fmt: skip


@pytest.fixture(scope="module")
def found(data: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalStore, Model]:
    """The search in this process, and its store."""
    store = LocalStore(tmp_path_factory.mktemp("adapters"))
    return store, search(InlineBackend(), store, data)


@pytest.fixture(scope="module")
def serial(data: Any, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, torch.Tensor]]]:
    store = LocalStore(tmp_path_factory.mktemp("reference"))
    prepare(data, store, validation="held_out", seed=SEED,
            feature_columns=["features", "tokens"], label_columns=["label"])  # fmt: skip
    dataset = open_dataset(store, "train")
    with as_on_a_worker():
        return [train(recipe, trial, dataset, 3) for trial, recipe in enumerate(RECIPES.values())]


def test_adapters_are_those_of_plain_peft(
    found: Any, serial: Any, data: Any, local: Any, tmp_path: Path
) -> None:
    for model in (found[1], search(local, LocalStore(tmp_path), data)):
        assert model.run.broken_rules() == []
        for each in model.get_all_models():
            weights = serial[each.trial][each.info.epoch - 1]
            state = each.torch().state_dict()
            assert list(state) == list(weights)
            for key, tensor in weights.items():
                assert torch.equal(state[key], tensor), (each.params, key)
        assert len(model.get_all_models()) == len(RECIPES)


def test_the_store_has_the_base_once_and_else_what_was_trained(found: Any) -> None:
    store, model = found
    base = sum(parameter.nbytes for parameter in network().parameters())
    sizes = {entry.name: entry.size for entry in store.runs.list()}
    shared = sum(size for name, size in sizes.items() if name.startswith("_frozen/"))
    assert base < shared < 1.1 * base + 20_000
    kept = 0
    for each in model.get_all_models():
        trained = sum(p.nbytes for p in each.torch().parameters() if p.requires_grad)
        kept += 4 * trained  # best weights; the last state: weights and two moments
    states = sum(size for name, size in sizes.items() if name.endswith(".safetensors")) - shared
    assert states < 1.1 * kept + 2 * len(RECIPES) * 6_000  # lists of tensors
    assert sum(size for name, size in sizes.items() if "/program/" in name) < 2 * 60_000


def test_models_of_adapters_are_saved_whole(found: Any, data: Any, tmp_path: Path) -> None:
    model = found[1]
    expected = model.predict({name: data[name][:9] for name in ("features", "tokens")})
    model.save(tmp_path / "saved")
    assert not (tmp_path / "saved" / "_frozen").exists()
    again = load_model(tmp_path / "saved")
    assert np.array_equal(again.predict({name: data[name][:9] for name in ("features", "tokens")}), expected)
    assert all(torch.equal(a, b) for a, b in zip(again.torch().state_dict().values(),
                                                 model.torch().state_dict().values(), strict=True))  # fmt: skip


def test_what_runs_share_goes_with_the_last_of_them(data: Any, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    runs = [
        GridSearch(
            InlineBackend(), store, make, {"recipe": hp_choice(["LoRA, another rank"])}, 1, seed=seed,
            feature_columns=["features", "tokens"], label_columns=["label"], evaluation_metric="loss", progress=False,
        ).fit({name: data[name] for name in ("features", "tokens", "label")}).run.run_id
        for seed in (1, 2)
    ]  # fmt: skip
    frozen = [name for name in store.runs.names("_frozen") if name.endswith(".safetensors")]
    remove_run(find_run(store, runs[0]))
    assert all(store.runs.exists(name) for name in frozen)
    assert find_run(store, runs[1]).names()
    remove_run(find_run(store, runs[1]))
    assert not any(store.runs.exists(name) for name in frozen)


def test_a_driver_killed_at_any_write_goes_on_to_the_same_adapters(tmp_path: Path) -> None:
    """So also while it writes the base."""
    begin, end = WALK.index("def estimator"), WALK.index("def fit(")
    walk = (
        WALK[:begin]
        + (
            "base = torch.nn.Sequential(torch.nn.Linear(4, 150), torch.nn.ReLU(), torch.nn.Linear(150, 150))\n"
            "def adapted(base):\n"
            "    return torch.nn.Sequential(base, torch.nn.Dropout(0.1), torch.nn.Linear(150, 2))\n"
            "def estimator(params):\n"
            "    return TorchEstimator(adapted, torch.optim.Adam, torch.nn.CrossEntropyLoss(), ['accuracy'],\n"
            "                          params['batch'], {'lr': params['lr']}, base=base)\n"
        )
        + WALK[end:]
    )
    at = json.dumps([1 + moment for moment in islice(moments("adapters", quick=9, ci=6), 999)])
    done = subprocess.run(
        [sys.executable, "-c", walk, str(tmp_path), at], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 25
    files = [path for path in tmp_path.rglob("*.safetensors") if "_frozen" in path.parts]
    sizes = {path.name: path.stat().st_size for path in files}
    assert len(sizes) <= 3  # large weights, small ones, biases
    assert sum(sizes.values()) < 4 * (4 * 150 + 150 * 150 + 2 * 150) + len(sizes) * 6_000
