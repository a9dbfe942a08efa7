"""Models that are no chains train together by tapes of what they compute, with the bits that they have alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st
from tests.packing import pack_whatever_it_gains
from tests.training.torch.test_equivalence import (
    Attentive,
    Backwards,
    Conditional,
    Doubled,
    Doubles,
    Embedded,
    Recurrent,
    by_torch_alone,
    convolutional,
    farthest,
)
from tests.training.torch.test_pack import (
    COLUMNS,
    OPTIMIZERS,
    OPTIONS,
    WIDTH,
    alone,
    check_members,
    replicas,
    together,
    visits,
)
from tests.training.torch.test_taped import check_refused
from tests.tune.conftest import contents
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, rnn

from hopyard.backend import InlineBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.training.session import Session
from hopyard.training.torch import exact, pack, taped, untouched
from hopyard.training.torch.rules import Handle, JointCall
from hopyard.training.torch.stack import PLACES, placed
from hopyard.tune import GridSearch, hp_choice

_log = logging.getLogger("a user's")
SEEN: list[int] = []


@pytest.fixture(autouse=True)
def _packs_whatever_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_whatever_it_gains(monkeypatch)


class Tied(nn.Module):
    """A layer that is applied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.twice(self.twice(x).tanh())))


class Frozen(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.twice.requires_grad_(False)


class Branches(nn.Module):
    def __init__(self, rate: float = 0.3) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)
        self.norm, self.dropout, self.head = nn.BatchNorm1d(8), nn.Dropout(rate), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.dropout(self.norm(self.left(x)).relu() + self.right(x))))


class Centred(Tied):
    """A model with a running mean of its own, which it writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return super().forward(x - self.mean)


class InPlace(Branches):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.left(x) + self.right(x)
        hidden.mul_(2.0)[:, 0] = 0.5
        return torch.as_tensor(self.head(hidden))


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.layers(self.first(x[..., None])).mean(1)))


class Double(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, 8).double(), nn.Linear(8, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x.double())
        return torch.as_tensor(self.head(hidden.tanh() + hidden))


class Parameters(nn.Module):
    """A model with parameters of the names that layers have for options."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.head = nn.Parameter(torch.randn(2, WIDTH)), nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(x * self.p[0] + self.p[1]))


class Memories(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(1, 4, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.cells(x[..., None])[0].mean(1)))


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.words(x.abs().long().clamp(0, 8)).sum(1)))


class Packed(Memories):
    """Rows of sequences as long as each has positive numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = (x > 0).sum(1).clamp(min=1)
        packed = rnn.pack_padded_sequence(x[..., None], lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)
        return torch.as_tensor(self.head(hidden.sum(1)))


class Split(Tied):
    """Rows in two parts, whose sizes depend on them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = torch.tensor_split(x, (x[:, 0] > 0).sum()[None])
        return torch.cat([super().forward(first), -super().forward(second)])


def hooked() -> nn.Module:
    model = Tied()
    model.twice.register_forward_hook(lambda module, inputs, output: output * 2)
    return model


def weight_norm() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, 8)), nn.GELU(), nn.Linear(8, 3))


def spectral_norm() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(WIDTH, 8)), nn.GELU(), nn.Linear(8, 3))


def groups() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.PReLU(), nn.GroupNorm(2, 8), nn.Softmax(1), nn.Linear(8, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "embedding": Embedded,
    "convolution": convolutional,
    "attention": Attentive,
    "transformer": Nested,
    "gru": Recurrent,
    "lstm": Memories,
    "autograd function": lambda: Doubles(WIDTH, 3),
    "tied": Tied,
    "frozen": Frozen,
    "branches": Branches,
    "running mean": Centred,
    "in place": InPlace,
    "double": Double,
    "parameters": Parameters,
    "hooks": hooked,
    "weight norm": weight_norm,
    "spectral norm": spectral_norm,
    "groups": groups,
}


