"""Trials over one base train as if each had one of its own, and hold, move and store no more than what they train."""

from __future__ import annotations

import copy
import functools
import gc
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.conftest import EPOCHS, PARTITIONS, Prepared
from torch import nn
from torch.utils.checkpoint import checkpoint

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.errors import (
    CorruptError,
    EstimatorError,
    WorkerMismatchError,
)
from hopyard.objects.frozen import RunFolder
from hopyard.objects.torch import to_tensor
from hopyard.storage import LocalStore, MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.training.estimator import Context
from hopyard.training.program import Program, forget_program, load_program, save_program
from hopyard.training.request import UnitRequest, UnitResult
from hopyard.training.torch import base as bases
from hopyard.training.torch.base import base_of
from hopyard.training.torch.replica import TorchReplica
from hopyard.training.unit import residents, run_unit
from hopyard.tune import ASHA, PBT, GridSearch, hp_choice, hp_loguniform

WIDTH = 160
CPU = torch.device("cpu")


class Network(nn.Module):
    """Layers, a norm with running statistics, and two names for one weight."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.again = nn.Linear(WIDTH, WIDTH)
        self.again.weight = self.second.weight
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first(x)))
        return torch.as_tensor(self.again(torch.relu(self.second(hidden)) * self.scale))


class Adapter(nn.Module):
    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) * 0.05)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layer(x) + x @ self.down.T @ self.up.T)


def network() -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Network()


def adapted(rank: int = 4, unfrozen: tuple[str, ...] = ()) -> Callable[[nn.Module], nn.Module]:
    def make(base: nn.Module) -> nn.Module:
        base.second = Adapter(base.second, rank)  # type: ignore[arg-type]
        for name in unfrozen:
            base.get_parameter(name).requires_grad_(True)
        return nn.Sequential(base, nn.Linear(WIDTH, 3))

    return make


def estimator(base: Any, model: Any = None, **params: Any) -> TorchEstimator:
    given = {"lr": 0.01, **params}
    return TorchEstimator(
        model or adapted(), torch.optim.Adam, nn.CrossEntropyLoss(), ["accuracy"], 32, given, base=base
    )


def replica(base: Any, model: Any = None) -> Any:
    torch.manual_seed(2)
    return estimator(base, model).replica(Context(("features",), ("label",), "cpu", (100,), 1))


class Trials:
    """Trials of one run, unit by unit; their states are where the last unit left them."""

    def __init__(self, folder: Path, data: Prepared, function: Callable[[dict[str, Any]], Any]) -> None:
        self.store = RunFolder(LocalStore(folder), "run")
        self.program = Program(
            function,
            ("features",),
            ("label",),
            data.train,
            data.val,
            PARTITIONS,
            EPOCHS,
            seed=5,
            device="cpu",
        )
        self.name = save_program(self.store, self.program)
        self.refs: dict[int, Any] = {}
        self.positions: dict[int, int] = {}

    def train(self, trial: int, params: dict[str, Any], save: bool = True, last: bool = True) -> UnitResult:
        position = self.positions.get(trial, 0)
        request = UnitRequest(
            self.store, self.name, (trial,), (params,), "train", position // PARTITIONS, position % PARTITIONS,
            position, (self.refs.get(trial),), save=save, last=last,
        )  # fmt: skip
        result = run_unit(request)
        if result.errors[0] is None:
            self.positions[trial] = position + 1
            self.refs[trial] = result.states[0]
        return result

    def bytes(self) -> dict[str, int]:
        found: dict[str, int] = {"_frozen": 0, "program": 0, "states": 0}
        for entry in self.store._inner.list():
            first, _, rest = entry.name.partition("/")
            kind = first if first == "_frozen" else "program" if rest.startswith("program/") else "states"
            found[kind] += entry.size
        return found


def in_a_new_process() -> None:
    residents.clear()
    bases._bases.clear()
    bases._of_modules.clear()
    bases._of_functions.clear()


# Sharing


def test_trials_have_modules_of_their_own_over_shared_tensors() -> None:
    base = network()
    before = {name: value.clone() for name, value in base.state_dict().items()}
    one, two = replica(base), replica(base)
    for name, value in base.state_dict().items():
        place = f"0.{name}".replace("0.second.", "0.second.layer.")
        pair = [each.module.state_dict()[place] for each in (one, two)]
        assert torch.equal(pair[0], value)
        shares = [each.data_ptr() == value.data_ptr() for each in pair]
        assert shares == [False, False] if "running" in name or "num_batches" in name else [True, True], name
    assert one.module[0] is not two.module[0]
    assert one.module[0].second.layer.weight is one.module[0].again.weight
    assert all(parameter.requires_grad for parameter in base.parameters())
    assert base.state_dict().keys() == before.keys()
    own = sum(value.nbytes for value in one.module[0].norm.buffers())
    trained = sum(each.nbytes for each in one.module.parameters() if each.requires_grad)
    assert one.nbytes() == own + trained


def test_what_requires_gradients_is_the_trials_own() -> None:
    base = network()
    made = replica(base, adapted(unfrozen=("norm.weight", "first.bias")))
    for name in ("norm.weight", "first.bias"):
        parameter = made.module[0].get_parameter(name)
        assert parameter.data_ptr() != base.get_parameter(name).data_ptr()
        with torch.no_grad():
            parameter += 1
    base_of(base, CPU).check()


def test_modules_of_one_content_are_one_base() -> None:
    first, second = replica(network()), replica(network())
    assert first.module[0].first.weight.data_ptr() == second.module[0].first.weight.data_ptr()
    torch.manual_seed(9)
    other = replica(Network())
    assert other.module[0].first.weight.data_ptr() != first.module[0].first.weight.data_ptr()


def test_a_base_goes_with_those_who_have_it() -> None:
    in_a_new_process()
    base = network()
    made = replica(base)
    assert len(bases._bases) == 1
    del base, made
    gc.collect()
    assert len(bases._bases) == 0


def test_a_module_that_its_owner_has_changed_is_another_base() -> None:
    base = network()
    before = copy.deepcopy(base)
    values = base.first.weight.detach()
    made = replica(base)
    assert replica(base)._frozen_base is made._frozen_base
    with torch.no_grad():
        base.first.weight.add_(1)
    changed = replica(base)
    base_of(base, CPU).check()
    same = replica(before)  # of the content that the first base had
    assert torch.equal(same.module[0].first.weight, before.first.weight)
    assert torch.equal(changed.module[0].first.weight, before.first.weight + 1)
    assert changed.base_weights != same.base_weights == made.base_weights
    base.load_state_dict(before.state_dict())
    assert replica(base).base_weights == made.base_weights
    base.first.weight.data = values + 2
    assert torch.equal(replica(base).module[0].first.weight, values + 2)


def test_a_module_may_be_trained_on_between_two_searches() -> None:
    base = network()
    draws = np.random.default_rng(0)
    rows = {"features": draws.standard_normal((96, 12)).astype("f4"), "label": draws.integers(0, 3, 96)}

    def search() -> Any:
        store, space = MemoryStore(), {"lr": hp_choice([0.01])}
        return GridSearch(
            InlineBackend(), store, lambda params: estimator(base, **params), space, 1, progress=False
        )

    first = search().fit(rows)
    with torch.no_grad():
        base.first.weight.mul_(2)
    values = base.first.weight.detach().clone()
    second = search().fit(rows)
    assert torch.equal(second.torch()[0].first.weight, values)
    assert torch.equal(base.first.weight, values)
    assert first.get_history() != second.get_history()


def test_a_function_that_makes_the_base_is_called_once() -> None:
    calls = []

    def load() -> nn.Module:
        calls.append(1)
        return network()

    first, second = replica(load), replica(load)
    assert calls == [1]
    assert first.module[0].first.weight.data_ptr() == second.module[0].first.weight.data_ptr()


def test_a_function_that_makes_the_base_draws_and_leaves_what_no_trial_depends_on() -> None:
    drawn = []

    def load(seeded: bool) -> nn.Module:
        if seeded:
            random.seed(0)
            np.random.seed(0)
            torch.manual_seed(0)
            torch.set_default_dtype(torch.float64)
        made = Network().float()
        drawn.append((made.first.weight, random.random(), np.random.random()))
        return made

    for seeded in (True, False):
        for trial in range(2):
            in_a_new_process()
            states = []
            function = functools.partial(load, seeded)
            for _ in range(2):  # the first one calls the function
                random.seed(trial)
                np.random.seed(trial)
                torch.manual_seed(trial)
                base_of(function, CPU)
                states.append((torch.rand(3).tolist(), random.random(), np.random.random()))
            assert states[0] == states[1]
            assert torch.get_default_dtype() == torch.float32
        (first, *others), (again, *others_again) = drawn[-2:]
        assert torch.equal(first, again)
        assert others == others_again
    assert len(drawn) == 4


@pytest.mark.long
def test_what_a_base_seeds_changes_no_result_on_any_number_of_workers(tmp_path: Path) -> None:
    def load() -> nn.Module:
        torch.manual_seed(0)
        return Network()

    def function(params: dict[str, Any]) -> TorchEstimator:
        return estimator(load, lambda base: nn.Sequential(adapted()(base), nn.Dropout(0.2)), **params)

    draws = np.random.default_rng(0)
    rows = {"features": draws.standard_normal((96, 12)).astype("f4"), "label": draws.integers(0, 3, 96)}
    found = []
    for number, backend in enumerate((InlineBackend(), LocalBackend(1), LocalBackend(2))):
        store, space = LocalStore(tmp_path / str(number)), {"lr": hp_choice([0.01, 0.02])}
        search = GridSearch(backend, store, function, space, 1, num_partitions=2, progress=False)
        found.append(search.fit(rows).get_all_model_history())
    assert found[1:] == found[:1] * 2


def test_what_is_given_out_shares_nothing() -> None:
    base = network()
    made, other = replica(base), replica(base)
    expected = {name: value.clone() for name, value in made.module.state_dict().items()}
    module = made.give_out()
    assert module[0].second.layer.weight is module[0].again.weight
    assert all(torch.equal(value, expected[name]) for name, value in module.state_dict().items())
    for value in module.state_dict().values():
        value.add_(1)
    base_of(base, CPU).check()
    theirs = other.module.state_dict()
    assert torch.equal(theirs["0.first.weight"], expected["0.first.weight"])
    assert torch.equal(theirs["0.scale"], expected["0.scale"])


# Training


@pytest.mark.parametrize("unfrozen", [(), ("norm.weight", "first.bias")])
@pytest.mark.parametrize("where", ["resident", "moved", "new process"])
def test_units_over_a_base_are_those_of_models_of_their_own(
    tmp_path: Path, data: Prepared, unfrozen: tuple[str, ...], where: str
) -> None:
    base = network()

    def shared(params: dict[str, Any]) -> TorchEstimator:
        return estimator(base, adapted(params["rank"], unfrozen), lr=params["lr"])

    def own(params: dict[str, Any]) -> TorchEstimator:
        model = adapted(params["rank"], unfrozen)(network().requires_grad_(False))
        return TorchEstimator(
            model, torch.optim.Adam, nn.CrossEntropyLoss(), ["accuracy"], 32, {"lr": params["lr"]}
        )

    points = [{"rank": 4, "lr": 0.01}, {"rank": 6, "lr": 0.02}]
    with_base, plain = Trials(tmp_path / "base", data, shared), Trials(tmp_path / "own", data, own)
    for _ in range(2 * PARTITIONS):
        for trial, params in enumerate(points):
            results = []
            for trials in (with_base, plain):
                if where != "resident":
                    residents.clear()
                if where == "new process":
                    in_a_new_process()
                    forget_program(trials.store, trials.name)
                results.append(trials.train(trial, params))
                assert results[-1].errors == (None,)
            assert results[0].metrics == results[1].metrics
            assert [each.digest for each in results[0].states if each] == [
                each.digest for each in results[1].states if each
            ]
            if where != "resident" and with_base.positions[trial] > 1:
                assert results[0].bytes_moved < 60_000


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


class Checkpointed(nn.Module):
    """Computes its inner outputs once more for the gradients."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(checkpoint(self.inner, x, use_reentrant=False))


