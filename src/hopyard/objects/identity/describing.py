"""Descriptions of values, and of the code they reach, by content: digests are made of these.

A description is a JSON value that is the same in every process: no addresses, no paths, no hash order. Of the user's
own functions it holds the syntax tree and, recursively, what they reach; of library objects the name. Other objects
are described as pickle takes them apart; what pickle cannot take apart has no description, and the reason is noted.
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import functools
import importlib
import importlib.util
import math
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from hopyard.objects.digests import digest, digest_json
from hopyard.objects.identity.reached import Chain, Import, Uses, names_used
from hopyard.objects.identity.syntax import syntax_of
from hopyard.objects.identity.usercode import is_user_module

Way: TypeAlias = tuple[str, ...]
"""How a value was reached, for messages: ``("function", "globals['connection']")``."""

DOMAIN = "hopyard.identity"

# About the place of a module rather than its content.
PLACE_NAMES = {
    "__builtins__",
    "__cached__",
    "__doc__",
    "__file__",
    "__loader__",
    "__name__",
    "__package__",
    "__path__",
    "__spec__",
}

NAMED_TYPES = (
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


class Describer:
    """Describes values that may reach each other; each function, class and object is defined once, by name."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self.code: set[str] = set()  # the definitions that are the user's functions and classes
        self.undigestible: list[str] = []
        self._names: dict[int, str] = {}
        self._alive: list[Any] = []  # so that no id in _names is used again
        self._open: list[int] = []  # the containers around the value at hand

    def give_up(self, way: Way, reason: str) -> Any:
        text = f"{' -> '.join(way)} {reason}"
        self.undigestible.append(text)
        return {"undigestible": text}

    def describe(self, value: Any, way: Way) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if kind in (list, tuple, dict, set, frozenset):
            return self._container(value, way)
        if kind in (complex, types.EllipsisType, types.NotImplementedType):
            return {kind.__name__: repr(value)}
        if kind in (bytes, bytearray, memoryview):
            return {kind.__name__: digest(bytes(value), DOMAIN)}
        if isinstance(value, np.generic) or kind in (np.ndarray, np.memmap):
            return self._array(np.asarray(value), kind.__name__, way)
        if any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in kind.__mro__):
            return self._tensor(value, way)
        if isinstance(value, types.ModuleType):
            return self._module(value, (), way)
        return self._code(value, way)

    # Containers and arrays

    def _container(self, value: Any, way: Way) -> Any:
        if id(value) in self._open:
            return {"cycle": len(self._open) - self._open.index(id(value))}
        self._open.append(id(value))
        try:
            if isinstance(value, dict):
                pairs = [[self.describe(k, way), self.describe(v, _item(way, k))] for k, v in value.items()]
                return {"dict": pairs}
            if isinstance(value, set | frozenset):
                return {type(value).__name__: sorted(self._alone(item, way) for item in value)}
            return {type(value).__name__: self._sequence(value, way)}
        finally:
            self._open.pop()

    def _sequence(self, values: Iterable[Any], way: Way) -> list[Any]:
        return [self.describe(item, _item(way, index)) for index, item in enumerate(values)]

    def _alone(self, item: Any, way: Way) -> str:
        """The digest of an element of a set, which must not depend on the elements met before it."""
        describer = Describer()
        description = describer.describe(item, way)
        self.undigestible += describer.undigestible
        return digest_json([description, describer.definitions], DOMAIN)

    def _array(self, array: Any, kind: str, way: Way) -> Any:
        if array.dtype.hasobject:
            return {kind: [list(array.shape), self._sequence(array.ravel().tolist(), way)]}
        dtype = array.dtype.descr if array.dtype.names else array.dtype.str
        return {kind: [repr(dtype), list(array.shape), digest(_bytes_of(array), DOMAIN)]}

    def _tensor(self, tensor: Any, way: Way) -> Any:
        try:
            plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
            # One element counts as contiguous with any stride, and some strides refuse a view as bytes.
            plain = plain.as_strided((plain.numel(),), (1,))
            content = plain.view(sys.modules["torch"].uint8).numpy()
        except Exception as error:  # sparse, quantised or without data
            return self.give_up(way, f"is a {_dotted(type(tensor))} without plain content ({error})")
        facts = [type(tensor).__name__, str(tensor.dtype), list(tensor.shape), tensor.requires_grad]
        return {"tensor": [*facts, digest(content, DOMAIN)]}

    # Code

    def _code(self, value: Any, way: Way) -> Any:
        if isinstance(value, type):
            return self._class(value, way)
        if isinstance(value, types.FunctionType):
            return self._function(value, way)
        if isinstance(value, types.MethodType):
            return {"method": [self.describe(value.__self__, way), self.describe(value.__func__, way)]}
        if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            owner = value.__self__
            bound = owner is not None and not isinstance(owner, types.ModuleType)
            return {"builtin": [value.__qualname__, self.describe(owner, way) if bound else value.__module__]}
        if isinstance(value, NAMED_TYPES):
            return {"name": f"{_name(value.__objclass__)}.{value.__name__}"}
        if isinstance(value, property):
            return {"property": self._sequence((value.fget, value.fset, value.fdel), way)}
        if isinstance(value, staticmethod | classmethod):
            return {type(value).__name__: self.describe(value.__func__, way)}
        if isinstance(value, functools.cached_property):
            return {"cached_property": self.describe(value.func, way)}
        if isinstance(value, functools._lru_cache_wrapper):
            return {"lru_cache": self.describe(value.__wrapped__, way)}
        if isinstance(value, types.MappingProxyType):
            return {"mappingproxy": self.describe(dict(value), way)}
        if isinstance(value, enum.Enum):
            return {"enum": [self._class(type(value), way), value.name, self.describe(value.value, way)]}
        return self._define(value, f"{type(value).__name__} object", lambda: self._object(value, way))

    def _define(self, value: Any, name: str, definition: Callable[[], dict[str, Any]]) -> Any:
        """A reference to ``value``; the first time it is also defined, so that cycles end."""
        if id(value) not in self._names:
            unique, count = name, 1
            while unique in self.definitions:
                count += 1
                unique = f"{name}#{count}"
            self._names[id(value)] = unique
            self._alive.append(value)
            self.definitions[unique] = None
            self.definitions[unique] = definition()
            if isinstance(value, types.FunctionType | type) and is_user_module(_home(value)):
                self.code.add(unique)
        return {"see": self._names[id(value)]}

    def _function(self, function: types.FunctionType, way: Way) -> Any:
        code, module = function.__code__, _home(function)
        if code.co_qualname.startswith("__create_fn__") or str(module).startswith("namedtuple_"):
            return {"name": "generated"}  # from fields, which are described
        if is_user_module(module):
            name = function.__qualname__.rpartition("<locals>.")[2]
            return self._define(function, name, lambda: self._function_definition(function, way))
        cells = {key: cell for key, cell in _cells(function).items() if cell is not None}
        if not cells:
            return {"name": f"{module}:{code.co_qualname}"}
        return self._define(
            function,
            f"{module}:{code.co_qualname}",
            lambda: {
                "closure": [[key, self.describe(cells[key], _closure(way, key))] for key in sorted(cells)]
            },
        )

    def _function_definition(self, function: types.FunctionType, way: Way) -> dict[str, Any]:
        attributes = {key: value for key, value in vars(function).items() if key != "__wrapped__"}
        return {
            "code": syntax_of(function.__code__, function.__globals__)
            or self._bytecode(function.__code__, way),
            "defaults": self.describe(function.__defaults__, (*way, "defaults")),
            "keyword_defaults": self.describe(function.__kwdefaults__, (*way, "defaults")),
            "attributes": self.describe(attributes, (*way, "attributes")),
            "reached": self._reached(function, way),
        }

    def _bytecode(self, code: types.CodeType, way: Way) -> Any:
        """Description of code without source, as in an interactive session; it may differ in another Python version."""
        constants = [
            self._bytecode(each, way) if isinstance(each, types.CodeType) else self.describe(each, way)
            for each in code.co_consts
        ]
        names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
        version = "{}.{}".format(*sys.version_info)
        counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
        return {"bytecode": [version, code.co_code.hex(), [list(each) for each in names], counts, constants]}

    def _reached(self, function: types.FunctionType, way: Way) -> dict[str, Any]:
        uses = names_used(function.__code__)
        reached: dict[str, Any] = {}
        for name, value in _cells(function).items():
            self._note(reached, name, value, uses.locals.get(name, {()}), _closure(way, name))
        for name in sorted(uses.globals.keys() - PLACE_NAMES):
            if name in function.__globals__:
                where = (*way, f"globals[{name!r}]")
                self._note(reached, name, function.__globals__[name], uses.globals[name], where)
        for name, imports in sorted(uses.imports.items()):
            for each in sorted(imports, key=repr):
                self._note_import(reached, name, each, uses, function, (*way, f"import of {name}"))
        return reached

    def _note(self, reached: dict[str, Any], name: str, value: Any, chains: set[Chain], way: Way) -> None:
        if not isinstance(value, types.ModuleType):
            reached[name] = self.describe(value, way)
            return
        for chain in sorted(chains):
            parts = self._module(value, chain, way)
            reached[".".join((name, *chain)) if is_user_module(value.__name__) else name] = parts

    def _note_import(
        self,
        reached: dict[str, Any],
        name: str,
        imported: Import,
        uses: Uses,
        function: types.FunctionType,
        way: Way,
    ) -> None:
        package = function.__globals__.get("__package__") or ""
        try:
            full = importlib.util.resolve_name("." * imported.level + imported.module, package)
            if not is_user_module(full):
                reached[name] = {"module": full}
                return
            value = importlib.import_module(full)
            value = _attribute(value, imported.attribute) if imported.attribute else value
        except Exception as error:  # importing runs the user's code
            reached[name] = self.give_up(way, f"failed: {type(error).__name__}: {error}")
            return
        self._note(reached, name, value, (uses.locals | uses.globals).get(name, {()}), way)

    def _module(self, module: types.ModuleType, chain: Chain, way: Way) -> Any:
        """Description of a user's module by the value that ``chain`` leads to or by all; of another by its name."""
        if not is_user_module(module.__name__):
            return {"module": module.__name__}
        if not chain:
            return self._define(
                module, f"module {module.__name__}", lambda: self._module_content(module, way)
            )
        try:
            value = _attribute(module, chain[0])
        except (AttributeError, ImportError):
            return {"missing": chain[0]}
        way = (*way, f".{chain[0]}")
        return (
            self._module(value, chain[1:], way)
            if isinstance(value, types.ModuleType)
            else self.describe(value, way)
        )

    def _module_content(self, module: types.ModuleType, way: Way) -> dict[str, Any]:
        names = sorted(name for name in vars(module) if name not in PLACE_NAMES)
        return {"content": [[name, self.describe(vars(module)[name], (*way, f".{name}"))] for name in names]}

    def _class(self, cls: type, way: Way) -> Any:
        if not is_user_module(_home(cls)):
            return {"name": _name(cls)}
        name = cls.__qualname__.rpartition("<locals>.")[2]
        return self._define(cls, name, lambda: self._class_definition(cls, way))

    def _class_definition(self, cls: type, way: Way) -> dict[str, Any]:
        names = sorted(name for name, value in vars(cls).items() if _is_content(cls, name, value))
        return {
            "bases": [self.describe(base, (*way, f"base {base.__name__}")) for base in cls.__bases__],
            "metaclass": self.describe(type(cls), (*way, "metaclass")),
            "content": [[name, self.describe(vars(cls)[name], (*way, f".{name}"))] for name in names],
            "members": [[name, self.describe(member.value, way)] for name, member in _members(cls).items()],
            "fields": [self._field(field, way) for field in _fields(cls)],
        }

    def _field(self, field: dataclasses.Field[Any], way: Way) -> list[Any]:
        values = (field.default, field.default_factory)
        given = [None if value is dataclasses.MISSING else [self.describe(value, way)] for value in values]
        return [field.name, *given, field.init, field.kw_only is True]

    # Any other object, as pickle takes it apart

    def _object(self, value: Any, way: Way) -> dict[str, Any]:
        if hasattr(type(value), "__hopyard_identity__"):
            return {"identity": self.describe(value.__hopyard_identity__(), way)}
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        except RecursionError:
            raise
        except Exception:  # each type has its own way to refuse
            return dict(self.give_up(way, f"is a {_dotted(type(value))}"))
        if isinstance(reduced, str):
            return {"name": f"{getattr(value, '__module__', None) or type(value).__module__}:{reduced}"}
        make, arguments, state, items, pairs = (*reduced, *(None,) * 5)[:5]
        definition = {
            "make": self.describe(make, way),
            "arguments": self._sequence(arguments, way),
            "state": self._state(state, way),
            "items": self._sequence(items or (), way),
            "pairs": self.describe(dict(pairs or ()), way),
        }
        return {key: part for key, part in definition.items() if part not in ([], None, {"dict": []})}

    def _state(self, state: Any, way: Way) -> Any:
        if not isinstance(state, dict):
            return self.describe(state, way)
        return {
            "dict": [[self.describe(k, way), self.describe(v, (*way, f".{k}"))] for k, v in state.items()]
        }


