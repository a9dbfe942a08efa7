"""Batches as JAX arrays."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from hopyard.data.ragged import Ragged
from hopyard.data.reading.views import Batch


def as_jax(batch: Batch) -> Batch:
    """Arrays as JAX arrays on the default device; a ``Ragged`` as one of JAX arrays; object arrays stay.

    On the CPU JAX may take the memory as it is. It keeps the array it came from alive until the last
    computation on it is done, and memory is used again only when nothing refers to it, so a JAX array
    never changes. Without ``jax_enable_x64`` JAX has no 64-bit numbers: int64 becomes int32, float64
    float32, as ``jax.numpy.asarray`` makes them.
    """
    return {name: _as_jax(values) for name, values in batch.items()}


def _as_jax(values: Any) -> Any:
    if isinstance(values, Ragged):
        return Ragged(jnp.asarray(values.values), jnp.asarray(values.offsets))  # type: ignore[arg-type]
    if not isinstance(values, np.ndarray) or values.dtype == object:
        return values
    return jnp.asarray(values)
