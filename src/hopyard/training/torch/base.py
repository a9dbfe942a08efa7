"""The frozen base of an estimator: one copy in a process and on a device, over which each trial has modules of its own.

A trial's modules hold the storage of the base, and parameters that are its own; so what a library does to the modules
(it injects adapters, replaces layers, sets options) concerns that trial alone. A tensor that requires gradients once
the model is made becomes the trial's copy. What writes to the shared storage nevertheless is found at the end of the
visit.
"""

from __future__ import annotations

import copy
import tempfile
import weakref
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property
from typing import IO, Any, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import nn

from hopyard.errors import BaseChangedError, EstimatorError
from hopyard.objects import Tensor, digest_json
from hopyard.objects.identity import identity
from hopyard.training.session import Session
from hopyard.training.torch import state
from hopyard.training.torch.hidden import version
from hopyard.wording import brief, some_names

Given: TypeAlias = nn.Module | Callable[[], nn.Module]
"""A base as users give it: a module, or a function that makes one, which is called once in a process."""

_MOST_NAMES = 4

_bases: WeakValueDictionary[tuple[str, str], Base] = WeakValueDictionary()
"""By content and device: modules that are made anew for each trial are one base."""
_of_modules: WeakValueDictionary[tuple[int, str], Base] = WeakValueDictionary()
"""By the number of the module that was given, which its base keeps alive, and the device."""
_of_functions: WeakKeyDictionary[Any, dict[str, Base]] = WeakKeyDictionary()
"""By the function that was given, with which the base lives, and the device."""


class Base:
    """A frozen module on a device, whose tensors trials share.

    Attributes:
        given: the module that it is of, which is not changed.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        tensors = [*module.parameters(), *module.buffers()]
        is_there = all(tensor.device == device for tensor in tensors)
        self.given = module
        self._module = module if is_there else copy.deepcopy(module).to(device)
        self._tensors = {
            name: tensor
            for name, tensor in [*self._module.named_parameters(), *self._module.named_buffers()]
            if not _is_statistic(self._module, name)
        }
        self._trees = {name: _tree(tensor) for name, tensor in self._tensors.items()}
        self._known = {_storage(tensor): self._trees[name] for name, tensor in self._tensors.items()}
        self._marks = _marks(module)
        self._kept: IO[bytes] | None = None

    @property
    def is_as_given(self) -> bool:
        """Whether nobody has written to the module that was given, which its owner may train on between two runs."""
        return _marks(self.given) == self._marks

    def model(self, make: Callable[[nn.Module], nn.Module]) -> nn.Module:
        """The model that ``make`` gives for modules of its own over the shared tensors.

        Raises:
            EstimatorError: it gives no module.
        """
        model = make(self._own_modules())
        if not isinstance(model, nn.Module):
            raise EstimatorError(
                f"model=fn(base) returned {type(model).__name__}, but must return a torch.nn.Module, such as the base "
                "with adapters in it. End it with `return model`."
            )
        for parameter in model.parameters():
            if parameter.requires_grad and _storage(parameter) in self._known:
                parameter.data = parameter.data.clone()
        return model

    def tree_of(self, value: Any) -> Tensor | None:
        """What a state has of a tensor of the base, marked as frozen; None for what is a trial's own."""
        return self._known.get(_storage(value)) if isinstance(value, torch.Tensor) else None

    def has(self, value: Any) -> bool:
        """Whether a tensor is one of the base, not a trial's own."""
        return self.tree_of(value) is not None

    def leave(self, model: nn.Module) -> None:
        """Give a model copies of all that it has of the base: it is somebody's own from now on."""
        for tensor in [*model.parameters(), *model.buffers()]:
            if self.has(tensor):
                tensor.data = tensor.data.clone()

    @cached_property
    def digest(self) -> str:
        """Of the names and values of its tensors."""
        return digest_json({name: tree.digest for name, tree in self._trees.items()}, "base")

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors; tied ones count once."""
        return sum(tree.nbytes for tree in self._known.values())

    def keep(self) -> None:
        """Keep the values of a module that is the user's in a file without a name, unless there is no room for that."""
        if self._kept is None and self._module is self.given:
            self._kept = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the base is there
            weakref.finalize(self, self._kept.close)
            try:
                for tree in self._trees.values():
                    self._kept.write(tree.data.data)
            except OSError:
                self._kept.truncate(0)

    def check(self) -> None:
        """Compare the base with what it was.

        Raises:
            BaseChangedError: something wrote to it. It is no base of later trials; what was kept is as it was again.
        """
        changed = [
            name for name, tensor in self._tensors.items() if _tree(tensor).digest != self._trees[name].digest
        ]
        if not changed:
            return
        for bases in _of_functions.values():
            for place in [place for place, base in bases.items() if base is self]:
                del bases[place]
        _drop(_bases, self)
        _drop(_of_modules, self)
        self._restore(changed)
        raise BaseChangedError(
            f"the trial changed tensors of the base, which all trials share: {some_names(changed, _MOST_NAMES)}. Leave "
            "the base as it is: train adapters, or set requires_grad_(True) on the tensors in model=fn(base), which "
            "makes them the trial's own; merge adapters (merge_and_unload) in a copy of the trained model. Adapters "
            "that write to the base when they are made (init_lora_weights='olora' of PEFT's, for one) need another "
            "initialisation, or a base of their own: model=lambda base: get_peft_model(copy.deepcopy(base), config)."
        )

    def _restore(self, changed: Collection[str]) -> None:
        if self._kept is None:
            return
        self._kept.seek(0)
        for name, tree in self._trees.items():
            data = np.frombuffer(self._kept.read(tree.nbytes), np.uint8)
            if name in changed and len(data) == tree.nbytes:
                self._tensors[name].detach().copy_(state.from_tree(replace(tree, data=data)))

    def _own_modules(self) -> nn.Module:
        memo: dict[int, Any] = {}
        for parameter in self._module.parameters():
            memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
        for name, buffer in self._module.named_buffers():
            own = buffer.detach()
            memo[id(buffer)] = own.clone() if _is_statistic(self._module, name) else own
        return copy.deepcopy(self._module, memo)


