"""Members of a pack come to the bits that they come to alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.packing import pack_whatever_it_gains
from torch import nn
from torch.nn import functional

from hopyard.data.order import batch_bounds
from hopyard.errors import DivergedError
from hopyard.objects import flatten
from hopyard.torch import TorchEstimator
from hopyard.training.estimator import Context, OneBatch, Visit, _TogetherError
from hopyard.training.session import Session
from hopyard.training.torch import pack, stack
from hopyard.training.torch.optim import OptimizerSteps
from hopyard.training.torch.replica import TorchReplica

ROWS, WIDTH = 83, 7
RNG = np.random.default_rng(5)
COLUMNS = {
    "x": RNG.standard_normal((ROWS, WIDTH)).astype(np.float32),
    "class": RNG.integers(0, 3, ROWS),
    "y": RNG.standard_normal((ROWS, 1)).astype(np.float32),
    "weight": RNG.uniform(0, 2, ROWS).astype(np.float32),
}


class Rows(OneBatch):
    """Columns in memory, in batches as a partition gives them."""

    def batches(  # type: ignore[override]
        self,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        *,
        columns: Sequence[str] | None = None,
        tail: Any = "short",
        **options: Any,
    ) -> Iterator[dict[str, Any]]:
        order = np.random.default_rng(seed).permutation(len(self)) if shuffle else np.arange(len(self))
        for start, stop in batch_bounds(len(self), batch_size, tail):
            yield {name: self._columns[name][order[start:stop]] for name in columns or self._columns}


@pytest.fixture(autouse=True)
def _packs_whatever_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_whatever_it_gains(monkeypatch)


Make = Callable[[int], dict[str, Any]]
"""The arguments of a member's estimator, by its number."""


def replicas(make: Make, count: int) -> list[TorchReplica]:
    made = []
    for number in range(count):
        torch.manual_seed(number)
        given: dict[str, Any] = {
            "loss": nn.CrossEntropyLoss(),
            "optimizer": torch.optim.SGD,
            "batch_size": 16,
        }
        label = (
            "y" if isinstance(make(number).get("loss"), nn.MSELoss | nn.L1Loss | nn.HuberLoss) else "class"
        )
        torch.manual_seed(number)
        estimator = TorchEstimator(**(given | make(number)))
        replica = estimator.replica(Context(("x",), (label,), "cpu", (ROWS,), 3))
        assert isinstance(replica, TorchReplica)
        made.append(replica)
    return made


def digests(replica: TorchReplica) -> Any:
    tensors, skeleton = flatten(replica.state())
    return {path: tensor.digest for path, tensor in tensors.items()}, repr(skeleton)


def visits(epochs: int = 2, rows: Mapping[str, Any] = COLUMNS) -> list[Visit]:
    return [Visit(Rows(rows), 3, epoch, 0, last=True) for epoch in range(epochs)]


def alone(members: Sequence[TorchReplica], visit: Visit) -> list[Any]:
    found: list[Any] = []
    for number, replica in enumerate(members):
        torch.manual_seed(100 + number)
        try:
            found.append(replica.train(visit))
        except Exception as error:
            found.append(error)
    return found


def together(members: Sequence[TorchReplica], visit: Visit) -> list[Any] | None:
    return TorchReplica.train_together(members, visit, [100 + number for number in range(len(members))])


def check_same(make: Make, count: int = 3, threads: int = 1) -> None:
    """Members trained and validated together equal the same ones trained and validated alone."""
    with Session(threads):
        ones, others = replicas(make, count), replicas(make, count)
        check_members(ones, others)
        assert all(not replica.hidden_state() for replica in others)


def check_members(ones: Sequence[TorchReplica], others: Sequence[TorchReplica]) -> None:
    """Train and validate ``ones`` alone and ``others``, which are the same, together: their results are equal."""
    assert len({replica.signature for replica in others}) == 1, "they may train together"
    assert others[0].signature, others[0].trains_alone
    for visit in visits():
        found = together(others, visit)
        assert found is not None, others[0].trains_alone
        assert found == alone(ones, visit)
        assert [digests(replica) for replica in others] == [digests(replica) for replica in ones]
        measured = [
            measured.compute()
            for measured in TorchReplica.validate_together(others, visit, list(range(len(others))))
        ]  # type: ignore[union-attr]
        assert measured == [replica.validate(visit).compute() for replica in ones]
    assert [replica.hidden_state() for replica in others] == [replica.hidden_state() for replica in ones]
    batch = {"x": COLUMNS["x"]}
    for one, other in zip(ones, others, strict=True):
        np.testing.assert_array_equal(one.predict(batch), other.predict(batch))