def check_same(make: Callable[[int], dict[str, Any]], count: int = 3, threads: int = 1) -> None:
    with Session(threads):
        check_members(replicas(make, count), replicas(make, count))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_members_learn_what_they_learn_alone(name: str, threads: int) -> None:
    def make(number: int) -> dict[str, Any]:
        return {
            "model": MODELS[name](),
            "optimizer": torch.optim.Adam,
            "optimizer_params": {"lr": 0.01 * (1 + number)},
            "metrics": ["accuracy"],
        }

    check_same(make, threads=threads)


def with_outputs(model: nn.Module, outputs: int) -> nn.Module:
    return model if outputs == 3 else nn.Sequential(model, nn.Tanh(), nn.Linear(3, outputs))


@given(
    model=st.sampled_from(sorted(MODELS.keys() - {"double"})),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    option=st.sampled_from(sorted(OPTIONS)),
    batch_size=st.sampled_from([16, 13, 64, 200]),
    count=st.integers(2, 5),
    threads=st.sampled_from([1, 2]),
)
def test_with_any_optimizer_option_and_batch(
    model: str, optimizer: str, option: str, batch_size: int, count: int, threads: int
) -> None:
    pack._widths.clear()
    taped._plans.clear()

    def make(number: int) -> dict[str, Any]:
        given = {**OPTIMIZERS[optimizer], **OPTIONS[option], "batch_size": batch_size}
        rates = {**given.get("optimizer_params", {}), "lr": 0.03 / (1 + number)}
        outputs = 1 if isinstance(given.get("loss"), nn.MSELoss | nn.L1Loss) else 3
        return {**given, "model": with_outputs(MODELS[model](), outputs), "optimizer_params": rates}

    with Session(threads):
        ones, others = replicas(make, count), replicas(make, count)
        if together(others, visits()[0]) is None:  # where few rows give sums of other bits
            event(f"alone: {others[0].trains_alone}")
            assert "the same bits" in others[0].trains_alone
            return
        check_members(ones, replicas(make, count))


@pytest.mark.parametrize("name", ["convolution", "embedding", "gru", "tied", "branches"])
def test_after_100_steps_in_double_precision_members_are_where_pytorch_alone_is(name: str) -> None:
    def make(number: int) -> dict[str, Any]:
        model = Branches(rate=0.0) if name == "branches" else MODELS[name]()
        return {
            "model": Doubled(model).double(),
            "optimizer": torch.optim.Adam,
            "optimizer_params": {"lr": 0.01 / (1 + number)},
        }

    with Session(1):
        members = replicas(make, 3)
        for visit in visits(20):
            assert together(members, visit) is not None, members[0].trains_alone
        # Their true gradient is zero before a normalisation, so that optimizers scale what rounding left of it.
        idle = {
            "convolution": ["0.2.bias", "0.3.running_mean"],
            "branches": ["0.left.bias", "0.norm.running_mean"],
        }.get(name, [])
        for number, member in enumerate(members):
            model = by_torch_alone(make, number, COLUMNS, 20)
            assert farthest(member.module, model, idle) < 1e-12
            assert farthest(member.module, model) < 1e-8


def test_a_step_may_be_given() -> None:
    def make(number: int) -> dict[str, Any]:
        return {"model": nn.Linear(WIDTH, 3), "loss": None, "step": by_step}

    check_same(make)


def by_step(model: nn.Module, batch: Any) -> dict[str, Any]:
    return {"loss": functional.cross_entropy(model(batch["x"]), batch["class"])}


class Counts(Tied):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


class Draws(Tied):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * float(np.random.rand())


class Noise(Tied):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.rand(len(x), 3)


