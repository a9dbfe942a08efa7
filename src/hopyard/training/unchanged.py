"""Tensors of a model that training leaves as they were: they are marked as frozen, and stored once for all trials."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping

from hopyard.objects import Tensor


class Unchanged:
    """Which tensors of a model are as they were before it was trained.

    Args:
        candidates: gives, by name, the tensors that are not trained, as they are now: frozen weights and buffers. They
            are compared by content, since anything may write to them. A method, whose object this does not keep alive.
    """

    def __init__(self, candidates: Callable[[], Mapping[str, Tensor]]) -> None:
        self._candidates = weakref.WeakMethod(candidates)
        self._before: dict[str, str] | None = None

    def note(self) -> None:
        """Note how the tensors are before any training; later calls do nothing."""
        candidates = self._candidates()
        if self._before is None and candidates is not None:
            self._before = {name: tensor.digest for name, tensor in candidates().items()}

    def forget(self) -> None:
        """Note anew: the model was given other weights to begin with."""
        self._before = None

    def marked(self, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """The tensors by name, of which those that are as they were are marked as frozen."""
        self.note()
        before = self._before or {}
        return {
            name: tensor.as_frozen() if before.get(name) == tensor.digest else tensor
            for name, tensor in tensors
        }
