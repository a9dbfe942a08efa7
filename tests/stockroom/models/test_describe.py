"""What a model's tensors are like, computed without a framework, is what the frameworks say."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.stockroom.standin import Staged

from hopyard import StockRoom
from hopyard.errors import UsageError
from hopyard.objects import Tensor
from hopyard.objects.torch import NAMES, to_tensor
from hopyard.stockroom.models import ModelShelf, decode, describe
from hopyard.stockroom.models.describe import describe_column, spread_of


@pytest.mark.parametrize("dtype", [dtype for dtype in NAMES if dtype.is_floating_point], ids=str)
def test_every_float_is_decoded_as_pytorch_does(dtype: torch.dtype) -> None:
    if dtype.itemsize > 2:
        bits = torch.arange(4096, dtype=torch.uint8)
    else:
        counted = torch.arange(1 << (8 * dtype.itemsize), dtype=torch.int32)
        bits = counted.to(torch.uint8 if dtype.itemsize == 1 else torch.uint16).view(torch.uint8)
    tensor = bits.view(dtype)
    (found,) = decode.chunks(to_tensor(tensor))
    assert np.array_equal(found, tensor.double().numpy(), equal_nan=True)


@given(hnp.arrays(np.float32, st.integers(0, 50), elements=st.floats(width=32)), st.integers(1, 20))
def test_the_spread_is_that_of_the_finite_elements(array: np.ndarray, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(decode, "CHUNK", chunk)
        spread = spread_of(Tensor.from_numpy(array))
    finite = array[np.isfinite(array)].astype(np.float64)
    assert sum(spread.histogram) == finite.size
    if not finite.size:
        assert math.isnan(spread.mean)
        assert spread.nan + spread.infinite == array.size
        return
    scale = max(np.abs(finite).max(), 1e-300)
    assert spread.mean == pytest.approx(finite.mean(), abs=1e-9 * scale)
    assert spread.std == pytest.approx(finite.std(), rel=1e-6, abs=1e-6 * scale)
    assert spread.norm == pytest.approx(np.linalg.norm(finite), rel=1e-9, abs=1e-150)
    assert (spread.min, spread.max) == (finite.min(), finite.max())
    assert spread.zeros == pytest.approx((array == 0).mean())
    assert (spread.nan, spread.infinite) == (np.isnan(array).sum(), np.isinf(array).sum())


def test_histograms_have_equal_bins_from_the_least_to_the_most() -> None:
    assert spread_of(Tensor.from_numpy(np.arange(32.0))).histogram == (2,) * 16
    assert spread_of(Tensor.from_numpy(np.full(3, 5))).histogram == (*[0] * 8, 3, *[0] * 7)
    huge = spread_of(Tensor.from_numpy(np.array([-1.7e308, 1.7e308])))
    assert huge.histogram == (1, *[0] * 14, 1)


def test_a_model_is_described_against_another_version() -> None:
    staged = Staged()
    shelf = ModelShelf(staged)
    kept, moved = torch.rand(3, 2), torch.tensor([3.0, 4.0], dtype=torch.bfloat16)
    shelf["m"] = {
        "kept": kept,
        "moved": moved,
        "shape": torch.ones(2),
        "gone": torch.ones(1),
        "c": np.array([1 + 1j]),
    }
    before = shelf.record("m")
    assert [row.change for row in describe(shelf, "m")] == [None] * 5
    shelf["m"] = {
        "kept": kept,
        "moved": moved + torch.tensor([3.0, 4.0]).bfloat16(),
        "shape": torch.ones(3),
        "c": np.array([1 - 1j]),
        "new": [torch.zeros(2, dtype=torch.bool)],
    }
    rows = {row.path: row for row in describe(shelf, "m", before)}
    assert [(path, row.change, row.moved, row.relative) for path, row in rows.items()] == [
        ("kept", "unchanged", 0.0, 0.0),
        ("moved", "changed", 5.0, 1.0),
        ("shape", "other shape", None, None),
        ("c", "changed", 2.0, pytest.approx(2 / math.sqrt(2))),
        ("new/0", "added", None, None),
        ("gone", "removed", None, None),
    ]
    assert (rows["moved"].dtype, rows["moved"].shape, rows["moved"].nbytes) == ("BF16", (2,), 4)
    spread = rows["moved"].spread
    assert spread is not None
    assert (spread.mean, spread.std, spread.norm, spread.min, spread.max) == (7.0, 1.0, 10.0, 6.0, 8.0)
    assert rows["gone"].spread is None
    new = rows["new/0"].spread
    assert new is not None
    assert new.zeros == 1.0


def test_nan_and_infinite_elements_are_counted_in_every_dtype_that_has_them() -> None:
    special = torch.tensor([1.0, math.nan, math.inf, -math.inf, math.nan])
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        spread = spread_of(to_tensor(special.to(dtype)))
        assert (spread.nan, spread.infinite, spread.mean) == (2, 2, 1.0), dtype
    spread = spread_of(to_tensor(torch.tensor([complex(math.nan, 1), complex(math.inf, 1), 3 + 4j])))
    assert (spread.nan, spread.infinite, spread.mean) == (1, 1, 5.0)


def test_a_column_is_described_over_all_its_fragments_or_the_first(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((3000, 256)).astype(np.float32)
    values[5, 7], values[2999, 1], values[2998] = np.nan, -np.inf, np.inf
    stock = StockRoom.init(tmp_path)
    with stock.enable_write():
        stock.data["x"] = values
        stock.data["ragged"] = {0: np.array([1.0, np.nan]), 1: np.array([np.inf, 2.0, 3.0])}
        stock.data["text"] = ["a"]
    samples, spread = describe_column(stock.data["x"])
    finite = values[np.isfinite(values)].astype(np.float64)
    assert (samples, spread.nan, spread.infinite) == (3000, 1, 257)
    assert spread.mean == pytest.approx(finite.mean())
    assert (spread.min, spread.max) == (finite.min(), finite.max())
    some, first = describe_column(stock.data["x"], most=1)
    assert 0 < some < 3000
    assert (first.nan, first.infinite) == (1, 0)
    count, spread = describe_column(stock.data["ragged"])
    assert (count, spread.nan, spread.infinite, spread.mean) == (2, 1, 1, 2.0)
    with pytest.raises(UsageError, match="column 'text' holds string, which has no numbers to describe"):
        describe_column(stock.data["text"])