def in_bf16(base: nn.Module) -> nn.Module:
    return nn.Sequential(Cast(torch.bfloat16), adapted()(base).bfloat16(), Cast(torch.float32))


def compiled(base: nn.Module) -> nn.Module:
    made: Any = torch.compile(adapted()(base), backend="eager")
    return nn.Sequential(made)


def checkpointed(base: nn.Module) -> nn.Module:
    return Checkpointed(adapted()(base))


@pytest.mark.parametrize("model", [in_bf16, compiled, checkpointed])
def test_bases_of_bf16_compiled_and_with_checkpoints_are_trained_as_models_of_their_own(
    tmp_path: Path, data: Prepared, model: Callable[[nn.Module], nn.Module]
) -> None:
    def given() -> nn.Module:
        return network().to(torch.bfloat16 if model is in_bf16 else torch.float32)

    base = given()

    def shared(params: dict[str, Any]) -> TorchEstimator:
        return estimator(base, model)

    def own(params: dict[str, Any]) -> TorchEstimator:
        trained = model(given().requires_grad_(False))
        return TorchEstimator(
            trained, torch.optim.Adam, nn.CrossEntropyLoss(), ["accuracy"], 32, {"lr": 0.01}
        )

    ends = []
    for name, function in {"base": shared, "own": own}.items():
        trials = Trials(tmp_path / name, data, function)
        for _ in range(2):
            residents.clear()
            in_a_new_process()
            done = trials.train(0, {})
            assert done.errors == (None,)
        ends.append(([each.digest for each in done.states if each], done.metrics))
    assert ends[0] == ends[1]
    base_of(base, CPU).check()


