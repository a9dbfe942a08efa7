"""moto's S3 as a process of its own: prints its URL and ends when its standard input is closed.

``POST /faults`` with lines ``pattern count status`` makes the next ``count`` requests whose method and URL match the
pattern fail: with that status before anything is done, or, if it is negative, after it was done. ``GET /requests``
tells the methods and URLs so far.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Start = Callable[..., Any]


class OneAtATime:
    """moto looks whether a name is free and then writes it; S3 does both in one step, and so does this."""

    def __init__(self, inner: Callable[..., Iterable[bytes]]) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._faults: list[list[Any]] = []
        self._requests: list[str] = []

    def __call__(self, environ: dict[str, Any], start_response: Start) -> list[bytes]:
        with self._lock:
            request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ['QUERY_STRING']}"
            if request == "POST /faults?":
                lines = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode().splitlines()
                self._faults = [
                    [pattern, int(n), int(status)]
                    for pattern, n, status in (line.rsplit(" ", 2) for line in lines if line)
                ]
                return _answer(start_response, 200, b"")
            if request == "GET /requests?":
                return _answer(start_response, 200, "\n".join(self._requests).encode())
            self._requests.append(request)
            status = self._fault(request)
            if status <= 0:
                done = list(self._inner(environ, start_response if status == 0 else lambda *_: None))
            else:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return done if status == 0 else _answer(start_response, abs(status), b"")

    def _fault(self, request: str) -> int:
        for fault in self._faults:
            if fault[1] > 0 and re.search(fault[0], request):
                fault[1] -= 1
                return int(fault[2])
        return 0


def _answer(start_response: Start, status: int, body: bytes) -> list[bytes]:
    start_response(f"{status} -", [("Content-Length", str(len(body)))])
    return [body]


class Quiet(WSGIRequestHandler):
    """Keeps connections open, as real servers do, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        pass


def main() -> None:
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.port}", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