BETWEEN: dict[str, Callable[[int], list[nn.Module]]] = {
    "relu": lambda width: [nn.ReLU()],
    "relu in place": lambda width: [nn.ReLU(inplace=True)],
    "tanh": lambda width: [nn.Tanh()],
    "tanh, relu": lambda width: [nn.Tanh(), nn.ReLU()],
    "gelu, dropout": lambda width: [nn.GELU(), nn.Dropout(0.3)],
    "batch norm": lambda width: [nn.BatchNorm1d(width), nn.ReLU()],
    "layer norm": lambda width: [nn.LayerNorm(width), nn.SiLU()],
    "nothing": lambda width: [],
    "dropout, relu": lambda width: [nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.1)],
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": torch.optim.SGD},
    "momentum": {
        "optimizer": torch.optim.SGD,
        "optimizer_params": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    },
    "adam": {"optimizer": torch.optim.Adam},
    "adamw": {"optimizer": torch.optim.AdamW, "optimizer_params": {"lr": 0.01, "weight_decay": 0.1}},
    "amsgrad": {"optimizer": torch.optim.Adam, "optimizer_params": {"lr": 0.01, "amsgrad": True}},
    "rmsprop": {"optimizer": torch.optim.RMSprop},
    "foreach": {"optimizer": torch.optim.Adam, "optimizer_params": {"lr": 0.01, "foreach": True}},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulate": {"accumulate": 3},
    "clip": {"gradient_clip": 0.1},
    "class weights": {"class_weight": {1: 3.0}},
    "schedule": {
        "scheduler": lambda optimizer, steps, epochs: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, steps * epochs
        )
    },
    "by epoch": {
        "scheduler": lambda optimizer, steps, epochs: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        "scheduler_interval": "epoch",
    },
    "smoothing, accuracy": {"loss": nn.CrossEntropyLoss(label_smoothing=0.1), "metrics": ["accuracy"]},
    "regression": {"loss": nn.MSELoss(), "metrics": ["mae"]},
    "parts of regressions": {"loss": nn.MSELoss(), "accumulate": 3},
    "parts of distances": {"loss": nn.L1Loss(reduction="sum"), "accumulate": 3, "metrics": ["mae"]},
    "a sum": {"loss": nn.CrossEntropyLoss(reduction="sum")},
    "a function": {"loss": functional.cross_entropy},
}


@given(
    widths=st.lists(st.sampled_from([1, 3, 16, 33]), max_size=2),
    between=st.sampled_from(sorted(BETWEEN)),
    bias=st.booleans(),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    option=st.sampled_from(sorted(OPTIONS)),
    batch_size=st.sampled_from([16, 13, 64, 200]),
    count=st.integers(2, 5),
    threads=st.sampled_from([1, 2]),
)
def test_what_members_learn_is_what_they_learn_alone(
    widths: list[int],
    between: str,
    bias: bool,
    optimizer: str,
    option: str,
    batch_size: int,
    count: int,
    threads: int,
) -> None:
    pack._widths.clear()

    def make(number: int) -> dict[str, Any]:
        given = {**OPTIMIZERS[optimizer], **OPTIONS[option], "batch_size": batch_size}
        rates = {**given.get("optimizer_params", {}), "lr": 0.03 / (1 + number)}
        layers: list[nn.Module] = []
        before = WIDTH
        for width in widths:
            layers += [nn.Linear(before, width, bias=bias), *BETWEEN[between](width)]
            before = width
        last = 1 if "regression" in option or "distances" in option else 3
        return {
            **given,
            "optimizer_params": rates,
            "model": nn.Sequential(*layers, nn.Linear(before, last, bias=bias)),
        }

    check_same(make, count, threads)


