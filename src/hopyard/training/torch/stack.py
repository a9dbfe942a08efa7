"""Models of one architecture as stacks of their parameters, whose products are computed for all of them at once.

A stack gives every member the bits that its own module gives. Slots of a stacked tensor begin at multiples of 64 bytes,
as tensors of their own do. A batched product need not add up in the order of a single one (PyTorch takes other kernels
for a layer with one output, for instance), so each is compared with the members' own layers, on random numbers, before
it is used for the first time for its shape; where they differ, members are computed one by one.

Only chains of layers are stacked: ``nn.Sequential``, or a module whose ``forward`` does the same.
"""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hopyard.training.torch.session import generators_kept

_SLOT_BYTES = 64
_COMPARED = 200

_POINTWISE = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(
        nn.Tanh,
        nn.Sigmoid,
        nn.LogSigmoid,
        nn.Softplus,
        nn.Softsign,
        nn.Hardtanh,
        nn.Hardswish,
        nn.Hardsigmoid,
    ),
)
_ONE_BY_ONE = (nn.BatchNorm1d, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Layers that each member computes by itself, between others that are stacked."""

_FUNCTIONS: dict[Any, type[nn.Module]] = {
    functional.relu: nn.ReLU,
    torch.relu: nn.ReLU,
    "relu": nn.ReLU,
    functional.tanh: nn.Tanh,
    torch.tanh: nn.Tanh,
    "tanh": nn.Tanh,
    functional.sigmoid: nn.Sigmoid,
    torch.sigmoid: nn.Sigmoid,
    "sigmoid": nn.Sigmoid,
    functional.gelu: nn.GELU,
    functional.silu: nn.SiLU,
    functional.elu: nn.ELU,
    functional.mish: nn.Mish,
    functional.leaky_relu: nn.LeakyReLU,
    functional.softplus: nn.Softplus,
    functional.hardswish: nn.Hardswish,
}
"""Layers by the functions and methods that ``forward`` may call instead, with the layer's default arguments."""


class _NotAChainError(Exception):
    """A model's computation is not known layer by layer; says why."""


# Chains ---------------------------------------------------------------------------------------


def chain_of(module: nn.Module) -> list[nn.Module] | str:
    """The layers that ``module`` applies to its one input, one after another; or why it does something else."""
    try:
        layers = list(_layers(module))
    except _NotAChainError as error:
        return str(error)
    if not any(type(layer) is nn.Linear for layer in layers):
        return "the model has no nn.Linear"
    tensors = [id(tensor) for layer in layers for tensor in layer.state_dict(keep_vars=True).values()]
    if len(set(tensors)) < len(tensors):
        return "layers share parameters"
    if set(tensors) != {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}:
        return "the model has parameters or buffers outside of its layers"
    return layers


_CALLS = ("__call__", "train", "eval")


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    if any(value for name, value in vars(module).items() if name.endswith("_hooks")):
        raise _NotAChainError(f"the {type(module).__name__} has hooks")
    kind = type(module)
    own = [
        name for name in _CALLS if name in vars(module) or getattr(kind, name) is not getattr(nn.Module, name)
    ]
    if own or "forward" in vars(module):
        raise _NotAChainError(f"the {kind.__name__} has a {(*own, 'forward')[0]} of its own")
    if kind in (nn.Linear, nn.Dropout, Squeeze, ToDouble, *_POINTWISE, *_ONE_BY_ONE):
        if getattr(module, "inplace", False) and kind not in (nn.ReLU, nn.Dropout):
            raise _NotAChainError(f"the {kind.__name__} works in place")
        if kind is nn.BatchNorm1d and getattr(module, "momentum", None) is None:
            raise _NotAChainError("the BatchNorm1d has no momentum")
        yield module
    elif isinstance(module, nn.Flatten) and kind is nn.Flatten:
        if (module.start_dim, module.end_dim) != (1, -1):
            raise _NotAChainError("the Flatten keeps other dimensions than the first")
        yield module
    elif kind.forward is nn.Sequential.forward:
        for part in module:  # type: ignore[attr-defined]
            yield from _layers(part)
    else:
        yield from _traced(module)


class _Leaves(torch.fx.Tracer):
    """Traces a module's own ``forward``, and not those of the layers in it."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _traced(module: nn.Module) -> Iterator[nn.Module]:
    """The layers that the module's ``forward`` applies, where it is a chain too."""
    name = type(module).__name__
    if type(module).__module__.startswith("torch."):
        raise _NotAChainError(f"nn.{name} is not among the layers that are stacked")
    graphs = []
    with generators_kept(torch.device("cpu")):
        try:
            copied = copy.deepcopy(module)  # a forward may write to buffers and attributes while it is traced
            before = _surroundings(copied)
            for training in (True, False):
                copied.training = training
                graphs.append(_Leaves().trace(copied))
        except Exception as error:  # whatever a forward does that is not for proxies
            raise _NotAChainError(
                f"the forward of {name} cannot be traced ({type(error).__name__}: {str(error).splitlines()[0][:120]})"
            ) from error
        if _surroundings(copied) != before:
            raise _NotAChainError(f"the forward of {name} draws random numbers, or counts")
    layers, others = (list(_steps(graph, module, name)) for graph in graphs)
    if list(map(_alike, layers)) != list(map(_alike, others)):
        raise _NotAChainError(f"the forward of {name} does another thing in training than in evaluation")
    for layer in layers:
        yield from _layers(layer)


def _alike(layer: nn.Module) -> Any:
    """A mark that is equal for the same layer, or functions' layers of one kind."""
    return id(layer) if next(layer.parameters(), None) is not None else repr(layer)


def _surroundings(module: nn.Module) -> Any:
    """Marks of random generators and of attributes, which a ``forward`` may change."""
    numpy_state: Any = np.random.get_state()
    return (
        random.getstate(),
        (numpy_state[2], numpy_state[1].tobytes()),
        torch.get_rng_state().numpy().tobytes(),
        [(name, repr(value)) for name, value in vars(module).items() if name != "training"],
    )


def _steps(graph: torch.fx.Graph, module: nn.Module, name: str) -> Iterator[nn.Module]:
    previous: torch.fx.Node | None = None
    for node in graph.nodes:
        if node.op == "placeholder":
            if previous is not None:
                raise _NotAChainError(f"the forward of {name} takes several inputs")
            previous = node
            continue
        chained = node.args and node.args[0] is previous and previous is not None and len(previous.users) == 1
        if not chained or (
            node.op != "output" and any(isinstance(each, torch.fx.Node) for each in node.args[1:])
        ):
            raise _NotAChainError(
                f"the forward of {name} is no chain of layers, each on the output of the one before"
            )
        if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
            yield module.get_submodule(str(node.target))
        elif node.op != "output":
            yield _of_function(node, name)
        previous = node


def _of_function(node: torch.fx.Node, name: str) -> nn.Module:
    """The layer that does what a function or method called in a forward does."""
    options = {key: value for key, value in node.kwargs.items() if (key, value) != ("inplace", False)}
    if node.target in _FUNCTIONS and len(node.args) == 1 and not options:
        return _FUNCTIONS[node.target]()
    if node.target == "double" and len(node.args) == 1:
        return ToDouble()
    if node.target in ("flatten", torch.flatten) and _dims(node, "start_dim", "end_dim") in ((1,), (1, -1)):
        return nn.Flatten()
    if node.target in ("squeeze", torch.squeeze) and _dims(node, "dim") in ((-1,), (1,)):
        return Squeeze()
    target = (
        node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    )
    raise _NotAChainError(f"the forward of {name} calls {target}, which is not among what is stacked")


def _dims(node: torch.fx.Node, *names: str) -> tuple[Any, ...]:
    """The dimensions that a call names, by position or by these names from the first on; empty if by others."""
    named = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
    return tuple(named.values()) if list(named) == list(names[: len(named)]) else ()


class Squeeze(nn.Module):
    """Outputs (rows, 1) as (rows,)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.squeeze(-1)


class ToDouble(nn.Module):
    """Numbers in double precision."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()


# Stacks ---------------------------------------------------------------------------------------


def aligned(count: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An empty tensor (count, *shape), whose slots begin at multiples of 64 bytes."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    strides = strides[: len(shape)]
    size = strides[0] * shape[0] if shape else 1
    per_slot = _SLOT_BYTES // dtype.itemsize
    return torch.empty_strided((count, *shape), (-(-size // per_slot) * per_slot, *strides), dtype=dtype)


class Stack:
    """Modules of one chain, as one computation.

    While it is open, parameters that are stacked have their values in it: ``Parameter.data`` and ``.grad`` of each
    member are slots of stacked tensors.

    Args:
        chains: layers of the members, from :func:`chain_of`; all alike.
        generators: of each member, for what dropout draws.
    """

    def __init__(self, chains: Sequence[Sequence[nn.Module]], generators: Sequence[torch.Generator]) -> None:
        self.count: int = len(chains)
        self._own: list[tuple[nn.Parameter, torch.Tensor]] = []
        self._layers: list[_Layer] = []
        needs_gradient = False
        for layers in zip(*chains, strict=True):
            made = _layer(layers, generators, needs_gradient)
            if isinstance(made, _ReLU) and self._layers:
                made.follows_linear = isinstance(self._layers[-1], _Linear)
            self._layers.append(made)
            needs_gradient = needs_gradient or any(p.requires_grad for p in layers[0].parameters())

    def open(self) -> None:
        """Move the members' parameters into the stack."""
        for layer in self._layers:
            for name, stacked in layer.parameters.items():
                for slot, module in enumerate(layer.modules):
                    parameter = getattr(module, name)
                    self._own.append((parameter, parameter.data))
                    stacked[slot].copy_(parameter.data)
                    parameter.data = stacked[slot]
        self.set_gradients()

    def set_gradients(self) -> None:
        """Give members the slots of stacked gradients as theirs, and no others."""
        for layer in self._layers:
            for slot, module in enumerate(layer.modules):
                for name, parameter in module.named_parameters():
                    gradient = layer.gradients.get(name)
                    parameter.grad = None if gradient is None else gradient[slot]

    def close(self, changed: bool) -> None:
        """Give members their own memory for parameters back, with the values of now if these may have ``changed``."""
        for parameter, own in self._own:
            if changed:
                own.copy_(parameter.data)
            parameter.data = own
        self._own.clear()
        for layer in self._layers:
            for module in layer.modules:
                for parameter in module.parameters():
                    parameter.grad = None

    def forward(self, x: torch.Tensor, training: bool) -> torch.Tensor:
        """Outputs (count, rows, ...) for a batch (rows, ...) that members share."""
        stacked = x.contiguous().expand(self.count, *x.shape)
        for layer in self._layers:
            stacked = layer.forward(stacked, training)
        return stacked

    def backward(self, gradient: torch.Tensor, add: bool) -> None:
        """Gradients of all parameters from that of the outputs, which is overwritten; ``add`` them to those that are
        there."""
        for layer in reversed(self._layers):
            if not layer.is_reached:
                return
            gradient = layer.backward(gradient, add)


class _Layer(ABC):
    """One layer of all members.

    Args:
        passes_on: whether layers before it have anything to train.
    """

    def __init__(self, modules: Sequence[nn.Module], passes_on: bool) -> None:
        self.modules: list[Any] = list(modules)
        self.count = len(modules)
        self.passes_on = passes_on
        self.parameters: dict[str, torch.Tensor] = {}
        self.gradients: dict[str, torch.Tensor] = {}
        self._buffers: dict[Any, torch.Tensor] = {}

    def _buffer(self, use: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory that is used again for every batch: new memory costs more than what is written into it."""
        key = (use, *shape, dtype)
        if key not in self._buffers:
            self._buffers[key] = aligned(self.count, *shape, dtype=dtype)
        return self._buffers[key]

    def _placed(self, use: str, x: torch.Tensor) -> torch.Tensor:
        """``x`` in slots as ``aligned`` makes them; a batch that all members share stays one."""
        if x.stride(0) == 0 and x[0].is_contiguous():
            return x
        like = self._buffer(use, x.shape[1:], x.dtype)
        return x if x.stride() == like.stride() and x.data_ptr() % _SLOT_BYTES == 0 else like.copy_(x)

    @property
    def is_reached(self) -> bool:
        """Whether a gradient has to come so far."""
        return self.passes_on or any(parameter.requires_grad for parameter in self.modules[0].parameters())

    @abstractmethod
    def forward(self, x: torch.Tensor, training: bool) -> torch.Tensor:
        """Outputs (members, rows, ...) for inputs (members, rows, ...)."""

    @abstractmethod
    def backward(self, gradient: torch.Tensor, add: bool) -> torch.Tensor:
        """Gradient of the input; anything where none is passed on."""


def _layer(modules: Sequence[nn.Module], generators: Sequence[torch.Generator], passes_on: bool) -> _Layer:
    kind = type(modules[0])
    if kind is nn.Linear:
        return _Linear(modules, passes_on)
    if kind is nn.Dropout:
        return _Dropout(modules, passes_on, generators)
    if kind is nn.ReLU:
        return _ReLU(modules, passes_on)
    if kind in (nn.Flatten, Squeeze, nn.Identity):
        return _Shape(modules, passes_on)
    if kind is ToDouble:
        return _Widened(modules, passes_on)
    return _Pointwise(modules, passes_on) if kind in _POINTWISE else _Each(modules, passes_on)


class _Linear(_Layer):
    def __init__(self, modules: Sequence[nn.Module], passes_on: bool) -> None:
        super().__init__(modules, passes_on)
        for name, parameter in modules[0].named_parameters():
            self.parameters[name] = aligned(self.count, *parameter.shape, dtype=parameter.dtype)
            if parameter.requires_grad:
                self.gradients[name] = aligned(self.count, *parameter.shape, dtype=parameter.dtype).zero_()

    def forward(self, x: torch.Tensor, training: bool) -> torch.Tensor:
        weight, bias = self.parameters["weight"], self.parameters.get("bias")
        self._x = x = self._placed("input", x)
        rows, outputs = x.shape[1], weight.shape[1]
        self._exact = _exact(
            self.count, rows, tuple(weight.shape[1:]), bias is not None, x.stride(0) == 0, weight.dtype
        )
        out = self._buffer("output", (rows, outputs), weight.dtype)
        if self._exact["output"]:
            _output(x, weight, bias, out)
        elif self._exact["column"]:
            _column(x, weight, bias, out)
        else:
            for slot, module in enumerate(self.modules):
                out[slot] = functional.linear(x[slot], module.weight, module.bias)
        return out

    def backward(self, gradient: torch.Tensor, add: bool) -> torch.Tensor:
        gradient = self._placed("output gradient", gradient)
        for name, whole in self.gradients.items():
            into = self._buffer(f"{name} gradient", whole.shape[1:], whole.dtype) if add else whole
            self._parameter_gradient(name, gradient, into)
            if add:
                whole.add_(into)
        if not self.passes_on:
            return gradient
        weight = self.parameters["weight"]
        found = self._buffer("input gradient", self._x.shape[1:], weight.dtype)
        if self._exact["input"]:
            return _products(gradient, weight, found)
        for own, of_slot, into in zip(gradient.unbind(), weight.unbind(), found.unbind(), strict=True):
            torch.mm(own, of_slot, out=into)
        return found

    def _parameter_gradient(self, name: str, gradient: torch.Tensor, into: torch.Tensor) -> None:
        if name == "weight":
            if self._exact["weight"]:
                _products(gradient.mT, self._x, into)
                return
            for own, x, of_slot in zip(gradient.mT.unbind(), self._x.unbind(), into.unbind(), strict=True):
                torch.mm(own, x, out=of_slot)
        elif self._exact["bias"]:
            torch.sum(gradient, 1, out=into)
        else:
            for own, of_slot in zip(gradient.unbind(), into.unbind(), strict=True):
                torch.sum(own, 0, out=of_slot)


def _output(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    if bias is None:
        _products(x, weight.mT, out)
    else:
        torch.baddbmm(bias.unsqueeze(1), x, weight.mT, out=out)


def _column(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """The output of a layer with one number a row, as PyTorch takes it for a single one: a row times a matrix."""
    if bias is None:
        torch.bmm(weight, x.mT, out=out.mT)
    else:
        torch.baddbmm(bias.unsqueeze(2), weight, x.mT, out=out.mT)


def _products(some: torch.Tensor, others: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Products of matrices (members, n, k) and (members, k, m)."""
    if some.shape[2] > 1:
        return torch.bmm(some, others, out=out)
    # Nothing is added up. (``bmm`` loses signs of zeros here, which single products keep.)
    return torch.mul(some, others, out=out)


def same_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN is the same as NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


_known: dict[Any, dict[str, bool]] = {}


PLACES = (0, 4, 8, 16, 32)
"""Bytes by which tensors of a batch may begin behind a multiple of 64: kernels choose by that, too."""


def placed(tensor: torch.Tensor, place: int) -> torch.Tensor:
    """A copy of a tensor with the same strides that begins so many bytes behind a multiple of 64."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in sizes) if tensor.numel() else 0
    memory = torch.empty(span + 128 // tensor.itemsize, dtype=tensor.dtype)
    begin = (place - memory.data_ptr()) % 64 // tensor.itemsize
    return memory[begin:].as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def draws_of(numbers: int) -> int:
    """How often results of so many ``numbers`` are compared: sums in another order seldom differ where little is added
    up, so that a few that are equal say nothing."""
    return max(1, -(-_COMPARED // numbers))


def _exact(
    count: int, rows: int, shape: tuple[int, ...], has_bias: bool, shares_input: bool, dtype: torch.dtype
) -> dict[str, bool]:
    """Whether products of a stack have the bits of a layer's own, for its output and for gradients by name.

    Args:
        shape: of the weight, (outputs, inputs).
        shares_input: whether all members have the same input.
    """
    key = (count, rows, shape, has_bias, shares_input, dtype, torch.get_num_threads())
    if key not in _known:
        outputs, inputs = shape
        least = count * min(outputs if has_bias else outputs * inputs, rows * outputs, rows * inputs)
        draws = draws_of(least)
        found = [
            _compared(count, rows, shape, has_bias, shares_input, dtype, draw)
            for draw in range(max(draws, len(PLACES)) if shares_input else draws)
        ]
        _known[key] = {name: all(each[name] for each in found) for name in found[0]}
    return _known[key]


def _compared(
    count: int,
    rows: int,
    shape: tuple[int, ...],
    has_bias: bool,
    shares_input: bool,
    dtype: torch.dtype,
    draw: int = 0,
) -> dict[str, bool]:
    generator = torch.Generator().manual_seed(draw)

    def drawn(number: int, *sizes: int) -> torch.Tensor:
        return aligned(number, *sizes, dtype=dtype).normal_(generator=generator)

    outputs, inputs = shape
    x = drawn(1 if shares_input else count, rows, inputs)
    if shares_input:
        place = PLACES[draw % len(PLACES)]
        x = placed(x[0], place - place % x.itemsize).expand(count, rows, inputs)
    weight, gradient = drawn(count, outputs, inputs), drawn(count, rows, outputs)
    bias = drawn(count, outputs) if has_bias else None
    out, of_x, of_weight = (
        aligned(count, *shape, dtype=dtype) for shape in ((rows, outputs), (rows, inputs), (outputs, inputs))
    )
    _output(x, weight, bias, out)
    column = aligned(count, rows, outputs, dtype=dtype)
    if outputs == 1:
        _column(x, weight, bias, column)
    _products(gradient, weight, of_x)
    _products(gradient.mT, x, of_weight)
    of_bias = torch.sum(gradient, 1)
    same = {"output": True, "column": outputs == 1, "input": True, "weight": True, "bias": True}
    for slot in range(count):
        with torch.enable_grad():
            rows_of_own = x[slot].detach() if shares_input else x[slot].clone()
            own = [each.requires_grad_() for each in (rows_of_own, weight[slot].clone())]
            own += [] if bias is None else [bias[slot].clone().requires_grad_()]
            result = functional.linear(*own)
            found = torch.autograd.grad(result, own, gradient[slot].clone())
        same["output"] &= torch.equal(result, out[slot])
        same["column"] &= torch.equal(result, column[slot])
        pairs = zip(("input", "weight", "bias"), found, (of_x, of_weight, of_bias), strict=False)
        for name, single, stacked in pairs:
            same[name] &= torch.equal(single, stacked[slot])
    return same


class _ReLU(_Layer):
    """In place, where the output of the layer before is needed no more. (Its gradient is found by its output.)"""

    follows_linear = False

    def forward(self, x: torch.Tensor, training: bool) -> torch.Tensor:
        self._y = torch.relu_(x) if self.follows_linear else torch.relu(x)
        return self._y

    def backward(self, gradient: torch.Tensor, add: bool) -> torch.Tensor:
        found: torch.Tensor = torch.ops.aten.threshold_backward(gradient, self._y, 0, grad_input=gradient)
        return found


class _Dropout(_Layer):
    """Each member draws from a generator of its own, as its layer would from PyTorch's."""

    def __init__(
        self, modules: Sequence[nn.Module], passes_on: bool, generators: Sequence[torch.Generator]
    ) -> None:
        super().__init__(modules, passes_on)
        self._generators = generators
        self._mask: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, training: bool) -> torch.Tensor:
        self._mask = None
        if not training:
            return x
        mask = self._buffer("mask", x.shape[1:], x.dtype)
        for slot, (module, generator) in enumerate(zip(self.modules, self._generators, strict=True)):
            if module.p in (0, 1):
                mask[slot] = 1 - module.p
            else:
                mask[slot].bernoulli_(1 - module.p, generator=generator).div_(1 - module.p)
        self._mask = mask
        return torch.mul(x, mask, out=self._buffer("output", x.shape[1:], x.dtype))

    def backward(self, gradient: torch.Tensor, add: bool) -> torch.Tensor:
        return gradient if self._mask is None else gradient.mul_(self._mask)


class _Shape(_Layer):
    """What only changes the shape of each row."""

    def forward(self, x: torch.Tensor, training: bool) -> torch.Tensor:
        self._shape = x.shape
        kind = type(self.modules[0])
        if kind is Squeeze:
            return x.squeeze(-1) if x.dim() > 2 else x
        return x.flatten(2) if kind is nn.Flatten else x

    def backward(self, gradient: torch.Tensor, add: bool) -> torch.Tensor:
        return gradient.reshape(self._shape)


class _Widened(_Layer):
    """Numbers in double precision; of a batch that all members share, once."""

    def forward(self, x: torch.Tensor, training: bool) -> torch.Tensor:
        self._dtype = x.dtype
        return x[0].double().expand(x.shape) if x.stride(0) == 0 else x.double()

    def backward(self, gradient: torch.Tensor, add: bool) -> torch.Tensor:
        return gradient.to(self._dtype)


class _Each(_Layer):
    """A layer that every member computes by itself."""

    def forward(self, x: torch.Tensor, training: bool) -> torch.Tensor:
        if not training:
            return self._joined([module(x[slot]) for slot, module in enumerate(self.modules)])
        with torch.enable_grad():
            self._inputs = [x[slot].detach().requires_grad_(self.passes_on) for slot in range(self.count)]
            self._outputs = [module(own) for module, own in zip(self.modules, self._inputs, strict=True)]
        return self._joined([output.detach() for output in self._outputs])

    def backward(self, gradient: torch.Tensor, add: bool) -> torch.Tensor:
        if not add:
            for module in self.modules:
                for parameter in module.parameters():
                    parameter.grad = None
        for slot, output in enumerate(self._outputs):
            output.backward(gradient[slot].contiguous())
        if not self.passes_on:
            return gradient
        return self._joined([own.grad for own in self._inputs if own.grad is not None])

    def _joined(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        found = aligned(self.count, *values[0].shape, dtype=values[0].dtype)
        for slot, value in enumerate(values):
            found[slot] = value
        return found


class _Pointwise(_Each):
    """A function of each number: for all members at once, where ends of vectors do not differ by it."""

    _input: torch.Tensor
    _output: torch.Tensor

    def forward(self, x: torch.Tensor, training: bool) -> torch.Tensor:
        self._whole = x[0].numel() % _SLOT_BYTES == 0 and torch.get_num_threads() == 1
        if not self._whole:
            return super().forward(x, training)
        self._input = x.detach().requires_grad_(training)
        with torch.set_grad_enabled(training):
            self._output = self.modules[0](self._input)
        return self._output.detach()

    def backward(self, gradient: torch.Tensor, add: bool) -> torch.Tensor:
        if not self._whole:
            return super().backward(gradient, add)
        gradients: tuple[torch.Tensor, ...] = torch.autograd.grad(self._output, self._input, gradient)
        return gradients[0]
