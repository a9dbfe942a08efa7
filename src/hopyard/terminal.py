"""The one way to a terminal: what others have named, written or raised is text there, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from hopyard.wording import visible


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
        """Segments whose text is visible; those that move the cursor are the renderable's own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))
