"""Guard of the dashboard: who may ask, and with which page."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_LOCAL = ("127.0.0.1", "localhost", "[::1]")


class RequestGuard:
    """Refuses requests that another site has a browser send: such with a foreign ``Host``, as of a name that was bound
    to this machine's address, or a foreign ``Origin``. Adds the headers that keep the page from loading anything.

    Args:
        app: what answers the rest.
        port: that it listens on; None: any, where there is no socket.
        hosts: further names of this machine under which it may be asked for, for a tunnel or a proxy.
    """

    def __init__(self, app: ASGIApp, port: int | None, hosts: Iterable[str] = ()) -> None:
        self._app, self._port = app, port
        self._hosts = frozenset(_LOCAL) | frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        problem = self._problem(headers, is_link=_is_link(scope, headers))
        if problem is not None:
            await JSONResponse({"error": problem}, 403, dict(_HEADERS))(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    found.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, guarded)

    def _problem(self, headers: Headers, is_link: bool) -> str | None:
        host = headers.get("host", "")
        if not self._is_own(host):
            return (
                f"this dashboard was asked for as {host!r}, which is no name of it. Open http://127.0.0.1:PORT with "
                "the port that the command printed; for a name of your own, start it with --host NAME."
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            return f"a page of {origin!r} has asked; only the dashboard's own page may. Open the dashboard itself."
        if not is_link and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "a page of another site has asked; only the dashboard's own page may. Open the dashboard itself."
        return None

    def _is_own(self, host: str) -> bool:
        name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        name = name if colon else host
        known = name.lower() in self._hosts
        return known and (
            self._port is None or name.lower() not in _LOCAL or (port or "80") == str(self._port)
        )


def _is_link(scope: Scope, headers: Headers) -> bool:
    """Whether a user has followed a link to a page, as somebody may have sent it; it gives nothing away."""
    is_page = not scope["path"].startswith("/api/") and scope["method"] == "GET"
    return (
        is_page
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def is_token(given: str | None, token: str) -> bool:
    """Whether a header ``Authorization`` has the token."""
    return given is not None and hmac.compare_digest(given.encode(), f"Bearer {token}".encode())