class Scales(Tied):
    """A model that is the same for rows in any order, and reads them past PyTorch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x / float(np.asarray(x).max()))


class Lists(Tied):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x / max(map(max, x.tolist())))


class Prints(Tied):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("a batch")
        return super().forward(x)


class Logs(Tied):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _log.warning("a batch")
        return super().forward(x)


def counting(model: nn.Module, batch: Any) -> dict[str, Any]:
    SEEN.append(len(batch["x"]))
    return by_step(model, batch)


def keeping() -> Any:
    kept: list[int] = []

    def step(model: nn.Module, batch: Any) -> dict[str, Any]:
        kept.append(len(batch["x"]))
        return by_step(model, batch)

    return step


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": Counts}, "it changes model.calls"),
        ({"model": Draws}, "it draws random numbers that are not PyTorch's"),
        ({"model": Noise}, "it calls aten.rand.default, which draws from PyTorch's generator alone"),
        ({"model": Scales}, "it reads a tensor by numpy(), past PyTorch's operations"),
        ({"model": Lists}, "it reads a tensor by tolist(), past PyTorch's operations"),
        ({"model": Sparse, "optimizer": torch.optim.SGD}, "it has sparse gradients"),
        ({"model": Packed}, "it packs sequences, whose lengths no tape can tell from constants"),
        ({"model": Split}, "it reads a tensor by tensor_split(), past PyTorch's operations"),
        ({"model": Prints}, "it prints"),
        ({"model": Logs}, "it logs"),
        ({"step": counting, "loss": None}, "it changes step.SEEN"),
        ({"step": keeping(), "loss": None}, "its step may keep something from batch to batch"),
        ({"optimizer": Backwards}, "its optimizer is none of torch.optim"),
        ({"precision": "bf16"}, "precision is 'bf16'"),
        ({"model": lambda: Conditional(WIDTH, 3)}, ("it reads numbers", "members do not do the same operations")),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_what_trains_alone_says_why(changes: dict[str, Any], why: str | tuple[str, ...]) -> None:
    def make(number: int) -> dict[str, Any]:
        return {**changes, "model": changes.get("model", Tied)()}

    with Session(1):
        members = replicas(make, 2)
        check_refused(members, why)
        assert all(isinstance(each, dict) for each in alone(members, visits()[0])), "it does train"


class Large(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(2048, 2048)


def test_large_models_train_alone() -> None:
    with Session(1):
        (replica,) = replicas(lambda number: {"model": Large()}, 1)
        assert replica.signature == ""
        assert (
            replica.trains_alone
            == "its parameters take 16.8 MB, and models of over 16 MB gain nothing together"
        )


class Options(nn.Module):
    def __init__(self, activation: Any = torch.relu, stride: int = 1, rate: float = 0.1) -> None:
        super().__init__()
        self.activation = activation
        self.convolution = nn.Conv1d(1, 2, 3, stride, padding=1)
        self.dropout, self.head = nn.Dropout(rate), nn.LazyLinear(3)
        self(torch.zeros(2, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.activation(self.convolution(x[:, None]))
        return torch.as_tensor(self.head(self.dropout(hidden.flatten(1))))


def test_rates_of_dropout_may_differ_and_other_options_may_not() -> None:
    def signature(model: nn.Module, **changes: Any) -> str:
        (replica,) = replicas(lambda number: {"model": model, **changes}, 1)
        return replica.signature

    with Session(1):
        usual = signature(Options())
        assert usual
        assert signature(Options(rate=0.4)) == usual
        others = [Options(torch.tanh), Options(functional.gelu), Options(stride=2), Options(rate=0.0)]
        assert len({usual, *map(signature, others)}) == 5
        assert signature(Options(), step=by_step, loss=None) != usual


def test_products_hold_wherever_a_batch_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels add up in another order where rows begin at other places in lines of the cache."""
    begins: set[tuple[bool, int]] = set()
    agrees = exact._agrees

    def noted(found: Any, call: JointCall) -> bool:
        begins.update((each.moves, each.value.data_ptr() % 64) for each in call.handles())
        return agrees(found, call)

    monkeypatch.setattr(exact, "_agrees", noted)
    check_same(lambda number: {"model": Branches()})
    assert {place for moves, place in begins if moves} >= {*PLACES}
    for place in PLACES:
        matrix = torch.randn(5, 7).T
        copy = placed(matrix, place)
        assert torch.equal(copy, matrix)
        assert copy.stride() == matrix.stride()
        assert copy.data_ptr() % 64 == place


