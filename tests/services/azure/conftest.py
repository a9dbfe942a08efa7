"""Azure's blob storage as its emulator, Azurite, answers: a server of Node on loopback."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import http.client
import os
import shutil
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator

import pytest
from tests.hdfs_cluster import free_ports

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that is the same in every Azurite, as its documentation says."""


@pytest.fixture(scope="session")
def azurite_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int | None]:
    program = os.environ.get("HOPYARD_AZURITE") or shutil.which("azurite-blob")
    if program is None:
        yield None
        return
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("azurite")
    command = [
        program,
        "--silent",
        "--skipApiVersionCheck",
        "--location",
        str(folder),
        "--blobPort",
        str(port),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            assert process.poll() is None, (folder / "log").read_text()
            threading.Event().wait(0.05)
    yield port
    process.kill()
    process.wait()


@pytest.fixture
def azure_url(azurite_port: int | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix in a new container, and an environment in which it is found, also by processes that the test starts."""
    if azurite_port is None:
        pytest.skip("this test needs azurite-blob (HOPYARD_AZURITE), which is not available here")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{azurite_port}/{ACCOUNT}")
    container = f"c{uuid.uuid4().hex[:12]}"
    _make(azurite_port, container)
    return f"az://{container}/some/prefix"


def _make(port: int, container: str) -> None:
    """Make a container; the library that Hopyard uses can only use one."""
    date = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    resource = f"/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    signed = f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:2023-11-03\n{resource}"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    authorization = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers = {"x-ms-date": date, "x-ms-version": "2023-11-03", "Authorization": authorization}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("PUT", f"/{ACCOUNT}/{container}?restype=container", headers=headers)
    assert connection.getresponse().status == 201
    connection.close()
