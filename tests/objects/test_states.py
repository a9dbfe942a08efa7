"""States come back as they were saved, from as few bytes as need be, or not at all."""

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import CorruptError, DataError, FormatError, NotFoundError, StorageFullError, UsageError
from hopyard.objects import StateRef, Tensor, load_part, load_state, save_state
from hopyard.objects.tree import flatten
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.faults import Fault, FaultyStore


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path / "store") if request.param == "local" else MemoryStore()


def tensor(seed: int, size: int = 100, dtype: str = "f4") -> Tensor:
    return Tensor.from_numpy(np.random.default_rng(seed).normal(size=size).astype(dtype))


def names(store: Store) -> list[str]:
    return [entry.name for entry in store.list()]


def example(seed: int = 0) -> dict[str, Any]:
    return {
        "model": {"weight": tensor(seed), "bias": tensor(seed + 1, 10), "steps": tensor(3, 1, "i8")},
        "optimizer": {"state": {0: {"m": tensor(seed + 2), "step": 7}}, "betas": (0.9, float("nan"))},
    }


def test_the_digest_of_a_state_never_changes() -> None:
    value = {"w": Tensor.from_numpy(np.arange(4, dtype=np.float32)), "n": [1, (2.5, None)]}
    assert (
        save_state(MemoryStore(), value).digest
        == "cfbd3c3bb8b57ec40b290174271f71bc6b8bc2bb09395c43b021f6ca228344c3"
    )
    assert (
        save_state(MemoryStore(), value, parts=["w"]).digest
        == "79bef32f7abd17e7ca4200fa78a94c7c5aa44a0c48b7e88f2d87ed9c53c59932"
    )


def test_a_state_is_one_safetensors_file_that_others_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    values = {
        "b": np.ones((2, 3), np.float32),
        "a": np.arange(5),
        "c": np.ones(3, np.bool_),
        "s": np.float16(2),
    }
    complex_values = np.array([1 + 2j, 3 - 4j])
    ref = save_state(store, {**{k: Tensor.from_numpy(np.asarray(v)) for k, v in values.items()},
                             "z": Tensor.from_numpy(complex_values)})  # fmt: skip
    assert names(store) == list(ref.files) == [f"{ref.digest}.safetensors"]
    read = safetensors.numpy.load_file(tmp_path / ref.files[0])
    for name, value in values.items():
        np.testing.assert_array_equal(read[name], value)
    np.testing.assert_array_equal(read["z"].view(np.complex128).reshape(-1), complex_values)
    np.testing.assert_array_equal(load_state(store, ref)["z"].numpy(), complex_values)


def test_loaded_tensors_are_mapped_aligned_and_read_only(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    tree = {
        "a": tensor(0, 3, "f2"),
        "b": tensor(1, 1001, "f4"),
        "c": tensor(2, 77, "f8"),
        "d": tensor(3, 5, "i1"),
    }
    loaded = load_state(store, save_state(store, tree))
    for key, value in loaded.items():
        array = value.numpy()
        assert not array.flags.writeable
        assert array.ctypes.data % array.itemsize == 0
        assert value.digest == tree[key].digest
        assert not array.flags.owndata
    store.delete(names(store)[0])
    assert loaded == tree


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_state_of_which_power_left_zeros_is_written_anew(tmp_path: Path, damaged: int) -> None:
    """One that was written without ``sync``: a file with its name, header and size."""
    store = LocalStore(tmp_path)
    first = save_state(store, example())
    tree = example() | {"more": tensor(9)}
    again = save_state(store, tree, previous=first)
    assert len(again.files) == 2
    path = tmp_path / again.files[damaged]
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:end] + bytes(len(data) - end))
    found = save_state(store, tree, previous=None)
    assert found.digest == again.digest
    digests = [t.digest for t in flatten(load_state(store, found, verify=True))[0].values()]
    assert digests == [t.digest for t in flatten(tree)[0].values()]


def test_the_same_state_again_writes_nothing(store: Store) -> None:
    faulty = FaultyStore(store)
    ref = save_state(faulty, example(), parts=["model"])
    before = len(faulty.writes)
    assert save_state(faulty, example(), parts=["model"]) == ref
    assert save_state(faulty, example(), parts=["model"], previous=ref) == ref
    assert save_state(faulty, load_state(store, ref), parts=["model"], previous=ref) == ref
    assert len(faulty.writes) == before == 2


