"""Containers of Azure's blob storage, on its emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.storage.test_conformance import OwnSuite
from tests.storage.test_object_rooms import rows, search

from hopyard.data import open_dataset, prepare
from hopyard.errors import StorageError
from hopyard.storage import LocalStore, ObjectStore


class TestObjectStore(OwnSuite):
    @pytest.fixture
    def store(self, azure_url: str) -> ObjectStore:
        return ObjectStore(azure_url)


def test_a_search_gives_what_it_gives_in_a_directory(azure_url: str, tmp_path: Path) -> None:
    models = [search(store).fit(rows()) for store in (ObjectStore(azure_url), LocalStore(tmp_path))]
    assert models[0].get_all_model_history() == models[1].get_all_model_history()


def test_data_is_read_as_from_a_directory(azure_url: str, tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(1000), "word": [f"w{number % 7}" for number in range(1000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    ObjectStore(azure_url).put("given/a.parquet", (tmp_path / "a.parquet").read_bytes())
    streams = [
        [batch["x"].tolist() for batch in open_dataset(data).loader(64, True, 3)]
        for data in (tmp_path / "a.parquet", f"{azure_url}/given")
    ]
    assert streams[0] == streams[1]
    prepare(rows(), store=f"{azure_url}/made", validation=0.25)
    assert len(open_dataset(f"{azure_url}/made", "val")) == 16


def test_a_wrong_key_is_said(azure_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aHVzaC1odXNo")
    with pytest.raises(StorageError, match="the server does not accept the credentials") as caught:
        ObjectStore(azure_url).get("a")
    assert "aHVzaC1odXNo" not in str(caught.value)
