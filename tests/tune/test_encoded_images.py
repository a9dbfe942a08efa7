"""Searches over encoded images: decoded for every batch or once, by any workers, they are one run, to the bit."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.data import Dataset, NodeCache, image, open_dataset
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice


@pytest.fixture
def photos(tmp_path: Path) -> Callable[..., Dataset]:
    """Opens 48 small JPEGs, of two shades, in row groups of 12."""
    random, files = np.random.default_rng(0), []
    for row in range(48):
        file = io.BytesIO()
        pixels = random.integers(0, 128, (12, 12, 3), np.uint8) + np.uint8(100 * (row % 2))
        Image.fromarray(pixels).save(file, "JPEG")
        files.append(file.getvalue())
    pq.write_table(
        pa.table({"photo": files, "label": np.arange(48) % 2}), tmp_path / "a.parquet", row_group_size=12
    )

    def opened(cached: bool) -> Dataset:
        decode = {"photo": image((8, 8), "RGB", cached=cached)}
        return open_dataset(
            tmp_path / "a.parquet", decode=decode, cache=NodeCache(tmp_path / f"cache-{cached}")
        )

    return opened


def network(params: dict[str, Any]) -> TorchEstimator:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(192, 2)

        def forward(self, photo: torch.Tensor) -> torch.Tensor:
            assert photo.dtype == torch.uint8
            outputs: torch.Tensor = self.layer(photo.flatten(1).float() / 255)
            return outputs

    def noisy(batch: Any, rng: np.random.Generator) -> Any:
        batch["photo"] = batch["photo"] ^ int(rng.integers(2))
        return batch

    return TorchEstimator(
        Net(), torch.optim.SGD, torch.nn.CrossEntropyLoss(), ["accuracy"], batch_size=5, transform=noisy,
        optimizer_params={"lr": params["lr"]},
    )  # fmt: skip


def search(store: Path, backend: Any) -> GridSearch:
    return GridSearch(
        backend=backend, store=LocalStore(store), estimator_gen_fn=network, num_epochs=2, num_partitions=2,
        search_space={"lr": hp_choice([0.1, 0.01])}, evaluation_metric="accuracy", feature_columns=["photo"],
        label_columns=["label"], progress=False,
    )  # fmt: skip


def test_a_search_over_images_is_one_run_whoever_decodes_and_whatever_is_cached(
    photos: Callable[..., Dataset], tmp_path: Path
) -> None:
    here = search(tmp_path / "here", InlineBackend()).fit(photos(False), photos(False))
    there = search(tmp_path / "there", LocalBackend(num_workers=2)).fit(photos(True), photos(True))
    assert here.run_id == there.run_id
    assert here.get_all_model_history() == there.get_all_model_history()
    mine, its = here.torch().state_dict(), there.torch().state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in mine)
    np.testing.assert_array_equal(here.evaluate(photos(False)), here.evaluate(photos(True)))
    again = search(tmp_path / "here", LocalBackend(num_workers=1)).fit(photos(True), photos(True))
    assert len(again.schedule()) == len(here.schedule()), "nothing was trained anew"