def test_only_changed_tensors_are_written(store: Store) -> None:
    tree = {"trunk": tensor(0, 10_000), "head": tensor(1, 10)}
    first = save_state(store, tree)
    tree = {"renamed": tree["trunk"], "head": tensor(2, 10), "more": [tree["trunk"]]}
    second = save_state(store, tree, previous=first)
    third = save_state(store, {**tree, "head": tensor(3, 10)}, previous=second)
    assert (store.size(second.files[0]) or 0) < 4096
    assert third.files == (f"{third.digest}.safetensors", first.files[0])
    assert second.nbytes == 80_040
    store.delete(second.files[0])
    assert load_state(store, third, verify=True) == {**tree, "head": tensor(3, 10)}


def test_equal_tensors_are_stored_once(store: Store) -> None:
    ref = save_state(store, {"encoder": tensor(0, 10_000), "decoder": tensor(0, 10_000)})
    assert (store.size(ref.files[0]) or 0) < 42_000
    assert load_state(store, ref) == {"encoder": tensor(0, 10_000), "decoder": tensor(0, 10_000)}


def test_everything_is_written_anew_when_most_of_the_old_files_is_dead(store: Store) -> None:
    tree = {str(i): tensor(i, 1000) for i in range(10)}
    ref = save_state(store, tree)
    for changed in range(1, 6):
        tree = {**tree, str(changed): tensor(100 + changed, 1000)}
        following = save_state(store, tree, previous=ref)
        assert len(following.files) > 1
        ref = following
    tree = {**tree, "6": tensor(106, 1000), "7": tensor(107, 1000)}
    ref = save_state(store, tree, previous=ref)
    # 4 of 10 tensors of the first file and five files of one: 8 of 15 live. One more and it is 7 of 15.
    tree = {**tree, "8": tensor(108, 1000)}
    ref = save_state(store, tree, previous=ref)
    for name in names(store):
        if name not in ref.files:
            store.delete(name)
    assert load_state(store, ref, verify=True) == tree
    total = sum(store.size(name) or 0 for name in ref.files)
    assert total < 2 * ref.nbytes + 20_000


def test_parts_are_complete_and_can_be_kept_alone(store: Store) -> None:
    first = save_state(store, example(0), parts=["model"])
    second_tree = {**example(0), "optimizer": {"state": {}, "lr": 0.1}}
    second = save_state(store, second_tree, parts=["model"], previous=first)
    assert second.part("model") == first.part("model")
    assert list(load_state(store, second)) == ["model", "optimizer"]
    assert load_state(store, second) == second_tree
    part = second.part("model")
    assert part.files == (f"{part.digest}.safetensors",)
    assert set(part.files) < set(second.files)
    for name in names(store):
        if name not in part.files:
            store.delete(name)
    assert load_part(store, second, "model", verify=True) == example(0)["model"]
    assert load_state(store, part) == example(0)["model"]
    with pytest.raises(UsageError, match=r"has no part 'modell'; did you mean 'model'\?; it has \['model'\]"):
        second.part("modell")
    with pytest.raises(
        UsageError, match=r"parts=\('weights',\) must be keys at the top.*\['model', 'optimizer'\]"
    ):
        save_state(store, example(), parts=["weights"])
    with pytest.raises(UsageError, match=r"must be keys at the top of the tree, which are \[\]"):
        save_state(store, [1], parts=["weights"])


def test_the_order_of_keys_survives_parts(store: Store) -> None:
    tree = {"z": 1, "model": tensor(0), 3: tensor(1), "a": {"b": 2}}
    loaded = load_state(store, save_state(store, tree, parts=["a", "model"]))
    assert list(loaded.items()) == list(tree.items())


def test_references_survive_json(store: Store) -> None:
    ref = save_state(store, example(), parts=["model"])
    assert StateRef.from_json(json.loads(json.dumps(ref.to_json()))) == ref
    assert hash(StateRef.from_json(ref.to_json())) == hash(ref)


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_large_and_small_states_are_written_whole(store: Store, size: int) -> None:
    tree = {"a": tensor(0, size), "empty": tensor(0, 0), "scalar": Tensor.from_numpy(np.array(1.5))}
    assert load_state(store, save_state(store, tree), verify=True) == tree
    assert len(names(store)) == 1


LEAVES = (
    st.integers(0, 30).map(lambda seed: tensor(seed, 20 * (1 + seed % 5))) | st.floats() | st.text(max_size=3)
)