@pytest.mark.parametrize("kind", [ASHA, PBT])
def test_adaptive_searches_over_a_base_are_those_of_models_of_their_own(kind: Any, data: Prepared) -> None:
    base = network()

    def shared(params: dict[str, Any]) -> TorchEstimator:
        return estimator(base, adapted(int(params.get("rank", 4))), lr=params["lr"])

    def own(params: dict[str, Any]) -> TorchEstimator:
        model = adapted(int(params.get("rank", 4)))(network().requires_grad_(False))
        return TorchEstimator(
            model, torch.optim.Adam, nn.CrossEntropyLoss(), ["accuracy"], 32, {"lr": params["lr"]}
        )

    space = {"lr": hp_loguniform(-4, -1), **({"rank": hp_choice([2, 4])} if kind is ASHA else {})}
    random = np.random.default_rng(0)
    features = random.standard_normal((160, 12), dtype=np.float32)
    rows = {"features": features, "label": (features[:, 0] > 0).astype(np.int64)}
    found = [
        kind(
            InlineBackend(), MemoryStore(), function, space, num_models=4, num_epochs=4, evaluation_metric="loss",
            feature_columns=["features"], label_columns=["label"], progress=False,
        ).fit(rows)
        for function in (shared, own)
    ]  # fmt: skip
    assert found[0].get_all_model_history() == found[1].get_all_model_history()
    assert found[0].params == found[1].params
    assert len({len(each["val_loss"]) for each in found[0].get_all_model_history().values()}) > (kind is ASHA)


