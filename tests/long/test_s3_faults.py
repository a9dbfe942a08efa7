"""A run in a bucket behind a faulty wire whose driver is killed: it goes on to the bits that it has in a directory."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.s3_gateway import Gateway
from tests.sampling import SEED, by_level, sample
from tests.services.s3.conftest import bucket, gateway, gateway_if_there, s3_url  # noqa: F401
from tests.slow_wire import Settings, slow_wire
from tests.storage.test_object_rooms import rows, search

from hopyard.backend import LocalBackend
from hopyard.storage import LocalStore, ObjectStore, Store
from hopyard.storage.faults import Fault, FaultyStore

LATENCY = by_level(2, 2, 50) / 1000  # seconds


def drive(url: str, endpoint: str, at_write: int) -> None:
    """Search, in a process that is killed behind a write of that number."""
    fault = Fault("kill_after", at=at_write, match="runs/*")
    store = FaultyStore(ObjectStore(url, endpoint=endpoint), fault)
    search(store, backend=LocalBackend(num_workers=2)).fit(rows())


DRIVE = """
import sys
from tests.long.test_s3_faults import drive
drive(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


@pytest.mark.parametrize("at_write", sample("killed drivers on S3", [1, 4, 9], quick=1, ci=1))
def test_a_run_whose_driver_is_killed_has_the_bits_that_it_has_in_a_directory(
    gateway: Gateway,  # noqa: F811
    s3_url: str,  # noqa: F811
    tmp_path: Path,
    at_write: int,
) -> None:
    with slow_wire(Settings(gateway.url, LATENCY, share=0.01, seed=SEED + at_write)) as wire:
        command = [sys.executable, "-c", DRIVE, s3_url, wire.url, str(at_write)]
        folder = Path(__file__).parents[2]
        killed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        store = ObjectStore(s3_url, endpoint=wire.url)
        model = search(store, backend=LocalBackend(num_workers=2)).fit(rows())
        assert model.run.broken_rules() == []
        trained = list(model.torch().parameters())
        print(f"faults by seed {SEED + at_write}:", *wire.passed().faults, sep="\n  ")
    here = LocalStore(tmp_path / "here")
    expected = search(here).fit(rows())
    assert model.get_all_model_history() == expected.get_all_model_history()
    for left, right in zip(trained, expected.torch().parameters(), strict=True):
        assert left.equal(right)
    assert files(ObjectStore(s3_url)) == files(here)


def files(store: Store) -> set[str]:
    """Data and states; names of other files tell when and where a driver began."""
    return {name for name in store.names() if re.match(r"(train|val)_data/|runs/[^/]+/\d{5}/", name)}
