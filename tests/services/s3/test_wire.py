"""Buckets behind a wire that is slow, cuts answers, loses them, repeats requests and asks to slow down.

What other tests do on a good wire is done here; the seed of the run (``HOPYARD_SEED``) decides what goes wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.s3_gateway import Gateway
from tests.sampling import SEED, by_level
from tests.services.s3.test_gateway import (  # noqa: F401 - are run here on this wire
    test_of_many_that_race_for_each_of_many_names_one_wins,
)
from tests.slow_wire import Settings, SlowWire, slow_wire
from tests.stockroom.history.test_references import (  # noqa: F401
    test_of_processes_that_race_in_a_bucket_exactly_one_wins_each_time,
)
from tests.stockroom.remotes.repositories import at
from tests.stockroom.remotes.test_fetch import test_metadata_come_and_nothing_else  # noqa: F401
from tests.stockroom.remotes.test_push import test_what_was_pushed_is_whole_there  # noqa: F401
from tests.storage.test_conformance import OwnSuite
from tests.storage.test_object_rooms import (  # noqa: F401
    rows,
    search,
    test_a_search_in_a_bucket_gives_what_it_gives_in_a_directory,
    test_an_interrupted_search_in_a_bucket_goes_on_to_the_same_bits,
    test_what_is_prepared_into_a_bucket_is_loaded_as_from_a_directory,
)

from hopyard.data import open_dataset
from hopyard.errors import StorageError
from hopyard.stockroom.remotes import Repository
from hopyard.storage import LocalStore, ObjectStore, open_store


@pytest.fixture(scope="session")
def faulty_wire(gateway_if_there: Gateway | None) -> Iterator[SlowWire | None]:
    if gateway_if_there is None:
        yield None
        return
    latency = by_level(5, 5, 50) / 1000
    settings = Settings(gateway_if_there.url, latency, 1e8, share=0.05, seed=SEED, jitter=latency)
    with slow_wire(settings) as wire:
        yield wire


@pytest.fixture
def gateway(gateway: Gateway, faulty_wire: SlowWire, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """The server, and an environment in which S3 is the wire to it."""
    for name, value in gateway.environment(faulty_wire.url).items():
        monkeypatch.setenv(name, value)
    before = len(faulty_wire.passed().faults)
    yield gateway
    print(f"faults by seed {SEED}:", *faulty_wire.passed().faults[before:], sep="\n  ")


@pytest.fixture
def local(tmp_path: Path) -> Repository:
    return at(tmp_path / "local")


@pytest.fixture
def remote(s3_url: str, tmp_path: Path) -> Repository:
    return Repository.at(open_store(s3_url), tmp_path / "local" / "index-origin.sqlite", name="origin")


class TestObjectStore(OwnSuite):
    @pytest.fixture
    def store(self, s3_url: str) -> ObjectStore:
        return ObjectStore(s3_url)


def test_an_epoch_over_the_wire_is_that_over_the_files(
    s3_url: str, tmp_path: Path, faulty_wire: SlowWire
) -> None:
    store, here = open_store(s3_url), tmp_path / "here"
    here.mkdir()
    generator = np.random.default_rng(SEED)
    for number in range(4):
        table = pa.table({
            "x": pa.FixedSizeListArray.from_arrays(generator.standard_normal(3000 * 64, np.float32), 64),
            "word": [f"w{word}" for word in generator.integers(0, 1000, 3000)],
        })  # fmt: skip
        pq.write_table(table, here / f"{number}.parquet", row_group_size=250)
        store.put(f"{number}.parquet", (here / f"{number}.parquet").read_bytes())
    before = faulty_wire.passed()
    for window in (1 << 20, None):
        streams = []
        for data in (str(here), s3_url):
            loader = open_dataset(data, cache=tmp_path / "cache").loader(100, True, 3, window=window)
            streams.append(
                [{name: np.array(values).tolist() for name, values in batch.items()} for batch in loader]
            )
        assert streams[0] == streams[1]
    assert faulty_wire.passed().requests > before.requests


def test_a_run_whose_credentials_expire_waits_until_they_are_renewed(
    gateway: Gateway, s3_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with slow_wire(Settings(gateway.url, refusal="ExpiredToken", refused=(60, 63))) as wire:
        model = search(ObjectStore(s3_url, endpoint=wire.url)).fit(rows())
    assert model.get_all_model_history() == search(LocalStore(tmp_path)).fit(rows()).get_all_model_history()
    said = capsys.readouterr().out
    assert (
        said.count("the credentials have expired (400 Bad Request: ExpiredToken: The provided token has exp")
        == 1
    )
    assert "goes on by itself" in said
    assert "the credentials are renewed" in said


def test_a_run_whose_server_is_gone_for_a_while_goes_on_when_it_is_back(
    gateway: Gateway, s3_url: str, tmp_path: Path
) -> None:
    with slow_wire(Settings(gateway.url, gone=(60, 1.5))) as wire:
        model = search(ObjectStore(s3_url, endpoint=wire.url)).fit(rows())
        assert wire.passed().faults == ["gone for 1.5 s"]
    assert model.get_all_model_history() == search(LocalStore(tmp_path)).fit(rows()).get_all_model_history()


@pytest.mark.parametrize(
    ("refusal", "rule"),
    [
        (
            "RequestTimeTooSkewed",
            "the clock of this machine differs too much from the server's .*Set it by NTP",
        ),
        (
            "AuthorizationHeaderMalformed",
            "the bucket is in another region .*expecting 'eu-west-1'.*Set AWS_REGION",
        ),
        ("PermanentRedirect", "the bucket is in another region .*Set AWS_REGION, or give region="),
    ],
)
def test_what_only_aws_refuses_is_said(gateway: Gateway, s3_url: str, refusal: str, rule: str) -> None:
    with slow_wire(Settings(gateway.url, refusal=refusal, refused=(0, 100))) as wire:
        store = ObjectStore(s3_url, endpoint=wire.url)
        for call in (lambda: store.get("a"), lambda: store.put("a", b"x")):
            with pytest.raises(StorageError, match=rule) as caught:
                call()
            assert str(caught.value).startswith(s3_url)
    assert ObjectStore(s3_url).size("a") is None


def test_a_server_that_asks_to_slow_down_is_asked_later(gateway: Gateway, s3_url: str) -> None:
    with slow_wire(Settings(gateway.url, refused=(1, 4))) as wire:
        ObjectStore(s3_url, endpoint=wire.url).put("a", b"x")
        assert wire.passed().requests > 4
    assert ObjectStore(s3_url).get("a") == b"x"
