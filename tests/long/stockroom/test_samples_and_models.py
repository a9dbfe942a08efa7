"""What was written is what is read: samples of every kind, models, values."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hopyard import StockRoom, make_torch_dataset
from hopyard.errors import DataError, NotFoundError, UsageError

DTYPES = ["?", "u1", "i1", "<u2", ">i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", ">f8", "<c8", "<c16"]
ORDERS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "strided": lambda a: np.stack([a, a], -1)[..., 0],
}


@given(data=st.data(), dtype=st.sampled_from(DTYPES), order=st.sampled_from(sorted(ORDERS)))
def test_every_dtype_layout_and_shape_comes_back_bit_by_bit(
    stock: StockRoom, data: st.DataObject, dtype: str, order: str
) -> None:
    shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=3))
    given_array = np.asarray(ORDERS[order](data.draw(arrays.arrays(np.dtype(dtype), shape))))
    with stock.enable_write():
        stock.data["x"] = {"sample": given_array}
        stock.model["m"] = {"w": given_array}
    little = given_array.astype(given_array.dtype.newbyteorder("<"), order="C")
    for found in (stock.data["x"]["sample"], stock.model["m"]["w"]):
        assert found.shape == given_array.shape
        assert found.dtype == little.dtype
        assert found.tobytes() == little.tobytes()


def test_zeros_of_one_size_and_different_shapes_stay_distinct(stock: StockRoom) -> None:
    shapes = [(12,), (3, 4), (4, 3), (2, 6), (1, 12), (0,), (0, 5), ()]
    with stock.enable_write():
        stock.model["m"] = {str(shape): np.zeros(shape) for shape in shapes}
        for shape in shapes:
            stock.data[str(shape)] = {0: np.zeros(shape)}
    for shape in shapes:
        assert stock.model["m"][str(shape)].shape == stock.data[str(shape)][0].shape == shape


def test_torch_dtypes_that_numpy_lacks_and_tensors_of_any_kind(stock: StockRoom) -> None:
    tensors = {
        "bf16": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T,
        "fp8": torch.ones(3).to(torch.float8_e4m3fn),
        "complex": torch.ones(2, dtype=torch.complex64),
        "none": torch.zeros(0, 4),
        "scalar": torch.tensor(3),
        "learned": torch.nn.Parameter(torch.ones(2)),
    }
    with stock.enable_write():
        stock.model["m"] = tensors
        stock.data["bf16"] = {"a": tensors["bf16"]}
    for name, tensor in stock.model["m"].items():
        assert tensor.dtype == tensors[name].dtype
        expected = tensors[name].detach()
        if "fp8" in name:  # PyTorch compares none of these
            tensor, expected = tensor.float(), expected.float()
        assert torch.equal(tensor, expected)
    assert torch.equal(stock.data["bf16"]["a"], tensors["bf16"])


def test_one_value_twice_is_stored_once(stock: StockRoom, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).random(500_000)
    with stock.enable_write():
        stock.model["a"] = {"w": weights}
    before = size(tmp_path)
    with stock.enable_write():
        stock.model["b"] = {"other": weights, "again": weights.copy()}
    assert size(tmp_path) - before < 20_000


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (np.zeros(3, np.float64), "float64|F64"),
        (np.zeros(4, np.int16), r"\(4,\)"),
        (np.zeros((3, 1), np.int16), r"\(3, 1\)"),
        ("text", "str"),
        ({1, 2}, "set"),
        (None, "None"),
        (np.array([object()]), "object"),
    ],
)
def test_samples_that_do_not_fit_are_refused_and_change_nothing(
    stock: StockRoom, sample: Any, said: str
) -> None:
    with stock.enable_write():
        stock.data["x"] = {0: np.zeros(3, np.int16)}
    with stock.enable_write():
        with pytest.raises(DataError, match=said):
            stock.data["x"].update({1: np.ones(3, np.int16), 2: sample})
        assert list(stock.data["x"]) == [0]
    assert len(stock.log()) == 1


@pytest.mark.parametrize("key", [1.5, None, True, b"a", (1, 2, 3), 2**63, "\ud800"])
def test_keys_that_cannot_be_stored(stock: StockRoom, key: Any) -> None:
    with pytest.raises(UsageError, match="key"), stock.enable_write():
        stock.data["x"] = {key: 1}
    assert "x" not in stock.data


def test_ints_in_numeric_order_then_strings(stock: StockRoom) -> None:
    keys = [10, "b", 2, -1, 11, "größe/ü, ,", 1, "", 0]
    with stock.enable_write():
        stock.data["x"] = {key: np.array(n) for n, key in enumerate(keys)}
    assert list(stock.data["x"]) == [-1, 0, 1, 2, 10, 11, "", "b", "größe/ü, ,"]
    with stock.enable_write():
        stock.data["n"] = np.arange(20)
    assert make_torch_dataset([stock.data["n"]])[2] in (2, (2,), [2])


def test_adding_while_iterating_is_safe(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.data["x"] = np.arange(5)
        seen = []
        for key in stock.data["x"]:
            seen.append(key)
            stock.data["x"][key + 100] = key
    assert seen == [0, 1, 2, 3, 4]
    assert len(stock.data["x"]) == 10


def test_strings_and_bytes_of_more_than_2_megabytes(stock: StockRoom) -> None:
    text, content = "ä" * 3_000_000, bytes(range(256)) * 12_000
    with stock.enable_write():
        stock.data["text"] = {"long": text, "empty": ""}
        stock.data["bytes"] = {"long": content, "empty": b""}
    assert stock.data["text"]["long"] == text
    assert stock.data["bytes"]["long"] == content
    assert (stock.data["text"]["empty"], stock.data["bytes"]["empty"]) == ("", b"")


def test_readers_go_to_other_processes_and_writers_do_not(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.data["x"] = np.arange(40, dtype=np.int32).reshape(10, 4)
        for writer in (stock, stock.data["x"]):
            with pytest.raises((UsageError, TypeError), match="pickle"):
                pickle.dumps(writer)
    assert np.array_equal(pickle.loads(pickle.dumps(stock)).data["x"][...], stock.data["x"][...])
    # The new process also reads samples of another shape, as a worker of a loader.
    with stock.enable_write():
        stock.data["y"] = np.arange(10)
    dataset = make_torch_dataset([stock.data["x"], stock.data["y"]])
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=4, num_workers=1, multiprocessing_context="spawn"
    )
    batches = list(loader)
    assert torch.equal(torch.cat([x for x, _ in batches]), torch.arange(40, dtype=torch.int32).reshape(10, 4))
    assert torch.equal(torch.cat([y for _, y in batches]), torch.arange(10))


# Models


def test_a_state_dict_comes_back_as_it_was(stock: StockRoom) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Linear(3, 3))
    with stock.enable_write():
        stock.model["net"] = net.state_dict()
        stock.model["empty"] = OrderedDict()
        stock.model["--_odd, name/ü"] = {"x,y": torch.ones(2), "a--_b": torch.zeros(()), "": torch.ones(1)}
    found = stock.model["net"]
    assert list(found) == list(net.state_dict())
    for name, tensor in net.state_dict().items():
        assert torch.equal(found[name], tensor)
        assert found[name].shape == tensor.shape
    net.load_state_dict(found)
    assert stock.model["empty"] == {}
    assert sorted(stock.model) == ["--_odd, name/ü", "empty", "net"]
    assert list(stock.model["--_odd, name/ü"]) == ["x,y", "a--_b", ""]


def test_saving_a_model_again_leaves_nothing_of_the_old_one(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.model["net"] = {"a": np.zeros(3), "old": np.zeros(1)}
    with stock.enable_write():
        stock.model["net"] = {"a": np.zeros((900, 3))}
    assert list(stock.model) == ["net"]
    assert list(stock.model["net"]) == ["a"]
    assert list(stock.at("HEAD~1").model["net"]) == ["a", "old"]


def test_a_model_that_cannot_be_stored_leaves_nothing(stock: StockRoom) -> None:
    with stock.enable_write():
        with pytest.raises(DataError):
            stock.model["net"] = {"a": np.zeros(3), "b": object()}
        assert "net" not in stock.model
    assert stock.log() == []


def test_missing_names_say_what_is_near(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.data["image"] = np.arange(3)
        stock.model["resnet"] = {"w": np.ones(1)}
        stock.experiment["rate"] = 1
    for read, near in (
        (lambda: stock.data["imag"], "image"),
        (lambda: stock.model["resnt"], "resnet"),
        (lambda: stock.experiment["rat"], "rate"),
        (lambda: stock.at("mian"), "main"),
    ):
        with pytest.raises(NotFoundError, match=near):
            read()
    for key in (3, "a"):
        with pytest.raises(KeyError, match="image"):
            stock.data["image"][key]


# Values


def test_values_keep_their_types(stock: StockRoom) -> None:
    values = {
        "flag": True, "off": False, "one": 1, "float": 1.0, "big": 2**80, "nan": float("inf"), "none": None,
        "with space, ü": "text", "list": [1, [True, None]], "dict": {"a": 1.5, "b": [1]},
    }  # fmt: skip
    with stock.enable_write():
        for name, value in values.items():
            stock.experiment[name] = value
        stock.experiment["numpy"] = np.float32(0.5)
        stock.experiment["numpy flag"] = np.bool_(True)
    for name, value in values.items():
        assert stock.experiment[name] == value
        assert type(copy.copy(stock.experiment[name])) is type(value)
    assert stock.experiment["numpy"] == 0.5
    assert stock.experiment["numpy flag"] is True


@pytest.mark.parametrize("how", ["staged", "committed"])
def test_appending_large_samples_one_by_one_takes_little_more_than_their_bytes(
    how: str, tmp_path: Path
) -> None:
    count, size = 100, 1 << 16
    samples = np.random.default_rng(0).integers(0, 256, (count, size), np.uint8)
    StockRoom.init(tmp_path).close()
    with StockRoom(tmp_path, enable_write=True) as stock:
        stock.data["x"] = samples[:1]
        stock.commit("the first")
        for number, sample in enumerate(samples[1:], 1):
            stock.data["x"].append(sample)
            if how == "committed":
                stock.commit(f"number {number}")
        if how == "staged":
            stock.commit("all others")
        stock.gc()
    taken = sum(path.stat().st_size for path in (tmp_path / ".hopyard").rglob("*") if path.is_file())
    assert taken < 1.5 * samples.nbytes
    assert (np.asarray(StockRoom(tmp_path).data["x"].take(np.arange(count))) == samples).all()