def test_states_hold_what_is_trained_and_the_base_is_stored_once(tmp_path: Path, data: Prepared) -> None:
    base = network()

    def function(params: dict[str, Any]) -> TorchEstimator:
        return estimator(base, adapted(params["rank"]), lr=params["lr"])

    trials = Trials(tmp_path, data, function)
    written, needed = 0, 0
    for _ in range(PARTITIONS):
        for trial in range(4):
            params = {"rank": 4, "lr": 0.01 * (trial + 1)}
            result = trials.train(trial, params)
            written += result.bytes_written
            made = residents.look((trials.store.url, trials.name, trial))
            assert made is not None
            assert made.replica is not None
            needed += made.replica.nbytes()
    whole = sum(value.nbytes for value in base.state_dict().values()) - base.second.weight.nbytes
    found = trials.bytes()
    assert whole < found["_frozen"] < 1.1 * whole + 20_000
    assert found["program"] < 40_000
    # Beside the numbers each state lists its tensors, which are few here.
    assert written + found["_frozen"] < 1.1 * needed + whole + 12 * 8_000


def test_the_gradients_do_not_reach_the_base(tmp_path: Path, data: Prepared) -> None:
    base = network()
    before = {name: value.clone() for name, value in base.state_dict().items()}
    trials = Trials(tmp_path, data, lambda params: estimator(base, adapted(params["rank"])))
    for trial in range(2):
        assert trials.train(trial, {"rank": 4}).errors == (None,)
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    assert all(parameter.grad is None for parameter in base.parameters())


