"""Steps that are captured and replayed come to the bits of steps that are not.

On machines without a GPU a recorder that computes anew, into the same tensors, stands for CUDA graphs: all but the
calls of CUDA is run. Cases marked ``gpu`` run these.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.torch.test_pack import ROWS, WIDTH, alone, digests, together, visits
from tests.training.torch.test_taped import BASE, adapted
from torch import nn
from torch.nn import functional

from hopyard.backend import InlineBackend
from hopyard.errors import UsageError
from hopyard.hopper.history import totals_of
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.training.estimator import Context, _TriedError
from hopyard.training.session import Session
from hopyard.training.torch import captured, pack, signatures
from hopyard.training.torch.replica import TorchReplica
from hopyard.training.torch.tape import mapped
from hopyard.training.torch.untouched import drawing_from
from hopyard.tune import GridSearch, hp_choice

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Again:
    """Computes anew, into the tensors that it computed first."""

    def __init__(self) -> None:
        self.replays = 0
        self.recorded: list[int] = []

    def on(self, slot: int) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self) -> None:
        pass

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    def drawing_from(self, generator: torch.Generator) -> AbstractContextManager[None]:
        return drawing_from(generator)

    def record(self, slot: int, compute: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        first = compute()
        self.recorded.append(slot)

        def replay() -> None:
            self.replays += 1
            found: list[Any] = []
            mapped(compute()[0], found.append)
            mapped(first[0], lambda own: own.copy_(found.pop(0)) if torch.is_tensor(own) else found.pop(0))

        return first, replay


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Again:
    """Of steps on a CPU; on a GPU CUDA graphs are used."""
    monkeypatch.setattr(pack, "_widths", {})
    monkeypatch.setattr(captured, "_FEWEST_BATCHES", 0)
    made = Again()
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(signatures, "why_not_on", lambda device: "")
        monkeypatch.setattr(pack, "recorder_for", lambda device, streams: made)
    return made


Make = Callable[[int], dict[str, Any]]


def replicas(make: Make, count: int, device: str, streams: int) -> list[TorchReplica]:
    made = []
    for number in range(count):
        torch.manual_seed(number)
        given: dict[str, Any] = {
            "loss": nn.CrossEntropyLoss(),
            "optimizer": torch.optim.Adam,
            "optimizer_params": {"lr": 0.01 * (1 + number)},
            "batch_size": 4,
        }
        estimator = TorchEstimator(**(given | make(number)))
        context = Context(("x",), ("class",), device, (ROWS,), 3, graph_streams=streams)
        replica = estimator.replica(context)
        assert isinstance(replica, TorchReplica)
        made.append(replica)
    return made


def check_same(make: Make, device: str, count: int = 3, streams: int = 4) -> None:
    with Session(1):
        ones, others = replicas(make, count, device, 0), replicas(make, count, device, streams)
        assert others[0].signature, others[0].trains_alone
        assert len({replica.signature for replica in others}) == 1
        for visit in visits():
            found = together(others, visit)
            assert found == alone(ones, visit)
            assert [digests(replica) for replica in others] == [digests(replica) for replica in ones]
            measured = [replica.validate(visit).compute() for replica in others]
            assert measured == [replica.validate(visit).compute() for replica in ones]
        assert all(not replica.hidden_state() for replica in others)


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)
        self.norm, self.last, self.unused = nn.BatchNorm1d(8), nn.Linear(8, 3), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.dropout(self.one(x), 0.3, self.training) + self.other(x).tanh()
        return torch.as_tensor(self.last(self.norm(hidden)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.GRU(1, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.last(self.cells(x[:, :, None])[0][:, -1]))


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def by_step(model: nn.Module, batch: Any) -> dict[str, Any]:
    outputs = model(batch["x"])
    wrong = (outputs.argmax(1) != batch["class"]).float()
    return {"loss": functional.cross_entropy(outputs, batch["class"]), "wrong": wrong.mean()}


CASES: dict[str, Make] = {
    "chain": lambda number: {"model": chain()},
    "branch": lambda number: {"model": Branch()},
    "recurrent": lambda number: {"model": Recurrent()},
    "convolution": lambda number: {
        "model": nn.Sequential(
            nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (WIDTH - 2), 3)
        )
    },
    "adapters": lambda number: {"model": adapted(rank=2 + number, dropout=0.1), "base": BASE},
    "step": lambda number: {"model": Branch(), "loss": None, "step": by_step},
    "step, accumulated": lambda number: {"model": Branch(), "loss": None, "step": by_step, "accumulate": 3},
    "accumulated": lambda number: {"model": Branch(), "accumulate": 2},
    "clipped": lambda number: {"model": chain(), "gradient_clip": 0.1, "accumulate": 2},
    "scheduled": lambda number: {
        "model": chain(),
        "scheduler": lambda optimizer, steps, epochs: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7),
        "scheduler_interval": "step",
    },
    "class weights": lambda number: {"model": Branch(), "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}},
    "momentum": lambda number: {
        "model": chain(), "optimizer": torch.optim.SGD, "optimizer_params": {"lr": 0.1, "momentum": 0.9}
    },
    "bf16": lambda number: {"model": Branch(), "precision": "bf16"},
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", sorted(CASES))
def test_members_learn_what_they_learn_alone(case: str, device: str, recorder: Again) -> None:
    check_same(CASES[case], device)
    assert device == "cuda" or recorder.replays > 3 * 2 * 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("streams", [1, 4])
def test_a_single_member_does_too(streams: int, device: str, recorder: Again) -> None:
    check_same(CASES["branch"], device, count=1, streams=streams)
    check_same(CASES["branch"], device, count=6, streams=streams)


@pytest.mark.parametrize("device", DEVICES)
def test_frozen_tensors_that_a_model_writes_are_written_once(device: str, recorder: Again) -> None:
    check_same(lambda number: {"model": Teacher()}, device)
    assert device == "cuda" or recorder.replays


class Counting(nn.Linear):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        return super().forward(x)


class Printing(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            print("a batch")
        return super().forward(x)


class Drawing(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (float(np.random.random()) if self.training else 1.0)


class Replacing(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(x)
        if self.training:
            self.mean = outputs.detach().mean(0)
        return outputs


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = functional.embedding(x.abs().long().clamp(0, 8), self.words.weight, sparse=True)
        return torch.as_tensor(self.last(words.sum(1)))


class Deciding(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(x)
        return -outputs if self.training and outputs.sum() > 1e6 else outputs


class Teacher(Branch):
    """Has a frozen layer that follows another one."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(WIDTH, 8).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.teacher.weight.mul_(0.9).add_(self.one.weight.detach(), alpha=0.1)
        return super().forward(x) + self.teacher(x)[:, :3]


