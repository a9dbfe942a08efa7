"""A real HTTP server in a process of its own: python server.py FOLDER. Prints its port, then a line a request.

What is asked for says how it answers: ``/<name>`` with ranges; ``/whole/<name>`` never in part; ``/silent/<name>``
without a length; ``/broken/<n>/<name>`` at most n bytes, after which the connection ends; ``/missing/<n>/<name>`` with
the status n.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        how, _, name = self.path.strip("/").rpartition("/")
        kind, _, number = how.partition("/")
        asked = self.headers.get("Range", "")
        print(f"{self.path} {asked}", flush=True)
        if kind == "missing":
            self.send_error(int(number))
            return
        data = (Path(sys.argv[1]) / name).read_bytes()
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and kind != "whole" else 0
        if start and start >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if kind != "silent":
            self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start : start + int(number)] if kind == "broken" else data[start:])

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
