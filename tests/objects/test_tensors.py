"""Tensors keep values, shapes and bits of whatever array they come from."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hopyard.errors import DataError
from hopyard.objects import Tensor
from hopyard.objects.digests import Hasher

DTYPES = [
    "bool", "u1", "i1", "<u2", ">i2", "<u4", ">i4", "<u8", ">i8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8",
    "<c8", ">c8", "<c16", ">c16",
]  # fmt: skip
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


def bits(array: np.ndarray[Any, Any]) -> bytes:
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


@given(ARRAYS)
def test_arrays_come_back_bit_by_bit(array: np.ndarray[Any, Any]) -> None:
    tensor = Tensor.from_numpy(array)
    back = tensor.numpy()
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("<")
    assert back.tobytes() == bits(array)
    assert tensor.nbytes == array.nbytes
    assert tensor == Tensor.from_numpy(back)
    assert tensor.digest == Tensor.from_numpy(back.copy()).digest


@given(hnp.arrays("f4", (4, 6)), st.integers(1, 3), st.booleans())
def test_strides_do_not_count(array: np.ndarray[Any, Any], step: int, transpose: bool) -> None:
    view = array[::-1, ::step]
    view = view.T if transpose else view
    assert Tensor.from_numpy(view) == Tensor.from_numpy(view.copy())
    assert Tensor.from_numpy(view).numpy().tobytes() == view.tobytes()


def test_contiguous_arrays_are_shared_and_not_copied() -> None:
    array = np.zeros((2, 3))
    tensor = Tensor.from_numpy(array)
    assert np.shares_memory(tensor.data, array)
    assert np.shares_memory(tensor.numpy(), array)


def test_dtype_shape_and_bytes_all_count() -> None:
    data = np.zeros(8, np.uint8)
    tensors = [
        Tensor("U8", (8,), data), Tensor("I8", (8,), data), Tensor("F64", (), data), Tensor("F64", (1,), data),
        Tensor("F32", (2,), data), Tensor("F32", (1, 2), data), Tensor("F32", (2, 1), data),
        Tensor("F32", (2,), data + 1), Tensor("BF16", (4,), data), Tensor("F16", (4,), data),
    ]  # fmt: skip
    assert len({tensor.digest for tensor in tensors}) == len(tensors)
    assert len(set(tensors)) == len(tensors)
    assert tensors[0] != "something else"


def test_threads_hash_tensors_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=60)
    update = Hasher.update

    def together(hasher: Hasher, data: Any) -> None:
        both.wait()
        update(hasher, data)

    tensors = [Tensor.from_numpy(np.arange(number + 2)) for number in range(2)]
    monkeypatch.setattr(Hasher, "update", together)
    with ThreadPoolExecutor(2) as pool:
        digests = list(pool.map(lambda tensor: tensor.digest, tensors))
    monkeypatch.undo()
    assert digests == [Tensor.from_numpy(np.arange(number + 2)).digest for number in range(2)]


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "BF16"])
def test_dtypes_that_numpy_lacks_give_their_raw_bits(dtype: str) -> None:
    data = np.arange(8, dtype=np.uint8)
    raw = Tensor(dtype, (2, 2) if dtype == "BF16" else (2, 4), data).numpy()
    assert raw.dtype == (np.uint16 if dtype == "BF16" else np.uint8)
    assert raw.tobytes() == data.tobytes()


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([object()]), np.array(["2020"], "M8[s]"), np.zeros(1, np.longdouble)]
)
def test_other_arrays_are_refused_with_what_is_possible(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(DataError, match=r"cannot be stored as a tensor; it must be one of bool, .*\.astype"):
        Tensor.from_numpy(array)


def test_inconsistent_tensors_are_refused() -> None:
    data = np.zeros(8, np.uint8)
    with pytest.raises(DataError, match=r"shape \(3,\) and dtype F32 has 12 bytes, but 8 were given"):
        Tensor("F32", (3,), data)
    with pytest.raises(DataError, match=r"dtype='float32', but it must be one of BOOL"):
        Tensor("float32", (2,), data)
    with pytest.raises(DataError, match=r"one-dimensional array of uint8, not 2-dimensional float64"):
        Tensor("F32", (2,), np.zeros((2, 1)))
