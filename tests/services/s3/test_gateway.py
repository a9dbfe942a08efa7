"""Buckets on a real server, which answers many at once."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.s3_gateway import Gateway
from tests.storage.test_conformance import OwnSuite
from tests.storage.test_object_rooms import (  # noqa: F401 - are run here on this server
    test_a_file_replaced_by_one_of_the_same_size_is_noticed,
    test_a_search_in_a_bucket_gives_what_it_gives_in_a_directory,
    test_an_interrupted_search_in_a_bucket_goes_on_to_the_same_bits,
    test_what_is_prepared_into_a_bucket_is_loaded_as_from_a_directory,
    test_worker_processes_train_from_a_bucket,
)

from hopyard.errors import NotWritableError, StorageError
from hopyard.storage import ObjectStore


class TestObjectStore(OwnSuite):
    @pytest.fixture
    def store(self, s3_url: str) -> ObjectStore:
        return ObjectStore(s3_url)


def test_of_many_that_race_for_each_of_many_names_one_wins(s3_url: str) -> None:
    names = [f"race/{number}" for number in range(50)]

    def race(me: int) -> list[str]:
        store = ObjectStore(s3_url)
        return [name for name in names if store.put_new(name, str(me).encode())]

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, range(8)))
    assert sorted(name for each in won for name in each) == sorted(names)
    store = ObjectStore(s3_url)
    for me, each in enumerate(won):
        assert all(store.get(name) == str(me).encode() for name in each)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "AWS_SECRET_ACCESS_KEY",
            "wrong",
            "(403 Forbidden: SignatureDoesNot",
        ),
        (
            "AWS_ACCESS_KEY_ID",
            "nobody",
            "(403 Forbidden: InvalidAccessKeyId",
        ),
    ],
)
def test_wrong_credentials_are_said(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    for call in (lambda: ObjectStore(s3_url).get("a"), lambda: ObjectStore(s3_url).put("a", b"1")):
        with pytest.raises(StorageError) as caught:
            call()
        assert f"the server does not accept the credentials {message}" in str(caught.value)
        assert "hush-hush" not in str(caught.value)


def test_a_bucket_that_is_not_there_is_named(gateway: Gateway) -> None:
    store = ObjectStore(f"s3://no-{uuid.uuid4().hex[:8]}/a")
    for call in (lambda: store.get("a"), lambda: store.put("a", b"1"), lambda: list(store.list())):
        with pytest.raises(
            StorageError, match=rf"the bucket of {store.url} does not exist.*Create it, or correct"
        ):
            call()


def test_who_may_only_read_is_told_so(
    gateway: Gateway, bucket: str, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ObjectStore(s3_url).put("a", b"1")
    user = f"reader{uuid.uuid4().hex[:8]}"
    gateway.admin("create-user", "-a", user, "-s", "hush-too", "-r", "user")
    allowed: dict[str, Any] = {"Effect": "Allow", "Principal": {"AWS": [user]}}
    statements = [
        {**allowed, "Action": ["s3:GetObject"], "Resource": [f"arn:aws:s3:::{bucket}/*"]},
        {**allowed, "Action": ["s3:ListBucket"], "Resource": [f"arn:aws:s3:::{bucket}"]},
    ]
    import boto3

    boto3.client("s3", endpoint_url=gateway.url).put_bucket_policy(
        Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": statements})
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", user)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-too")
    store = ObjectStore(s3_url)
    assert store.get("a") == b"1"
    assert store.names() == {"a"}
    for write in (store.put, store.put_new):
        with pytest.raises(
            NotWritableError, match=r"written: the server forbids it .*AccessDenied.* to put and"
        ):
            write("b", b"2")
    monkeypatch.undo()