def base_of(given: Given, device: torch.device) -> Base:
    """The base for a module or a function, on a device.

    Raises:
        EstimatorError: it is none, or nothing can be trained through it.
    """
    place = str(device)
    if isinstance(given, nn.Module):
        known = _of_modules.get((id(given), place))
        if known is None or not known.is_as_given:
            known = _of_content(given, device)
            if known.given is given:  # else it may go, and another module have its number
                _of_modules[id(given), place] = known
        return known
    of_function = _of_functions.setdefault(given, {})
    if place not in of_function:
        of_function[place] = _of_content(_made(given), device)
    return of_function[place]


def _of_content(module: nn.Module, device: torch.device) -> Base:
    """The base of that content which the process has on the device; one of the module if there is none."""
    _check(module)
    content = identity(module, "base").digest
    base = None if content is None else _bases.get((content, str(device)))
    if base is None or not base.is_as_given:
        base = Base(module, device)
        if content is not None:
            _bases[content, str(device)] = base
    return base


def _drop(bases: WeakValueDictionary[Any, Base], base: Base) -> None:
    for key in [key for key, other in bases.items() if other is base]:
        del bases[key]


def check_given(given: Any, model: Any) -> None:
    """Check the arguments ``base`` and ``model`` of an estimator.

    Raises:
        EstimatorError: they are no base, and no function of one.
    """
    if not isinstance(given, nn.Module) and not callable(given):
        load = f"AutoModel.from_pretrained({given!r})" if isinstance(given, str) else "..."
        raise EstimatorError(
            f"base={brief(given)}, but it must be a torch.nn.Module, or a function that gives one. Write base=lambda: "
            f"{load}, with what loads the model."
        )
    if isinstance(model, nn.Module) or not callable(model):
        raise EstimatorError(
            f"base was given with model={brief(model)}, but with a base model must be a function fn(base) that gives "
            "the module to train: the base with adapters, for instance. Write model=lambda base: ..., and make in it "
            "what the trial trains."
        )


def _made(given: Callable[[], nn.Module]) -> nn.Module:
    """The module that a function makes: in a session of its own, as it is called for the first trial of a process, and
    what it makes and leaves behind must depend on no trial.
    """
    with Session(torch.get_num_threads()) as session:
        session.seed("base")
        module = given()
    if not isinstance(module, nn.Module):
        raise EstimatorError(
            f"base={getattr(given, '__name__', brief(given))} returned {type(module).__name__}, but must return a "
            "torch.nn.Module. End the function with `return model`."
        )
    return module


def _check(module: nn.Module) -> None:
    """Raise EstimatorError if the module has no values, or none that can be trained through."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if empty := [name for name, tensor in tensors if tensor.is_meta]:
        raise EstimatorError(
            f"the base has tensors without values, on the device 'meta': {some_names(empty, _MOST_NAMES)}. Load its "
            "weights before it is given."
        )
    quantized = [name for name, tensor in tensors if tensor.is_quantized]
    quantized += [
        f"{name} ({type(part).__name__})"
        for name, part in module.named_modules()
        if ".quantized" in type(part).__module__
    ]
    if quantized:
        raise EstimatorError(
            f"the base is quantised so that nothing can be trained through it: {some_names(quantized, _MOST_NAMES)}. "
            "Give a base of floating-point weights (bf16 takes half the memory of fp32), or one that was dequantised."
        )


def _is_statistic(module: nn.Module, name: str) -> bool:
    """Whether a buffer is a running statistic, which training changes: each trial has its own."""
    owner = module.get_submodule(name.rpartition(".")[0])
    return isinstance(owner, nn.modules.batchnorm._NormBase) and name.rpartition(".")[2] in owner._buffers


def _marks(module: nn.Module) -> list[tuple[int, int]]:
    """Of each tensor, where its values are, and a number that grows with every change in place."""
    tensors = [*module.parameters(), *module.buffers()]
    return [(tensor.data_ptr(), version(tensor)) for tensor in tensors]


def _storage(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Which bytes a tensor is of, and how."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _tree(tensor: torch.Tensor) -> Tensor:
    found: Tensor = state.to_tree(tensor.detach(), "base")
    return found.as_frozen()
