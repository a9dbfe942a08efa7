"""Models over one base that train together come to the bits that they come to alone."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.packing import pack_whatever_it_gains
from tests.training.torch.test_pack import (
    ROWS,
    WIDTH,
    alone,
    check_members,
    digests,
    together,
    visits,
)
from torch import nn
from torch.nn import functional

from hopyard.errors import DivergedError
from hopyard.torch import TorchEstimator
from hopyard.training.estimator import Context, _TogetherError
from hopyard.training.session import Session
from hopyard.training.torch import pack, plan, taped
from hopyard.training.torch.replica import TorchReplica


@pytest.fixture(autouse=True)
def _packs_whatever_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_whatever_it_gains(monkeypatch)


class Adapter(nn.Module):
    def __init__(self, layer: nn.Module, rank: int, scale: float, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer, self.scale = layer, scale
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(layer.in_features, rank, bias=False)  # type: ignore[arg-type]
        self.up = nn.Linear(rank, layer.out_features, bias=False)  # type: ignore[arg-type]
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layer(x) + self.up(self.down(self.dropout(x))) * self.scale)


class Block(nn.Module):
    """A transformer's layer over pieces of a row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = self.norm(x)
        heads = [each(normal).unflatten(-1, (2, -1)).transpose(1, 2) for each in (self.q, self.k, self.v)]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return torch.as_tensor(x + self.mlp(self.after(x)))


class Network(nn.Module):
    """Takes ``x`` (n, 7) as seven tokens."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(1, width)
        self.position = nn.Parameter(torch.randn(WIDTH, width))
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.last = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(self.first(x[:, :, None]) + self.position)
        return torch.as_tensor(self.last(hidden.mean(1)))


def network() -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Network()


BASE = network()


def adapted(rank: int = 4, scale: float = 1.0, dropout: float = 0.0, norms: bool = False) -> Any:
    def make(base: nn.Module) -> nn.Module:
        for block in base.blocks:  # type: ignore[union-attr,operator]
            block.q = Adapter(block.q, rank, scale, dropout)  # type: ignore[arg-type]
            block.v = Adapter(block.v, rank, scale, dropout)  # type: ignore[arg-type]
            block.norm.requires_grad_(norms)  # type: ignore[operator]
        return base

    return make


Make = Callable[[int], dict[str, Any]]


def replicas(make: Make, count: int, labels: Sequence[str] = ("class",)) -> list[TorchReplica]:
    made = []
    for number in range(count):
        torch.manual_seed(number)
        given: dict[str, Any] = {
            "model": adapted(),
            "base": BASE,
            "loss": nn.CrossEntropyLoss(),
            "optimizer": torch.optim.Adam,
            "optimizer_params": {"lr": 0.01 * (1 + number)},
            "batch_size": 16,
        }
        replica = TorchEstimator(**(given | make(number))).replica(
            Context(("x",), tuple(labels), "cpu", (ROWS,), 3)
        )
        assert isinstance(replica, TorchReplica)
        made.append(replica)
    return made


def check_same(make: Make, count: int = 3, threads: int = 1) -> None:
    """Members trained and validated together equal the same ones trained and validated alone."""
    with Session(threads):
        check_members(replicas(make, count), replicas(make, count))


def check_refused(members: Sequence[TorchReplica], why: str | tuple[str, ...]) -> None:
    """Members train alone, and say why; to look at them changes nothing of their states."""
    before = [digests(replica) for replica in members]
    if members[0].signature:
        with pytest.raises(_TogetherError):
            together(members, visits()[0])
        assert [digests(replica) for replica in members] == before
    assert members[0].trains_alone.startswith(why)


def test_plain() -> None:
    check_same(lambda number: {"metrics": ["accuracy"]})


def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What plans have given, from now on."""
    given = []
    run = taped.Unison._ran

    def noted(self: Any, *arguments: Any) -> Any:
        found = run(self, *arguments)
        given.append(found)
        return found

    monkeypatch.setattr(taped.Unison, "_ran", noted)
    return given


def by_step(model: nn.Module, batch: Any, *, smoothing: float = 0.0) -> dict[str, Any]:
    outputs = model(batch["x"])
    loss = functional.cross_entropy(outputs, batch["class"], reduction="sum", label_smoothing=smoothing)
    weight = batch["class"].ne(2).sum()
    hits = outputs.argmax(1).eq(batch["class"]).sum()
    return {"loss": loss / weight.clamp(min=1), "weight": weight, "hits": hits / weight.clamp(min=1)}


def without_weight(model: nn.Module, batch: Any) -> dict[str, Any]:
    return {"loss": functional.cross_entropy(model(batch["x"]), batch["class"])}


def with_head(base: nn.Module) -> nn.Module:
    base.last = nn.Sequential(
        nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    )
    return base


def convolutions() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.1),
            nn.MaxPool1d(2), nn.Flatten(), nn.Linear(12, 3),
        )  # fmt: skip


