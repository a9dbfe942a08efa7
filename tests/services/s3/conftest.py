"""A real S3 server, versitygw, over a directory; what other tests do on moto is done on it, too."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hdfs_cluster import free_ports

ROOT = {"ROOT_ACCESS_KEY": "hopyard", "ROOT_SECRET_KEY": "hush-hush"}


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

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def gateway_if_there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway | None]:
    program = os.environ.get("HOPYARD_S3_SERVER")
    if program is None:
        yield None
        return
    gateway = Gateway(program, tmp_path_factory.mktemp("s3"))
    yield gateway
    gateway.stop()


@pytest.fixture
def gateway(gateway_if_there: Gateway | None, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """The server, and an environment in which it is S3, also for processes that the test starts."""
    if gateway_if_there is None:
        pytest.skip("this test needs versitygw (HOPYARD_S3_SERVER), which is not available here")
    keys = {"ACCESS_KEY_ID": ROOT["ROOT_ACCESS_KEY"], "SECRET_ACCESS_KEY": ROOT["ROOT_SECRET_KEY"]}
    for name, value in {"ENDPOINT_URL": gateway_if_there.url, **keys, "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return gateway_if_there


@pytest.fixture
def bucket(gateway: Gateway) -> str:
    """The name of a new bucket."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    (gateway.data / name).mkdir()
    return name


@pytest.fixture
def s3_url(bucket: str) -> str:
    """A prefix in a new bucket: ``s3://bucket/some/prefix``."""
    return f"s3://{bucket}/some/prefix"
