"""What a pickle would build, as plain data: nothing is imported, and nothing is called.

A pickle is a program for a stack machine. Here a global becomes a ``Symbol``, and whatever would call it a
``Record`` of the symbol and its arguments; numbers, texts, tuples, lists and dicts are themselves. Opcodes that only
pickles of other things than schemas need (persistent ids, the registry of extensions, sets) are refused.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hopyard.errors import CorruptError

_VALUES = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE",
    "BINUNICODE8",
}  # fmt: skip
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_PUTS = frozenset(["PUT", "BINPUT", "LONG_BINPUT"])
_GETS = frozenset(["GET", "BINGET", "LONG_BINGET"])
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NOTHING = frozenset(["PROTO", "FRAME"])
_MARK = object()


@dataclass(frozen=True)
class Symbol:
    """A name in a module, which was not imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Record:
    """A call that was not made.

    Attributes:
        function: what would be called: a symbol, or whatever else the pickle named.
        arguments: by position.
        state: what the result would be given as its state.
        items: key and value pairs that would be set in the result.
    """

    function: Any
    arguments: tuple[Any, ...]
    state: Any = None
    items: list[tuple[Any, Any]] = field(default_factory=list)


def read_pickle(data: bytes, where: str) -> Any:
    """What the pickle would build, of symbols, records and plain data.

    Args:
        data: of any protocol, 0 to 5.
        where: what holds it, for errors.

    Raises:
        CorruptError: it is no pickle, is cut, or has an opcode that no schema needs.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.pop()
            machine.step(opcode.name, argument)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, struct.error) as error:
        raise CorruptError(
            f"{where} is a pickle that cannot be followed ({error}), so the types of the fields are unknown. It was "
            "cut or changed, or something else than Petastorm wrote it. Write it again with "
            "petastorm-generate-metadata.py."
        ) from error
    raise AssertionError("pickletools ends every pickle with STOP, or raises")


class _Machine:
    """The stack and the memo of one pickle. Malformed programs raise the errors of lists and dicts."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError("a mark stands where a value is needed")
        return value

    def step(self, name: str, argument: Any) -> None:
        if name in _VALUES:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name]())
        elif name in _PUTS:
            self._memo[argument] = self._stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._stack[-1]
        elif name in _GETS:
            self._stack.append(self._memo[argument])
        elif name in _TUPLES:
            self._stack.append(tuple(reversed([self.pop() for _ in range(_TUPLES[name])])))
        elif name not in _NOTHING:
            operation = getattr(self, f"_{name.lower()}", None)
            if operation is None:
                raise ValueError(f"opcode {name} has no place in a schema")
            if name == "GLOBAL":
                operation(argument)
            else:
                operation()

    def _since_mark(self) -> list[Any]:
        values: list[Any] = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _top(self, kind: type | tuple[type, ...]) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise ValueError(f"a {type(self._stack[-1]).__name__} stands where a container is needed")
        return self._stack[-1]

    def _mark(self) -> None:
        self._stack.append(_MARK)

    def _pop(self) -> None:
        self._stack.pop()

    def _pop_mark(self) -> None:
        self._since_mark()

    def _dup(self) -> None:
        self._stack.append(self._stack[-1])

    def _tuple(self) -> None:
        self._stack.append(tuple(self._since_mark()))

    def _list(self) -> None:
        self._stack.append(self._since_mark())

    def _dict(self) -> None:
        values = self._since_mark()
        self._stack.append({})
        self._set(list(zip(values[::2], values[1::2], strict=True)))

    def _append(self) -> None:
        value = self.pop()
        self._top(list).append(value)

    def _appends(self) -> None:
        values = self._since_mark()
        self._top(list).extend(values)

    def _setitem(self) -> None:
        value, key = self.pop(), self.pop()
        self._set([(key, value)])

    def _setitems(self) -> None:
        values = self._since_mark()
        self._set(list(zip(values[::2], values[1::2], strict=True)))

    def _set(self, pairs: list[tuple[Any, Any]]) -> None:
        target = self._top((dict, Record))
        if isinstance(target, Record):
            target.items.extend(pairs)
        elif all(
            isinstance(key, (str, bytes, int)) for key, _ in pairs
        ):  # hashing deep tuples ends the process
            target.update(pairs)
        else:
            raise ValueError("a dict has keys that are no text")

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._stack.append(Symbol(module, name))

    def _stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise ValueError("a global whose name is no text")
        self._stack.append(Symbol(module, name))

    def _reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        self._stack.append(Record(function, _arguments(arguments)))

    _newobj = _reduce

    def _build(self) -> None:
        state = self.pop()
        self._top(Record).state = state


def _arguments(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise ValueError("arguments that are no tuple")
    return value
