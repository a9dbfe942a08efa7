"""HTML by functions: a value that is not markup already is text, and is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias, Union

from hopyard.wording import visible

_VOID = frozenset({"br", "col", "hr", "img", "meta"})


_LONGEST_CELL = 2400  # characters


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


def table(title: str, titles: Sequence[str], rows: Iterable[Sequence[str]], most: int = 30) -> Html:
    """A table of texts under a title. Long texts are cut, and rows behind the first ``most`` are left out, which the
    table then says."""
    remaining = iter(rows)

    def lines() -> Iterator[Html]:
        yield tag("tr", [tag("th", name) for name in titles])
        for row in islice(remaining, most):
            yield tag("tr", [tag("td", cut(cell, _LONGEST_CELL)) for cell in row])

    return tag(
        "div", tag("p", title), tag("table", lines()), [tag("p", "and more") for _ in islice(remaining, 1)]
    )


def cut(text: str, longest: int = 80) -> str:
    """The text, or its beginning, with dots behind it, if it is longer."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


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
