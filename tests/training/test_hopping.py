"""Hopping gives the model that a plain PyTorch loop over the same batches gives, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from tests.sampling import diagonal, sample
from torch import nn
from torch.optim import lr_scheduler

from hopyard.objects import derive_seed
from hopyard.torch import TorchEstimator
from hopyard.training.torch.state import from_tree
from hopyard.training.unit import residents

TRIAL = 4
BATCH = 32
EPOCHS = 2
SEED = 5


class Attention(nn.Module):
    """Tokens -> embedding tied with a decoder that regularises, attention, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.decoder = nn.Linear(8, 20, bias=False)
        self.decoder.weight = self.embedding.weight
        self.head = nn.Linear(20, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return self.head(self.decoder(x.mean(dim=1)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


@dataclass
class Case:
    """A training, as arguments of the estimator and of the plain loop."""

    model: Callable[[], nn.Module]
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD
    params: dict[str, Any] = field(default_factory=lambda: {"lr": 0.05, "momentum": 0.9})
    fused: bool = True  # whether the estimator is documented to run the fused form
    scheduler: Callable[..., Any] | None = None
    interval: str = "step"
    accumulate: int = 1
    clip: float | None = None
    precision: str = "fp32"
    features: tuple[str, ...] = ("features",)

    def estimator(self, params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            self.model(), self.optimizer, nn.CrossEntropyLoss(), batch_size=BATCH,
            optimizer_params=self.params, scheduler=self.scheduler, scheduler_interval=self.interval,
            accumulate=self.accumulate, gradient_clip=self.clip, precision=self.precision,
        )  # fmt: skip


def one_cycle(optimizer: torch.optim.Optimizer, steps: int, epochs: int) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps * epochs)


def milestones(optimizer: torch.optim.Optimizer, steps: int, epochs: int) -> Any:
    warm = lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    later = lr_scheduler.MultiStepLR(optimizer, [3, 9], gamma=0.3)
    return lr_scheduler.SequentialLR(optimizer, [warm, later], [4])


def cosine(optimizer: torch.optim.Optimizer, steps: int, epochs: int) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, epochs)


CASES = {
    "sgd": Case(mlp),
    "batchnorm-dropout-adam": Case(normalized, torch.optim.Adam, {"lr": 0.01}),
    "attention-tied-adamw": Case(Attention, torch.optim.AdamW, {"lr": 0.01}, features=("tokens",)),
    "rmsprop": Case(normalized, torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}, fused=False),
    "foreach": Case(mlp, torch.optim.Adam, {"lr": 0.01, "foreach": True}, fused=False),
    "tensor-lr": Case(mlp, torch.optim.AdamW, {"lr": torch.tensor(0.01), "fused": True}, fused=False),
    "one-cycle": Case(mlp, scheduler=one_cycle),
    "sequential": Case(mlp, torch.optim.Adam, {"lr": 0.01}, scheduler=milestones, accumulate=2),
    "cosine-epoch": Case(normalized, scheduler=cosine, interval="epoch"),
    "accumulate-clip": Case(normalized, torch.optim.AdamW, {"lr": 0.01}, accumulate=3, clip=0.5),
    "bf16": Case(normalized, torch.optim.Adam, {"lr": 0.01}, precision="bf16"),
    "fp16": Case(normalized, torch.optim.Adam, {"lr": 0.01}, fused=False, precision="fp16", clip=1.0),
}


def seed_all(*parts: int | str) -> None:
    value = derive_seed(*parts)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def plain_loop(
    case: Case, partitions: list[Any], visits: list[tuple[int, int, bool]]
) -> dict[str, torch.Tensor]:
    """Serial training, written without any of the room: partitions in visit order, documented seeds."""
    seed_all(SEED, TRIAL, "init")
    model = case.model()
    optimizer = case.optimizer(model.parameters(), **case.params, **({"fused": True} if case.fused else {}))
    steps = sum(-(-len(batches_of(part, 0, 0)) // case.accumulate) for part in partitions)
    scheduler = case.scheduler(optimizer, steps, EPOCHS) if case.scheduler else None
    scaler = torch.amp.GradScaler("cpu") if case.precision == "fp16" else None
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(case.precision)
    for epoch, number, last in visits:
        seed_all(SEED, TRIAL, epoch, number, "train")
        model.train()
        batches = batches_of(partitions[number], epoch, number)
        for start in range(0, len(batches), case.accumulate):
            group = batches[start : start + case.accumulate]
            rows = sum(len(batch["label"]) for batch in group)
            optimizer.zero_grad()
            for batch in group:
                with torch.autocast("cpu", dtype) if dtype else nullcontext():
                    loss = nn.functional.cross_entropy(model(batch[case.features[0]]), batch["label"])
                loss = loss * (len(batch["label"]) / rows) if case.accumulate > 1 else loss
                (scaler.scale(loss) if scaler else loss).backward()
            if case.clip is not None:
                if scaler:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), case.clip)
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            if scheduler and case.interval == "step":
                scheduler.step()
        if scheduler and case.interval == "epoch" and last:
            scheduler.step()
    return model.state_dict()


def batches_of(partition: Any, epoch: int, number: int) -> list[dict[str, torch.Tensor]]:
    seed = derive_seed(SEED, "order", number)
    return list(partition.loader(BATCH, shuffle=True, seed=seed, epoch=epoch, tail="join", output="torch"))


@pytest.fixture
def reference(data: Any, visits: list[tuple[int, int, bool]]) -> Callable[[Case], dict[str, torch.Tensor]]:
    def run(case: Case) -> dict[str, torch.Tensor]:
        threads, state = torch.get_num_threads(), torch.get_rng_state()
        torch.set_num_threads(1)
        try:
            return plain_loop(case, data.train.partitions(3), visits)
        finally:
            torch.set_num_threads(threads)
            torch.set_rng_state(state)

    return run


def assert_same(tree: Any, expected: dict[str, torch.Tensor]) -> None:
    found = from_tree(tree["model"])
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(
    ("name", "memory"),
    sample("hops", diagonal("hopping", CASES, ["reloaded", "resident", "unsaved"]), quick=5, ci=len(CASES)),
)
def test_units_train_what_a_plain_loop_trains(
    name: str, memory: str, chain: Any, reference: Any, visits: list[tuple[int, int, bool]]
) -> None:
    case = CASES[name]
    units = chain(case.estimator, case.features, trial=TRIAL)
    for count, (epoch, partition, last) in enumerate(visits, 1):
        if memory == "reloaded":
            residents.clear()
        units.train(epoch, partition, last=last, save=memory != "unsaved" or count == len(visits))
        assert (units.ref is None) == (memory == "unsaved" and count < len(visits))
    assert_same(units.state(), reference(case))


def test_the_training_changes_the_weights_in_every_case(reference: Any) -> None:
    results = [reference(case)["0.weight"] for case in CASES.values() if case.model is not Attention]
    assert all(
        not torch.equal(first, second) for first in results for second in results if first is not second
    )
