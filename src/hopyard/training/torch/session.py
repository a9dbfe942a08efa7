"""PyTorch's part in a session: its generators, its threads, its deterministic algorithms."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import deterministic

from hopyard.errors import EstimatorError
from hopyard.training.torch.hints import hint

_BACKENDS: Any = torch.backends
# Settings of kernels: where, which attribute, PyTorch's default.
_SETTINGS: list[tuple[Any, str, Any]] = [(_BACKENDS.cudnn, "benchmark", False)]
if hasattr(_BACKENDS, "fp32_precision"):  # since PyTorch 2.9; once it is used, reading the old one fails
    _SETTINGS += [
        (_BACKENDS, "fp32_precision", "none"),
        (_BACKENDS.cuda.matmul, "fp32_precision", "none"),
        (_BACKENDS.mkldnn.matmul, "fp32_precision", "none"),
        (_BACKENDS.cudnn.conv, "fp32_precision", "tf32"),
        (_BACKENDS.cudnn.rnn, "fp32_precision", "tf32"),
    ]
else:
    _SETTINGS += [(_BACKENDS.cuda.matmul, "allow_tf32", False), (_BACKENDS.cudnn, "allow_tf32", True)]
_DEFAULTS = tuple(default for _, _, default in _SETTINGS)
_FILL = "fill_uninitialized_memory"  # a property of the module, unknown to type checkers


class Flags(NamedTuple):
    """PyTorch's settings of the whole process that change what a model computes.

    Every session starts from the same ones. Settings that an estimator function makes are its trial's
    own: they hold in all its units, also in units that call no function, and in no other trial's.
    """

    threads: int
    dtype: torch.dtype = torch.float32
    device: str | None = None
    grad: bool = True
    matmul: str | None = "highest"
    kernels: tuple[Any, ...] = _DEFAULTS
    deterministic: bool = True
    warn_only: bool = True

    @classmethod
    def now(cls) -> Flags:
        """The settings as they are."""
        device = str(torch.get_default_device())
        return cls(
            torch.get_num_threads(),
            torch.get_default_dtype(),
            None if device == "cpu" else device,
            torch.is_grad_enabled(),
            _matmul_precision(),
            tuple(getattr(where, name) for where, name, _ in _SETTINGS),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )

    def apply(self) -> None:
        """Set the settings that differ: some setters are slow, or make PyTorch slower."""
        now = Flags.now()
        if now.threads != self.threads:
            torch.set_num_threads(self.threads)
        if now.dtype != self.dtype:
            torch.set_default_dtype(self.dtype)
        if now.device != self.device:
            torch.set_default_device(self.device)
        torch.set_grad_enabled(self.grad)
        if self.matmul is not None and now.matmul != self.matmul:
            torch.set_float32_matmul_precision(self.matmul)
            now = Flags.now()  # that sets some of the next ones
        for (where, name, _), value, own in zip(_SETTINGS, now.kernels, self.kernels, strict=True):
            if value != own:
                setattr(where, name, own)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)


def _matmul_precision() -> str | None:
    """Precision of matrix products if it was set for all kernels at once; None if it was set for some of them."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


class TorchSession:
    """Sets :class:`Flags`; ``close`` puts everything back as it was."""

    def __init__(self, threads: int) -> None:
        # cuBLAS reads this when it is first used, and is deterministic only with it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self._has_cuda = torch.cuda.is_available()
        self._random = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        self._flags = Flags.now()
        self._own = Flags(threads)
        self._fill = getattr(deterministic, _FILL)
        self._own.apply()
        # A debugging aid of that mode: it writes every new tensor twice.
        setattr(deterministic, _FILL, False)

    def reset(self) -> None:
        self._own.apply()

    def seed(self, value: int) -> None:
        # Not torch.manual_seed: it queues a call, with the text of the stack, for every kind of device.
        torch.default_generator.manual_seed(value)
        if self._has_cuda:
            torch.cuda.manual_seed_all(value)

    def hint(self, error: Exception) -> str:
        return hint(error)

    def close(self) -> None:
        setattr(deterministic, _FILL, self._fill)
        self._flags.apply()
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        torch.set_rng_state(self._random)
        if self._has_cuda and self._cuda is None:
            # CUDA was not in use: its generators will start, as they would have, from the seed of the CPU's.
            torch.cuda.manual_seed_all(torch.initial_seed())


def open_session(threads: int) -> TorchSession:
    """Open PyTorch's part of the session of a unit."""
    return TorchSession(threads)


def generator_state(device: torch.device) -> torch.Tensor:
    """State of PyTorch's generator on the device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Put the random generators back afterwards: a unit goes on the same, whether or not it had to draw within."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state(), generator_state(device)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if device.type == "cuda":
            torch.cuda.set_rng_state(states[3], device)


def resolve_device(name: str) -> torch.device:
    """The device for ``"auto"`` (CUDA if there is any), ``"cpu"``, ``"cuda"`` or ``"cuda:n"``.

    Raises:
        EstimatorError: there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise EstimatorError(
            f"device={name!r} was given, but PyTorch sees {torch.cuda.device_count()} CUDA devices here; "
            "use 'auto' or 'cpu', or install a PyTorch with CUDA."
        )
    return device
