"""Groups of commands whose usage errors show what was typed, and commands whose modules are imported when they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from hopyard.cli.warned import said_warnings
from hopyard.wording import visible


class Later(TyperCommand):
    """A command, or a group, of which only name and help are known until it is used.

    Args:
        place: ``module:name`` of its function or Typer app.
        help: the first paragraph of its help, for the list of commands.
    """

    def __init__(self, name: str, place: str, help: str) -> None:
        super().__init__(name, help=help)
        self._place = place
        del self.params, self.callback  # those of the command itself are found by __getattr__

    @cached_property
    def command(self) -> Any:
        """The command itself."""
        module, _, name = self._place.partition(":")
        found = getattr(import_module(module), name)
        app = typer.Typer()
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=self.name)
        else:
            app.command(self.name)(found)
        return typer.main.get_group(app).commands[str(self.name)]

    def make_context(self, *given: Any, **more: Any) -> Any:
        """Parse the arguments, for the command itself: the context runs and completes that."""
        return self.command.make_context(*given, **more)

    def __getattr__(self, name: str) -> Any:
        if name in ("params", "callback", "commands"):
            return getattr(self.command, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class Commands(TyperGroup):
    """Commands whose usage errors show what was typed, which a shell's ``*`` may have, as ``say`` would.

    Attributes:
        later: of a subclass: commands that are imported when they run, by name: places and helps, as ``Later`` takes
            them. None is put for one that is there from the start, to list it here. Further ones are listed first.
    """

    later: ClassVar[Mapping[str, tuple[str, str] | None]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, known in self.later.items():
            self.commands[name] = self.commands.pop(name) if known is None else Later(name, *known)

    def make_context(self, *given: Any, **more: Any) -> Any:
        """Parse the arguments."""
        with _visible_errors():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _visible_errors(), said_warnings():
            return super().invoke(ctx)


@contextmanager
def _visible_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of the parser, whose class Typer keeps to itself
            error.message = visible(str(error.message))  # type: ignore[attr-defined]
        raise