CONVOLUTIONS = convolutions()


def with_last(base: nn.Module) -> nn.Module:
    base[7] = nn.Linear(12, 3)  # type: ignore[operator]
    base[1].bias.requires_grad_(True)  # type: ignore[index,union-attr]
    return base


CASES: dict[str, Make] = {
    "one shape": lambda number: {"metrics": ["accuracy"]},
    "other ranks and scales": lambda number: {"model": adapted(2 + 2 * number, 1.0 / (1 + number))},
    "other scales": lambda number: {"model": adapted(4, 1.0 / (1 + number))},
    "dropout": lambda number: {"model": adapted(4, dropout=0.3)},
    "other dropouts": lambda number: {"model": adapted(4, dropout=0.1 + 0.1 * number), "metrics": ["accuracy"]},
    "norms of its own": lambda number: {"model": adapted(norms=True)},
    "a head": lambda number: {"model": with_head},
    "convolutions": lambda number: {"model": with_last, "base": CONVOLUTIONS},
    "a step": lambda number: {"step": by_step, "loss": None, "metrics": ["hits"]},
    "a step with options, in groups": lambda number: {
        "step": functools.partial(by_step, smoothing=0.1), "loss": None, "accumulate": 3,
    },
    "a step without a weight, in groups": lambda number: {"step": without_weight, "loss": None, "accumulate": 2},
    "groups": lambda number: {"accumulate": 3, "model": adapted(dropout=0.2)},
    "clipped": lambda number: {"gradient_clip": 0.1, "optimizer": torch.optim.AdamW},
    "schedule": lambda number: {
        "scheduler": lambda optimizer, steps, epochs: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, steps * epochs
        )
    },
    "class weights": lambda number: {"class_weight": {1: 3.0}},
    "a sum": lambda number: {"loss": nn.CrossEntropyLoss(reduction="sum")},
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", sorted(CASES))
def test_members_learn_what_they_learn_alone(
    case: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ran(monkeypatch)
    check_same(CASES[case], threads=threads)
    assert len(given) > 20


def test_nothing_is_measured_before_so_many_batches_were_computed_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pack, "_in_turns", {})
    monkeypatch.setattr(pack, "_BATCHES_FIRST", 2 * 3 * (ROWS // 16))
    planned = ran(monkeypatch)
    with Session(1):
        ones, others = replicas(lambda number: {}, 3), replicas(lambda number: {}, 3)
        for number, visit in enumerate(visits(4)):
            expected, found = alone(ones, visit), together(others, visit)
            assert (found is None) == (number < 2)
            assert (found or alone(others, visit)) == expected
            assert others[0].may_pack() == (number >= 2)
            if found is None:
                told = [replica.may_pack(visit) for replica in others]
                assert told == [False, False, number == 1]
            assert (TorchReplica.validate_together(others, visit, list(range(len(others)))) is None) == (
                number < 2
            )
            assert bool(planned) == (number >= 2)
            assert all(not replica.trains_alone and replica.signature for replica in others)
    assert [digests(replica) for replica in others] == [digests(replica) for replica in ones]


def test_a_check_measures_no_batches_that_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def gain() -> float | None:
        monkeypatch.setattr(pack, "_widths", {})
        monkeypatch.setattr(pack, "_gains", {})
        return TorchReplica.gain_together(members, visits()[0], [1, 2, 3])

    with Session(1):
        members, same = replicas(lambda number: {}, 3), replicas(lambda number: {}, 3)
        assert gain() is not None
        monkeypatch.setattr(pack, "_MOST_PROBE_SECONDS", 0.0)
        assert gain() is None
        assert not pack._widths, "the run measures it, when that pays"
        assert [digests(replica) for replica in members] == [digests(replica) for replica in same]


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_a_member_of_nan_touches_no_other(bad: int) -> None:
    def make(number: int) -> dict[str, Any]:
        return {"model": adapted(4, dropout=0.1)}

    with Session(1):
        ones, others = replicas(make, 4), replicas(make, 4)
        for visit in visits():
            found, expected = together(others, visit), alone(ones, visit)
            assert found is not None
            for number in {*range(4)} - {bad}:
                assert found[number] == expected[number]
                assert digests(others[number]) == digests(ones[number])
            if visit.epoch:
                assert isinstance(found[bad], DivergedError)
                assert str(found[bad]) == str(expected[bad])
            for members in (ones, others):
                with torch.no_grad():
                    members[bad].module.blocks[0].q.down.weight.fill_(float("nan"))  # type: ignore[union-attr,index]


def test_a_loss_that_looks_at_outputs_is_called_for_each() -> None:
    def make(number: int) -> dict[str, Any]:
        rate = 1e38 if number == 1 else 0.01
        return {"loss": refuses_nan, "optimizer": torch.optim.SGD, "optimizer_params": {"lr": rate}}

    with Session(1):
        others = replicas(make, 3)
        with pytest.raises(_TogetherError):
            together(others, visits()[0])
        assert others[0].trains_alone == "it reads numbers that members' own tensors decide"


class Counts(nn.Module):
    calls = 0

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.head = base, nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.as_tensor(self.head(self.base(x)))


class Draws(Counts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.base(x)) * np.random.rand())


class Reads(Counts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.head(self.base(x))
        return torch.as_tensor(found * 2 if found.sum() > -1e9 else found)


class Picks(Counts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.head(self.base(x))
        return torch.as_tensor(found + found[found > 0].sum())


class Looks(Counts):
    """Takes values out of the batch behind PyTorch's back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.base(x)) * ctypes.c_float.from_address(x.data_ptr()).value)


class Writes(Counts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.head.bias.clamp_(-1, 1)
        return torch.as_tensor(self.head(self.base(x)))


class ReadsBatch(Counts):
    """Takes one of two ways, by what is in the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.head(self.base(x))
        return torch.as_tensor(found * 2 if x.sum() > 0 else found)


def refuses_nan(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if outputs.isnan().any():
        raise ArithmeticError("what a loss may say")
    return functional.cross_entropy(outputs, labels)


def keeping() -> Any:
    kept: list[Any] = []

    def step(model: nn.Module, batch: Any) -> dict[str, Any]:
        kept.append(1)
        return {"loss": model(batch["x"]).sum()}

    return step


CALLS = [0]


def counting(model: nn.Module, batch: Any) -> dict[str, Any]:
    CALLS[0] += 1
    return without_weight(model, batch)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"step": counting, "loss": None}, "it changes step.CALLS"),
        ({"model": Counts}, "it changes model.calls"),
        ({"model": Draws}, "it draws random numbers that are not PyTorch's"),
        ({"model": Reads}, "it reads numbers that members' own tensors decide"),
        ({"model": Picks}, "it calls aten.index.Tensor, whose result has a size that depends on values"),
        ({"model": Looks}, "it does other things with other rows"),
        ({"model": Writes}, "it changes model: head.bias in place"),
        ({"step": keeping(), "loss": None}, "its step may keep something from batch to batch"),
        ({"transform": lambda batch, rng: batch}, "a transform is given"),
        ({"precision": "bf16"}, "precision is 'bf16'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_trains_alone_says_why(given: dict[str, Any], why: str) -> None:
    with Session(1):
        members = replicas(lambda number: dict(given), 2)
        check_refused(members, why)
        assert all(parameter.grad is None for replica in members for parameter in replica.module.parameters())


def test_ways_that_the_batch_decides_have_a_plan_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taped, "_plans", {})
    check_same(lambda number: {"model": ReadsBatch})
    assert len(taped._plans) >= 2


def test_batches_of_a_shape_that_is_rare_are_computed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taped, "_OFTEN", 100)
    given = ran(monkeypatch)
    check_same(lambda number: {"model": adapted(dropout=0.2), "accumulate": 2})
    assert given


def test_products_that_differ_are_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def differ(rule: Any, call: Any, is_mutable: bool) -> bool:
        asked.append(call.name)
        return False

    monkeypatch.setattr(taped, "_plans", {})
    monkeypatch.setattr(plan, "is_exact", differ)
    check_same(lambda number: {"model": adapted(dropout=0.2)})
    assert {"mm", "addmm", "mul", "view"} <= set(asked)


@pytest.mark.parametrize(("members", "sizes"), [(5, {2, 1}), (3, {3})])
def test_products_of_much_memory_are_made_in_groups(
    members: int, sizes: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    group = plan.members_of

    def noted(call: Any, parts: Any, start: int, stop: int) -> Any:
        made.append((call.name, stop - start))
        return group(call, parts, start, stop)

    width = max(sizes)
    rows = 16 * 7 * 32 * 4  # bytes of the largest result of a product, of a batch and a member
    monkeypatch.setattr(taped, "_plans", {})
    monkeypatch.setattr(plan, "_MOST_BYTES", 0)
    monkeypatch.setattr(plan, "_MOST_BYTES_OF_PRODUCTS", width * rows)
    monkeypatch.setattr(plan, "members_of", noted)
    check_same(lambda number: {"model": adapted(rank=2 + number, dropout=0.2)}, members)
    assert {name for name, _ in made} == {"mm", "addmm"}
    assert sizes <= {size for _, size in made}


def test_a_plan_that_gives_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(*given: Any) -> Any:
        made = plan.plan_for(*given)
        exact = made._program
        made._program = lambda *given: [
            each * 1.001 if torch.is_tensor(each) else each for each in exact(*given)
        ]
        return made

    monkeypatch.setattr(taped, "_plans", {})
    monkeypatch.setattr(taped, "plan_for", off)
    with Session(1):
        members = replicas(lambda number: {}, 2)
        with pytest.raises(_TogetherError):
            together(members, visits()[0])
        assert "would not have the same bits" in members[0].trains_alone