@pytest.mark.parametrize("size", [11, 13, 16])
@pytest.mark.parametrize(
    "loss", [nn.MSELoss(), nn.MSELoss(reduction="sum"), nn.L1Loss(), nn.HuberLoss()], ids=str
)
def test_losses_that_are_parts_of_a_step_are_rounded_as_alone(loss: nn.Module, size: int) -> None:
    """Shares of a step's rows are no powers of 2."""

    def make(number: int) -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))
        return {"model": model, "loss": loss, "accumulate": 3, "batch_size": size}

    check_same(make)


class Chain(nn.Module):
    """A chain, as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, 8), nn.BatchNorm1d(8)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(x, 1)
        x = functional.relu(self.norm(self.first(x)))
        return self.head(x).tanh().squeeze(dim=-1)


def test_a_module_whose_forward_is_a_chain() -> None:
    def make(number: int) -> dict[str, Any]:
        return {"model": Chain(), "loss": by_row, "optimizer_params": {"lr": 0.1 + number}, "accumulate": 2}

    check_same(make)


def by_row(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs - labels.float()).abs().mean()


def test_rows_with_weights_and_dropout_of_other_shares() -> None:
    def make(number: int) -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 3))
        return {"model": model, "sample_weight_column": "weight", "metrics": ["accuracy"]}

    with Session(1):
        both = []
        for _ in range(2):
            made = []
            for number in range(3):
                torch.manual_seed(number)
                given = {"loss": nn.CrossEntropyLoss(), "optimizer": torch.optim.Adam, "batch_size": 16}
                context = Context(("x", "weight"), ("class",), "cpu", (ROWS,), 3)
                made.append(TorchEstimator(**(given | make(number))).replica(context))
            both.append(made)
        for visit in visits():
            assert together(both[0], visit) == alone(both[1], visit)
        assert list(map(digests, both[0])) == list(map(digests, both[1]))


def small(number: int) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 3))
    return {"model": model, "optimizer": torch.optim.Adam, "optimizer_params": {"lr": 0.01 * (1 + number)}}


def test_frozen_layers_stay_as_they_are() -> None:
    def make(number: int) -> dict[str, Any]:
        given = small(number)
        given["model"][0].requires_grad_(False)
        return given

    check_same(make)


@pytest.mark.parametrize("bad", [0, 1, 4])
def test_what_becomes_of_one_member_touches_no_other(bad: int) -> None:
    with Session(1):
        ones, others = replicas(small, 5), replicas(small, 5)
        for members in (ones, others):
            with torch.no_grad():
                members[bad].module[0].weight.fill_(float("nan"))
        found, expected = together(others, visits()[0]), alone(ones, visits()[0])
    assert found is not None
    assert isinstance(found[bad], DivergedError)
    assert str(found[bad]) == str(expected[bad])
    for number in {*range(5)} - {bad}:
        assert found[number] == expected[number]
        assert digests(others[number]) == digests(ones[number])


def refuses_nan(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if outputs.isnan().any():
        raise ArithmeticError("what a loss may say")
    return functional.cross_entropy(outputs, labels)


def test_a_loss_that_raises_for_one_member_ends_that_one() -> None:
    def make(number: int) -> dict[str, Any]:
        return {
            **small(number),
            "loss": refuses_nan,
            "optimizer_params": {"lr": 1e38 if number == 1 else 0.1},
        }

    with Session(1):
        ones, others = replicas(make, 3), replicas(make, 3)
        found, expected = together(others, visits()[0]), alone(ones, visits()[0])
    assert found is not None
    assert isinstance(found[1], ArithmeticError)
    assert [found[0], found[2]] == [expected[0], expected[2]]
    assert [digests(others[number]) for number in (0, 2)] == [digests(ones[number]) for number in (0, 2)]


def test_products_that_differ_from_a_layers_own_are_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "_known", {})
    asked = []

    def differ(*key: Any) -> dict[str, bool]:
        asked.append(key)
        return dict.fromkeys(("output", "column", "input", "weight", "bias"), False)

    monkeypatch.setattr(stack, "_compared", differ)
    check_same(small)
    assert asked


def test_products_of_few_numbers_are_compared_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The few numbers of one draw may be equal by chance: here those of the sixth differ."""
    monkeypatch.setattr(stack, "_known", {})
    asked = []

    def differ(*key: Any) -> dict[str, bool]:
        asked.append(key)
        return {"output": True, "column": False, "input": True, "weight": key[-1] != 5, "bias": True}

    monkeypatch.setattr(stack, "_compared", differ)
    assert not stack._exact(1, 13, (3, 1), True, False, torch.float32)["weight"]
    assert len({key[-1] for key in asked}) * 3 >= 200, "numbers of the smallest result, the bias' gradient"
    asked.clear()
    assert stack._exact(16, 256, (64, 64), True, False, torch.float32)["weight"]
    assert len(asked) == 1


