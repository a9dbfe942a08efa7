"""Servers before WebHDFS: one that answers what a test gives it, and one that relays as HttpFS does."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit


@contextmanager
def serving(answer: Callable[[Any], None], secure: ssl.SSLContext | None = None) -> Iterator[str]:
    """``host:port`` of a server whose handler of requests is given to the function."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self)

        do_PUT = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Clients that do not trust hang up."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if secure is not None:
            server.socket = secure.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def send(handler: Any, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def remote_exception(kind: str, message: str) -> bytes:
    """A refusal in the words of Hadoop."""
    name = f"org.apache.hadoop.{kind}"
    return json.dumps(
        {"RemoteException": {"exception": kind, "javaClassName": name, "message": message}}
    ).encode()


class Relay:
    """Passes requests on to a name node.

    Args:
        web: ``host:port`` of the web server of the name node.
        gateway: as HttpFS does it (its sources: ``HttpFSServer``): options of a rename are not passed on, bytes of
            files come from itself in chunks, and it takes what is sent with ``data=true`` and a type of content only.

    Attributes:
        asked: the operations, in order.
        loses: operations whose next answer is lost, after the name node acted.
        before: called with the operation before it is passed on.
    """

    def __init__(self, web: str, gateway: bool) -> None:
        self._web, self._gateway = web, gateway
        self.asked: list[str] = []
        self.loses: list[str] = []
        self.before: Callable[[str], None] = lambda operation: None

    def __call__(self, handler: Any) -> None:
        parts = urlsplit(handler.path)
        query = dict(parse_qsl(parts.query))
        operation = query["op"]
        self.asked.append(operation)
        self.before(operation)
        if self._gateway and operation == "CREATE" and "data" not in query:
            here = f"http://{handler.headers['Host']}{handler.path}&data=true"
            send(handler, 307, b"", Location=here)
            return
        if self._gateway:
            query.pop("renameoptions", None)
            query.pop("data", None)
        status, headers, body = self._passed(handler, f"{parts.path}?{urlencode(query)}")
        if operation in self.loses:
            self.loses.remove(operation)
            handler.close_connection = True
        elif self._gateway and operation == "OPEN" and status == 200:
            self._chunked(handler, body)
        else:
            send(handler, status, body, **headers)

    def _passed(self, handler: Any, target: str) -> tuple[int, dict[str, str], bytes]:
        sent = None
        if handler.headers.get("Transfer-Encoding") == "chunked":
            if handler.headers.get("Content-Type") != "application/octet-stream":
                return (
                    400,
                    {},
                    b"Data upload requests must have content-type set to 'application/octet-stream'",
                )
            sent = b"".join(_chunks(handler.rfile))
        status, headers, body = _exchange(self._web, handler.command, target)
        if self._gateway and status == 307:
            place = urlsplit(headers["Location"])
            return _exchange(place.netloc, handler.command, f"{place.path}?{place.query}", sent)
        return status, headers, body

    def _chunked(self, handler: Any, body: bytes) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for piece in (*(body[i : i + 50_000] for i in range(0, len(body), 50_000)), b""):
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))


def _chunks(file: Any) -> Iterator[bytes]:
    while size := int(file.readline(), 16):
        yield file.read(size)
        file.readline()
    file.readline()


def _exchange(
    place: str, method: str, target: str, sent: bytes | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection(place)
    try:
        connection.request(method, target, body=sent)
        answer = connection.getresponse()
        location = answer.getheader("Location")
        headers = {} if location is None or answer.status != 307 else {"Location": location}
        return answer.status, headers, answer.read()
    finally:
        connection.close()
