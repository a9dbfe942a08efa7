"""What workers on machines of their own send and receive, counted where the bytes pass and not by Hopyard: states
that the worker lacks, far data once, and nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from tests.wire import Namespace, Wire, namespaces

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.data import open_dataset, prepare
from hopyard.storage import LocalStore, ObjectStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file

WIDTH, HIDDEN, ROWS = 4096, 256, 256
CHANGED = (
    2 * 4 * (HIDDEN * WIDTH + WIDTH)
)  # bytes of the head's weights and biases and their momentum: 8.4 MB
ROW = 4 * WIDTH + 8  # bytes


def rows() -> dict[str, Any]:
    """4.2 MB."""
    random = np.random.default_rng(0)
    features = random.standard_normal((ROWS, WIDTH)).astype(np.float32)
    return {"features": features, "label": np.arange(ROWS), "held_out": np.arange(ROWS) % 4 == 0}


def with_frozen_trunk(params: dict[str, Any]) -> TorchEstimator:
    trunk = torch.nn.Linear(WIDTH, HIDDEN).requires_grad_(False)
    return TorchEstimator(
        model=torch.nn.Sequential(trunk, torch.nn.ReLU(), torch.nn.Linear(HIDDEN, WIDTH)),
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": params["lr"], "momentum": 0.9},
        loss=torch.nn.CrossEntropyLoss(),
        batch_size=32,
    )


def search(store: Any, backend: Any, num_partitions: int = 3) -> GridSearch:
    return GridSearch(
        backend=backend, store=store, estimator_gen_fn=with_frozen_trunk,
        search_space={"lr": hp_choice([0.1, 0.03, 0.01])}, num_epochs=1, num_partitions=num_partitions,
        evaluation_metric="loss", validation="held_out", progress=False,
    )  # fmt: skip


def move_out(endpoint: str, cache: str, namespace: str | None) -> None:
    """On a worker: be on a machine of its own, with its own way to the bucket and its own node cache."""
    os.environ.update(AWS_ENDPOINT_URL=endpoint, HOPYARD_CACHE=cache)
    if namespace is not None:
        with Path(namespace).open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def apart(
    backend: LocalBackend, server: str, folder: Path, spaces: Sequence[Namespace]
) -> Iterator[list[Wire]]:
    """The backend's workers on machines of their own, and their ways to the server."""
    wires = [
        Wire(server, *([spaces[worker].address] if spaces else [])) for worker in range(backend.num_workers)
    ]
    for worker, wire in enumerate(wires):
        space = spaces[worker].path if spaces else None
        backend.submit(worker, move_out, wire.url, str(folder / f"cache-{worker}"), space).result()
    yield wires
    for wire in wires:
        wire.close()


def hops_to_a_worker_that_lacks_the_state(units: Sequence[dict[str, Any]]) -> int:
    here: dict[tuple[int, int], int] = {}
    hops = 0
    for unit in units:
        for trial in unit["t"]:
            place = unit["w"], trial
            hops += unit["n"] > 0 and here.get(place) != unit["n"]
            here[place] = unit["n"] + (unit["ph"] == "train")
    return hops


def within_5_percent(counted: float, expected: float) -> bool:
    return abs(counted - expected) <= 0.05 * expected


def test_what_is_received_is_the_changed_state_at_each_hop_and_never_the_data(
    s3: Any, s3_url: str, tmp_path: Path
) -> None:
    prepare(rows(), LocalStore(tmp_path / "data"), validation="held_out")  # on every machine
    splits = [open_dataset(tmp_path / "data", split) for split in ("train", "val")]
    with namespaces(2) as spaces, LocalBackend(num_workers=2, device="cpu") as backend:
        with apart(backend, s3.url, tmp_path, spaces) as wires:
            model = search(ObjectStore(s3_url), backend).fit(*splits)
        counts = [(sum(wire.sent for wire in wires), sum(wire.received for wire in wires))]
        if (
            spaces
        ):  # all that left or reached the workers' machines, counted by the kernel, with TCP's headers
            passed = [space.bytes_passed() for space in spaces]
            counts.append((sum(sent for sent, _ in passed), sum(received for _, received in passed)))

    traffic, hops = model.run.traffic(), hops_to_a_worker_that_lacks_the_state(model.run.units())
    assert hops > 0
    for sent, received in counts:
        assert within_5_percent(received, hops * CHANGED)
        assert within_5_percent(received, traffic.moved)
        assert within_5_percent(sent, traffic.written)
    assert traffic.read > 9 * ROW * ROWS / 4  # 9 trainings on a third of the data, which did not come by wire

    alone = search(LocalStore(tmp_path / "alone"), InlineBackend()).fit(*splits)
    assert alone.get_all_model_history() == model.get_all_model_history()
    assert alone.weights()[1].digest == model.weights()[1].digest


def test_each_worker_reads_only_its_partitions_and_far_data_comes_once(
    s3: Any, s3_url: str, tmp_path: Path
) -> None:
    with LocalBackend(num_workers=2, device="cpu") as backend, apart(backend, s3.url, tmp_path, []) as wires:
        run = search(ObjectStore(s3_url), backend, num_partitions=4).fit(rows()).run
    read = {(unit["ph"], unit["p"]): unit["rows"] for unit in run.units()}
    readers = {(unit["ph"], unit["p"], unit["w"]) for unit in run.units()}
    assert len(readers) == len(read), "a partition was read by two machines"
    assert sum(read.values()) == ROWS
    assert {worker for _, _, worker in readers} == {0, 1}
    traffic = run.traffic()
    assert traffic.read == 3 * ROW * ROWS  # three trials, from the node caches
    assert within_5_percent(sum(wire.received for wire in wires), traffic.moved + ROW * ROWS)
