"""What only a bucket can get wrong: lost replies, interrupted uploads, credentials, servers that are not there."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.web_servers import send, serving

from hopyard.errors import (
    InvalidNameError,
    MissingExtraError,
    NotFoundError,
    NotWritableError,
    StorageError,
    StorageFullError,
    UsageError,
)
from hopyard.storage import Entry, ObjectStore, open_store

AT_ONCE: dict[str, Any] = {"retry_config": {"max_retries": 0}}


# Conditional writes


def test_exactly_one_of_sixteen_processes_wins(s3_url: str) -> None:
    code = (
        "import pickle, sys\nstore = pickle.load(sys.stdin.buffer)\n"
        "print('ready', flush=True)\nsys.stdin.buffer.read(1)\n"
        "print(sum(store.put_new(f'names/{n}', sys.argv[1].encode()) for n in range(5)))"
    )
    store = ObjectStore(s3_url)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with contextlib.ExitStack() as stack:
        racers = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", code, str(me)], **pipes))
            for me in range(16)
        ]
        for racer in racers:
            racer.stdin.write(pickle.dumps(store))
            racer.stdin.flush()
        assert [racer.stdout.readline() for racer in racers] == [b"ready\n"] * 16
        for racer in racers:
            racer.stdin.write(b"\n")
            racer.stdin.close()
        wins = [int(racer.stdout.read()) for racer in racers]
    assert sum(wins) == 5
    winners = [int(store.get(f"names/{n}")) for n in range(5)]
    assert wins == [winners.count(me) for me in range(16)]


@pytest.mark.parametrize("status", [-500, -503])
def test_a_put_new_whose_reply_was_lost_has_won(s3: Any, s3_url: str, status: int) -> None:
    store = ObjectStore(s3_url, **AT_ONCE)
    s3.fail(f"PUT.*/mine 1 {status}")
    assert store.put_new("mine", b"1") is True
    assert store.put_new("mine", b"2") is False
    assert store.get("mine") == b"1"


def test_a_put_new_that_lost_its_reply_to_another_writer_has_lost(s3: Any, s3_url: str) -> None:
    store = ObjectStore(s3_url, **AT_ONCE)
    store.put("taken", b"by put")
    s3.fail("PUT.*/taken 1 500")
    assert store.put_new("taken", b"2") is False
    assert store.get("taken") == b"by put"


def test_a_put_new_that_never_arrived_is_sent_again(s3: Any, s3_url: str) -> None:
    store = ObjectStore(s3_url, **AT_ONCE)
    s3.fail("PUT.*/late 2 500")
    assert store.put_new("late", b"1") is True
    s3.fail("PUT.*/never 9 500")
    with pytest.raises(StorageError, match=r"some/prefix/never cannot be written: 500"):
        store.put_new("never", b"1")
    assert store.size("never") is None


# Uploads


def test_a_large_file_is_sent_in_parts(s3: Any, s3_url: str, tmp_path: Path) -> None:
    content = os.urandom(1 << 20) * 40
    path = tmp_path / "large"
    path.write_bytes(content)
    store = ObjectStore(s3_url)
    store.put_file("large", path)
    assert store.get("large") == content
    assert not path.exists()
    assert sum("large?partNumber=" in request for request in s3.requests()) == 3


@pytest.mark.parametrize("failing", ["PUT.*partNumber=2", "POST.*uploadId="])
def test_an_upload_that_fails_leaves_no_object_and_is_aborted(
    s3: Any, s3_url: str, tmp_path: Path, failing: str
) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(40 << 20))
    store = ObjectStore(s3_url, **AT_ONCE)
    s3.fail(f"{failing} 9 500")
    with pytest.raises(StorageError, match="cannot be written: 500"):
        store.put_file("large", path)
    assert path.stat().st_size == 40 << 20
    assert list(store.list()) == []
    bucket = s3_url.split("/")[2]
    assert any(
        request.startswith(f"DELETE /{bucket}/") and "uploadId=" in request for request in s3.requests()
    )
    assert b"<Upload>" not in s3.request("GET", f"/{bucket}?uploads")
    s3.fail()
    store.put_file("large", path)
    assert store.size("large") == 40 << 20


# Names


def test_what_another_process_nested_is_found_at_the_first_write(s3_url: str) -> None:
    ObjectStore(s3_url).put("a/b/c", b"")
    for name in ("a", "a/b", "a/b/c/d", "a/b/c/d/e"):
        with pytest.raises(InvalidNameError, match=r"both an object and a prefix"):
            ObjectStore(s3_url).put(name, b"")


def test_writes_into_one_directory_look_at_it_once(s3: Any, s3_url: str) -> None:
    store = ObjectStore(s3_url)
    before = len(s3.requests())
    for number in range(20):
        assert store.put_new(f"runs/journal/{number:08d}", b"")
    sent = s3.requests()[before:]
    assert sum(request.startswith("PUT") for request in sent) == 20
    assert len(sent) <= 24


def test_a_directory_of_very_many_is_looked_at_for_each_name(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopyard.storage.nesting.MANY", 3)
    other = ObjectStore(s3_url)
    for number in range(4):
        other.put(f"many/{number}/x", b"")
    store = ObjectStore(s3_url)
    for number in range(4):
        with pytest.raises(InvalidNameError, match="prefix"):
            store.put(f"many/{number}", b"")
    store.put("many/4", b"")


def test_an_object_that_stands_for_a_directory_is_not_listed(s3: Any, s3_url: str) -> None:
    bucket = s3_url.split("/")[2]
    store = ObjectStore(s3_url)
    store.put("a/b", b"x")
    store.put("a/empty", b"")
    for marker in ("some/prefix/", "some/prefix/a/"):
        s3.request("PUT", f"/{bucket}/{marker}")
    assert list(store.list()) == [Entry("a/b", 1), Entry("a/empty", 0)]
    assert list(store.list("a")) == [Entry("a/b", 1), Entry("a/empty", 0)]


@pytest.mark.long
def test_more_objects_than_one_page_are_listed(s3_url: str) -> None:
    store = ObjectStore(s3_url)
    names = [f"n/{number:04d}" for number in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store.put, names, itertools.repeat(b"")))
    assert [entry.name for entry in store.list("n")] == names


# What can be wrong with a server


def test_a_missing_bucket_is_said(s3: Any, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    store = ObjectStore("s3://no-such-bucket/x")
    calls: list[Callable[[], object]] = [
        lambda: store.get("a"),
        lambda: store.size("a"),
        lambda: store.put("a", b""),
        lambda: store.put_new("a", b""),
        lambda: store.put_file("a", path),
        lambda: list(store.list()),
    ]
    for call in calls:
        with pytest.raises(
            StorageError, match=r"the bucket of s3://no-such-bucket/x does not exist at http://127"
        ) as e:
            call()
        assert not isinstance(e.value, NotFoundError)
    assert path.exists()


def test_a_name_that_no_bucket_can_have_is_told_with_the_rule(s3: Any) -> None:
    said = (
        b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>InvalidBucketName</Code><Message>The specified bucket '
        b"is not valid.</Message><BucketName>b</BucketName></Error>"
    )
    with serving(lambda handler: send(handler, 400, said)) as server:
        store = ObjectStore("s3://b/x", endpoint=f"http://{server}", **AT_ONCE)
        for call in (lambda: store.put("a", b""), lambda: store.get("a")):
            with pytest.raises(
                StorageError,
                match=r"^s3://b/x\S* cannot be \w+: the server refuses the name of the bucket in this URL \(400 Bad "
                r"Request: InvalidBucketName: The specified bucket is not valid\)\. Names have 3 to 63 lower-case "
                r"letters, digits and hyphens\. Correct the URL\.$",
            ):
                call()


@pytest.mark.parametrize(
    ("status", "writing", "reading", "rule"),
    [
        (
            403,
            NotWritableError,
            StorageError,
            "the server forbids it .*whether the credentials are right, and give them the right",
        ),
        (401, StorageError, StorageError, "does not accept the credentials"),
        (507, StorageFullError, StorageFullError, "no space is left"),
        (400, StorageError, StorageError, "Look at the server"),
    ],
)
def test_what_the_server_refuses_is_an_error_of_the_store(
    s3: Any, s3_url: str, status: int, writing: type[Exception], reading: type[Exception], rule: str
) -> None:
    store = ObjectStore(s3_url, **AT_ONCE)
    store.put("a/b", b"x")
    s3.fail(f"/a/b 99 {status}")
    for call, kind in ((lambda: store.put("a/b", b""), writing), (lambda: store.get("a/b"), reading)):
        with pytest.raises(kind, match=rule) as caught:
            call()
        assert type(caught.value) is kind
        assert f"{s3_url}/a/b" in str(caught.value)


def test_an_endpoint_where_nobody_listens_is_named(s3_url: str) -> None:
    store = ObjectStore(s3_url, endpoint="http://127.0.0.1:1", **AT_ONCE)
    for call in (lambda: store.get("a"), lambda: store.put("a", b""), lambda: list(store.list())):
        with pytest.raises(
            StorageError, match=r"nothing answers at http://127.0.0.1:1 .*AWS_ENDPOINT_URL or endpoint="
        ):
            call()


def test_a_server_that_never_answers_costs_bounded_time(s3_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = ObjectStore(s3_url, endpoint=endpoint, client_options={"read_timeout": "300ms"}, **AT_ONCE)
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"nothing answers at http://127"):
            store.put_new("a", b"")
        assert time.monotonic() - began < 30


@contextlib.contextmanager
def resetting(url: str, sign: bytes) -> Iterator[tuple[str, list[int]]]:
    """A relay to a server that resets the connection, instead of passing it on, when the sign first comes over one; and
    how often it has."""
    resets: list[int] = []
    host, port = urlsplit(url).netloc.rsplit(":", 1)

    def serve(client: socket.socket) -> None:
        with (
            client,
            socket.create_connection((host, int(port))) as server,
            selectors.DefaultSelector() as waiting,
            contextlib.suppress(OSError),
        ):
            ends = {client: server, server: client}
            for end in ends:
                waiting.register(end, selectors.EVENT_READ)
            while True:
                for ready in [key.fileobj for key, _ in waiting.select()]:
                    assert isinstance(ready, socket.socket)
                    data = ready.recv(1 << 16)
                    if ready is client and sign in data and not resets:
                        resets.append(1)
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        return
                    if not data:
                        return
                    ends[ready].sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", resets
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()


def test_a_deletion_whose_connection_is_reset_is_asked_for_again(s3: Any, s3_url: str) -> None:
    with resetting(s3.url, b"?delete") as (address, resets):
        store = ObjectStore(s3_url, endpoint=address)
        store.put("x/a", b"1")
        store.put("x/b", b"2")
        store.delete("x/a")
        assert resets
        assert list(store.list()) == [Entry("x/b", 1)]


def test_a_busy_server_is_asked_again(s3: Any, s3_url: str) -> None:
    store = ObjectStore(s3_url)
    s3.fail("PUT 2 503", "GET 2 500")
    store.put("a", b"x")
    assert store.get("a") == b"x"


# Secrets


def test_no_credential_is_in_a_pickle_a_message_or_a_name(s3: Any, s3_url: str) -> None:
    store = ObjectStore(s3_url, region="us-east-1")
    store.put("a", b"x")
    s3.fail("GET 9 403")
    with pytest.raises(StorageError) as caught:
        store.get("a")
    for text in (
        repr(store),
        store.url,
        repr(caught.value),
        str(pickle.dumps(store)),
        str(pickle.dumps(store.at("p"))),
    ):
        assert "hush" not in text
        assert "AKIA" not in text
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("url", "key", "variable"),
    [
        ("s3://b", "aws_secret_access_key", "AWS_SECRET_ACCESS_KEY"),
        ("s3://b", "access_key_id", "AWS_ACCESS_KEY_ID"),
        ("az://b", "account_key", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("gs://b", "service_account_key", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    ],
)
def test_secrets_are_no_arguments(url: str, key: str, variable: str) -> None:
    with pytest.raises(UsageError, match=f"given {key}=, a secret.*environment.*{variable}") as caught:
        ObjectStore(url, **{key: "hush"})
    assert "hush" not in str(caught.value)


def test_a_machine_without_credentials_says_where_they_are_looked_for(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    store = ObjectStore(s3_url, metadata_endpoint=nobody, **AT_ONCE)
    with pytest.raises(StorageError, match=r"no credentials were found .*AWS_ACCESS_KEY_ID and AWS_SECRET"):
        store.get("a")
    with pytest.raises(StorageError, match=r"no credentials were found .*AWS_ACCESS_KEY_ID and AWS_SECRET"):
        store.put_new("a", b"")


def provider() -> dict[str, Any]:
    return {"access_key_id": "AKIATEST", "secret_access_key": "hush-hush", "token": None, "expires_at": None}


def test_a_function_that_gives_credentials_is_pickled_by_its_name(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = ObjectStore(s3_url, credential_provider=provider)
    store.put("a", b"x")
    pickled = pickle.dumps(store)
    assert b"hush" not in pickled
    assert pickle.loads(pickled).get("a") == b"x"


# Opening


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("s3://", "is no bucket"),
        ("http://bucket/x", "is no bucket. Give one of s3://"),
        ("s3://key:hush@bucket/x", "was given with credentials in it"),
        ("s3://bucket/x?region=a", r"goes on with '\?' or '#'"),
        ("s3://bucket/a b", "only ASCII"),
    ],
)
def test_urls_that_are_no_place_are_refused(url: str, rule: str) -> None:
    with pytest.raises(UsageError, match=rule) as caught:
        ObjectStore(url)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"regio": "x"}, "options regio.*'regio' is not valid"),
        ({"client_options": {"timout": "3s"}}, "timout"),
        ({"client_options": {"timeout": "3 parsecs"}}, "3 parsecs"),
        ({"allow_http": True}, "options allow_http"),  # is one of client_options
    ],
)
def test_options_that_do_not_exist_are_refused(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        ObjectStore("s3://bucket", **options)


@pytest.mark.parametrize(
    "url",
    ["s3://b/x", "s3a://b/x", "gs://b/x", "az://c/x", "abfs://c@account.dfs.core.windows.net/x"],
)
def test_urls_of_buckets_open_stores(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    store = open_store(url + "/")
    assert isinstance(store, ObjectStore)
    assert store.url == open_store(store.url).url == url
    assert store.runs.url == f"{url}/runs"
    assert store.path("a") is None
    assert pickle.loads(pickle.dumps(store)).url == url


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"a store in a bucket needs .*pip install 'hopyard\[s3\]'"):
        open_store("s3://bucket")


def test_a_forked_process_says_why_it_cannot_go_on(s3_url: str) -> None:
    code = (
        "import os, sys\nfrom hopyard.storage import ObjectStore\nstore = ObjectStore(sys.argv[1])\n"
        "store.put('a', b'x')\nif os.fork() == 0:\n    try:\n        store.get('a')\n"
        "    except Exception as error:\n        print(error, flush=True)\n    os._exit(0)\nos.wait()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, s3_url], capture_output=True, text=True, timeout=60, check=True
    )
    assert "was forked from" in done.stdout
    assert "Start processes by 'spawn'" in done.stdout
