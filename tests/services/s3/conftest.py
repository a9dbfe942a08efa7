"""A real S3 server, versitygw, over a directory; what other tests do on moto is done on it, too."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from tests.s3_gateway import PROGRAM, Gateway


@pytest.fixture(scope="session")
def gateway_if_there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway | None]:
    program = os.environ.get(PROGRAM)
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
    for name, value in gateway_if_there.environment().items():
        monkeypatch.setenv(name, value)
    # boto3 keeps the keys that the first test had which asked it for a client.
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
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


@pytest.fixture
def url(gateway_if_there: Gateway | None, request: pytest.FixtureRequest) -> str:
    """A prefix in a new bucket of versitygw, or of moto where that is not set up."""
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    if gateway_if_there is None:
        request.getfixturevalue("s3").request("PUT", f"/{bucket}")
    else:
        request.getfixturevalue("gateway").make_bucket(bucket)
    return f"s3://{bucket}/some/prefix"