# Programs


def test_the_program_of_a_run_holds_no_large_tensor(tmp_path: Path) -> None:
    base = network()
    base.first.weight.requires_grad_(False)
    kept = torch.arange(30_000.0)
    view, small = torch.arange(100.0)[::2], torch.ones(3, requires_grad=True)

    def function(params: dict[str, Any]) -> Any:
        return base, kept, view, small

    store = RunFolder(LocalStore(tmp_path), "run")
    name = save_program(store, Program(function, ("x",), ("y",), None, None, 1, 1, 0))
    assert (store.size(name) or 0) < 100_000
    forget_program(store, name)
    loaded = load_program(store, name).estimator_gen_fn({})
    for value, expected in zip(loaded[1:], (kept, view, small), strict=True):
        assert torch.equal(value, expected)
        assert value.requires_grad == expected.requires_grad
    assert loaded[0].second.weight is loaded[0].again.weight
    assert not loaded[0].first.weight.requires_grad
    assert loaded[0].first.bias.requires_grad
    assert isinstance(loaded[0].first.weight, nn.Parameter)
    for mine, its in zip(base.state_dict().values(), loaded[0].state_dict().values(), strict=True):
        assert to_tensor(mine).digest == to_tensor(its).digest
    with torch.no_grad():
        loaded[0].first.weight.zero_()  # is no part of a file
    forget_program(store, name)
    assert load_program(store, name).estimator_gen_fn({})[0].first.weight.abs().sum() > 0
    (path,) = (Path(tmp_path) / "_frozen").rglob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    forget_program(store, name)
    with pytest.raises(CorruptError, match=rf"the file {path} is not what was written"):
        load_program(store, name)


# Mistakes


def _quantized() -> nn.Module:
    quantize = torch.ao.nn.quantized.Quantize(0.1, 0, torch.quint8)  # type: ignore[no-untyped-call]
    return nn.Sequential(nn.Linear(2, 2), quantize)


def returns_nothing() -> Any:
    network()


