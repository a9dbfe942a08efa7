"""The one way to a terminal: names, texts and errors of others are text there, and nothing else.

What a terminal shows as a table, a notebook shows as Rich writes it in HTML.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from hopyard.wording import visible

_WIDTH = 160
_HTML = (
    "<pre style=\"white-space:pre;overflow-x:auto;line-height:normal;font-family:Menlo,'DejaVu Sans Mono',consolas,"
    "'Courier New',monospace\">{code}</pre>"
)


class Terminal(Console):
    """A console that takes no text for markup or emoji codes, and shows control characters (see ``visible``).

    Styles, colours and the movement of bars come from renderables alone. Arguments are those of ``rich.Console``.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False} | settings)

    def render_str(self, text: str, **how: Any) -> Text:
        """Text of a string; escaped here too, since tables measure it."""
        return super().render_str(visible(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments whose text is visible; segments that move the cursor are the renderable's own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


class Shown:
    """Objects that Rich can show: ``str`` gives the text, and notebooks the HTML, that a terminal shows."""

    def __rich__(self) -> RenderableType:
        raise NotImplementedError

    def __str__(self) -> str:
        console = _recorder(self)
        return "\n".join(line.rstrip() for line in console.export_text().splitlines())

    def _repr_html_(self) -> str:
        return _recorder(self).export_html(inline_styles=True, code_format=_HTML)


def _recorder(shown: Shown) -> Terminal:
    console = Terminal(width=_WIDTH, file=io.StringIO(), record=True)
    console.print(shown)
    return console