def test_one_output_has_other_kernels_than_a_batch_of_products() -> None:
    """Why products are compared: on many processors this one differs; where it does, it must not be used."""
    verdict = stack._compared(4, 256, (1, 64), True, False, torch.float32)
    x, weight, bias = torch.randn(4, 256, 64), torch.randn(4, 1, 64), torch.randn(4, 1)
    own = torch.stack([functional.linear(x[k], weight[k], bias[k]) for k in range(4)])
    if not torch.equal(own, torch.baddbmm(bias.unsqueeze(1), x, weight.mT)):
        assert not verdict["output"]


@pytest.mark.parametrize(("rows", "inputs"), [(6, 6), (256, 64), (83, 33)])
def test_zeros_have_the_signs_of_single_products_where_nothing_is_added_up(rows: int, inputs: int) -> None:
    """Of layers with one output: optimizers keep signs of zeros in their state."""
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30])
    own, weights = values.repeat(rows)[:rows, None].clone(), values.repeat(inputs)[None, :inputs].clone()
    gradient, weight = stack.aligned(2, rows, 1).copy_(own), stack.aligned(2, 1, inputs).copy_(weights)
    found = stack._products(gradient, weight, stack.aligned(2, rows, inputs))
    single = torch.mm(own, weights)
    assert torch.equal(found[1], single)
    assert torch.equal(found[1].signbit(), single.signbit())


def test_members_that_would_differ_are_trained_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = stack._ReLU.forward
    monkeypatch.setattr(stack._ReLU, "forward", lambda self, x, training: forward(self, x, training) * 1.001)
    with Session(1):
        members = replicas(lambda number: {**small(number), **OPTIONS["by epoch"]}, 3)
        before = [digests(replica) for replica in members]
        assert together(members, visits()[0]) is None
        assert [digests(replica) for replica in members] == before
        assert all(parameter.grad is None for replica in members for parameter in replica.module.parameters())
        assert members[0].trains_alone == "the loss would not have the same bits"
        assert members[0].signature


def test_members_whose_copies_fail_together_are_trained_and_validated_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*given: Any, **named: Any) -> Any:
        raise RuntimeError("no memory for this\nand more")

    with Session(1):
        members = replicas(small, 3)
        monkeypatch.setattr(stack.Stack, "forward", fail)
        assert together(members, visits()[0]) is None
        assert members[0].trains_alone == "trying it out together failed (RuntimeError: no memory for this)"
        assert TorchReplica.validate_together(members, visits()[0], list(range(len(members)))) is None


@pytest.mark.parametrize("given", ["two tensors", "rows of two dimensions"])
def test_inputs_that_are_not_stacked_are_trained_and_validated_alone(given: str) -> None:
    """A trunk decides only when it runs what the head is given."""

    class Trunk(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return (x, x) if given == "two tensors" else x[:, None, :].expand(-1, 3, -1).contiguous()

    class Head(nn.Linear):
        def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(x if given == "two tensors" else x.mean(1))

    def make(number: int) -> dict[str, Any]:
        model = Head(WIDTH, 3) if given == "two tensors" else nn.Sequential(nn.Linear(WIDTH, 3), nn.ReLU())
        loss = nn.CrossEntropyLoss() if given == "two tensors" else of_three
        return {"model": model, "trunk": Trunk(), "loss": loss}

    with Session(1):
        members = replicas(make, 2)
        if given == "two tensors":
            with pytest.raises(_TogetherError):
                together(members, visits()[0])
        else:
            assert together(members, visits()[0]) is None
            assert TorchReplica.validate_together(members, visits()[0], list(range(len(members)))) is None
        assert members[0].trains_alone == (
            "batches have trunk, which no tape can tell from a constant"
            if given == "two tensors"
            else "rows of its input have 2 dimensions"
        )


def of_three(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs.mean(1), labels)


def test_members_that_gain_nothing_are_trained_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "LEAST_GAIN", 1e9)
    with Session(1):
        members = replicas(small, 3)
        assert together(members, visits()[0]) is None
        assert "3 of them together would take" in members[0].trains_alone
        assert "as long as one by one" in members[0].trains_alone


