"""``HDFSStore`` over HTTP before servers that refuse, are silent, or are something else."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.hdfs_cluster import free_ports
from tests.web_servers import remote_exception, send, serving

from hopyard.errors import (
    ExpiredError,
    MissingExtraError,
    NotWritableError,
    StorageError,
    StorageFullError,
    UnreachableError,
    UsageError,
)
from hopyard.storage import HDFSStore, open_store, webhdfs
from hopyard.storage import hdfs as hdfs_module
from hopyard.storage.hdfserrors import TOKEN
from hopyard.storage.webhdfs import Client

_ROOT = b'{"FileStatus": {"length": 0, "type": "DIRECTORY", "modificationTime": 0, "pathSuffix": ""}}'
_EMPTY = b'{"FileStatuses": {"FileStatus": []}}'
_CANARY = "canary-Zm9yYmlkZGVu"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_module, "_PATIENCE", 0.0)


def refusing(
    status: int, body: bytes, asked: list[str] | None = None
) -> contextlib.AbstractContextManager[str]:
    """A server that knows its root, sees no unfinished writes, and refuses all else."""

    def answer(handler: Any) -> None:
        if asked is not None:
            asked.append(handler.path)
        known = {"/webhdfs/v1/": _ROOT, "/webhdfs/v1/a/.tmp-writes": _EMPTY}.get(urlsplit(handler.path).path)
        send(handler, *((status, body) if known is None else (200, known)))

    return serving(answer)


@contextlib.contextmanager
def listening(says: bytes | None) -> Iterator[str]:
    """A port whose server says that at once, and hangs up; None: it says nothing, and does not hang up."""
    connections = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connections.append(server.accept()[0])
                    if says is not None:
                        connections[-1].recv(10_000)
                        connections[-1].sendall(says)
                        connections[-1].close()

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in connections:
            connection.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "webhdfs:///a",
            r"'webhdfs:///a' names no server. Give host and port of the name node's web server or of a",
        ),
        ("swebhdfs://host:port/a", r"names no server\. .*: swebhdfs://host:port/path\."),
        ("webhdfs://me:secret@host/a", r"^the URL of a store on webhdfs:// was given with a user in it"),
        (
            "webhdfs://host/a?delegation=secret",
            r"^the URL of a store on webhdfs://host goes on with '\?' or '#'",
        ),
        ("webhdfs://host/a:b", r"the path '/a:b' holds ':'"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    port = free_ports(1)[0]
    with pytest.raises(UnreachableError) as caught:
        HDFSStore(f"webhdfs://127.0.0.1:{port}/a").get("x")
    assert str(caught.value) == (
        f"webhdfs://127.0.0.1:{port}/a/x cannot be read: no node answers (127.0.0.1:{port}: Connection refused). Look "
        "at the network, at the data nodes, and at the address, which is that of the name node's web server "
        "(dfs.namenode.http-address; often port 9870) or of HttpFS (often 14000)."
    )


def test_a_server_that_is_silent_is_given_up_within_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hdfs_module._FIRST_SILENCE <= 5
    monkeypatch.setattr(hdfs_module, "_FIRST_SILENCE", 0.1)
    started = time.monotonic()
    with (
        listening(None) as place,
        pytest.raises(UnreachableError, match=rf"no node answers \({place}: timed out\)"),
    ):
        HDFSStore(f"webhdfs://{place}/a").put("x", b"")
    assert time.monotonic() - started < 10


def test_a_server_that_hangs_up_is_unreachable() -> None:
    with listening(b"") as place, pytest.raises(UnreachableError, match=rf"\({place}: it hung up\)"):
        HDFSStore(f"webhdfs://{place}/a").get("x")


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone", "it answers HTTP 404 Not Found"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "its answer to GETFILESTATUS is none"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}', "its answer to GETFILESTATUS is none"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://x/?token=" + _CANARY.encode() + b"\r\nContent-Length: 0\r\n\r\n",
         "it answers HTTP 302 Found"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it does not answer in HTTP"),
    ],
)  # fmt: skip
def test_a_server_that_is_no_webhdfs(says: bytes, why: str) -> None:
    with listening(says) as place, pytest.raises(StorageError) as caught:
        HDFSStore(f"webhdfs://{place}/a").get("x")
    assert str(caught.value) == (
        f"webhdfs://{place}/a/x cannot be read: {place} is no WebHDFS: {why}. Give host and port of the name node's "
        "web server (often 9870) or of HttpFS (often 14000), with swebhdfs:// if it speaks HTTPS."
    )


@pytest.mark.parametrize(
    ("status", "kind", "said", "error", "message"),
    [
        (403, "AccessControlException", "Permission denied: user=bob, access=WRITE", NotWritableError,
         "cannot be written: Permission denied: user=bob, access=WRITE. Give this user the right to write there"),
        (403, "SafeModeException", "Cannot create file/a. Name node is in safe mode.\nThe blocks", UnreachableError,
         r"in safe mode and takes no changes \(Cannot create file/a. Name node is in safe mode\)\. It leaves it once"),
        (403, "StandbyException", "Operation category READ is not supported in state standby.", UnreachableError,
         "is in standby .*Give the other name node or a gateway instead of this one, or make a name node active"),
        (403, "DSQuotaExceededException", "The DiskSpace quota of /a is exceeded", StorageFullError,
         r"no space is left for .*: The DiskSpace quota of /a is exceeded\. Nothing was half-written"),
        (403, "RetriableException", "NameNode still not started", UnreachableError,
         r"takes no requests now \(NameNode still not started\)\. Try again later"),
        (500, "SomethingException", "It broke.\n\tat java", StorageError,
         r"cannot be written: It broke\. Look at the name node"),
        (403, "InvalidToken", "token (HDFS_DELEGATION_TOKEN token 1 for me) is expired", ExpiredError,
         r"the delegation token has expired .* Renew it by op=RENEWDELEGATIONTOKEN, or set HOPYARD_WEBHDFS_TOKEN"),
        (403, "InvalidToken", "token can't be found in cache", StorageError, "does not accept who asks"),
    ],
)  # fmt: skip
def test_what_a_name_node_refuses_is_said_as_over_its_own_protocol(
    status: int, kind: str, said: str, error: type[StorageError], message: str
) -> None:
    with refusing(status, remote_exception(kind, said)) as place:
        store = HDFSStore(f"webhdfs://{place}/a")
        with pytest.raises(error, match=message) as caught:
            store.put("x", b"1")
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)


def test_a_proxy_whose_server_is_gone_is_unreachable() -> None:
    with (
        refusing(503, b"<html>") as place,
        pytest.raises(UnreachableError, match="HTTP 503 Service Unavailable"),
    ):
        HDFSStore(f"webhdfs://{place}/a").get("x")


def test_no_package_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with refusing(200, _ROOT) as place:
        assert open_store(f"webhdfs://{place}/a").size("x") is None
    with pytest.raises(MissingExtraError, match="hdfs-native"):
        HDFSStore("webhdfs://host/a", runs_path="hdfs://host/runs")


# Who asks


def test_a_cluster_with_kerberos_says_how_to_get_a_token() -> None:
    with refusing(401, b"Authentication required") as place, pytest.raises(StorageError) as caught:
        HDFSStore(f"webhdfs://{place}/a").get("x")
    assert str(caught.value) == (
        f"webhdfs://{place}/a/x cannot be read: the name node does not accept who asks ({place}: HTTP 401 "
        "Unauthorized). Tickets of Kerberos are not sent over HTTP: get a delegation token, for instance by `curl "
        "--negotiate -u : "
        "'http://host:port/webhdfs/v1/?op=GETDELEGATIONTOKEN'`, and set HOPYARD_WEBHDFS_TOKEN to its urlString; or use "
        "hdfs://."
    )


@pytest.mark.parametrize("status", [307, 400, 401, 403, 404, 500, 503])
def test_a_token_is_sent_instead_of_a_user_and_told_to_nobody(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, f"{_CANARY}\n")
    monkeypatch.setenv("HADOOP_USER_NAME", "bob")
    asked: list[str] = []
    with refusing(status, b"no", asked) as place:
        store = HDFSStore(f"webhdfs://{place}/a")
        for call in (store.get, store.size, lambda name: store.put(name, b"1")):
            with pytest.raises(StorageError) as caught:
                call("x")
            error: BaseException | None = caught.value
            while error is not None:
                assert _CANARY not in str(error)
                error = error.__cause__
        assert _CANARY.encode() not in pickle.dumps(store)
        assert _CANARY not in repr(store)
        assert store.hosts("x") == {}
    queries = [parse_qs(urlsplit(path).query) for path in asked]
    assert all(query["delegation"] == [_CANARY] and "user.name" not in query for query in queries)
    monkeypatch.delenv(TOKEN)
    with refusing(status, b"no", asked) as place, pytest.raises(StorageError):
        HDFSStore(f"webhdfs://{place}/a").get("x")
    assert parse_qs(urlsplit(asked[-1]).query)["user.name"] == ["bob"]


# HTTPS


def test_a_certificate_must_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(lambda handler: send(handler, 200, _ROOT), context) as place:
        with pytest.raises(
            StorageError, match=r"certificate is not trusted .*Set SSL_CERT_FILE to the certificate"
        ):
            HDFSStore(f"swebhdfs://{place}/a").size("x")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert HDFSStore(f"swebhdfs://{place}/a").size("x") is None  # a directory
    with refusing(200, _ROOT) as place, pytest.raises(StorageError, match=r"is no WebHDFS: .*VERSION"):
        HDFSStore(f"swebhdfs://{place}/a").size("x")


def test_bytes_are_not_taken_from_where_nothing_is_encrypted() -> None:
    client = Client("swebhdfs://gateway")
    with pytest.raises(RuntimeError, match=r"^gateway:9871 sends to http://node:1, which is not encrypted$"):
        client._at_data_node(
            f"http://node:1/a?delegation={_CANARY}", [], lambda *_: pytest.fail("it was asked")
        )


def test_a_client_in_a_circle_that_is_garbage_closes_its_connections() -> None:
    """The collector may look at a socket before the client; an unclosed one warns, which fails the test."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        for socket_first in (True, False):
            circle: list[Any] = []
            connection = HTTPConnection(host, port)
            connection.connect()
            held = [connection.sock] if socket_first else []
            client = webhdfs.Client(f"webhdfs://{host}:{port}")
            client._idle.append(connection)
            descriptor = connection.sock.fileno()
            circle += [held, client, circle]
            del circle, client, connection, held
            gc.collect()
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
