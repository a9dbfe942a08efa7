"""A packfile is a safetensors file; what it holds is where its header says, aligned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load

from hopyard.errors import CorruptError, FormatError
from hopyard.objects import Tensor, digest
from hopyard.stockroom.packfiles import Objects, layout
from hopyard.storage import LocalStore, MemoryStore, Store

Packfiles = Callable[[Store], list[str]]


def test_any_reader_of_safetensors_opens_packfiles(local: LocalStore, packfiles: Packfiles) -> None:
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    objects = Objects(local)
    with objects.writing() as writer:
        tensor = writer.add_tensor(Tensor.from_numpy(array))
        fragment = writer.add("fragment", b"rows" * 10, width=12, body=4)
        page, empty = writer.add_json({"b": 1, "a": [2.5, None]}, kind="page"), writer.add("json", b"")
    data, meta = packfiles(local)
    assert data.startswith("packfiles/data-")
    assert meta.startswith("packfiles/meta-")
    with safe_open(local.path(data), "numpy") as file:
        np.testing.assert_array_equal(file.get_tensor(tensor), array)
        assert file.get_tensor(fragment).tobytes() == b"rows" * 10
    entries = load(local.get(meta))
    assert entries[page].tobytes() == b'{"a":[2.5,null],"b":1}'
    assert entries[empty].size == 0
    assert page == digest(b'{"a":[2.5,null],"b":1}', "hopyard.page")
    assert objects.locate(fragment).kind == "fragment"
    assert objects.locate(empty).kind == "json"
    assert objects.json(page) == {"a": [2.5, None], "b": 1}


def test_a_packfile_is_named_by_its_header(
    local: LocalStore, packfiles: Packfiles, write: Callable[..., list[str]]
) -> None:
    write(Objects(local), b"one", b"two")
    (name,) = packfiles(local)
    content = local.get(name)
    header = content[: 8 + int.from_bytes(content[:8], "little")]
    assert name == f"packfiles/meta-{digest(header, 'hopyard.packfile')}"
    other = MemoryStore()
    write(Objects(other), b"one", b"two")
    assert packfiles(other) == [name]
    assert other.get(name) == content


@pytest.mark.parametrize("width", [1, 3, 12, 768, 3072, 4097, 32759, 32767])
@pytest.mark.parametrize("body", [0, 8, 61, 4096])
def test_rows_begin_at_multiples_of_their_width(width: int, body: int) -> None:
    objects = Objects(MemoryStore())
    with objects.writing() as writer:
        names = [
            writer.add("fragment", bytes([n]) * (body + width * n + n), width, body) for n in range(1, 6)
        ]
    for name in names:
        place = objects.locate(name)
        assert (place.start + body) % width == 0
        if width in (12, 768) and body % 4 == 0:
            assert place.start % 8 == 0
    assert {name: objects.read(name)[0] for name in names} == dict(zip(names, range(1, 6), strict=True))


def test_objects_without_rows_and_tensors_are_aligned(store: Store) -> None:
    objects = Objects(store)
    with objects.writing() as writer:
        fragments = [
            writer.add("fragment", bytes([n]) * n, width=width) for n in range(1, 9) for width in (0, 32768)
        ]
        tensors = [writer.add_tensor(Tensor.from_numpy(np.arange(n, dtype="i2"))) for n in range(9)]
    assert all(objects.locate(name).start % 8 == 0 for name in fragments)
    assert all(objects.locate(name).start % 64 == 0 for name in tensors)


@pytest.mark.parametrize("dtype", ["?", "u1", "f2", "f4", "i8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
def test_tensors_come_back(store: Store, index: Path, dtype: str, shape: tuple[int, ...]) -> None:
    given = Tensor.from_numpy(np.ones(shape, dtype))
    with Objects(store, index).writing() as writer:
        name = writer.add_tensor(given)
    for objects in (Objects(store, index), Objects(store)):
        found = objects.tensors([name])[name]
        assert found == given
        assert found.digest == given.digest
        assert objects.locate(name)[4:] == (given.dtype, shape)


class Counting(MemoryStore):
    """Counts requests."""

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self.requests = [*getattr(self, "requests", []), (start, length)]
        return super().get(name, start, length)


@pytest.mark.parametrize(("count", "requests"), [(100, 1), (1000, 2)])
def test_a_header_is_read_with_one_request_or_two(count: int, requests: int) -> None:
    store = Counting()
    with Objects(store).writing() as writer:
        names = [writer.add("page", n.to_bytes(100, "big")) for n in range(count)]
    store.requests = []
    assert Objects(store).missing(names) == set()
    assert len(store.requests) == requests
    assert store.requests[0][0] == 0


def test_damaged_headers_are_told_from_those_of_newer_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    header = layout.object_header("packfile") | {"version": 2}
    monkeypatch.setattr(layout, "object_header", lambda kind: header)
    with Objects(store).writing() as writer:
        name = writer.add_json(1)
    ((packfile, size),) = [(entry.name, entry.size) for entry in store.list("packfiles")]
    with pytest.raises(FormatError, match=r"packfiles/meta-.* in format 2; .*pip install"):
        layout.read_packfile(store, packfile, size)
    with pytest.raises(
        FormatError, match=f"{name} is in no packfile that can be read whole, but packfiles/meta-"
    ):
        Objects(store).read(name)
    content = bytearray(store.get(packfile))
    content[20] ^= 1
    for damaged in (bytes(content), bytes(content[:50]), b"1234", b""):
        store.put(packfile, damaged)
        with pytest.raises(CorruptError, match=r"is not what was written.*hopyard stock verify"):
            layout.read_packfile(store, packfile, len(damaged))
    for text in (
        b"{}",
        b"[1]",
        b'{"__metadata__":{}}',
        json.dumps({"__metadata__": {"hopyard": "{}"}}).encode(),
    ):
        head = len(text).to_bytes(8, "little") + text
        name = f"packfiles/meta-{digest(head, 'hopyard.packfile')}"
        store.put(name, head)
        with pytest.raises(CorruptError, match="its header cannot be read"):
            layout.read_packfile(store, name, len(head))
