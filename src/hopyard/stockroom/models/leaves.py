"""Leaves of a model's tree as tensors without a framework, and back.

=============  ================================================  ===================================================
kind           what it was                                       what it becomes
=============  ================================================  ===================================================
``torch``      a tensor of PyTorch, of any device and strides    on the CPU, dense; requires no gradient
``numpy``      an array of NumPy, or what turns into one (JAX)   an array of NumPy, little-endian, in C order
``ml_dtypes``  the same with BF16 or F8 elements                 the same
``scalar``     a scalar of NumPy                                 the same
``tensor``     ``objects.tensors.Tensor``                        the same
=============  ================================================  ===================================================
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.errors import CorruptError, DataError, MissingExtraError
from hopyard.missing import missing_extra
from hopyard.objects import Tensor, Tree, flatten
from hopyard.objects.tensors import ML_DTYPES
from hopyard.stockroom.records.frozen import FrozenList

LeafPath = tuple[int | str, ...]

_FRAMES = ("pandas", "polars", "pyarrow", "xarray")


@dataclass
class Taken:
    """A tree that was taken in.

    Attributes:
        tree: dict, list, tuple, plain values and ``Tensor``, which share memory with what was given.
        kinds: of the tensors, in the order of the tree.
        ties: which tensors are the same memory: equal numbers, in the order of the tree.
        ordered: where an ``OrderedDict`` was, and the skeleton of its ``_metadata`` (of a ``state_dict()``), or None.
    """

    tree: Tree = None
    kinds: list[str] = field(default_factory=list)
    ties: list[int] = field(default_factory=list)
    ordered: list[tuple[LeafPath, Any]] = field(default_factory=list)
    _seen: dict[Any, int] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)  # so that no address is used twice while they are compared


def take_in(value: Any, name: str) -> Taken:
    """``value`` as a tree. Nothing is copied that can be shared.

    Raises:
        DataError: something in it cannot be stored; says what, where, and what to do.
    """
    taken = Taken()
    try:
        taken.tree = _convert(_weights(value), (), taken, name)
    except RecursionError:
        raise DataError(
            f"The model {name!r} holds a container that holds itself, or is nested too deep. Take the loop out."
        ) from None
    return taken


def _weights(value: Any) -> Any:
    """The weights of a Keras model by their paths; everything else as it is."""
    keras = sys.modules.get("keras")
    kind = getattr(keras, "Model", None)
    if keras is None or kind is None or not isinstance(value, kind):
        return value
    weights = {variable.path: variable for variable in value.weights}
    if len(weights) < len(value.weights):
        raise DataError(
            f"The Keras model {value.name!r} has weights of the same path. Name its layers differently, or store "
            "model.get_weights()."
        )
    return weights


def _convert(value: Any, keys: LeafPath, taken: Taken, name: str) -> Tree:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list or kind is tuple or kind is FrozenList:
        plain_kind = tuple if kind is tuple else list
        return plain_kind([_convert(item, (*keys, i), taken, name) for i, item in enumerate(value)])
    if isinstance(value, Mapping):
        if isinstance(value, OrderedDict):
            taken.ordered.append((keys, _metadata(value)))
        return {key: _convert(item, (*keys, key), taken, name) for key, item in value.items()}
    return _leaf(value, keys, taken, name)


def _leaf(value: Any, keys: LeafPath, taken: Taken, name: str) -> Tree:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from hopyard.stockroom.models import torch as ours

        place = ours.memory(value)
        return _add(taken, "torch", value, place, ours.take(value, f"{_where(keys)} of the model {name!r}"))
    if type(value) is Tensor:
        return _add(taken, "tensor", value, id(value), value)
    if isinstance(value, np.str_):
        return str(value)
    if isinstance(value, np.generic):
        return _array(np.asarray(value), keys, taken, name, "scalar")
    if isinstance(value, np.ma.MaskedArray):
        raise DataError(
            f"{_where(keys)} of the model {name!r} is a masked array. Store its filled(...), and its mask."
        )
    if isinstance(value, np.ndarray):
        return _array(value, keys, taken, name, "numpy")
    library = type(value).__module__.partition(".")[0]
    if library in _FRAMES:
        raise DataError(
            f"{_where(keys)} of the model {name!r} is a {type(value).__name__} of {library}, of "
            "whose labels nothing would come back. Store its values: .to_numpy(), and its labels beside them."
        )
    if hasattr(value, "__array__"):  # JAX, TensorFlow, Keras
        return _array(np.asarray(value), keys, taken, name, "numpy")
    raise DataError(f"{_where(keys)} of the model {name!r} {_advice(value)}")


def _array(array: npt.NDArray[Any], keys: LeafPath, taken: Taken, name: str, kind: str) -> Tensor:
    place = (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str)
    memory = place if array.size and kind == "numpy" else None
    try:
        if array.dtype.name in ML_DTYPES:
            return _add(taken, "ml_dtypes", array, memory, Tensor.from_numpy(array))
        return _add(taken, kind, array, memory, Tensor.from_numpy(array))
    except DataError as error:
        raise DataError(f"{_where(keys)} of the model {name!r} cannot be stored: {error}") from None


def _add(taken: Taken, kind: str, value: Any, memory: Any, tensor: Tensor) -> Tensor:
    """Note a leaf; ``memory`` is equal for leaves that are one, None for what is none's but its own."""
    taken.kinds.append(kind)
    taken.ties.append(taken._seen.setdefault((kind, memory or len(taken.ties)), len(taken.ties)))
    taken._kept.append(value)
    return tensor


