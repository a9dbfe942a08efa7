"""Batches as JAX arrays."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from hopyard.data.ragged import Ragged
from hopyard.data.reading.views import Batch
from hopyard.errors import DataError

_WIDE = ("int64", "uint64", "float64")


def as_jax(batch: Batch) -> Batch:
    """Arrays as JAX arrays on the default device; a ``Ragged`` as one of JAX arrays; object arrays stay.

    On the CPU JAX may take the memory as it is. It keeps the array it came from alive until the last
    computation on it is done, and memory is used again only when nothing refers to it, so a JAX array
    never changes. Without ``jax_enable_x64`` JAX has no 64-bit numbers: int64 becomes int32, float64
    float32, as ``jax.numpy.asarray`` makes them.

    Raises:
        DataError: a number is beyond 32 bits, which JAX would make another number of.
    """
    return {name: _as_jax(name, values) for name, values in batch.items()}


def _as_jax(name: str, values: Any) -> Any:
    if isinstance(values, Ragged):
        check_narrow(name, values.values)
        check_narrow(name, values.offsets)
        return Ragged(jnp.asarray(values.values), jnp.asarray(values.offsets))  # type: ignore[arg-type]
    if not isinstance(values, np.ndarray) or values.dtype == object:
        return values
    check_narrow(name, values)
    return jnp.asarray(values)


def check_narrow(name: str, values: npt.NDArray[Any]) -> None:
    """Look whether JAX can hold these numbers: it keeps 32 bits of them without ``jax_enable_x64``.

    Raises:
        DataError: it does not hold one; names the column and the number.
    """
    wide = values.dtype.name
    narrow = jnp.asarray(np.empty(0, values.dtype)).dtype.name if wide in _WIDE and values.size else wide
    if narrow == wide:
        return
    limits: Any = np.iinfo(narrow) if values.dtype.kind in "iu" else np.finfo(narrow)
    low, high = values.min(), values.max()
    if values.dtype.kind == "f" and not (np.isfinite(low) and np.isfinite(high)):
        finite = values[np.isfinite(values)]
        low, high = (finite.min(), finite.max()) if finite.size else (limits.min, limits.max)
    if low < limits.min or high > limits.max:
        number = low if low < limits.min else high
        raise DataError(
            f"Column {name!r} holds {number}, but JAX makes {narrow} of {wide}, which would be another "
            "number. Call jax.config.update('jax_enable_x64', True) first, or make other numbers of the column: a "
            "difference from a start for times, indices for identifiers; or leave it out."
        )
