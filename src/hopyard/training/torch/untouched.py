"""Contexts in which models are recorded and tried, so that these, and random generators, are left as they were."""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import IO, Any, cast

import numpy as np
import torch
from torch import nn

from hopyard.training.torch.stack import same_numbers
from hopyard.training.torch.tape import PATCHING, _NotRecordedError
from hopyard.wording import some_names


def surroundings() -> Any:
    """Marks of random generators that are not PyTorch's."""
    numpy_state: Any = np.random.get_state()
    return random.getstate(), numpy_state[2], numpy_state[1].tobytes()


class _Stream:
    """A stream of text, noting that this thread writes to it; what it writes is dropped if it ``drops`` that."""

    def __init__(self, stream: Any, heard: list[str], drops: bool) -> None:
        self._stream, self._heard, self._drops = stream, heard, drops
        self._thread = threading.get_ident()

    def write(self, text: str) -> Any:
        if threading.get_ident() == self._thread:
            self._heard.append("prints")
            if self._drops:
                return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def listening(drops: bool = False) -> Iterator[list[str]]:
    """Note what this thread prints and logs meanwhile, which no tape says again.

    Args:
        drops: what is said is dropped, as it is said again by what follows.
    """
    heard: list[str] = []
    thread = threading.get_ident()
    PATCHING.acquire()
    call = logging.Logger.callHandlers

    def noted(logger: logging.Logger, record: logging.LogRecord) -> None:
        if threading.get_ident() == thread:
            heard.append("logs")
            if drops:
                return
        call(logger, record)

    setattr(logging.Logger, "callHandlers", noted)  # noqa: B010 - for loggers of any kind
    out, error = (cast(IO[str], _Stream(stream, heard, drops)) for stream in (sys.stdout, sys.stderr))
    try:
        with redirect_stdout(out), redirect_stderr(error):
            yield heard
    finally:
        setattr(logging.Logger, "callHandlers", call)  # noqa: B010
        PATCHING.release()


def copied(generator: torch.Generator) -> torch.Generator:
    made = torch.Generator()
    made.set_state(generator.get_state())
    return made


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Have PyTorch draw from another generator."""
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


@contextmanager
def members_kept(head: nn.Module) -> Iterator[None]:
    """Put back the tensors that modules have, should other ones have taken their places.

    Raises:
        _NotRecordedError: they have.
    """
    before = [(part, dict(part._parameters), dict(part._buffers)) for part in head.modules()]
    flags = [(each, each.requires_grad) for each in head.parameters()]
    try:
        yield
    finally:
        replaced = []
        for part, parameters, buffers in before:
            for own, kept in ((part._parameters, parameters), (part._buffers, buffers)):
                if own.keys() != kept.keys() or any(own[name] is not each for name, each in kept.items()):
                    replaced += [name for name in {**own, **kept} if own.get(name) is not kept.get(name)]
                    own.clear()
                    own.update(kept)  # type: ignore[arg-type]
        changed = [each for each, flag in flags if each.requires_grad != flag]
        for each, flag in flags:
            each.requires_grad_(flag)
    if replaced:
        raise _NotRecordedError(f"it replaces {some_names(replaced, 3)}")
    if changed:
        raise _NotRecordedError("it changes which parameters require gradients")


def own_tensors(member: Any) -> dict[str, torch.Tensor]:
    """Parameters and buffers of a member by name, without those of a base that it shares."""
    tensors = [*member.head.named_parameters(), *member.head.named_buffers()]
    return {name: each for name, each in tensors if member.base is None or not member.base.has(each)}


@contextmanager
def tensors_kept(members: Sequence[Any]) -> Iterator[None]:
    """Put the values of the members' own parameters and buffers back afterwards."""
    own = [tensor for member in members for tensor in own_tensors(member).values()]
    before = [tensor.detach().clone() for tensor in own]
    try:
        yield
    finally:
        for tensor, value in zip(own, before, strict=True):
            if not same_numbers(tensor.detach(), value):
                tensor.data.copy_(value)


@contextmanager
def gradients_kept(trained: Sequence[nn.Parameter], given: bool) -> Iterator[list[torch.Tensor]]:
    """Have parameters no gradients meanwhile, or gradients of zeros if they are ``given`` some, which are yielded.

    Raises:
        _NotRecordedError: they have got others.
    """
    before = [parameter.grad for parameter in trained]
    own = [torch.zeros_like(parameter) if given else None for parameter in trained]
    for parameter, gradient in zip(trained, own, strict=True):
        parameter.grad = gradient
    try:
        yield [gradient for gradient in own if gradient is not None]
        if any(parameter.grad is not gradient for parameter, gradient in zip(trained, own, strict=True)):
            raise _NotRecordedError("it changes gradients")
    finally:
        for parameter, gradient in zip(trained, before, strict=True):
            parameter.grad = gradient


@contextmanager
def off_values(members: Sequence[Any]) -> Iterator[None]:
    """Have all trained parameters a little off their values meanwhile."""
    generator = torch.Generator().manual_seed(0)
    kept = [(parameter, parameter.data.clone()) for member in members for parameter in member.trained]
    for parameter, value in kept:
        if parameter.is_floating_point():
            noise = torch.empty_like(value).normal_(std=0.02, generator=generator)
            parameter.data.copy_(value.nan_to_num(0.0, 0.0, 0.0) + noise)
    try:
        yield
    finally:
        for parameter, value in kept:
            parameter.data.copy_(value)
