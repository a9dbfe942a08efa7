"""Dicts and lists that are handed out and cannot be changed: a change would be lost, since nothing stores it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Never

from hopyard.errors import UsageError


class FrozenDict(dict[Any, Any]):
    """A dict for all who read it, equal to a plain one. What would change it raises; copies and pickles are plain."""

    __slots__ = ("_advice",)
    _advice: str

    def copy(self) -> dict[Any, Any]:
        """A plain copy, down to the last list, which may be changed."""
        return {key: thawed(value) for key, value in self.items()}

    def __copy__(self) -> dict[Any, Any]:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> dict[Any, Any]:
        return self.copy()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (self.copy(),)

    def _refuse(self, *_: Any, **__: Any) -> Never:
        raise UsageError(self._advice)

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __ior__ = _refuse
        clear = pop = popitem = setdefault = update = _refuse


class FrozenList(list[Any]):
    """A list that cannot be changed, as :class:`FrozenDict` is a dict."""

    __slots__ = ("_advice",)
    _advice: str

    def copy(self) -> list[Any]:
        """A plain copy, down to the last dict, which may be changed."""
        return [thawed(value) for value in self]

    def __copy__(self) -> list[Any]:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> list[Any]:
        return self.copy()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return list, (self.copy(),)

    def _refuse(self, *_: Any, **__: Any) -> Never:
        raise UsageError(self._advice)

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
        append = clear = extend = insert = pop = remove = reverse = sort = _refuse


def frozen(value: Any, advice: str) -> Any:
    """A plain value whose dicts and lists cannot be changed; ``advice`` is the text of the error."""
    if type(value) is dict:
        _teach_yaml()
        made = FrozenDict({key: frozen(each, advice) for key, each in value.items()})
        made._advice = advice
        return made
    if type(value) is list:
        _teach_yaml()
        items = FrozenList(frozen(each, advice) for each in value)
        items._advice = advice
        return items
    return tuple(frozen(each, advice) for each in value) if type(value) is tuple else value


def thawed(value: Any) -> Any:
    """A copy of a frozen value as plain dicts and lists."""
    if isinstance(value, FrozenDict | FrozenList):
        return value.copy()
    return tuple(map(thawed, value)) if type(value) is tuple else value


@cache
def _teach_yaml() -> None:
    """PyYAML looks at the exact type of what it writes."""
    try:
        from yaml.representer import Representer, SafeRepresenter  # type: ignore[import-untyped]
    except ImportError:
        return
    for representer in (SafeRepresenter, Representer):
        representer.add_representer(FrozenDict, SafeRepresenter.represent_dict)
        representer.add_representer(FrozenList, SafeRepresenter.represent_list)
