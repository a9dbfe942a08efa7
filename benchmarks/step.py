"""Claim: a training step through Hopyard costs less than one of a plain, tuned PyTorch loop.

The 64-64-10 network, batch 256, Adam, one thread, over the same 200,000 rows of 64 float32. Peers
shuffle tensors in memory by indexing them with a permutation (the fastest plain way), zero gradients,
and read the loss of every step at the end of the pass, as Hopyard reports it too. One has PyTorch's
default Adam, one its fused form. Ours reads prepared data and includes what a unit does around
its steps, but for saving the state. Rounds alternate; medians.

One JSON object a line: name, value, unit, peer, ratio (value / the peer's value; below 1 is better).
"""

from __future__ import annotations

import json
import tempfile
import time
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from hopyard.data.preparing.prepare import prepare
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.training.program import Program, save_program
from hopyard.training.request import UnitRequest
from hopyard.training.unit import run_unit

ROWS = 200_000
BATCH = 256
ROUNDS = 7


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        network(), torch.optim.Adam, nn.CrossEntropyLoss(), batch_size=BATCH, optimizer_params={"lr": 1e-3}
    )


class Plain:
    """The plain loop, its model and optimizer kept from pass to pass."""

    def __init__(self, features: torch.Tensor, labels: torch.Tensor, **options: Any) -> None:
        self.features, self.labels = features, labels
        self.model = network()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, **options)

    def seconds_per_step(self) -> float:
        start = time.perf_counter()
        model, optimizer, loss_of = self.model, self.optimizer, nn.CrossEntropyLoss()
        losses = []
        order = torch.randperm(len(self.labels))
        for i in range(0, len(order), BATCH):
            rows = order[i : i + BATCH]
            loss = loss_of(model(self.features[rows]), self.labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        assert torch.isfinite(torch.stack(losses).mean())
        return (time.perf_counter() - start) / len(losses)


class Ours:
    """One partition after another as units whose state stays in memory."""

    def __init__(self, folder: str, columns: dict[str, np.ndarray]) -> None:
        train = prepare(columns, LocalStore(f"{folder}/data"), validation=0.01).train
        self.program = Program(estimator, ("features",), ("label",), train, None, 8, 1, seed=0, device="cpu")
        self.store = LocalStore(f"{folder}/run")
        self.name = save_program(self.store, self.program)
        self.steps = sum(len(part.loader(BATCH, tail="join")) for part in self.program.train_partitions)
        self.position = 0

    def seconds_per_step(self) -> float:
        start = time.perf_counter()
        for partition in range(8):
            request = UnitRequest(
                self.store, self.name, (0,), ({},), "train", 0, partition, self.position, (None,), save=False
            )
            error = run_unit(request).errors[0]
            assert error is None, error.describe()
            self.position += 1
        return (time.perf_counter() - start) / self.steps


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((ROWS, 64), dtype=np.float32)
    label = (features @ rng.standard_normal((64, 10))).argmax(axis=1)
    tensors = torch.from_numpy(features), torch.from_numpy(label)
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "ours": Ours(folder, {"features": features, "label": label}),
            "a plain loop with default Adam": Plain(*tensors),
            "a plain loop with fused Adam": Plain(*tensors, fused=True),
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():
            run.seconds_per_step()
        for _ in range(ROUNDS):
            for name, run in runs.items():
                seconds[name].append(run.seconds_per_step())
    own = median(seconds.pop("ours"))
    for peer, values in seconds.items():
        line = {"name": "training step", "value": round(own * 1e6, 1), "unit": "us", "peer": peer}
        print(json.dumps({**line, "ratio": round(own / median(values), 3)}))


if __name__ == "__main__":
    main()