def _item(way: Way, key: Any) -> Way:
    return (*way, f"[{key!r}]" if isinstance(key, str | int) else "[...]")


def _closure(way: Way, name: str) -> Way:
    return (*way, f"closure[{name!r}]")


def _home(value: types.FunctionType | type) -> str | None:
    """The module that has the code, which ``functools.wraps`` does not write into ``__module__``."""
    return value.__module__ if isinstance(value, type) else value.__globals__.get("__name__")


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _dotted(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _bytes_of(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _cells(function: types.FunctionType) -> dict[str, Any]:
    """The variables that a function captured and that are bound by now."""
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # bound later, or never
            continue
    return cells


def _attribute(module: types.ModuleType, name: str) -> Any:
    """``module.name``, which may be a submodule that nobody imported yet."""
    if not hasattr(module, name) and hasattr(module, "__path__"):
        return importlib.import_module(f"{module.__name__}.{name}")
    return getattr(module, name)


def _is_content(cls: type, name: str, value: Any) -> bool:
    """Whether a class's entry is the user's, rather than made by Python, ``abc`` or ``enum``."""
    if issubclass(cls, enum.Enum) and (name in cls.__members__ or not callable(value)):
        return False
    hidden = name.startswith("__") and name.endswith("__")
    code = isinstance(value, types.FunctionType | staticmethod | classmethod | property)
    return name != "_abc_impl" and (code or not hidden)


def _members(cls: type) -> dict[str, Any]:
    return dict(cls.__members__) if issubclass(cls, enum.Enum) else {}


def _fields(cls: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
