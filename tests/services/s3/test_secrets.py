"""The secret by which a bucket is reached is nowhere but in the environment: it is searched for, byte by byte."""

from __future__ import annotations

import logging
import os
import pickle
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.s3_gateway import ROOT, Gateway
from tests.stockroom.remotes.repositories import at, commit, samples
from tests.storage.test_object_rooms import estimator, rows, search

from hopyard.backend import LocalBackend
from hopyard.errors import HopyardError
from hopyard.stockroom.remotes import Repository, push
from hopyard.storage import ObjectStore, check_store, open_store
from hopyard.torch import TorchEstimator
from hopyard.tune import Callback

SECRET = ROOT["ROOT_SECRET_KEY"]


class Listing(Callback):
    """Looks at the list of processes after each epoch."""

    def __init__(self) -> None:
        self.commands: set[str] = set()

    def on_epoch_end(self, *args: Any) -> None:
        for process in psutil.process_iter(["cmdline"]):
            self.commands.add(" ".join(process.info["cmdline"] or ()))


def breaks_at_times(params: dict[str, Any]) -> TorchEstimator:
    if params["lr"] > 0.02:
        raise ValueError(f"a rate of {params['lr']} in {sorted(os.environ)[:3]}")
    return estimator(params)


def files_with(secret: bytes, folder: Path) -> list[Path]:
    """Files below a folder that have it in their bytes, their attributes or their names."""
    found = []
    for path in folder.rglob("*"):
        attributes = b"".join(os.getxattr(path, name) for name in os.listxattr(path))
        content = path.read_bytes() if path.is_file() else b""
        if secret in content + attributes + os.fsencode(path):
            found.append(path)
    return found


def test_a_search_and_a_push_leave_the_secret_nowhere(
    gateway: Gateway,
    s3_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOPYARD_CACHE", str(tmp_path / "cache"))
    caplog.set_level(logging.DEBUG)
    store, listing = ObjectStore(s3_url), Listing()
    model = search(
        store,
        backend=LocalBackend(num_workers=2),
        estimator_gen_fn=breaks_at_times,
        num_models=6,
        callbacks=[listing],
    ).fit(rows())
    local = at(tmp_path / "local")
    commit(local, image=samples(5), models={"net": {"w": np.ones(3)}})
    remote = Repository.at(open_store(f"{s3_url}/stock"), tmp_path / "local" / "index.sqlite", name="origin")
    push(local, remote, ["main"])
    said = [str(check_store(store)), repr(store), repr(model), str(model.trials()), repr(model.run)]
    for url in (f"s3://no-{uuid.uuid4().hex[:8]}/a", f"s3://{ROOT['ROOT_ACCESS_KEY']}:{SECRET}@bucket/a"):
        with pytest.raises(HopyardError) as caught:
            ObjectStore(url).get("a")
        said.append(str(caught.value))
    with pytest.raises(HopyardError) as caught:
        ObjectStore(s3_url, secret_access_key=SECRET)
    said.append(str(caught.value))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(HopyardError) as caught:
        ObjectStore(s3_url, retry_config={"max_retries": 0}).get("a")
    said.append(str(caught.value))

    assert any("failed" in str(trial) or "ValueError" in str(trial) for trial in said), "a trial failed, too"
    assert listing.commands
    seen = [*said, *listing.commands, caplog.text, *capfd.readouterr(), pickle.dumps(store).decode("latin-1")]
    assert [each for each in seen if SECRET in each] == []
    assert files_with(b"safetensors", gateway.data), "files are found"
    for folder in (gateway.data, tmp_path):
        assert files_with(SECRET.encode(), folder) == []
