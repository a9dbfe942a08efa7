"""PyTorch's part in a session: its generators, its threads, its deterministic algorithms."""

from __future__ import annotations

import os

import torch
from torch.utils import deterministic

from hopyard.errors import EstimatorError

_FILL = "fill_uninitialized_memory"  # a property of the module, unknown to type checkers


class TorchSession:
    """Sets threads and determinism; ``close`` puts everything back as it was."""

    def __init__(self, threads: int) -> None:
        # cuBLAS reads this when it is first used, and is deterministic only with it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self._has_cuda = torch.cuda.is_available()
        self._random = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        self._threads = torch.get_num_threads()
        self._deterministic = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        self._fill = getattr(deterministic, _FILL)
        self._benchmark = torch.backends.cudnn.benchmark
        if threads != self._threads:
            torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(True, warn_only=True)
        # A debugging aid of that mode: it writes every new tensor twice.
        setattr(deterministic, _FILL, False)
        torch.backends.cudnn.benchmark = False

    def seed(self, value: int) -> None:
        # Not torch.manual_seed: it queues a call, with the text of the stack, for every kind of device.
        torch.default_generator.manual_seed(value)
        if self._has_cuda:
            torch.cuda.manual_seed_all(value)

    def close(self) -> None:
        torch.backends.cudnn.benchmark = self._benchmark
        setattr(deterministic, _FILL, self._fill)
        enabled, warn_only = self._deterministic
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        torch.set_rng_state(self._random)
        if self._has_cuda and self._cuda is None:
            # CUDA was not in use: its generators will start, as they would have, from the seed of the CPU's.
            torch.cuda.manual_seed_all(torch.initial_seed())


def open_session(threads: int) -> TorchSession:
    """What the session of a unit calls."""
    return TorchSession(threads)


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