def test_a_gain_is_measured_and_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(1):
        members = replicas(lambda number: {**small(number), **OPTIONS["by epoch"]}, 3)
        before = [digests(replica) for replica in members]
        gain = TorchReplica.gain_together(members, visits()[0], [1, 2, 3])
        assert gain is not None
        assert gain > 0
        assert [digests(replica) for replica in members] == before
        assert not members[0].trains_alone


class Branches(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        return self.head(self.norm(first) + first)


class Counts(Chain):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.head(self.norm(self.first(x)))


class Draws(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.head(self.norm(x) if np.random.rand() < 0.5 else x)


class Looks(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x))
        return self.head(x) if self.training else self.head(torch.tanh(x))


class Asks(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.head(self.norm(x)) if x.sum() > 0 else self.head(x)


class Holds(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


class FlattensOthers(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.first(torch.flatten(x, end_dim=1))))


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, 3))
    model[0].register_forward_hook(lambda module, inputs, output: output)
    return model


def tied() -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(layer, nn.ReLU(), layer)


def keeping() -> Any:
    kept: list[Any] = []

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        kept.append(len(outputs))
        return functional.cross_entropy(outputs, labels)

    return loss


class OwnOptimizer(torch.optim.SGD):
    pass


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"precision": "bf16"}, "precision is 'bf16'"),
        ({"loss": keeping()}, "its loss may keep something from batch to batch"),
        ({"optimizer": OwnOptimizer}, "its optimizer is none of torch.optim"),
        ({"transform": lambda batch, rng: batch}, "a transform is given"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_who_trains_alone_says_why(given: dict[str, Any], why: str) -> None:
    usual = {"model": nn.Linear(WIDTH, 3), "loss": nn.CrossEntropyLoss(), "optimizer": torch.optim.SGD}
    replica = TorchEstimator(**{**usual, **copy.copy(given)}).replica(
        Context(("x",), ("class",), "cpu", (ROWS,), 1)
    )
    assert replica.signature == ""
    assert replica.trains_alone.startswith(why)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Branches(), "the forward of Branches is no chain of layers, each on the output of the one before"),
        (Counts(), "the forward of Counts draws random numbers, or counts"),
        (Draws(), "the forward of Draws draws random numbers, or counts"),
        (Looks(), "the forward of Looks does another thing in training than in evaluation"),
        (Asks(), "the forward of Asks cannot be traced (TraceError: symbolically traced variables"),
        (FlattensOthers(), "the forward of FlattensOthers calls flatten, which is not among what is"),
        (Holds(), "the model has parameters or buffers outside of its layers"),
        (hooked(), "the Linear has hooks"),
        (tied(), "layers share parameters"),
        (nn.Sequential(nn.Conv1d(1, 1, 3)), "nn.Conv1d is not among the layers that are stacked"),
        (nn.Sequential(nn.LayerNorm(WIDTH)), "the model has no nn.Linear"),
        (nn.Sequential(nn.Linear(WIDTH, 3), nn.SiLU(inplace=True)), "the SiLU works in place"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(WIDTH, 3)), "the Flatten keeps other dimensions than"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_what_is_no_chain_says_why(model: nn.Module, why: str) -> None:
    assert str(stack.chain_of(model)).startswith(why)


