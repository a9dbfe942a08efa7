import os

import numpy as np
import pytest

from hopyard.data import Ragged, prepare
from hopyard.errors import DataError
from hopyard.storage import LocalStore

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


def loader_of(tmp_path, values, name="when"):
    made = prepare({name: values}, LocalStore(tmp_path), validation=None).train
    return made.loader(len(values), output="jax")


@pytest.mark.parametrize(
    ("values", "found", "narrow"),
    [
        (np.array([1, 2**40]), "1099511627776", "int32"),
        (np.array([-(2**31) - 1, 0]), "-2147483649", "int32"),
        (np.array([2**32, 1], np.uint64), "4294967296", "uint32"),
        (np.array([np.nan, np.inf, -1e300, 1.0]), "-1e\\+300", "float32"),
        (np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]"), "1577923200000000000", "int32"),
    ],
    ids=str,
)
def test_numbers_that_32_bits_do_not_hold_are_refused_or_exact(tmp_path, values, found, narrow):
    loader = loader_of(tmp_path, values)
    with pytest.raises(DataError, match=rf"'when' holds {found}, but JAX makes {narrow} .*jax_enable_x64"):
        next(iter(loader))
    with jax.enable_x64(True):
        got = np.asarray(next(iter(loader))["when"])
    exact = values.view(np.int64) if values.dtype.kind == "M" else values
    assert got.dtype == exact.dtype
    assert np.array_equal(np.sort(got), np.sort(exact), equal_nan=exact.dtype.kind == "f")


def test_numbers_that_32_bits_hold_pass(tmp_path):
    edges = np.array([-(2**31), 2**31 - 1])
    assert sorted(next(iter(loader_of(tmp_path / "i", edges)))["when"].tolist()) == edges.tolist()
    floats = np.array([np.nan, np.inf, -np.inf])
    got = np.sort(np.asarray(next(iter(loader_of(tmp_path / "f", floats)))["when"]))
    assert np.array_equal(got, np.sort(floats).astype("float32"), equal_nan=True)


def test_lists_of_numbers_that_32_bits_do_not_hold_are_refused(tmp_path):
    made = prepare({"ids": [[1], [2**40, 3]]}, LocalStore(tmp_path), validation=None, ragged="keep").train
    with pytest.raises(DataError, match="'ids' holds 1099511627776, but JAX makes int32"):
        next(iter(made.loader(2, output="jax")))


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
