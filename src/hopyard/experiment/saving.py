"""States that functions save, as trees that stores keep, and back.

Dicts, lists, tuples and plain values stand for themselves; arrays, tensors and bytes are pairs of a mark and a
``Tensor``, which nothing else in a tree is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from hopyard.errors import DataError, UsageError
from hopyard.objects import Tensor

Marked: TypeAlias = tuple[str, Tensor]

_PLAIN = (bool, int, float, str, type(None))
_DEEPEST = 100


def as_tree(value: Any, where: str = "", depth: int = 0) -> Any:
    """A value as a tree.

    Raises:
        UsageError: something in it is neither plain, nor an array, a tensor, bytes, or a dict, list or tuple of these;
            says where.
    """
    kind = type(value)
    if depth > _DEEPEST:
        raise UsageError(
            f"save() was given what is nested deeper than {_DEEPEST} levels. Save what you need of it, flatter."
        )
    if kind in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {
            _key(key, where): as_tree(part, f"{where}[{key!r}]", depth + 1) for key, part in value.items()
        }
    if kind is list or kind is tuple:
        return kind(as_tree(part, f"{where}[{at}]", depth + 1) for at, part in enumerate(value))
    if kind is bytes:
        return "bytes", Tensor.from_numpy(np.frombuffer(value, np.uint8).copy())
    if kind.__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        from hopyard.training.torch.state import to_tree

        return "tensor", to_tree(value.detach().clone(), where)
    if isinstance(value, np.generic) or kind in (np.ndarray, np.memmap):
        try:
            return "scalar" if isinstance(value, np.generic) else "array", Tensor.from_numpy(np.array(value))
        except DataError:
            kept = f"NumPy's {value.dtype}"
            raise _no_value(kept, where) from None
    raise _no_value(f"a {kind.__name__}", where)


def from_tree(tree: Any) -> Any:
    """The value of a tree, in memory of its own."""
    if isinstance(tree, dict):
        return {key: from_tree(part) for key, part in tree.items()}
    if isinstance(tree, list):
        return [from_tree(part) for part in tree]
    if not isinstance(tree, tuple):
        return tree
    if not is_marked(tree):
        return tuple(from_tree(part) for part in tree)
    mark, tensor = tree
    if mark == "tensor":
        from hopyard.training.torch.state import from_tree as from_torch

        return from_torch(tensor)
    array = np.array(tensor.numpy())
    return array.tobytes() if mark == "bytes" else array[()] if mark == "scalar" else array


def leaves(tree: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The plain values and ``Tensor`` objects of a tree, each with its place."""
    if is_marked(tree):
        yield place, tree[1]
    elif isinstance(tree, dict | list | tuple):
        parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, part in parts:
            yield from leaves(part, (*place, str(key)))
    else:
        yield place, tree


def is_marked(tree: Any) -> bool:
    """Whether a node of a tree is an array, a tensor or bytes."""
    return isinstance(tree, tuple) and len(tree) == 2 and isinstance(tree[1], Tensor)


def _key(key: Any, where: str) -> str | int:
    if type(key) in (str, int):
        return key  # type: ignore[no-any-return]
    raise UsageError(
        f"save() was given the key {key!r:.80} at state{where}, but keys are texts or whole numbers. Turn it into one."
    )


def _no_value(given: str, where: str) -> UsageError:
    return UsageError(
        f"save() was given {given} at state{where}, but keeps numbers, texts, bytes, arrays and tensors, in dicts, "
        "lists and tuples. Give pickle.dumps(...) of it, which is bytes, or leave it out."
    )
