"""Gains of autocast to bfloat16 on CPUs that have units for it: measured and told, and taken by nobody but the user."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from hopyard.training import measuring
from hopyard.training.estimator import Visit
from hopyard.training.torch.forward import Forward
from hopyard.training.torch.session import generators_kept
from hopyard.training.torch.signatures import trained_of

_MOST_SECONDS = 1.0
_MOST_BATCHES = 6
"""Computed in the course of it, at least one of each kind."""


class _MeasuredError(Exception):
    """Has a replica leave training without a step."""


def has_bf16_units() -> bool:
    """Whether this CPU multiplies numbers of bfloat16 faster than those of float32."""
    known = torch.cpu.get_capabilities()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def gain_of_bf16(replica: Any, visit: Visit) -> float | None:
    """See :meth:`hopyard.training.estimator.Replica.gain_of_bf16`."""
    parts = replica.parts()
    if parts.device.type != "cpu" or parts.estimator.precision != "fp32" or not has_bf16_units():
        return None
    trained = trained_of(parts)
    found: float | None = None

    def gradients(forward: Forward) -> None:
        torch.autograd.grad(forward(batch, training=True).loss, trained, allow_unused=True)

    precise = partial(gradients, parts.forward)
    short = partial(gradients, parts.forward.with_dtype(torch.bfloat16))
    try:
        with replica.in_training(visit), generators_kept(parts.device):
            batch, _ = next(replica.training_batches(visit))
            until = measuring.clock() + _MOST_SECONDS
            taken = measuring.seconds(precise)
            if taken * _MOST_BATCHES < _MOST_SECONDS:
                found = measuring.gain(precise, short, 1, 1.0, until)
            raise _MeasuredError
    except _MeasuredError:
        return found