@pytest.mark.parametrize(
    ("base", "model", "text"),
    [
        (
            3, adapted(),
            r"base=3, but it must be a torch.nn.Module, or a function that gives one. Write base=lambda: \.\.\., with",
        ),
        (
            "bert-base", adapted(),
            r"base='bert-base', but it must .* Write base=lambda: AutoModel\.from_pretrained\('bert-base'\), with",
        ),
        (network(), nn.Linear(2, 2), r"base was given with model=Linear\(.*, but with a base model must be a function"),
        (lambda: 3, adapted(), "base=<lambda> returned int, but must return a torch.nn.Module."),
        (
            returns_nothing, adapted(),
            "base=returns_nothing returned NoneType, but must return .*Module. End the function with `return model`.",
        ),
        (network(), lambda base: 3, r"model=fn\(base\) returned int, but must return a torch.nn.Module"),
        (network(), lambda base: base, "that require gradients, .* or return a model with adapters"),
        (
            nn.Linear(3, 2, device="meta"), adapted(),
            "the base has tensors without values, on the device 'meta': weight, bias. Load its weights before",
        ),
        (
            _quantized(), adapted(),
            r"the base is quantised so that nothing can be trained through it: 1 \(Quantize\). Give a base of",
        ),
    ],
)  # fmt: skip
def test_a_base_that_cannot_be_used_is_refused_in_words(base: Any, model: Any, text: str) -> None:
    with pytest.raises(EstimatorError, match=text):
        replica(base, model)


def test_a_base_and_a_trunk_are_one_too_many() -> None:
    with pytest.raises(EstimatorError, match="trunk was given with base"):
        TorchEstimator(adapted(), torch.optim.SGD, nn.MSELoss(), base=network(), trunk=nn.Linear(2, 2))


def test_a_base_needs_a_model() -> None:
    text = r"base was given without model\. Give model=fn\(base\) too, which .* model=lambda base: get_peft_model\("
    with pytest.raises(EstimatorError, match=text):
        TorchEstimator(base=network(), optimizer=torch.optim.SGD, loss=nn.MSELoss())  # type: ignore[call-arg]


def test_adapters_that_write_to_the_base_when_they_are_made_are_told_to_take_a_copy(
    tmp_path: Path, data: Prepared
) -> None:
    base = network()

    def function(params: dict[str, Any]) -> TorchEstimator:
        def model(base: nn.Module) -> nn.Module:
            own = copy.deepcopy(base) if params["copies"] else base
            own.first.weight.data -= 0.01  # type: ignore[union-attr, operator]
            return adapted()(own)

        return estimator(base, model)

    trials = Trials(tmp_path, data, function)
    assert trials.train(0, {"copies": True}).errors == (None,)
    evidence = trials.train(1, {"copies": False}).errors[0]
    assert evidence is not None
    assert "base, which all trials share: first.weight. " in evidence.message
    assert "get_peft_model(copy.deepcopy(base), config)" in evidence.message
    assert trials.train(0, {"copies": True}).errors == (None,)


def test_a_state_over_another_base_is_refused_and_a_model_is_loaded_as_it_was() -> None:
    made = replica(network())
    tree = made.state()
    other = network()
    with torch.no_grad():
        other.first.weight += 1
    for kind, take in ((WorkerMismatchError, TorchReplica.load), (EstimatorError, TorchReplica.adopt)):
        with pytest.raises(kind, match=r"over another base .*; 0\.first\.weight differ"):
            take(replica(other), tree)
    before = other.first.weight.clone()
    its = replica(other)
    its.load({"model": tree["model"]})
    expected = made.module.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in its.module.state_dict().items())
    assert torch.equal(other.first.weight, before)
    its.module[0].second.layer.weight.data.fill_(0)  # what is the same is shared still
    assert (other.second.weight == 0).all()


def test_loading_writes_nothing_to_the_base() -> None:
    base = network()
    made, other = replica(base), replica(base)
    versions = [value._version for value in base.state_dict().values()]
    tree = copy.deepcopy(other.state())
    made.load(tree)
    assert [value._version for value in base.state_dict().values()] == versions
    assert np.array_equal(made.state()["model"]["0.second.down"].data, tree["model"]["0.second.down"].data)
    del tree["model"]["0.second.down"]
    with pytest.raises(EstimatorError, match=r"it lacks 0\.second\.down; it has none too much"):
        made.load(tree)
