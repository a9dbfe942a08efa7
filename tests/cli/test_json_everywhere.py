"""``--json`` is an option of every command that shows something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from hopyard.cli import app

ONLY_DO = {
    "demo": "it shows people what Hopyard is; `run describe --json` has its figures",
    "experiment pause": "says what the driver answered",
    "experiment stop": "says what the driver answered",
    "experiment kill": "says what the driver answered",
    "experiment delete": "says that it is done",
    "experiment export": "writes a file that programs read",
    "experiment schema": "prints JSON anyway",
    "run pause": "says what the driver answered",
    "run resume": "its output is that of the script that it starts",
    "run stop": "says what the driver answered",
    "run extend": "says what the driver answered",
    "run export": "writes a file that programs read",
    "web": "its documents are at the addresses under /api/",
    "stock init": "says where it made a stockroom; `stock status --json` shows it",
    "stock clone": "says where it made a stockroom; `stock status --json` shows it",
    "stock remote forget": "says that it is done",
    "stock merge-driver": "git calls it",
}
"""Commands that show nothing that another command does not, and why."""


def commands(of: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    of = typer.main.get_command(app) if of is None else of
    if not hasattr(of, "commands"):
        yield path, of
        return
    for name, each in of.commands.items():
        yield from commands(each, f"{path} {name}".strip())


COMMANDS = dict(commands())


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_that_shows_something_takes_json(path: str) -> None:
    options = {name for param in COMMANDS[path].params for name in param.opts}
    assert ("--json" in options) != (path in ONLY_DO), (
        f"hopyard {path} shows something: give it as_json: JsonOption; or it only does something: name it in ONLY_DO"
    )


def test_exceptions_are_commands() -> None:
    assert set(ONLY_DO) <= set(COMMANDS)
