"""The server of the dashboard."""

from __future__ import annotations

import socket

import uvicorn
from starlette.applications import Starlette


class DashboardServer(uvicorn.Server):
    """Serves the dashboard at a socket. Before it ends, events end: pages that are open would keep it waiting, and each
    would leave a traceback in the terminal.

    Args:
        app: what ``dashboard`` made.
        seconds: that answers under way may take when it ends.
        log_level: of what it says in the terminal.
    """

    def __init__(self, app: Starlette, seconds: int = 1, log_level: str = "warning") -> None:
        settings = uvicorn.Config(
            app, timeout_graceful_shutdown=seconds, log_level=log_level, access_log=False, lifespan="off"
        )
        super().__init__(settings)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the events, then the server."""
        self._app.state.end_events()
        await super().shutdown(sockets)
