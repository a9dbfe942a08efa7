import os

import numpy as np
import pytest

from hopyard.data import Ragged

if os.environ.get("CI") != "true":  # there it must not be missing
    pytest.importorskip("jax")

import jax
import jax.numpy as jnp


def test_batches_are_jax_arrays_of_the_stream(make_dataset):
    dataset = make_dataset([[10, 10, 7]], ("id", "image", "half", "flag", "text", "list"))
    expected = dataset.loader(4, shuffle=True)
    for batch, its in zip(dataset.loader(4, shuffle=True, output="jax"), expected, strict=True):
        assert isinstance(batch["image"], jax.Array)
        assert (batch["image"].dtype, batch["half"].dtype, batch["flag"].dtype) == (
            "float32",
            "float16",
            "bool",
        )
        for name in "id", "image", "half", "flag":
            assert np.array_equal(batch[name], its[name])
        assert batch["text"].tolist() == its["text"].tolist()
        assert isinstance(batch["list"], Ragged)
        assert isinstance(batch["list"].values, jax.Array)
        assert np.array_equal(batch["list"].values, its["list"].values)
        assert np.array_equal(batch["list"].offsets, its["list"].offsets)


def test_64_bits_are_kept_only_where_jax_has_them(make_dataset):
    loader = make_dataset([[10]], ("id",)).loader(4, output="jax")
    assert next(iter(loader))["id"].dtype == "int32"
    with jax.enable_x64(True):
        assert next(iter(loader))["id"].dtype == "int64"


def test_arrays_keep_their_content_while_the_loader_goes_on(make_dataset):
    dataset = make_dataset([[512, 512, 256]], ("id", "image"))
    loader = dataset.loader(64, shuffle=True, output="jax")
    sums, held, expected = [], [], []
    for _ in range(4):
        expected += [batch["image"] for batch in dataset.loader(64, shuffle=True, epoch=len(expected) // 20)]
        for batch in loader:
            held.append(batch["image"])
            sums.append(jnp.sum(batch["image"]))  # may still be running when the next batch is gathered
    assert len(held) == len(expected) == 80
    for array, total, its in zip(held, sums, expected, strict=True):
        assert np.array_equal(array, its)
        assert float(total) == pytest.approx(its.sum(), rel=1e-4)


def test_a_transform_gets_jax_arrays(make_dataset):
    def double(batch, rng):
        assert isinstance(batch["image"], jax.Array)
        return 2 * batch["image"]

    loader = make_dataset([[10]], ("image",)).loader(10, output="jax", transform=double)
    expected = next(iter(make_dataset([[10]], ("image",)).loader(10)))["image"]
    assert np.allclose(next(iter(loader)), 2 * expected)
