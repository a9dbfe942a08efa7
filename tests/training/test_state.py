"""State of modules and optimizers survives the tree, every dtype and every sharing of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hopyard.errors import EstimatorError
from hopyard.objects import flatten, unflatten
from hopyard.training.torch import hidden
from hopyard.training.torch.attributes import owners
from hopyard.training.torch.state import (
    from_tree,
    load_module,
    load_optimizer,
    optimizer_tree,
    plain_tree,
    plain_values,
    to_tree,
)

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


@given(
    st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 2**31), st.booleans()
)  # fmt: skip
def test_tensors_of_every_dtype_and_shape_come_back_bit_for_bit(
    dtype: torch.dtype, shape: list[int], seed: int, turned: bool
) -> None:
    torch.manual_seed(seed)
    tensor = (
        torch.randint(0, 2, shape).to(dtype)
        if dtype == torch.bool
        else (torch.randn(shape).abs() * 9).to(dtype)
    )
    tensor = tensor.mT if turned and tensor.ndim >= 2 else tensor
    found = from_tree(unflatten(*flatten(to_tree({"a": [tensor]}, "x"))))["a"][0]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert bits(found) == bits(tensor)


def test_loaded_tensors_are_their_own() -> None:
    tensor = torch.ones(3)
    tree = to_tree(tensor, "x")
    tree.data.setflags(write=False)  # as a mapped file is
    found = from_tree(tree)
    found += 1
    assert torch.equal(tensor, torch.ones(3))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.eye(2).to_sparse(), "The state model.a is a tensor of layout torch.sparse_coo"),
        (object(), "The state model.a is a object, but only tensors"),
        (torch.empty(2, dtype=torch.bits8), "bits8, which cannot be kept"),
    ],
)
def test_what_cannot_be_kept_is_named(value: Any, said: str) -> None:
    with pytest.raises(EstimatorError, match=said):
        to_tree({"a": value}, "model")


def test_plain_trees_leave_out_functions() -> None:
    assert plain_tree({"a": 1, "f": print, "l": [print], "t": (0.9, 0.99)}) == {"a": 1, "t": (0.9, 0.99)}


def test_tied_weights_stay_tied() -> None:
    def tied() -> nn.ModuleList:
        layers = nn.ModuleList([nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)])
        layers[1].weight = layers[0].weight
        return layers

    first, second = tied(), tied()
    load_module(second, to_tree(dict(first.state_dict()), "model"))
    assert second[0].weight is second[1].weight
    assert torch.equal(second[1].weight, first[0].weight)


def test_float32_moments_of_bfloat16_weights_stay_float32() -> None:
    class Precise(torch.optim.SGD):
        """Keeps a float32 sum for every parameter."""

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    total = self.state[parameter].setdefault("total", torch.zeros(parameter.shape))
                    total += 1 / 3

    def build() -> torch.optim.Optimizer:
        return Precise(nn.Linear(2, 2).bfloat16().parameters(), lr=0.1)

    first, second = build(), build()
    first.step()
    load_optimizer(second, optimizer_tree(first))
    totals = [entry["total"] for entry in second.state.values()]
    assert all(
        total.dtype == torch.float32 and torch.equal(total, torch.full_like(total, 1 / 3)) for total in totals
    )


class Counting(nn.Module):
    """Has more in its state dict than tensors, which an own method loads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.loads = nn.Linear(3, 3), 0

    def get_extra_state(self) -> Any:
        return {"loads": self.loads}

    def set_extra_state(self, given: Any) -> None:
        self.loads = given["loads"] + 1


def hooked() -> nn.Module:
    module = nn.Linear(3, 3)
    module.register_load_state_dict_post_hook(lambda module, keys: None)
    return module


@pytest.mark.parametrize(
    ("build", "is_plain"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3, bias=False), nn.Embedding(4, 2)), True),
        (
            lambda: nn.ModuleDict(
                {"none": nn.Linear(3, 3, bias=False), "attention": nn.MultiheadAttention(4, 2)}
            ),
            True,
        ),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), False),
        (lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)), False),
        (Counting, False),
        (hooked, False),
    ],
)
def test_values_that_are_copied_are_those_of_the_state_dict(build: Any, is_plain: bool) -> None:
    first, second = build(), build()
    values = plain_values(second)
    assert (values is not None) == is_plain
    if values is not None:
        assert list(values) == list(second.state_dict())
        assert all(values[key].data_ptr() == each.data_ptr() for key, each in second.state_dict().items())
    before = {name: each.data_ptr() for name, each in second.named_parameters()}
    load_module(second, to_tree(dict(first.state_dict()), "model"), values)
    for key, tensor in second.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            assert bits(tensor) == bits(first.state_dict()[key])
    assert {name: each.data_ptr() for name, each in second.named_parameters()} == before
    if isinstance(second, Counting):
        assert second.loads == 1


