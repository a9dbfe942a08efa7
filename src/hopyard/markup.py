"""HTML by functions: what is not markup already is text, and is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias, Union

from hopyard.wording import visible

_VOID = frozenset({"br", "col", "hr", "img", "meta"})


class Html(str):
    """Markup."""

    __slots__ = ()


Child: TypeAlias = Union[str, Iterable["Child"], None]  # noqa: UP007, a string cannot be in a | at run time


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """An element: ``tag("td", text, class_="number", colspan=2)``. Attributes that are None or False are left out."""
    written = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{escape(_short(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Child) -> Html:
    """Markup of all of them, one after another."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, str):
        return Html(escape(children))
    return Html("".join(join(child) for child in children))


def escape(text: str) -> str:
    """``text`` so that it is nothing but text, also inside attributes; control characters as a terminal shows them."""
    return html.escape(visible(text), quote=True)


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-") if key != "viewBox" else key


def _short(value: str | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
