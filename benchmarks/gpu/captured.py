"""Claim: on a GPU, small networks train several times as fast with captured steps, to the same bits.

Seconds that an epoch of a partition takes, of several networks of each kind, all on one GPU, after a first epoch:

* 128 networks 692-100-1, batch 256, fp32; 32 convolutional networks on 3x32x32, batch 128, bf16; 4 ResNet-18 on
  3x32x32, batch 128, bf16; Adam in its fused form;
* ours, with ``packing="graph"`` and ``"streams"``, and one by one; weights of the last are compared, to the bit;
* the peers, one network after another over batches that are on the GPU: eager PyTorch, and a whole step captured by
  hand (forward, backward and a capturable optimizer in one graph).

``--device cpu`` runs what needs no GPU, on a few networks, to try the script. One JSON object a line: name, value,
unit, peer, ratio (value / the peer's value; below 1 is better).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from hopyard.torch import TorchEstimator
from hopyard.training.estimator import Context, OneBatch, Visit
from hopyard.training.session import Session

BATCHES = 100


class Case(NamedTuple):
    count: int
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    precision: str
    loss: nn.Module


class Rows(OneBatch):
    """Rows in memory, in batches in their order."""

    def batches(
        self, batch_size: int, *given: Any, columns: Any = None, **options: Any
    ) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self), batch_size):
            yield {name: self._columns[name][start : start + batch_size] for name in columns or self._columns}


def convolutional() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64)):
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.first(x) + self.short(x))


def resnet18() -> nn.Module:
    blocks: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Residual(inputs, outputs, stride), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


CASES = {
    "128 networks 692-100-1, fp32": Case(
        128,
        lambda: nn.Sequential(nn.Linear(692, 100), nn.ReLU(), nn.Linear(100, 1)),
        (692,),
        256,
        "fp32",
        nn.MSELoss(),
    ),
    "32 convolutional networks, bf16": Case(
        32, convolutional, (3, 32, 32), 128, "bf16", nn.CrossEntropyLoss()
    ),
    "4 ResNet-18, bf16": Case(4, resnet18, (3, 32, 32), 128, "bf16", nn.CrossEntropyLoss()),
}


def columns_of(case: Case, batches: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    x = random.standard_normal((batches * case.batch, *case.shape), dtype=np.float32)
    if isinstance(case.loss, nn.MSELoss):
        return {"x": x, "y": random.standard_normal((len(x), 1), dtype=np.float32)}
    return {"x": x, "y": random.integers(0, 10, len(x))}


def seconds(do: Callable[[], Any], device: str) -> float:
    for _ in range(2):  # the first time for what has to be prepared
        begun = time.perf_counter()
        do()
        if device == "cuda":
            torch.cuda.synchronize()
    return time.perf_counter() - begun


def ours(case: Case, columns: dict[str, Any], device: str, streams: int) -> tuple[float, list[torch.Tensor]]:
    """Seconds of an epoch of all networks, and the weights after two."""
    with Session(1):
        replicas = []
        for number in range(case.count):
            torch.manual_seed(number)
            estimator = TorchEstimator(
                case.model(), torch.optim.Adam, case.loss, batch_size=case.batch, precision=case.precision,
                optimizer_params={"lr": 1e-4 * (1 + number)},
            )  # fmt: skip
            context = Context(("x",), ("y",), device, (len(columns["x"]),), 2, graph_streams=streams)
            replicas.append(estimator.replica(context))
        visit = Visit(Rows(columns), 0, epoch=1, partition=0, last=False)

        def epoch() -> None:
            if streams:
                found = type(replicas[0]).train_together(replicas, visit, list(range(case.count)))
                assert found is not None, replicas[0].trains_alone
                for each in found:
                    if isinstance(each, Exception):
                        raise each
                return
            for number, replica in enumerate(replicas):
                torch.manual_seed(number)
                replica.train(visit)

        taken = seconds(epoch, device)
        return taken, [
            parameter.detach().clone() for replica in replicas for parameter in replica.module.parameters()
        ]


def by_hand(case: Case, columns: dict[str, Any], device: str, captured: bool) -> float:
    """Seconds of an epoch of all networks in plain PyTorch, one network after another."""
    x, y = (torch.as_tensor(columns[name], device=device) for name in ("x", "y"))
    autocast = torch.autocast(device, torch.bfloat16, enabled=case.precision == "bf16", cache_enabled=False)
    steps = []
    for _ in range(case.count):
        model = case.model().to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True, capturable=captured)

        def step(
            rows: torch.Tensor, labels: torch.Tensor, model: Any = model, optimizer: Any = optimizer
        ) -> None:
            optimizer.zero_grad(set_to_none=True)
            with autocast:
                loss = case.loss(model(rows), labels)
            loss.backward()
            optimizer.step()

        steps.append(graphed(step, x[: case.batch], y[: case.batch]) if captured else step)

    def epoch() -> None:
        for step in steps:
            for start in range(0, len(x), case.batch):
                step(x[start : start + case.batch], y[start : start + case.batch])

    return seconds(epoch, device)


def graphed(step: Callable[..., None], rows: torch.Tensor, labels: torch.Tensor) -> Callable[..., None]:
    rows, labels = rows.clone(), labels.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(rows, labels)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(rows, labels)

    def replayed(x: torch.Tensor, y: torch.Tensor) -> None:
        rows.copy_(x)
        labels.copy_(y)
        graph.replay()

    return replayed


def show(name: str, value: float, peer: str | None, ratio: float | None) -> None:
    line = {"name": name, "value": round(value, 4), "unit": "s", "peer": peer}
    print(json.dumps({**line, "ratio": None if ratio is None else round(ratio, 3)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    device = parser.parse_args().device
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "PyTorch sees no GPU here: run this where there is one, or try the script by --device cpu."
        )
    for name, case in CASES.items():
        if device == "cpu":
            case = case._replace(count=2, batch=16)
        columns = columns_of(case, BATCHES if device == "cuda" else 2)
        eager = by_hand(case, columns, device, captured=False)
        show(f"{name}: eager PyTorch", eager, None, None)
        alone, weights = ours(case, columns, device, 0)
        show(f"{name}: ours, one by one", alone, "eager PyTorch", alone / eager)
        if device == "cpu":
            continue
        limit = by_hand(case, columns, device, captured=True)
        show(f"{name}: whole steps captured by hand", limit, "eager PyTorch", limit / eager)
        for packing, streams in (("graph", 1), ("streams", 4)):
            taken, own = ours(case, columns, device, streams)
            assert all(map(torch.equal, own, weights)), f"packing={packing!r} has other weights"
            show(f"{name}: ours, {packing}", taken, "eager PyTorch", taken / eager)
            show(f"{name}: ours, {packing}", taken, "whole steps captured by hand", taken / limit)


if __name__ == "__main__":
    main()
