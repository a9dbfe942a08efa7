"""A model comes back as what it was, of whatever it is made."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.descriptors import open_files
from tests.stockroom.standin import Staged

from hopyard.errors import CorruptError, DataError, MissingExtraError, NotFoundError, UsageError
from hopyard.objects import Tensor
from hopyard.stockroom.models import ModelShelf, reached
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.records import ModelRecord
from hopyard.storage import LocalStore, MemoryStore, Store

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.fixture(params=["files", "memory"])
def staged(request: pytest.FixtureRequest, tmp_path: Path) -> Staged:
    store: Store = LocalStore(tmp_path / "repository") if request.param == "files" else MemoryStore()
    return Staged(store)


@pytest.fixture
def shelf(staged: Staged) -> ModelShelf:
    return ModelShelf(staged)


def same(a: Any, b: Any) -> bool:
    """Whether two trees are of the same types, order and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        bits = [one.contiguous().reshape(-1).view(torch.uint8) if one.numel() else one for one in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (a != a and b != b)


def test_a_state_dict_comes_back_before_and_after_it_is_committed(staged: Staged, shelf: ModelShelf) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    state = net.state_dict()
    shelf["net"] = state
    for reader in (shelf, ModelShelf(staged.committed())):
        loaded = reader["net"]
        assert same(loaded, state)
        assert type(loaded) is OrderedDict
        assert loaded._metadata == state._metadata
        other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        other.load_state_dict(loaded)
        assert same(other.state_dict(), state)


def test_an_optimizer_comes_back_and_goes_on(shelf: ModelShelf) -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, betas=(0.8, 0.9))
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    shelf["adam"] = optimizer.state_dict()
    loaded = shelf["adam"]
    assert same(loaded, optimizer.state_dict())
    assert type(loaded["param_groups"][0]["betas"]) is tuple
    torch.optim.Adam(net.parameters()).load_state_dict(loaded)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
def test_every_dtype_and_shape(shelf: ModelShelf, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    size = math.prod(shape) * dtype.itemsize
    bits = (
        torch.arange(size, dtype=torch.uint8) % 2
        if dtype == torch.bool
        else torch.arange(size, dtype=torch.uint8)
    )
    tensor = (bits.view(dtype) if size else torch.empty(0, dtype=dtype)).reshape(shape)
    shelf["m"] = {"t": tensor}
    assert same(shelf["m"], {"t": tensor})


def test_numpy_comes_back_as_numpy_and_scalars_as_scalars(shelf: ModelShelf) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    model = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.float64(0.1),
        np.bool_(True),
        np.zeros((0, 2), np.int8),
        np.array(3),
        np.arange(4).astype(ml_dtypes.bfloat16),
        np.zeros((2, 0), ml_dtypes.float8_e5m2),
        (True, 1, 1.0, None, "é", math.nan, -math.inf, 2**80, [], {}),
    ]
    shelf["m"] = model
    assert same(shelf["m"], model)
    shelf["text"] = {"a": np.str_("x")}
    assert shelf["text"] == {"a": "x"}


def test_strides_order_and_gradients_do_not_matter(shelf: ModelShelf) -> None:
    array = np.arange(12.0).reshape(3, 4)
    tensor = torch.arange(12.0).reshape(3, 4)
    shelf["m"] = {
        "reversed": array[::-1, ::2],
        "fortran": np.asfortranarray(array),
        "big": array.astype(">f4"),
        "transposed": tensor.T,
        "grad": torch.nn.Parameter(tensor[:, 1:]),
        "conjugate": (tensor + 1j).conj(),
        "negative": (tensor + 1j).conj().imag,
    }
    loaded = shelf["m"]
    assert np.array_equal(loaded["reversed"], array[::-1, ::2])
    assert same(loaded["fortran"], array)
    assert same(loaded["big"], array.astype("f4"))
    assert same(loaded["transposed"], tensor.T.contiguous())
    assert type(loaded["grad"]) is torch.Tensor
    assert not loaded["grad"].requires_grad
    assert same(loaded["grad"], tensor[:, 1:].contiguous())
    assert torch.equal(loaded["conjugate"], (tensor + 1j).conj())
    assert torch.equal(loaded["negative"], torch.full((3, 4), -1.0))


@pytest.mark.gpu
def test_a_tensor_of_a_gpu_comes_back_on_the_cpu(shelf: ModelShelf) -> None:
    shelf["m"] = {"t": torch.arange(3.0, device="cuda")}
    assert same(shelf["m"], {"t": torch.arange(3.0)})


def test_tied_tensors_stay_one_and_equal_ones_stay_two(staged: Staged, shelf: ModelShelf) -> None:
    net = torch.nn.ModuleDict({"a": torch.nn.Linear(300, 1000), "b": torch.nn.Linear(300, 1000)})
    net["b"].weight = net["a"].weight
    with torch.no_grad():
        net["a"].bias.zero_()
        net["b"].bias.zero_()
    array = np.ones(3)
    shelf["m"] = {
        **net.state_dict(),
        "n": [array, array, array.copy(), array[:2]],
        "view": net["a"].weight[:10],
    }
    for reader in (shelf, ModelShelf(staged.committed())):
        loaded = reader["m"]
        assert loaded["a.weight"].data_ptr() == loaded["b.weight"].data_ptr()
        assert torch.equal(loaded["view"], loaded["a.weight"][:10])
        loaded["a.bias"] += 1
        assert loaded["b.bias"].sum() == 0
        loaded["n"][0][:] = 7
        assert [list(one) for one in loaded["n"]] == [[7, 7, 7], [7, 7, 7], [1, 1, 1], [1, 1]]


