"""What members of a pack must leave as it is, seen over a whole visit.

Code of the user's runs in losses, metrics, schedules and, where no plan is there, in models and steps. Each member's
batches are computed between those of others, and plans go on with what was recorded, so whatever such code changes
beside parameters and buffers would show in others' results, or not at all. A visit in which anything of it has changed
is made anew, each trial alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from hopyard.training.estimator import _TriedError
from hopyard.training.torch import hidden
from hopyard.training.torch.signatures import Parts
from hopyard.training.torch.untouched import surroundings
from hopyard.wording import some_names

_Given = TypeVar("_Given")


class Watch:
    """What ``members`` are at the beginning of a visit, beside the values of parameters and buffers."""

    def __init__(self, members: Sequence[Parts]) -> None:
        self._members = members
        self._marks = [member.marks() for member in members]
        self._modules = [_modules(member.head) for member in members]
        self._around, self._torchs = surroundings(), torch.get_rng_state()

    def check(self) -> None:
        """
        Raises:
            _TriedError: something has changed.
        """
        if surroundings() != self._around or not torch.equal(torch.get_rng_state(), self._torchs):
            raise _TriedError("it draws random numbers outside of its layers, or not PyTorch's")
        for member, marks, modules in zip(self._members, self._marks, self._modules, strict=True):
            if names := hidden.differences(marks, member.marks(), ()):
                raise _TriedError(f"it changes {some_names(names, 3)}")
            now = _modules(member.head)
            if now.keys() != modules.keys():
                raise _TriedError("it changes which modules it has")
            if names := [name for name in now if not _alike(now[name], modules[name])]:
                shown = some_names([name or "the model" for name in names], 3)
                raise _TriedError(f"it replaces tensors of {shown}, or changes the mode")


def _modules(head: nn.Module) -> dict[str, list[Any]]:
    """Of each module its tensors, kept so that none takes another one's place in memory, which of these require
    gradients, and whether it trains."""
    found: dict[str, list[Any]] = {}
    for name, part in head.named_modules():
        tensors = [*part._parameters.items(), *part._buffers.items()]
        flags = [each is not None and each.requires_grad for each in part._parameters.values()]
        found[name] = [each for item in tensors for each in item] + [*flags, part.training]
    return found


def _alike(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether both are the same objects, or the same names and numbers."""
    return len(some) == len(others) and all(
        one is other or (isinstance(one, (str, int, bool)) and one == other)
        for one, other in zip(some, others, strict=True)
    )


def unchanged(batches: Iterable[_Given], number: int | None = None) -> Iterator[_Given]:
    """Batches, each of which must be as it was when the next one is asked for.

    Args:
        number: of the batch in what is given; None: it is the batch.

    Raises:
        _TriedError: one has been changed.
    """
    for given in batches:
        batch: Any = given if number is None else given[number]  # type: ignore[index]
        before = _versions(batch)
        yield given
        if not _alike(_versions(batch), before):
            raise _TriedError("it changes its batches")


def _versions(batch: Any) -> list[Any]:
    """Names and values of a batch, and how often each value was written to."""
    return [
        each
        for name, value in batch.items()
        for each in (name, value, value._version if isinstance(value, torch.Tensor) else None)
    ]
