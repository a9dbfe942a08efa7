"""What tests of this room share: a prepared dataset, and chains of units through a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.data.dataset import Dataset
from hopyard.data.preparing.prepare import prepare
from hopyard.objects import StateRef, load_state
from hopyard.storage import LocalStore, Store
from hopyard.training.program import Program, save_program
from hopyard.training.request import UnitRequest, UnitResult
from hopyard.training.unit import residents, run_unit

PARTITIONS = 3
EPOCHS = 2


@pytest.fixture(autouse=True)
def _nothing_resident() -> None:
    residents.clear()


@dataclass
class Prepared:
    """Training and validation data, and the columns they were made of."""

    train: Dataset
    val: Dataset


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """700 training rows (partitions end with short batches) and 140 validation rows."""
    rng = np.random.default_rng(0)
    rows = 840
    features = rng.standard_normal((rows, 12)).astype(np.float32)
    score = features[:, 0] + 0.5 * features[:, 1] * features[:, 2]
    columns = {
        "features": features,
        "tokens": rng.integers(0, 20, (rows, 6)),
        "label": np.digitize(score, [-0.5, 0.5]).astype(np.int64),
        "target": score.astype(np.float64),
        "weight": rng.uniform(0.1, 2.0, rows),
        "held_out": np.arange(rows) % 6 == 0,
    }
    made = prepare(columns, LocalStore(tmp_path_factory.mktemp("data")), validation="held_out")
    assert made.val is not None
    return Prepared(made.train, made.val)


class Chain:
    """A trial's units, one after another, with the state between them where the request says."""

    def __init__(self, store: Store, program: Program, params: dict[str, Any], trial: int = 0) -> None:
        self.store = store
        self.program = program
        self.name = save_program(store, program)
        self.params = params
        self.trial = trial
        self.position = 0
        self.ref: StateRef | None = None
        self.results: list[UnitResult] = []

    def request(self, phase: str, epoch: int, partition: int, **options: Any) -> UnitRequest:
        return UnitRequest(
            self.store, self.name, (self.trial,), (self.params,), phase, epoch, partition,
            self.position, (self.ref,), **options,
        )  # fmt: skip

    def train(self, epoch: int, partition: int, **options: Any) -> UnitResult:
        result = run_unit(self.request("train", epoch, partition, **options))
        if result.errors[0] is not None:
            raise AssertionError(result.errors[0].describe())
        self.position += 1
        self.ref = result.states[0]
        self.results.append(result)
        return result

    def validate(self, epoch: int) -> dict[str, float]:
        carried: tuple[dict[str, Any], ...] = ()
        count = len(self.program.val_partitions)
        for partition in range(count):
            last = partition == count - 1
            request = self.request("validate", epoch, partition, last=last, carried=(carried,))
            result = run_unit(request)
            if result.errors[0] is not None:
                raise AssertionError(result.errors[0].describe())
            carried = (*carried, result.metrics[0])
        values: dict[str, float] = result.metrics[0]["values"]
        return values

    def state(self) -> Any:
        assert self.ref is not None
        return load_state(self.store.at(f"{self.trial:05d}"), self.ref)


@pytest.fixture
def chain(tmp_path: Path, data: Prepared) -> Callable[..., Chain]:
    """Makes a chain for an estimator function over the prepared data."""

    def make(
        estimator_gen_fn: Callable[[dict[str, Any]], Any],
        features: tuple[str, ...] = ("features",),
        labels: tuple[str, ...] = ("label",),
        trial: int = 0,
        folder: str = "run",
        **params: Any,
    ) -> Chain:
        program = Program(
            estimator_gen_fn, features, labels, data.train, data.val, PARTITIONS, EPOCHS, seed=5, device="cpu"
        )
        return Chain(LocalStore(tmp_path / folder), program, params, trial)

    return make


@pytest.fixture
def visits() -> list[tuple[int, int, bool]]:
    """(epoch, partition, last) in an order that differs between epochs."""
    orders = [[2, 0, 1], [0, 1, 2]]
    return [
        (epoch, partition, place == PARTITIONS - 1)
        for epoch, order in enumerate(orders)
        for place, partition in enumerate(order)
    ]