def test_buffers_that_are_not_persistent_are_no_part_of_the_values() -> None:
    module = nn.Linear(3, 3)
    module.register_buffer("mask", torch.ones(3), persistent=False)
    module.register_buffer("none", None)
    assert list(plain_values(module) or ()) == list(module.state_dict()) == ["weight", "bias"]


@pytest.mark.parametrize("changed", ["other shape", "other dtype", "other name", "missing"])
def test_what_does_not_fit_changes_nothing_and_is_named(changed: str) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    tree = to_tree({name: torch.full_like(each, 7) for name, each in module.state_dict().items()}, "model")
    before = {name: bits(each) for name, each in module.state_dict().items()}
    last = tree.pop("1.bias")
    if changed == "other shape":
        tree["1.bias"] = to_tree(torch.ones(3), "")
    elif changed == "other dtype":
        tree["1.bias"] = to_tree(torch.ones(2, dtype=torch.float64), "")
    elif changed == "other name":
        tree["1.bias2"] = last
    if changed == "other dtype":  # as load_state_dict does
        load_module(module, tree, plain_values(module))
        assert torch.equal(module[1].bias, torch.ones(2))
        return
    with pytest.raises(EstimatorError, match=r"1\.bias"):
        load_module(module, tree, plain_values(module))
    assert bits(module.state_dict()["1.bias"]) == before["1.bias"]


OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda given: torch.optim.SGD(given, 0.1, momentum=0.9),
    "Adam": lambda given: torch.optim.Adam(given, 0.1, amsgrad=True),
    "fused AdamW": lambda given: torch.optim.AdamW(given, 0.1, fused=True),
    "capturable lr": lambda given: torch.optim.Adam(given, torch.tensor(0.1)),
    "RMSprop": lambda given: torch.optim.RMSprop(given, 0.1, momentum=0.5, centered=True),
    "Adafactor": lambda given: torch.optim.Adafactor(given, 0.1),
    "Rprop": lambda given: torch.optim.Rprop(given, 0.1),
    "groups": lambda given: torch.optim.Adam([{"params": given[:1], "lr": 0.5}, {"params": given[1:]}], 0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_optimizer_that_has_made_steps_goes_on_from_a_tree_as_a_new_one_does(
    name: str, steps: int
) -> None:
    def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        module = nn.Sequential(
            nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last), nn.Flatten(), nn.Linear(3, 2)
        )
        return module, OPTIMIZERS[name](list(module.parameters()))

    def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for step in range(steps):
            optimizer.zero_grad()
            module(torch.full((1, 2, 2, 2), 1.0 + step)).square().sum().backward()
            optimizer.step()

    first, optimizer = build(0)
    train(first, optimizer, 2)
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    weights, saved = from_tree(to_tree(dict(first.state_dict()), "")), from_tree(optimizer_tree(optimizer))
    found = []
    for before in (0, steps):
        module, other = build(1)
        train(module, other, before)
        module.load_state_dict(weights)
        load_optimizer(other, to_tree(saved, ""))
        train(module, other, 2)
        found.append([bits(each) for each in module.state_dict().values()])
    train(first, optimizer, 2)
    assert found[0] == found[1] == [bits(each) for each in first.state_dict().values()]


def test_the_state_of_another_optimizer_is_refused() -> None:
    saved = optimizer_tree(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    other = torch.optim.SGD(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).parameters(), lr=0.1)
    with pytest.raises(
        EstimatorError, match="that of another optimizer than the estimator function now builds"
    ):
        load_optimizer(other, saved)


@pytest.mark.parametrize(
    "module",
    [
        nn.LSTM(3, 4),
        nn.BatchNorm1d(4),
        nn.MultiheadAttention(4, 2),
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
    ],
)
def test_layers_of_pytorch_hide_no_state(module: nn.Module) -> None:
    before = hidden.fingerprint(owners("model", module), [module])
    x = (
        torch.randn(5, 4)
        if isinstance(module, (nn.BatchNorm1d, nn.MultiheadAttention))
        else torch.randn(5, 3)
    )
    out = module(x, x, x) if isinstance(module, nn.MultiheadAttention) else module(x)
    (out[0] if isinstance(out, tuple) else out).sum().backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    assert hidden.fingerprint(owners("model", module), [module]) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "count", 1),
        lambda m: m.history.append(1.0),
        lambda m: m.cache.update(a=torch.zeros(1)),
        lambda m: m.plain.add_(1),
        lambda m: m.buffer.add_(1),
        lambda m: m.rng.manual_seed(3),
        lambda m: setattr(m, "plain", torch.zeros(2)),
    ],
)
def test_hidden_state_shows(change: Any) -> None:
    module = nn.Linear(2, 2)
    module.count, module.history, module.cache = 0, [], {}  # type: ignore[assignment]
    module.plain, module.rng = torch.zeros(2), torch.Generator()  # type: ignore[assignment]
    module.register_buffer("buffer", torch.zeros(2), persistent=False)
    before = hidden.fingerprint(owners("model", module), [module])
    assert hidden.fingerprint(owners("model", module), [module]) == before
    change(module)
    assert hidden.fingerprint(owners("model", module), [module]) != before
