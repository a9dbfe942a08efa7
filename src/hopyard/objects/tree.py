"""Nested containers of tensors and plain values, taken apart for storing and put together again.

The skeleton is the tree as JSON, with a mark where a tensor was. What JSON has too stands for
itself; everything else is an object with one key, the mark:

=====================  ====================================
``{"T": path}``        the tensor of this path
``{"d": [[k, v]]}``    a dict, in its order; keys str or int
``{"t": [v, ...]}``    a tuple
``{"f": hex}``         a float that is not finite: its bits
``{"i": hex}``         an int beyond 64 bits
=====================  ====================================

A tensor's path joins the keys and indexes that lead to it by ``/``. In str keys ``~`` is written
``~0`` and ``/`` ``~1``, as in JSON pointers (RFC 6901); the int key 3 is written ``~i3``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

from hopyard.errors import CorruptError, DataError
from hopyard.objects.tensors import Tensor

Tree: TypeAlias = Any
"""Nested dict, list and tuple of None, bool, int, float, str and Tensor."""

_PLAIN = (str, bool, type(None))
_LARGE = 2**63


def flatten(tree: Tree) -> tuple[dict[str, Tensor], Any]:
    """Path to tensor, in the tree's order, and the skeleton.

    Raises:
        DataError: a leaf or key of another type, or text that is not valid Unicode; names its path.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _take_apart(tree, (), tensors)


def unflatten(tensors: Mapping[str, Tensor], skeleton: Any) -> Tree:
    """The tree that ``flatten`` took apart.

    Raises:
        CorruptError: the skeleton is not one, or names a tensor that is not there.
    """
    try:
        return _put_together(tensors, skeleton)
    except (KeyError, ValueError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise CorruptError(
            f"a saved value's skeleton does not fit its tensors ({error!r}). Restore it from a copy."
        ) from error


def _take_apart(value: Tree, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        if kind is str and not value.isascii():
            _check_text(value, path)
        return value
    if kind is Tensor:
        name = "/".join(path)
        tensors[name] = value
        return {"T": name}
    if kind is float:
        return value if value - value == 0.0 else {"f": struct.pack(">d", value).hex()}
    if kind is int:
        return value if -_LARGE <= value < _LARGE else {"i": hex(value)}
    if isinstance(value, dict):
        items = ((key, item, (*path, _segment(key, path))) for key, item in value.items())
        return {"d": [[key, _take_apart(item, below, tensors)] for key, item, below in items]}
    if kind is list or kind is tuple:
        children = [_take_apart(item, (*path, str(i)), tensors) for i, item in enumerate(value)]
        return children if kind is list else {"t": children}
    raise DataError(
        f"the value at {_readable(path)} is a {kind.__module__}.{kind.__qualname__}, but only dict, list, tuple, "
        "None, bool, int, float, str and Tensor can be stored; convert it (Tensor.from_numpy for arrays)"
    )


def _check_text(value: str, path: tuple[str, ...]) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"the text at {_readable(path)} is {value!r:.80}, which is not valid Unicode, so that other programs could "
            "not read it; replace what is not: text.encode(errors='replace').decode()"
        ) from None


def _segment(key: object, path: tuple[str, ...]) -> str:
    if type(key) is int:
        return f"~i{key}"
    if type(key) is not str:
        kind = type(key)
        raise DataError(
            f"the dict at {_readable(path)} has the key {key!r} of type {kind.__module__}.{kind.__qualname__}, "
            "but keys must be str or int; convert it"
        )
    if key == "__metadata__":  # which safetensors keeps for itself
        return "~m"
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"the dict at {_readable(path)} has the key {key!r}, which is not valid Unicode; rename it"
            ) from None
    return key.replace("~", "~0").replace("/", "~1")


def _readable(path: tuple[str, ...]) -> str:
    return repr("/".join(path)) if path else "the top"


def _put_together(tensors: Mapping[str, Tensor], node: Any) -> Tree:
    if isinstance(node, list):
        return [_put_together(tensors, item) for item in node]
    if not isinstance(node, dict):
        return node
    ((mark, content),) = node.items()
    if mark == "T":
        return tensors[content]
    if mark == "d":
        return {key: _put_together(tensors, item) for key, item in content}
    if mark == "t":
        return tuple(_put_together(tensors, item) for item in content)
    if mark == "f":
        return struct.unpack(">d", bytes.fromhex(content))[0]
    if mark == "i":
        return int(content, 16)
    raise ValueError(f"unknown mark {mark!r}")