def test_what_is_loaded_may_be_trained_on_and_changes_nothing_stored(
    staged: Staged, shelf: ModelShelf
) -> None:
    state = {"large": torch.zeros(1 << 20), "small": torch.zeros(2)}
    shelf["m"] = state
    reader = ModelShelf(staged.committed())
    first, second = reader["m"], reader["m"]
    for tensor in first.values():
        tensor += 1
    assert same(second, state)
    assert same(reader["m"], state)


def test_only_what_is_new_is_written(tmp_path: Path) -> None:
    def stored() -> int:
        return sum(file.stat().st_size for file in tmp_path.glob("packfiles/data-*"))

    staged = Staged(LocalStore(tmp_path))
    shelf = ModelShelf(staged)
    rng = np.random.default_rng(0)
    state = {f"layer{i}": rng.random(10_000) for i in range(20)}
    shelf["a"] = state
    staged.writer.publish()
    before = stored()
    shelf["b"] = {"other": [torch.from_numpy(state["layer3"])], "again": dict(reversed(state.items()))}
    staged.writer.publish()
    assert stored() == before
    shelf["a"] = state | {"layer7": state["layer7"] + 1}
    staged.writer.publish()
    assert 80_000 < stored() - before < 90_000


def test_what_a_shelf_gave_without_a_library_is_not_hashed_again(
    shelf: ModelShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf["a"] = {"x": torch.arange(100_000), "y": [np.zeros(3)]}
    tree = shelf.tree("a")
    assert isinstance(tree["x"], Tensor)
    monkeypatch.setattr("hopyard.objects.tensors.Hasher", None)
    shelf["b"] = tree
    assert shelf["b"]["x"] == tree["x"]


def test_a_part_is_read_alone(shelf: ModelShelf) -> None:
    shelf["m"] = OrderedDict(
        {"layer1.w": torch.ones(2), "layer1.b": torch.zeros(1), "layer2.w": torch.ones(3)}
    )
    part = shelf.read("m", prefix="layer1.")
    assert same(part, OrderedDict({"layer1.w": torch.ones(2), "layer1.b": torch.zeros(1)}))
    with pytest.raises(
        NotFoundError, match=r"no key of the model 'm' begins with 'layer1w'; did you mean 'layer1.w'\?"
    ):
        shelf.read("m", prefix="layer1w")
    shelf["list"] = [torch.ones(1)]
    with pytest.raises(
        UsageError, match=r"prefix='x' was given, but the model 'list' is not a dict. Read all of it."
    ):
        shelf.read("list", prefix="x")


@pytest.mark.parametrize("name", ["a,b", "x--_y", "with space", "ünï/cødé", "a/b", "~", "__metadata__"])
def test_names_and_keys_of_any_characters(shelf: ModelShelf, name: str) -> None:
    shelf[name] = {name: torch.ones(1), f"{name}.": [np.zeros(2)], 3: {}}
    assert list(shelf) == [name]
    assert same(shelf[name], {name: torch.ones(1), f"{name}.": [np.zeros(2)], 3: {}})


def test_a_shelf_is_like_a_dict(staged: Staged, shelf: ModelShelf) -> None:
    assert (len(shelf), list(shelf), "a" in shelf, 3 in shelf) == (0, [], False, False)
    shelf["b"], shelf["a"], shelf["empty"] = torch.ones(()), [], {}
    assert (len(shelf), list(shelf), "a" in shelf) == (3, ["a", "b", "empty"], True)
    assert same([shelf["b"], shelf["a"], shelf["empty"]], [torch.ones(()), [], {}])
    del shelf["a"]
    assert list(shelf) == ["b", "empty"]
    for use in (shelf.__getitem__, shelf.__delitem__, shelf.record):
        with pytest.raises(
            NotFoundError, match=r"no model 'emty' in the commit 0123abcd; did you mean 'empty'\? It has"
        ):
            use("emty")
    reader = ModelShelf(staged.committed())
    with pytest.raises(
        UsageError, match=r"the commit 0123abcd was opened for reading. Write within `with stock.ena"
    ):
        reader["c"] = {}
    with pytest.raises(UsageError, match=r"opened for reading"):
        del reader["b"]
    with pytest.raises(UsageError, match=r"The model shelf was given an empty name"):
        shelf[""] = {}


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            torch.eye(2).to_sparse(),
            r"The value at 'a/0' of the model 'm' is a tensor of layout sparse_coo. Store tensor.",
        ),
        (
            torch.empty(2, device="meta"),
            "is a tensor on the device 'meta', which has no values. Store the model after",
        ),
        (
            torch.empty(2, dtype=torch.bits8),
            "is a tensor of torch.bits8, which cannot be stored. Convert it with .to",
        ),
        (
            torch.nn.Linear(1, 1),
            r"is a torch.nn.modules.linear.Linear, but a model is stored as its state. Give its sta",
        ),
        (
            object(),
            "is a builtins.object, but a model may hold dicts, lists, tuples, None, bool, int, float, str, and",
        ),
        (Pair(1, 2), r"Pair, but what is stored comes back as a plain tuple. Convert it: tuple\(...\)."),
        (b"bytes", "is a builtins.bytes, but a model may hold"),
        (
            object(),
            "as joblib.dump writes of an estimator of scikit-learn, is kept with a run: run.log_artifact",
        ),
        (
            np.array(["x"]),
            "The value at 'a/0' of the model 'm' cannot be stored: an array of dtype <U1 cannot be stored",
        ),
        (np.ma.masked_array([1.0]), r"is a masked array. Store its filled\(...\), and its mask."),
        (
            {(1, 2): 3},
            r"the dict at 'a/0' has the key \(1, 2\) of type builtins.tuple, but keys must be str or int",
        ),
    ],
)
def test_what_cannot_be_stored_is_named_and_changes_nothing(
    staged: Staged, shelf: ModelShelf, value: Any, said: str
) -> None:
    shelf["m"] = {"before": torch.ones(2)}
    pending = dict(staged.writer._pending["data"])
    with pytest.raises(DataError, match=said):
        shelf["m"] = {"new": torch.zeros(3), "a": [value]}
    assert staged.writer._pending["data"] == pending
    assert list(shelf["m"]) == ["before"]


