"""``hopyard web``: the dashboard."""

from __future__ import annotations

import ctypes
import secrets
import socket
from typing import Annotated

import typer

from hopyard.cli.run_stores import open_existing
from hopyard.cli.terminal import say
from hopyard.errors import UsageError
from hopyard.missing import missing_extra
from hopyard.wording import describe_bytes

_MOST_PORTS = 65535
_M_ARENA_MAX = -8  # of malloc.h


def web(
    stores: Annotated[
        list[str],
        typer.Argument(
            help="Stores and stockrooms to show: paths, or URLs of stores; or export STORE RUN FILE."
        ),
    ],
    port: Annotated[
        int, typer.Option(help="Where it listens; 0: any that is free.", min=0, max=_MOST_PORTS)
    ] = 7450,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Another name of this machine that browsers ask for, as behind a proxy."),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Give no commands to runs, not even with the token.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Of export: replace the file that is there.")
    ] = False,
) -> None:
    """Show runs, data and versions in a browser, live.

    It listens on 127.0.0.1 and changes nothing; Ctrl-C ends it. Commands to runs need the token that it prints.

    hopyard web export STORE RUN run.html: write one run as a file that a browser shows without a server.
    """
    try:
        from hopyard.web.app import NOT_BUILT, STATIC, dashboard
        from hopyard.web.serving import DashboardServer
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "starlette"):
            raise
        raise missing_extra(error.name, "web", "The dashboard") from None
    if stores[0] == "export":
        _export(stores[1:], overwrite)
        return
    from hopyard.web.places import find_places, missing_places

    places = find_places(stores)
    if missing := missing_places(places):
        say(f"{missing} The others are shown.", style="yellow")
    with _listening(port) as listening:
        own = listening.getsockname()[1]
        token = None if read_only else secrets.token_urlsafe(18)
        app = dashboard(places, token, own, tuple(host or ()))
        say(f"the dashboard of {', '.join(place.url for place in places)}: http://127.0.0.1:{own}")
        if token is not None:
            say(f"to pause, stop or extend runs there, enter the token {token}")
        if not (STATIC / "index.html").exists():
            say(NOT_BUILT, style="yellow")
        say("Ctrl-C ends it; the runs go on.")
        _share_memory()
        DashboardServer(app).run(sockets=[listening])


def _export(words: list[str], overwrite: bool) -> None:
    from hopyard.web.export import export_page

    if len(words) != 3:
        raise UsageError(
            f"hopyard web export was given {len(words)} words, but takes three: a store, a run's id, and a file. Write "
            "hopyard web export STORE RUN run.html."
        )
    store, run_id, target = words
    file = export_page(open_existing(store), run_id, target, overwrite=overwrite)
    say(f"run {run_id} is in {file} ({describe_bytes(file.stat().st_size)}); open it in a browser.")


def _share_memory() -> None:
    """Have all threads take memory from one pool: each would keep much of its own, and many make answers."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def _listening(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise UsageError(
            f"port {port} cannot be listened on ({error.strerror}); another dashboard may. Open that, or choose "
            "another by --port, 0 for any that is free."
        ) from None
    listening.listen()
    return listening
