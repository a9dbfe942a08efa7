"""The dashboard's server: which address gives which document."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from hopyard import __version__
from hopyard.errors import HopyardError
from hopyard.web.answers import answer, refused
from hopyard.web.guard import RequestGuard
from hopyard.web.places import ShownPlace, place_json
from hopyard.web.plan_pages import plan_answer
from hopyard.web.run_pages import RunPages

STATIC = Path(__file__).parent / "static"
"""The built pages: in an installed package, or where ``make dashboard`` was run."""

NOT_BUILT = (
    "the pages of the dashboard are not built in this checkout. Run `make dashboard` there, which needs Node.js 20 or "
    "later; an installed package has them. The documents under /api/ are served without them."
)
_SMALLEST = 1024


def dashboard(
    places: list[ShownPlace],
    token: str | None,
    port: int | None = None,
    hosts: tuple[str, ...] = (),
    static: Path = STATIC,
) -> Starlette:
    """The dashboard of some stores and stockrooms as an ASGI application.

    Args:
        token: needed for commands to runs; None: there are no commands.
        port: that it will listen on; None: any, where there is no socket.
        hosts: names besides those of this machine under which it is asked for.
        static: folder of the built pages.
    """
    runs = RunPages(places, token)
    data, stock = _Later("data_pages", "DataPages", places), _Later("stock_pages", "StockPages", places)

    def shown(request: Request) -> Response:
        document = {"version": __version__, "control": token is not None}
        return answer(
            document | {"places": [place_json(place, runs.problems.get(place.number)) for place in places]}
        )

    app = Starlette(
        routes=[
            Mount(
                "/api",
                routes=[
                    Route("/openapi.json", _described),
                    Route("/places", shown),
                    *runs.routes(),
                    data.route("/data/{place:number}", "list"),
                    data.route("/data/{place:number}/describe", "describe"),
                    data.route("/data/{place:number}/samples", "samples"),
                    stock.route("/stock/{place:number}", "status"),
                    stock.route("/stock/{place:number}/log", "log"),
                    stock.route("/stock/{place:number}/diff", "diff"),
                    stock.route("/stock/{place:number}/commit/{revision:path}", "commit"),
                    stock.route("/stock/{place:number}/model", "model"),
                    Route("/plan", plan_answer, methods=["POST"]),
                    Route("/{rest:path}", _unknown),
                ],
            ),
            Route("/{path:path}", _Pages(static).get),
        ],
        middleware=[
            Middleware(RequestGuard, port=port, hosts=hosts),
            Middleware(GZipMiddleware, minimum_size=_SMALLEST, compresslevel=4),
        ],
        exception_handlers={
            HopyardError: refused,
            OSError: refused,
            HTTPException: _not_taken,
            Exception: _failed,
        },
    )
    app.state.end_events = runs.end_events
    return app


class _Later:
    """Pages whose module is imported when they are first asked for: who looks at runs does not pay for reading data
    and versions, which takes more memory than all the rest.

    Args:
        module: in this package.
        name: the class of the pages.
        places: stores and stockrooms that they show.
    """

    def __init__(self, module: str, name: str, places: list[ShownPlace]) -> None:
        self._module, self._name, self._places = module, name, places

    def route(self, path: str, page: str) -> Route:
        """An address, and the page that answers it."""
        return Route(path, lambda request: getattr(self._pages, page)(request))

    @cached_property
    def _pages(self) -> Any:
        return getattr(import_module(f"hopyard.web.{self._module}"), self._name)(self._places)


def _described(request: Request) -> Response:
    """The OpenAPI document; pydantic, which makes it, is imported when it is first asked for."""
    return answer(import_module("hopyard.web.openapi").openapi())


def _not_taken(request: Request, error: Exception) -> Response:
    """A request that no address takes, such as one with another method."""
    status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (400, None)
    said = f"{request.method} {request.url.path} is not taken. /api/openapi.json says what is."
    return JSONResponse({"error": said}, status, headers)


def _failed(request: Request, error: Exception) -> Response:
    """An error that nobody has thought of; what it says may be secret, and is in the terminal."""
    said = (
        f"the dashboard failed to answer {request.url.path} ({type(error).__name__}), which is a mistake in it. The "
        "terminal of hopyard web shows where; report that."
    )
    return JSONResponse({"error": said}, 500, {"cache-control": "no-store"})


def _unknown(request: Request) -> Response:
    return JSONResponse(
        {"error": f"there is no {request.url.path}. /api/places says what is shown here."}, status_code=404
    )


class _Pages:
    """Files of the built pages: each has one address; all others are the page itself, which reads its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, request: Request) -> Response:
        known = {path.name: path for path in self._folder.glob("*") if path.is_file()}
        if "index.html" not in known:
            return Response(NOT_BUILT + "\n", 503, media_type="text/plain")
        name = request.path_params["path"].rpartition("/")[2]
        path = known.get(name, known["index.html"])
        return Response(path.read_bytes(), media_type=_MEDIA.get(path.suffix, "application/octet-stream"))


_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
