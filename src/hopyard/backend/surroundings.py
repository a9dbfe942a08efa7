"""Surroundings of workers: environment variables, and a command through which their processes are started.

The command is made where a worker starts, since it depends on the machine: one that mounts directories, say, looks
whether they are there. The worker's process makes it first of all, and then becomes it, so that a machine that takes
long for it holds up no other worker, and a failure arrives as the worker's answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hopyard.errors import UsageError
from hopyard.objects import pickles
from hopyard.worker_start import GPUS

Prefix: TypeAlias = Callable[[], Sequence[str]]
"""Gives the words that are put before the command of a worker's process, on the worker's machine; empty: none."""


@dataclass(frozen=True)
class Surroundings:
    """Surroundings of the workers of one backend.

    Attributes:
        env: environment variables, over all others.
        prefix: a ``Prefix``, pickled; empty: there is none.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    prefix: bytes = b""

    def changed(
        self, env: Mapping[str, str] | None, prefix: Prefix | None, own: Mapping[str, str]
    ) -> Surroundings:
        """These surroundings with more variables, and with another prefix if one is given.

        Args:
            own: variables that the backend sets itself.

        Raises:
            UsageError: a variable cannot be set, or is the backend's own; or the prefix cannot be pickled.
        """
        return Surroundings(
            {**self.env, **checked_env(env or {}, own)},
            self.prefix if prefix is None else _pickled(prefix),
        )


def checked_env(env: Mapping[str, str], own: Mapping[str, str]) -> Mapping[str, str]:
    """``env``, of which no variable contradicts those that the backend sets itself."""
    for name, value in env.items():
        is_text = isinstance(name, str) and isinstance(value, str)
        if not is_text or not name or "=" in name or "\0" in name + value:
            raise UsageError(
                f"env has {name!r}: {value!r}, but names and values of environment variables must be text without "
                "null characters, and names neither empty nor with '='. Write numbers in quotes, and correct the name."
            )
        if name == GPUS or own.get(name, value) != value:
            sets = "gives each worker its own" if name == GPUS else f"sets {name}={own[name]}"
            raise UsageError(
                f"env has {name}={value}, but the backend {sets}, since results depend on it. Leave it out of env; "
                "the backend's own arguments say how many threads and GPUs a worker has."
            )
    return env


def checked_words(words: Any) -> list[str]:
    """What a ``Prefix`` gave, if it is a list of texts."""
    is_text = isinstance(words, str)
    listed = [] if is_text else list(words)
    if is_text or not all(isinstance(word, str) for word in listed):
        raise UsageError(
            f"the prefix of its command is {words!r}, but must be a list of texts. Return one from the function, such "
            "as ['nice', '-n', '5'], or [] for none."
        )
    return listed


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Have environment variables in this process meanwhile, and afterwards those of before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)


def _pickled(prefix: Prefix) -> bytes:
    try:
        return pickles.dumps(prefix)
    except pickles.UNPICKLABLE as error:
        raise UsageError(
            f"prefix={prefix!r} cannot be sent to workers ({type(error).__name__}: {error}). It is pickled by "
            "cloudpickle, which rules out locks, threads, open files and connections; make those inside the function."
        ) from error