@pytest.mark.filterwarnings("ignore")  # PyTorch says once that both are not finished
@pytest.mark.usefixtures("nothing_collected")
def test_quantized_nested_and_endless_models_are_named(shelf: ModelShelf) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(
        DataError, match=r"holds a container that holds itself, or is nested too deep. Take the lo"
    ):
        shelf["m"] = loop
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    with pytest.raises(
        DataError, match=r"is a quantized tensor of torch.qint8. Store tensor.int_repr\(\), its scale"
    ):
        shelf["m"] = quantized
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    with pytest.raises(DataError, match=r"The top of the model 'm' is a nested tensor. Store the tensors"):
        shelf["m"] = nested


def test_without_pytorch_the_tree_can_be_read(shelf: ModelShelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf["m"] = {"a": torch.ones(2)}
    monkeypatch.delitem(sys.modules, "hopyard.stockroom.models.torch", raising=False)
    monkeypatch.delattr("hopyard.stockroom.models.torch", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MissingExtraError, match=r"Reading the tensor 'a' of PyTorch needs the package 'torch'"
    ):
        shelf["m"]
    assert shelf.tree("m")["a"].numpy().tolist() == [1.0, 1.0]


def test_another_release_of_a_library_saves_the_same(shelf: ModelShelf, monkeypatch: Any) -> None:
    shelf["m"] = {"t": torch.ones(2), "n": np.ones(2)}
    monkeypatch.setattr(torch, "__version__", "99.0")
    monkeypatch.setattr(np, "__version__", "99.0")
    shelf["again"] = {"t": torch.ones(2), "n": np.ones(2)}
    assert shelf.record("again") == shelf.record("m")


def test_what_a_model_needs_is_all_its_objects(tmp_path: Path) -> None:
    staged = Staged(LocalStore(tmp_path))
    ModelShelf(staged)["m"] = {"a": torch.ones(2), "b": torch.ones(2), "c": np.zeros(1)}
    revision = staged.committed()
    record = ModelShelf(revision).record("m")
    assert record.nbytes == 2 * 4 + 8
    needed = set(reached(revision.objects, record))
    assert len(needed) == 3
    assert Objects(LocalStore(tmp_path)).missing(needed) == set()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1], "TypeError"),
        ({"format": {"kind": "model", "version": 1}}, "KeyError: 'skeleton'"),
        (
            {
                "format": {"kind": "model", "version": 1}, "skeleton": {"T": "x"}, "tensors": [], "tied": [],
                "ordered": [],
            },
            "does not fit its tensors",
        ),
    ],
)  # fmt: skip
def test_a_damaged_record_is_named(staged: Staged, shelf: ModelShelf, value: Any, said: str) -> None:
    staged.set("model", "m", ModelRecord(staged.writer.add_json(value), 0))
    with pytest.raises(CorruptError, match=f"what is stored of the model 'm' cannot be read .*{said}"):
        shelf["m"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_reading_maps_what_it_gives_and_holds_no_file_afterwards(tmp_path: Path) -> None:
    staged = Staged(LocalStore(tmp_path))
    ModelShelf(staged)["m"] = {"a": torch.zeros(1 << 20)}
    reader = ModelShelf(staged.committed())
    before = open_files(f"{tmp_path}/")
    loaded = reader["m"]
    del loaded
    assert len(open_files(f"{tmp_path}/")) <= len(before) + 1  # the index