def clearing(model: nn.Module, batch: Any) -> dict[str, Any]:
    model.zero_grad()
    return {"loss": functional.cross_entropy(model(batch["x"]), batch["class"])}


def with_rows(model: nn.Module, batch: Any) -> dict[str, Any]:
    return {"loss": functional.cross_entropy(model(batch["x"]), batch["class"]), "rows": len(batch["x"])}


SGD = {"optimizer": torch.optim.SGD, "optimizer_params": {"lr": 0.1}}
REFUSED: dict[str, tuple[Make, str]] = {
    "counts": (lambda number: {"model": Counting(WIDTH, 3)}, "it changes "),
    "prints": (lambda number: {"model": Printing(WIDTH, 3)}, "it prints"),
    "draws": (lambda number: {"model": Drawing(WIDTH, 3)}, "it draws random numbers that are not PyTorch's"),
    "replaces": (lambda number: {"model": Replacing(WIDTH, 3)}, "it replaces mean"),
    "sparse": (lambda number: {"model": Sparse(), **SGD}, "it has sparse gradients"),
    "clears": (
        lambda number: {"model": chain(), "loss": None, "step": clearing, "accumulate": 2},
        "it changes gradients",
    ),
    "constants": (
        lambda number: {"model": chain(), "loss": None, "step": with_rows},
        "its step gives rows, which no graph can compute",
    ),
}


def check_refused(make: Make, why: str, device: str) -> None:
    with Session(1):
        members = replicas(make, 2, device, 4)
        assert members[0].signature
        with pytest.raises(_TriedError, match=re.escape(why)):
            together(members, visits()[0])
        assert members[0].trains_alone.startswith(why)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_is_not_captured_says_why(case: str, device: str, recorder: Again) -> None:
    check_refused(*REFUSED[case], device)