def test_tensors_whose_strides_are_lost_in_a_stack_are_not_stacked() -> None:
    matrices = [torch.randn(7, 3).T for _ in range(2)]
    stacked = torch.stack(matrices)
    call = JointCall(torch.ops.aten.tanh.default, [Handle(None, stacked, stacked=True)], {}, 2)
    assert exact.form_of(stacked[0]) != exact.form_of(matrices[0])
    assert (
        call.likes[0][0].stride() != matrices[0].stride()
    )  # so what is found for it says nothing of the members


def test_that_batches_are_heard_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with untouched.listening() as heard:
        pass
    assert heard == []
    with untouched.listening() as heard:
        print("loud", flush=True)
        _log.warning("louder")
    assert heard[0] == "prints"
    assert "logs" in heard
    assert capsys.readouterr().out == "loud\n"


class Averages(Tied):
    """A model with a moving average that its ``forward`` replaces, not written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return super().forward(x - self.mean)


class KeepsGenerator(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * float(self.random.uniform(0.5, 1.5))


class Counter:
    def __init__(self) -> None:
        self.count = 0


class KeepsObject(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.counter = Counter()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counter.count += self.training
        return super().forward(x) * (1.0 + 0.1 * self.counter.count)


class Flags(Tied):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.twice.requires_grad_(False)
        return super().forward(x)


class OnInstances(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.InstanceNorm1d(1, track_running_stats=True), nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.norm(x[:, None])[:, 0]))


class BranchesBehindNorm(Branches):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.left(x))
        return torch.as_tensor(self.head(hidden if x[0, 0] > 0 else hidden.tanh()))


class Products(Tied):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (1 + 0.1 * self.twice(x)).prod(1, keepdim=True)


def masked() -> nn.Module:
    model = Tied()
    mask = torch.ones(WIDTH, WIDTH).tril()
    model.twice.weight.register_hook(lambda gradient: gradient * mask)
    return model


ODD: dict[str, Callable[[], nn.Module]] = {
    "a buffer is replaced": Averages,
    "a generator of NumPy's": KeepsGenerator,
    "an object that counts": KeepsObject,
    "flags are changed": Flags,
    "instance norm": OnInstances,
    "branches behind a norm": BranchesBehindNorm,
    "products": Products,
    "hooks for gradients": masked,
}


@pytest.mark.parametrize("name", ODD)
def test_odd_models_come_to_the_same_in_a_search_together_and_alone(name: str, tmp_path: Path) -> None:
    def made(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            ODD[name](),
            torch.optim.SGD,
            nn.CrossEntropyLoss(),
            ["accuracy"],
            16,
            {"lr": params["lr"], "momentum": 0.9},
        )

    random = np.random.default_rng(2)
    rows = {"x": random.standard_normal((160, WIDTH)).astype(np.float32), "class": random.integers(0, 3, 160)}
    found = []
    for packing in ("serial", "auto"):
        search = GridSearch(
            InlineBackend(), LocalStore(tmp_path / packing), made, {"lr": hp_choice([0.01, 0.02, 0.05])},
            num_epochs=3, num_partitions=2, order_groups=1, packing=packing, progress=False,
            feature_columns=["x"], label_columns=["class"],
        )  # fmt: skip
        found.append(contents(search.fit(rows).run))
    assert found[0] == found[1]


@pytest.mark.parametrize("activation", ["sigmoid", "elu", "silu", "softplus", "mish"])
@pytest.mark.parametrize("batch_size", [11, 13])
def test_numbers_behind_the_last_vector_are_the_same(activation: str, batch_size: int) -> None:
    """Kernels compute these by other code than whole vectors."""

    class Activated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(WIDTH, 1), nn.Linear(1, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = getattr(functional, activation)(self.first(x))
            return torch.as_tensor(self.head(hidden) + self.head(-hidden))

    with Session(1):
        for seed in range(4):
            taped._plans.clear()
            pack._widths.clear()

            def make(number: int, seed: int = seed) -> dict[str, Any]:
                torch.manual_seed(10 * seed + number)
                return {"model": Activated(), "batch_size": batch_size, "optimizer": torch.optim.Adam}

            check_members(replicas(make, 3), replicas(make, 3))