@given(st.data())
def test_any_chain_of_saves_equals_the_plain_values(data: st.DataObject) -> None:
    """Random changes, each saved after the one before, with every older file deleted that no live state needs."""
    store = MemoryStore()
    tree: dict[str, Any] = {"model": {}, "rest": {}}
    live: list[tuple[StateRef, Any]] = []
    previous = None
    for _ in range(data.draw(st.integers(1, 12))):
        group = tree[data.draw(st.sampled_from(["model", "rest"]))]
        for key in data.draw(st.lists(st.sampled_from("abcdef"), max_size=4)):
            group[key] = data.draw(LEAVES)
        if data.draw(st.booleans()) and group:
            group.pop(data.draw(st.sampled_from(sorted(group))))
        parts = data.draw(st.sampled_from([(), ("model",)]))
        previous = save_state(store, tree, previous=previous, parts=parts)
        live.append((previous, copy.deepcopy(tree)))
        if data.draw(st.booleans()):
            live = live[-data.draw(st.integers(1, 3)) :]
            needed = {file for ref, _ in live for file in ref.files}
            for name in names(store):
                if name not in needed:
                    store.delete(name)
        for ref, plain in live:
            loaded = load_state(store, ref, verify=True)
            assert repr(loaded) == repr(plain)  # equal also where a float is NaN
            for section in ("model", "rest"):
                for key, value in plain[section].items():
                    if isinstance(value, Tensor):
                        assert loaded[section][key] == value


def test_a_state_whose_older_files_are_gone_is_written_in_full(store: Store) -> None:
    base = save_state(store, {"trunk": tensor(0, 1000), "head": tensor(1)})
    tree = {"trunk": tensor(0, 1000), "head": tensor(2)}
    delta = save_state(store, tree, previous=base)
    user = save_state(store, {"head": tensor(2), "x": tensor(5, 1)}, previous=delta)
    store.delete(base.files[0])
    with pytest.raises(NotFoundError, match=base.digest):
        load_state(store, delta)
    again = save_state(store, tree)
    assert again.digest == delta.digest
    assert again.files == delta.files[:1]
    assert load_state(store, again, verify=True) == tree
    assert load_state(store, user, verify=True)["head"] == tensor(2)


