"""Variables of models and optimizers to trees of tensors, and back, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from hopyard.errors import EstimatorError
from hopyard.objects import Tensor

Array = np.ndarray[Any, Any]


def names_of(variables: Sequence[Any]) -> list[str]:
    """Paths of variables; those of equal paths are numbered."""
    seen: dict[str, int] = {}
    names = []
    for variable in variables:
        count = seen[variable.path] = seen.get(variable.path, -1) + 1
        names.append(f"{variable.path}#{count}" if count else variable.path)
    return names


def as_numpy(value: Any) -> Array:
    """A tensor of Keras' backend as an array."""
    if (
        keras.backend.backend() == "tensorflow"
    ):  # Keras would ask NumPy, which warns of how TensorFlow answers
        found: Array = value.numpy()
        return np.asarray(found)
    return np.asarray(keras.ops.convert_to_numpy(value))


def values_of(variables: Sequence[Any]) -> list[Array]:
    """Copies of the variables' values."""
    return [as_numpy(variable.value).copy() for variable in variables]


def assign(variables: Sequence[Any], values: Sequence[Array]) -> None:
    """Set variables to values of their shapes and dtypes."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def to_tree(names: Sequence[str], values: Sequence[Array]) -> dict[str, Tensor]:
    """A tree of values by their names."""
    return {name: Tensor.from_numpy(value) for name, value in zip(names, values, strict=True)}


def from_tree(what: str, tree: Mapping[str, Any], names: Sequence[str], shapes: Sequence[Any]) -> list[Array]:
    """The values of a tree in the order of ``names``.

    Raises:
        EstimatorError: it has other names or shapes; which do.
    """
    found = {name: np.array(value.array()) for name, value in tree.items() if isinstance(value, Tensor)}
    wanted = dict(zip(names, map(tuple, shapes), strict=True))
    problems = [f"{name} is missing in the state" for name in wanted if name not in found]
    problems += [f"{name} is not in the {what}" for name in found if name not in wanted]
    problems += [
        f"{name} is {found[name].shape} in the state and {shape} in the {what}"
        for name, shape in wanted.items()
        if name in found and found[name].shape != shape
    ]
    if problems:
        more = f", and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise EstimatorError(
            f"The state is that of another {what} than the estimator function now builds: "
            f"{'; '.join(problems[:4])}{more}. Build the {what} that the state came from: same layers, names and sizes "
            "for the same parameters."
        )
    return [found[name] for name in names]
