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
