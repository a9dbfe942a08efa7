"""A real S3 server, versitygw, over a directory."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path

from tests.hdfs_cluster import free_ports

PROGRAM = "HOPYARD_S3_SERVER"
"""The variable with the path of versitygw."""

ROOT = {"ROOT_ACCESS_KEY": "hopyard", "ROOT_SECRET_KEY": "hush-hush-canary"}


class Gateway:
    """The server.

    Attributes:
        url: its endpoint.
        data: the directory that holds buckets as folders.
    """

    def __init__(self, program: str, folder: Path) -> None:
        self.data = folder / "data"
        for name in ("data", "iam", "versions"):
            (folder / name).mkdir()
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._program = program
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, "--port", f"127.0.0.1:{port}", "--iam-dir", str(folder / "iam"), "--keep-alive", "--quiet",
                 "posix", "--versioning-dir", str(folder / "versions"), str(self.data)],
                env={**os.environ, **ROOT}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except ConnectionRefusedError:
                assert self._process.poll() is None, (folder / "log").read_text()
                threading.Event().wait(0.02)

    def admin(self, *arguments: str) -> None:
        """``versitygw admin``: of users and buckets."""
        access = ["--access", ROOT["ROOT_ACCESS_KEY"], "--secret", ROOT["ROOT_SECRET_KEY"]]
        command = [self._program, "admin", *access, "--endpoint-url", self.url, *arguments]
        subprocess.run(command, check=True, capture_output=True)

    def environment(self, url: str | None = None) -> dict[str, str]:
        """The variables by which clients find the server, or a wire to it at ``url``."""
        return {
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_ACCESS_KEY_ID": ROOT["ROOT_ACCESS_KEY"],
            "AWS_SECRET_ACCESS_KEY": ROOT["ROOT_SECRET_KEY"],
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",  # for clients of Rust
            "AWS_DEFAULT_REGION": "us-east-1",  # for boto3
        }

    def make_bucket(self, name: str) -> None:
        (self.data / name).mkdir()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