def test_nothing_is_half_written(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'optimizer' is a builtins\.object"):
        save_state(store, {"model": tensor(0), "optimizer": object()}, parts=["model", "optimizer"])
    for tree in (example(), {"large": tensor(0, 1_000_000)}):
        with pytest.raises(StorageFullError):
            save_state(FaultyStore(store, Fault("full")), tree)
    assert names(store) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_disk_that_fills_up_while_a_large_state_is_staged_keeps_what_it_had(tmp_path: Path) -> None:
    if (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], check=False).returncode
        != 0
    ):
        pytest.skip("mounting a small file system needs root")
    try:
        store = LocalStore(tmp_path)
        ref = save_state(store, {"a": tensor(0)})
        with pytest.raises(StorageFullError, match=r"no space is left.* MB of 2\.1 MB are free"):
            save_state(store, {"a": tensor(1, 1_000_000)}, previous=ref)
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == list(ref.files)
        assert load_state(store, ref, verify=True) == {"a": tensor(0)}
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def damage(store: Store, name: str, kind: str) -> None:
    data = bytearray(store.get(name))
    header = int.from_bytes(data[:8], "little")
    if kind == "empty":
        data = bytearray()
    elif kind == "short":
        data = data[:-1]
    elif kind == "long":
        data += b"x"
    elif kind == "cut in the header":
        data = data[: 8 + header // 2]
    elif kind == "no header":
        data[:8] = b"\xff" * 8
    elif kind == "zeros":
        data = bytearray(len(data))
    elif kind == "another shape":
        data = data.replace(b'"shape":[100]', b'"shape":[ 10]')
    elif kind == "another digest":
        data = data.replace(tensor(0).digest[:6].encode(), b"000000")
    store.put(name, data)


@pytest.mark.parametrize(
    "kind",
    ["empty", "short", "long", "cut in the header", "no header", "zeros", "another shape", "another digest"],
)
def test_a_damaged_file_is_named_and_never_believed(store: Store, kind: str) -> None:
    ref = save_state(store, {"a": tensor(0), "b": tensor(1)})
    user = save_state(store, {"a": tensor(0), "b": tensor(1), "c": tensor(2)}, previous=ref)
    damage(store, ref.files[0], kind)
    for broken in (ref, user):
        with pytest.raises(
            CorruptError, match=rf"the file \S*{ref.digest}\.safetensors .*is not what was written"
        ):
            load_state(store, broken)
    # Saving the state again mends it.
    assert save_state(store, {"a": tensor(0), "b": tensor(1)}) == ref
    assert load_state(store, user, verify=True)["a"] == tensor(0)


def test_changed_bytes_are_found_by_verifying(store: Store) -> None:
    ref = save_state(store, {"a": tensor(0), "b": tensor(1)})
    data = bytearray(store.get(ref.files[0]))
    data[-1] ^= 1
    store.put(ref.files[0], data)
    assert load_state(store, ref)["a"] == tensor(0)
    with pytest.raises(
        CorruptError, match=r"the bytes of the tensor 'b' have changed. Restore it from a copy, or del"
    ):
        load_state(store, ref, verify=True)


def test_a_missing_file_is_named(store: Store) -> None:
    ref = save_state(store, {"a": tensor(0)})
    store.delete(ref.files[0])
    with pytest.raises(NotFoundError, match=ref.digest):
        load_state(store, ref)


def test_a_state_of_a_newer_format_says_what_to_install() -> None:
    store = MemoryStore()
    ref = save_state(store, {"a": tensor(0)})
    data = store.get(ref.files[0]).replace(rb"\"version\":1", rb"\"version\":2")
    store.put(ref.files[0], data)
    with pytest.raises(FormatError, match=r"in format 2.*reads formats up to 1.*pip install 'hopyard>="):
        load_state(store, ref)


def test_a_header_longer_than_the_first_read_is_read_whole() -> None:
    store = MemoryStore()
    tree = {f"layer{i:05d}": tensor(i, 1) for i in range(1000)}
    ref = save_state(store, tree)
    assert load_state(store, ref) == tree


class Asked(FaultyStore):
    """Remembers what was read, as (name, start, length)."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.asked: list[tuple[str, int, int | None]] = []

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self.asked.append((name, start, length))
        return super().get(name, start, length)

    def path(self, name: str) -> Path | None:
        return None


def test_what_is_held_is_not_read(store: Store) -> None:
    tree = {"trunk": tensor(0, 100_000), "head": tensor(1, 50_000), "model": {"w": tensor(2, 30_000)}}
    first = save_state(store, tree)
    second = save_state(store, {**tree, "head": tensor(3, 50_000)}, previous=first, parts=["model"])
    wanted = {**tree, "head": tensor(3, 50_000)}
    read: list[int] = []
    for held, nbytes in (
        (None, 720_000), ([1, 2], 720_000), (tree, 200_000), ({"trunk": tree["trunk"]}, 320_000),
        ({"trunk": tree["trunk"], "model": tree["model"]}, 200_000), (wanted, 0),
        ({"trunk": tensor(9, 100_000), "head": tree["trunk"], "model": [tree["model"]]}, 720_000),
    ):  # fmt: skip
        asked = Asked(store)
        read.clear()
        assert load_state(asked, second, verify=True, held=held, on_read=read.append) == wanted
        assert nbytes <= sum(read) < nbytes + 5 * 2**16
        assert sum(length or 0 for _, _, length in asked.asked) == sum(read)
        assert (first.files[0] in {name for name, _, _ in asked.asked}) == (nbytes > 320_000)


def test_ranges_far_from_each_other_are_read_one_by_one(store: Store) -> None:
    tree = {name: tensor(number, 50_000) for number, name in enumerate("abcde")}
    ref = save_state(store, tree)
    asked = Asked(store)
    held = {"b": tree["b"], "d": tree["d"]}
    loaded = load_state(asked, ref, held=held)
    assert loaded == tree
    assert loaded["b"] is tree["b"]
    assert [length for _, start, length in asked.asked if start] == [200_000] * 3


def test_a_small_file_is_read_in_one_request(store: Store) -> None:
    ref = save_state(store, example())
    asked = Asked(store)
    assert load_state(asked, ref, verify=True)["model"] == example()["model"]
    assert asked.asked == [(ref.files[0], 0, store.size(ref.files[0]))]


def test_a_part_of_the_previous_state_is_not_written_again(store: Store) -> None:
    tree = {"model": {"trunk": tensor(0, 10_000), "head": tensor(1, 10)}, "optimizer": {"m": tensor(2, 10)}}
    first = save_state(store, tree, parts=["model"])
    tree = {"model": {**tree["model"], "head": tensor(3, 10)}, "optimizer": {"m": tensor(4, 10)}}
    second = save_state(store, tree, previous=first)
    assert second.files[1:] == first.part("model").files
    assert (store.size(second.files[0]) or 0) < 4096
    for name in set(names(store)) - set(second.files):
        store.delete(name)
    assert load_state(store, second, verify=True) == tree