def _metadata(value: Any) -> Any:
    """Metadata of ``state_dict()`` about its modules, if it is plain."""
    try:
        tensors, skeleton = flatten(getattr(value, "_metadata", None))
    except DataError:
        return None
    return None if tensors else skeleton


def _where(keys: LeafPath) -> str:
    return f"The value at {'/'.join(map(str, keys))!r}" if keys else "The top"


def _advice(value: Any) -> str:
    kind = type(value)
    shown = f"is a {kind.__module__}.{kind.__qualname__}, but "
    if callable(getattr(value, "state_dict", None)):
        return f"{shown}a model is stored as its state. Give its state_dict()."
    if isinstance(value, tuple | list | int | float | str):
        plain = next(base for base in (bool, tuple, list, int, float, str) if isinstance(value, base))
        return f"{shown}what is stored comes back as a plain {plain.__name__}. Convert it: {plain.__name__}(...)."
    return (
        f"{shown}a model may hold dicts, lists, tuples, None, bool, int, float, str, and tensors and arrays of "
        "PyTorch, NumPy, JAX and Keras. Leave it out, or convert it; nothing is ever pickled here. A file of it, as "
        "joblib.dump writes of an estimator of scikit-learn, is kept with a run: run.log_artifact(path)."
    )


def give_back(tensor: Tensor, kind: str, path: str) -> Any:
    """The leaf as it was given. The tensor's memory is writable, and becomes that of the leaf.

    Raises:
        MissingExtraError: the library that it came from is not installed.
        CorruptError: ``kind`` is none that this version knows.
    """
    if kind == "tensor":
        return tensor
    if kind == "torch":
        try:
            from hopyard.stockroom.models import torch as ours
        except ModuleNotFoundError as error:
            raise missing_extra("torch", "torch", f"Reading the tensor {path!r} of PyTorch") from error
        return ours.give(tensor)
    if kind == "ml_dtypes":
        return _ml_dtype(tensor, path)
    if kind in ("numpy", "scalar"):
        array = tensor.numpy()
        return array[()] if kind == "scalar" else array
    raise CorruptError(
        f"the tensor {path!r} of a model is of the kind {kind!r}, which this version does not know. Install a "
        "newer one."
    )


def _ml_dtype(tensor: Tensor, path: str) -> npt.NDArray[Any]:
    try:
        return tensor.array()
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"Reading the array {path!r} of {tensor.dtype} needs the package 'ml_dtypes', which is not installed. "
            "Install it with: pip install ml_dtypes"
        ) from error


def in_order(tree: Tree, ordered: Mapping[LeafPath, Any], keys: LeafPath = ()) -> Tree:
    """``tree`` with an ``OrderedDict`` at each of these places, with the ``_metadata`` given for it, if any."""
    if isinstance(tree, dict):
        items = {key: in_order(item, ordered, (*keys, key)) for key, item in tree.items()}
        if keys not in ordered:
            return items
        result = OrderedDict(items)
        if ordered[keys] is not None:
            result._metadata = OrderedDict(ordered[keys])  # type: ignore[attr-defined]
        return result
    if type(tree) in (list, tuple):
        return type(tree)(in_order(item, ordered, (*keys, i)) for i, item in enumerate(tree))
    return tree
