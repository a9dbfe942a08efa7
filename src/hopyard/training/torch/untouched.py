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
from hopyard.training.torch.tape import _NotRecordedError
from hopyard.wording import some_names


def surroundings() -> Any:
    """Marks of random generators that are not PyTorch's."""
    numpy_state: Any = np.random.get_state()
    return random.getstate(), numpy_state[2], numpy_state[1].tobytes()


class _Stream:
    """A stream of text, noting that this thread writes to it."""

    def __init__(self, stream: Any, heard: list[str]) -> None:
        self._stream, self._heard, self._thread = stream, heard, threading.get_ident()

    def write(self, text: str) -> Any:
        if threading.get_ident() == self._thread:
            self._heard.append("prints")
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def listening() -> Iterator[list[str]]:
    """Note what this thread prints and logs meanwhile, which no tape says again."""
    heard: list[str] = []
    call, thread = logging.Logger.callHandlers, threading.get_ident()

    def noted(logger: logging.Logger, record: logging.LogRecord) -> None:
        if threading.get_ident() == thread:
            heard.append("logs")
        call(logger, record)

    setattr(logging.Logger, "callHandlers", noted)  # noqa: B010 - for loggers of any kind
    out, error = (cast(IO[str], _Stream(stream, heard)) for stream in (sys.stdout, sys.stderr))
    try:
        with redirect_stdout(out), redirect_stderr(error):
            yield heard
    finally:
        setattr(logging.Logger, "callHandlers", call)  # noqa: B010


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


@contextmanager
def buffers_kept(members: Sequence[Any]) -> Iterator[None]:
    """Put the members' own buffers back afterwards."""
    own = [
        buffer
        for member in members
        for buffer in member.head.buffers()
        if member.base is None or not member.base.has(buffer)
    ]
    before = [buffer.clone() for buffer in own]
    try:
        yield
    finally:
        for buffer, value in zip(own, before, strict=True):
            if not same_numbers(buffer, value):
                buffer.data.copy_(value)


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
