"""``hopyard data cache``: the copies that this machine keeps of datasets that it decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopyard.cli.terminal import JsonOption, console, say, show_json
from hopyard.data import NodeCache, list_cache
from hopyard.documents.data import cache_json
from hopyard.errors import NotFoundError
from hopyard.wording import describe_bytes

app: typer.Typer = typer.Typer(help="Decoded data that this machine keeps.", no_args_is_help=True)

CachePath = Annotated[
    str | None, typer.Option(help="The cache's directory; by default that which loaders use here.")
]


@app.command("list")
def list_command(path: CachePath = None, as_json: JsonOption = False) -> None:
    """List what is kept, by the file that it was decoded from: size, last use, total and limit."""
    found = list_cache(_cache(path))
    if as_json:
        show_json(cache_json(found))
    else:
        console().print(found)


@app.command()
def clear(path: CachePath = None, as_json: JsonOption = False) -> None:
    """Delete all that is kept. It is decoded again when it is read next; nothing else is deleted."""
    cache = _cache(path)
    freed = cache.clear()
    if as_json:
        show_json({"path": cache.path, "freed_bytes": freed})
    elif freed:
        say(f"{cache.path}: {describe_bytes(freed)} freed")
    else:
        say(f"{cache.path}: there was nothing to delete")


def _cache(path: str | None) -> NodeCache:
    """The cache there; one that is named must exist, so that a misspelt path is not taken for an empty cache.

    Raises:
        NotFoundError: there is no directory.
    """
    cache = NodeCache(path)
    if path is not None and not Path(cache.path).is_dir():
        raise NotFoundError(f"{cache.path} does not exist here. Give the directory that was given as cache=.")
    return cache
