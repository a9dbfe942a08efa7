"""Pickles as plain data: nothing is imported, and nothing of the pickle's choice is called.

Python's unpickler follows the pickle. A global becomes a ``Symbol``, and its call a ``DeferredCall`` of the symbol and
the arguments; numbers, texts, tuples, lists and dicts are themselves. Opcodes that no schema needs are refused
(persistent ids, the registry of extensions, sets), and so are keys of dicts that are no texts or numbers.

It is the unpickler that Python has in Python, which joblib extends, too. The one in C hashes anything that a pickle
has as the key of a dict: a tuple of 200,000 levels ends the process, one of 60 levels of pairs takes years.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any, ClassVar, cast

from hopyard.errors import CorruptError

_OPCODES = {
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
    "GET", "BINGET", "LONG_BINGET", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT",
    "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "UNICODE",
    "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_TUPLE", "TUPLE1",
    "TUPLE2", "TUPLE3", "TUPLE", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM",
    "SETITEMS", "GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD",
}  # fmt: skip


class DeferredCall:
    """A call that was not made. Its class is the symbol that would be called.

    Attributes:
        arguments: by position.
        state: that the result would be given.
        items: key and value pairs that would be set in the result.
    """

    arguments: tuple[Any, ...]
    state: Any
    items: list[tuple[Any, Any]]

    def __new__(cls, *arguments: Any) -> DeferredCall:  # pickles make objects without calling ``__init__``
        call = super().__new__(cls)
        call.arguments, call.state, call.items = arguments, None, []
        return call

    def __setstate__(self, state: Any) -> None:
        self.state = state

    @property
    def function(self) -> Symbol:
        """The symbol that would be called."""
        return cast("Symbol", type(self))


class Symbol(type):
    """A name in a module, which was not imported."""

    module: str
    name: str

    def __new__(cls, module: str, name: str) -> Symbol:
        symbol = super().__new__(cls, name, (DeferredCall,), {})
        symbol.module, symbol.name = module, name
        return symbol

    def __init__(cls, module: str, name: str) -> None:
        super().__init__(name, (DeferredCall,), {})

    def __str__(cls) -> str:
        return f"{cls.module}.{cls.name}"


def read_pickle(data: bytes, where: str) -> Any:
    """The object that a pickle would build, of symbols, deferred calls and plain data.

    Args:
        data: of any protocol, 0 to 5.
        where: place of the pickle, for errors.

    Raises:
        CorruptError: it is no pickle, is cut, or has an opcode that no schema needs.
    """
    try:
        return _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # opcodes of a damaged pickle may raise anything
        raise CorruptError(
            f"{where} is a pickle that cannot be followed ({error}), so the types of the fields are unknown. It was "
            "cut or changed, or something else than Petastorm wrote it. Write it again with "
            "petastorm-generate-metadata.py."
        ) from error


def _refusing(name: str) -> Callable[[Any], None]:
    def refuse(_: Any) -> None:
        raise ValueError(f"opcode {name} has no place in a schema")

    return refuse


class _Unpickler(pickle._Unpickler):
    """Stack and memo of one pickle."""

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def find_class(self, module: str, name: str) -> Symbol:
        return Symbol(module, name)

    def _load_dict(self) -> None:
        pairs = self.pop_mark()
        self.stack.append({})
        self._set(pairs)

    def _load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def _load_setitems(self) -> None:
        self._set(self.pop_mark())

    def _set(self, flat: list[Any]) -> None:
        """Set keys and values, one after the other, in the dict or deferred call on the stack."""
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        target = self.stack[-1]
        if isinstance(target, DeferredCall):
            target.items.extend(pairs)
        elif not isinstance(target, dict):
            raise ValueError(f"a {type(target).__name__} stands where a dict is needed")
        elif all(isinstance(key, (str, bytes, int)) for key, _ in pairs):
            target.update(pairs)
        else:
            raise ValueError("a dict has keys that are no text")

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        **{ord(each.code): _refusing(each.name) for each in pickletools.opcodes if each.name not in _OPCODES},
        pickle.DICT[0]: _load_dict,
        pickle.SETITEM[0]: _load_setitem,
        pickle.SETITEMS[0]: _load_setitems,
    }