class CountsInPlace(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.batches += 1
        self.calls += 1
        np.random.rand()
        return super().forward(x)


def test_looking_whether_a_model_is_a_chain_changes_nothing() -> None:
    model = CountsInPlace()
    before = np.random.get_state()[2]  # type: ignore[index]
    assert "draws random numbers, or counts" in stack.chain_of(model)
    assert (int(model.batches), model.calls) == (0, 0)
    assert np.random.get_state()[2] == before  # type: ignore[index]


def test_other_shapes_losses_and_batches_are_other_signatures() -> None:
    base: dict[str, Any] = {
        "model": nn.Linear(WIDTH, 3),
        "loss": nn.CrossEntropyLoss(),
        "optimizer": torch.optim.SGD,
    }
    variants: list[dict[str, Any]] = [
        {},
        {"model": nn.Linear(WIDTH, 4)},
        {"model": nn.Linear(WIDTH, 3, bias=False)},
        {"model": nn.Sequential(nn.Linear(WIDTH, 3), nn.LeakyReLU(0.1))},
        {"model": nn.Sequential(nn.Linear(WIDTH, 3), nn.LeakyReLU(0.2))},
        {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))},
        {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
        {"batch_size": 7},
        {"accumulate": 2},
        {"class_weight": {0: 2.0}},
    ]
    context = Context(("x",), ("class",), "cpu", (ROWS,), 1)
    usual = [{"model": nn.Linear(WIDTH, 3)} for _ in variants]
    signatures = [
        TorchEstimator(**{**base, **model, **variant}).replica(context).signature
        for model, variant in zip(usual, variants, strict=True)
    ]
    assert len(set(signatures)) == len(variants)
    other_rates = {"optimizer": torch.optim.Adam, "optimizer_params": {"lr": 0.5}, "gradient_clip": 1.0}
    other = TorchEstimator(**{**base, "model": nn.Linear(WIDTH, 3), **other_rates})
    assert other.replica(context).signature == signatures[0]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_steps_are_those_of_the_optimizer_whichever_parameters_have_gradients(name: str) -> None:
    """Branches take turns, so that as many parameters, but others, have gradients; one group begins later, and another
    one is added."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(4, 2) for _ in range(4)])
    other = copy.deepcopy(model)
    optimizers = []
    for each in (model, other):
        groups = [
            {"params": [*each[0].parameters(), *each[1].parameters()]},
            {"params": list(each[2].parameters())},
        ]
        options = {"fused": True} if name in ("sgd", "momentum", "adam", "adamw", "amsgrad") else {}
        given = {**OPTIMIZERS[name].get("optimizer_params", {}), **options, "lr": 0.001}
        optimizers.append(OPTIMIZERS[name]["optimizer"](groups, **given))
    own, others = optimizers
    steps = OptimizerSteps(own)
    for number, used in enumerate([[0], [0], [1], [0], [1, 2], [1, 2], [0, 2], [0, 2, 3], [0, 2, 3], [1]]):
        if number == 7:
            for each, optimizer in ((model, own), (other, others)):
                optimizer.add_param_group({"params": list(each[3].parameters())})
        x = torch.randn(6, 4) * 0.1
        for each in (model, other):
            sum(each[part](x).square().sum() for part in used).backward()  # type: ignore[union-attr]
        steps.step()
        others.step()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
    steps.close()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    assert repr(own.state_dict()) == repr(others.state_dict())


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_steps_are_those_of_the_optimizer(name: str) -> None:
    """Compared with a loop of PyTorch's own, also where a parameter has no gradient in some steps."""

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        given = OPTIMIZERS[name]
        options = {"fused": True} if name in ("sgd", "momentum", "adam", "adamw", "amsgrad") else {}
        groups = [
            {"params": [model[0].weight], "lr": 0.2},
            {"params": [model[0].bias, *model[1].parameters()]},
        ]
        return given["optimizer"](groups, **{"lr": 0.1, **given.get("optimizer_params", {}), **options})

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    other = copy.deepcopy(model)
    own, others = optimizer_of(model), optimizer_of(other)
    schedules = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in (own, others)]
    steps = OptimizerSteps(own)
    for number in range(9):
        x = torch.randn(6, 4) * 0.1
        for each in (model, other):
            loss = (each(x) if number not in (3, 4) else each[0](x)).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
        steps.step()
        others.step()
        for schedule, each in zip(schedules, (own, others), strict=True):
            each.zero_grad(set_to_none=True)
            schedule.step()
    steps.close()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    assert repr(own.state_dict()) == repr(others.state_dict())