@pytest.mark.gpu
def test_models_that_look_at_outputs_are_not_captured(recorder: Again) -> None:
    check_refused(lambda number: {"model": Deciding(WIDTH, 3)}, "a step of it cannot be captured", "cuda")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"precision": "fp16"}, "precision is 'fp16'"),
        ({"transform": dict}, "a transform is given"),
        ({"loss": None, "step": lambda model, batch: by_step(model, batch)}, ""),
    ],
)
def test_what_cannot_be_captured_says_why(changes: dict[str, Any], why: str, recorder: Again) -> None:
    with Session(1):
        (replica,) = replicas(lambda number: {"model": chain(), **changes}, 1, "cpu", 1)
        assert replica.trains_alone == why
        assert bool(replica.signature) == (not why)


def test_on_a_cpu_nothing_is_captured() -> None:
    with Session(1):
        (replica,) = replicas(lambda number: {"model": chain()}, 1, "cpu", 1)
        assert replica.trains_alone == "it is on cpu, and CUDA graphs are for NVIDIA GPUs"


def test_a_step_that_comes_to_other_bits_is_not_taken(
    recorder: Again, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = recorder.record

    def wrong(slot: int, compute: Callable[[], Any]) -> Any:
        first, replay = record(slot, compute)

        def differs() -> None:
            replay()
            first[0][0].mul_(1 + 2**-20)

        return first, differs

    monkeypatch.setattr(recorder, "record", wrong)
    check_refused(CASES["chain"], "a captured step would not have the same bits", "cpu")


def test_a_failed_capture_is_told(recorder: Again, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(slot: int, compute: Callable[[], Any]) -> Any:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(recorder, "record", fails)
    why = "a step of it cannot be captured (RuntimeError: CUDA error: operation not permitted when stream is capturing)"
    check_refused(CASES["chain"], why, "cpu")


def test_short_visits_are_not_captured(recorder: Again, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "_FEWEST_BATCHES", 1000)
    check_same(CASES["branch"], "cpu")
    assert not recorder.recorded


def made(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        model=Branch() if params["branch"] else Counting(WIDTH, 3),
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        batch_size=16,
    )


def search(store: Path, packing: str) -> GridSearch:
    return GridSearch(
        backend=InlineBackend(), store=LocalStore(store), estimator_gen_fn=made, packing=packing, num_epochs=2,
        search_space={"branch": hp_choice([True, False]), "lr": hp_choice([0.01, 0.02, 0.03])}, num_partitions=2,
        validation=0.25, evaluation_metric="loss", progress=False, feature_columns=["x"], label_columns=["class"],
        order_groups=1,
    )  # fmt: skip


def contents(run: Any) -> dict[int, Any]:
    return {
        number: (trial.status, trial.history, trial.best.state.digest if trial.best else None)
        for number, trial in run.state.trials.items()
    }


def rows() -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {"x": random.standard_normal((320, WIDTH)).astype(np.float32), "class": random.integers(0, 3, 320)}


@pytest.mark.parametrize("packing", ["graph", "streams"])
def test_a_search_comes_to_the_same(packing: str, tmp_path: Path, recorder: Again) -> None:
    run = search(tmp_path / "captured", packing).fit(rows()).run
    assert contents(run) == contents(search(tmp_path / "alone", "serial").fit(rows()).run)
    assert recorder.replays > 20
    totals = totals_of(run.units())
    assert [(why, len(numbers)) for why, numbers in totals.alone.items()] == [("it changes model.calls", 3)]
    assert max(totals.packs) > 1


def test_captured_steps_are_refused_without_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        search(tmp_path, "streams").fit(rows())
    assert str(raised.value) == (
        "packing='streams' captures steps of trials in CUDA graphs, but these trials take none: it is on cpu, and CUDA "
        "graphs are for NVIDIA GPUs. Steps of PyTorch models in fp32 or bf16 on NVIDIA GPUs, with losses and "
        "optimizers of torch.nn and torch.optim, can be captured. Change that, or give packing='auto'."
    )
    assert not list((tmp_path / "runs").glob("*"))
