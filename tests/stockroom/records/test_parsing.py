"""Objects that others made, whose digests are right: every parser refuses them by an error of Hopyard."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopyard import StockRoom
from hopyard.errors import CorruptError, StorageError
from hopyard.objects import Tensor, digest
from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.fragments import Fragment, encode_fragment
from hopyard.stockroom.data.rows import KeyedSamples, SampleBytes
from hopyard.stockroom.data.samples import empty_record
from hopyard.stockroom.experiments.read import RunView
from hopyard.stockroom.experiments.values import read as read_value
from hopyard.stockroom.history.commits import log, read_commit, write_commit
from hopyard.stockroom.history.references import References
from hopyard.stockroom.maps import SortedMap, encode
from hopyard.stockroom.models.content import StoredModel
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.packfiles.layout import read_packfile
from hopyard.stockroom.records import ColumnRecord, RunRecord, ValueRecord, parse
from hopyard.storage import MemoryStore
from hopyard.storage.format import object_header

BYTES = 40 << 20  # that refusing an object may take
ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 10**12, 2**63 - 1, 2**63, -(2**63) - 1, 2**70, 10**400, 1.5, 1e308, "", "x", "F64",
    "~", "0" * 64, "\ud800", [], [None], [-1], [10**12, 10**12], [2**40, 2**40], {}, {"range": 2**63 - 1}, {"": 1},
]  # fmt: skip


def deep(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value in which something at one or two places is another, is gone, or is there twice."""
    value = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(list(places(value))))
        new = draw(st.one_of(st.sampled_from(ODD), st.sampled_from([300, 700, 950]).map(deep)))
        if not path:
            return new
        above = value
        for key in path[:-1]:
            above = above[key]
        what = draw(st.sampled_from(["other", "other", "gone", "more"]))
        if what == "gone":
            del above[path[-1]]
        elif what == "more" and isinstance(above, list):
            above.append(above[path[-1]])
        elif what == "more":
            above["another"] = new
        else:
            above[path[-1]] = new
    return value


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


class Bytes:
    """Objects as they are given; what was made by others is checked for its digest before."""

    def __init__(self, **found: bytes) -> None:
        self._found = found

    def read(self, name: str) -> Any:
        return np.frombuffer(self._found["it"], np.uint8)


def refused(read: Callable[[], Any]) -> None:
    """What can be read is read; what cannot is an error that says what to do, and takes little memory."""
    tracemalloc.start()
    try:
        read()
    except StorageError:  # CorruptError, FormatError; or it names an object that is not here
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < BYTES


FUZZED = settings(suppress_health_check=list(HealthCheck))
NAME = "ab" * 32
STORE = MemoryStore()
OBJECTS = Objects(STORE)
with OBJECTS.writing() as _writer:
    TENSORS = [
        _writer.add_tensor(Tensor.from_numpy(array))
        for array in (np.arange(3), np.arange(3.0), np.ones((2, 2), "f4"))
    ]
COMMIT = {
    "author": "A <a@b>", "format": object_header("commit"), "generation": 2, "git": {"commit": "x", "branch": None},
    "message": "m", "parents": [NAME], "root": NAME, "time": "2026-01-31T12:00:00.000000+00:00",
}  # fmt: skip
LEAF = {"keys": [1, 2, "a", ["a", 1]], "values": [1, [2], {"b": 3}, "x"]}
ABOVE = {"counts": [3, 4], "keys": [1, 5], "level": 1, "pages": [NAME, NAME]}
RECORDS = [
    {"column": {"kind": "tensor", "dtype": "F32", "shape": [2, None], "nested": False, "bits": 0, "pages": NAME,
                "count": 3, "nbytes": 24}},
    {"dataset": {"manifest": NAME, "files": NAME, "rows": 3, "nbytes": 24}},
    {"model": {"tree": NAME, "nbytes": 3}},
    {"value": {"json": NAME}},
    {"run": {"content": NAME, "status": "finished", "started": COMMIT["time"]}},
]  # fmt: skip
MODEL = {
    "format": object_header("model"),
    "skeleton": {
        "d": [["a", {"T": "a"}], ["b", {"t": [{"T": "b/0"}, 5, {"f": "7ff8000000000000"}, {"i": "0x5"}]}]]
    },
    "tensors": [["a", "F32", [2, 2], TENSORS[2], "numpy"], ["b/0", "F32", [2, 2], TENSORS[2], "numpy"]],
    "tied": [[0, 1]],
    "ordered": [[[], {"d": [["v", 1]]}]],
    "libraries": {},
}
RUN = {
    "format": object_header("stock-run"),
    "params": {"d": [["lr", 0.5]]},
    "tags": {"d": []},
    "series": {"loss": {"count": 3, "parts": [[TENSORS[0], TENSORS[1], TENSORS[1]]]}},
    "artifacts": {"log": [NAME, 5]},
    "links": {"model": {"net": {"model": {}}}},
    "git": None,
    "started": COMMIT["time"],
    "ended": COMMIT["time"],
    "seconds": 1.5,
    "status": "finished",
    "error": {"kind": "E", "message": "m", "traceback": "t"},
}


@FUZZED
@given(mutated(COMMIT))
def test_commits(value: Any) -> None:
    refused(lambda: read_commit(Bytes(it=text(value)), NAME))


@FUZZED
@given(st.one_of(mutated(LEAF), mutated(ABOVE)))
def test_pages(value: Any) -> None:
    pages = SortedMap(Bytes(it=text(value)), NAME)
    for read in (
        lambda: pages.get(encode(2)), lambda: list(pages.items()), lambda: list(pages.pages()), lambda: len(pages),
        lambda: pages.at(min(len(pages) - 1, 3)), lambda: list(pages.diff(SortedMap(Bytes(it=text(LEAF)), "cd" * 32))),
    ):  # fmt: skip
        refused(read)


def test_a_page_that_leads_to_others_than_it_says_is_refused() -> None:
    objects = Objects(MemoryStore())
    with objects.writing() as writer:
        name = writer.add_json({"keys": [1], "values": [1]}, kind="page")
        for level in range(1, 400):
            name = writer.add_json({"counts": [1], "keys": [1], "level": level, "pages": [name]}, kind="page")
        wrong = writer.add_json({"counts": [10**12], "keys": [1], "level": 2, "pages": [name]}, kind="page")
    for root in (name, wrong):
        with pytest.raises(CorruptError, match="is not a page of a sorted map"):
            SortedMap(objects, root).at(0)


@FUZZED
@given(st.sampled_from(RECORDS).flatmap(mutated))
def test_records(value: Any) -> None:
    refused(lambda: parse(value, "data/x"))


@FUZZED
@given(mutated(MODEL))
def test_models(value: Any) -> None:
    refused(lambda: StoredModel(OBJECTS, value, "net").values())
    refused(lambda: StoredModel(OBJECTS, value, "net").tree())


@FUZZED
@given(mutated(RUN))
def test_runs(value: Any) -> None:
    class Run(Objects):
        def json(self, digest: str) -> Any:
            return value

    run = RunView(Run(STORE), "run", RunRecord(NAME, "finished", COMMIT["time"]))
    for name in ("params", "tags", "git", "links", "error", "ended", "seconds", "metrics", "artifacts"):
        refused(lambda name=name: getattr(run, name))
    refused(lambda: list(run.reached()))
    refused(lambda: run.times("loss"))


@FUZZED
@given(mutated(MODEL["skeleton"]))
def test_values(value: Any) -> None:
    refused(lambda: read_value(OBJECTS, ValueRecord(value)))


RANGE = KeyedSamples(np.arange(5), SampleBytes(np.zeros((5, 8), np.uint8)))
SPARSE = KeyedSamples(
    np.array([1, 5, 6]),
    SampleBytes(np.zeros(12, np.uint8), np.array([0, 4, 4, 12]), np.array([[1], [0], [2]])),
)
NAMED = KeyedSamples(
    np.array([encode("a"), encode("b"), encode(("b", 1))], object),
    SampleBytes(np.zeros(6, np.uint8), np.array([0, 1, 1, 6])),
)
COLUMNS = [
    (empty_record("tensor", "F32", (2,), False), RANGE),
    (empty_record("tensor", "F32", (None,), False), SPARSE),
    (empty_record("string", "U8", (), False), NAMED),
]


@st.composite
def fragment_bytes(draw: st.DrawFn) -> tuple[ColumnRecord, KeyedSamples, bytes]:
    """A fragment with another header, or another number in what follows it."""
    record, batch = draw(st.sampled_from(COLUMNS))
    data = encode_fragment(record, [batch])[0]
    (length,) = struct.unpack("<Q", data[8:16])
    header, rest = data[16 : 16 + length], bytearray(data[16 + length :])
    if draw(st.booleans()):
        header = text(draw(mutated({**json.loads(header), "purged": [[0, "time", "by", "why"]]})))
        rest = bytearray(-len(header) % 64 + 48) + rest.lstrip(b"\0") if draw(st.booleans()) else rest
    else:
        at = draw(st.integers(0, max(len(rest) // 8 - 1, 0)))
        rest[8 * at : 8 * at + 8] = struct.pack(
            "<q", draw(st.sampled_from([-1, 0, 1, 5, 2**40, 2**63 - 1, -(2**63)]))
        )
    size = draw(st.sampled_from([len(header), len(header), len(header), 2**60, 2**64 - 1, 0]))
    return record, batch, data[:8] + struct.pack("<Q", size) + header + bytes(rest)


@FUZZED
@given(fragment_bytes())
def test_fragments(given: tuple[ColumnRecord, KeyedSamples, bytes]) -> None:
    record, batch, data = given

    def read() -> None:
        fragment = Fragment(np.frombuffer(data, np.uint8))
        fragment.check_content()
        for at in range(min(fragment.count, 10)):
            fragment.rows.sample(at)

    refused(read)
    objects = Objects(MemoryStore())
    with objects.writing() as writer:
        name = writer.add("fragment", data)
        keys = [int(key) if isinstance(key, np.integer) else "a" for key in batch.keys]
        last = ["b", 1] if keys[0] == "a" else keys[-1]
        nbytes = int(batch.rows.nbytes)
        pages = SortedMap(writer, None).update(writer, {encode(keys[0]): [name, last, len(keys), nbytes]})
    said = ColumnRecord(**{**vars(record), "pages": pages.root, "count": len(keys), "nbytes": nbytes})
    column = SampleColumn(objects, "x", said)
    for one in (lambda: column.take(range(len(keys))), lambda: list(column.items()), lambda: column[keys[0]]):
        refused(one)


@FUZZED
@given(mutated([*vars(COLUMNS[0][0]).values()]), st.sampled_from([0, 1, 2, 3]), st.sampled_from(ODD))
def test_a_map_that_says_something_else_of_a_fragment(fields: Any, at: int, odd: Any) -> None:
    objects = Objects(MemoryStore())
    record, batch = COLUMNS[0]
    with objects.writing() as writer:
        name = writer.add("fragment", encode_fragment(record, [batch])[0])
        value = [name, 4, 5, 40]
        value[at] = odd
        pages = SortedMap(writer, None).update(
            writer, {encode(0): value} if odd != "\ud800" else {encode(0): 0}
        )
    column = SampleColumn(
        objects, "x", ColumnRecord(**{**vars(record), "pages": pages.root, "count": 5, "nbytes": 40})
    )
    for _ in range(3):
        refused(lambda: column.take([0, 4]))
        refused(lambda: column[3])
    refused(lambda: list(column.items()))


@pytest.mark.parametrize(
    ("dtype", "shape"), [("I32", (2,)), ("F32", (1,)), ("F32", (None,)), ("U8", (8,)), ("F32", (2, 10**12))]
)
def test_a_column_of_another_dtype_or_shape_than_its_fragments_is_refused(dtype: str, shape: Any) -> None:
    objects = Objects(MemoryStore())
    with objects.writing() as writer:
        name = writer.add("fragment", encode_fragment(*COLUMNS[0][:1], [RANGE])[0])
        pages = SortedMap(writer, None).update(writer, {encode(0): [name, 4, 5, 40]})
    column = SampleColumn(objects, "x", ColumnRecord("tensor", dtype, shape, False, 0, pages.root, 5, 40))
    with pytest.raises(CorruptError, match=r"is not a fragment of it .*but the column holds"):
        column[0]


@st.composite
def packfile_bytes(draw: st.DrawFn) -> bytes:
    about = {"format": object_header("packfile"), "kind": "page", "kinds": {"tensor": [NAME]}, "complex": []}
    entries = {
        "__metadata__": {"hopyard": ""},
        "cd" * 32: {"dtype": "U8", "shape": [10], "data_offsets": [0, 10]},
        NAME: {"dtype": "F32", "shape": [2, 1], "data_offsets": [10, 18]},
    }
    if draw(st.booleans()):
        about = draw(mutated(about))
        entries["__metadata__"]["hopyard"] = json.dumps(about)
    else:
        entries["__metadata__"]["hopyard"] = json.dumps(about)
        entries = draw(mutated(entries))
    header = text(entries)
    size = draw(st.sampled_from([len(header), len(header), len(header), 2**60, 0]))
    return struct.pack("<Q", size) + header + bytes(18)


@FUZZED
@given(packfile_bytes())
def test_packfiles(data: bytes) -> None:
    store = MemoryStore()
    base = 8 + int.from_bytes(data[:8], "little")
    name = f"packfiles/meta-{digest(data[:base], 'hopyard.packfile')}"
    store.put(name, data)
    refused(lambda: read_packfile(store, name, len(data)))
    objects = Objects(store)
    refused(lambda: objects.refresh())
    refused(lambda: objects.read(NAME))


@FUZZED
@given(mutated({"by": "me", "check": NAME, "commit": NAME, "time": COMMIT["time"]}))
def test_references(value: Any) -> None:
    store = MemoryStore()
    store.put("refs/heads/main/000000000001", text(value))
    refused(lambda: References(store).tip("heads/main"))
    refused(lambda: References(store).names("heads"))


@pytest.mark.usefixtures("nothing_collected")
def test_what_is_deeply_nested_is_refused() -> None:
    data = b"[" * 100_000 + b"]" * 100_000
    objects = Objects(MemoryStore())
    with objects.writing() as writer:
        names = {kind: writer.add(kind, data) for kind in ("commit", "page", "json")}
    with pytest.raises(CorruptError, match=f"{names['commit']} is not a commit .*nested too deep"):
        read_commit(objects, names["commit"])
    with pytest.raises(CorruptError, match=f"{names['page']} is not a page .*nested too deep"):
        len(SortedMap(objects, names["page"]))
    with pytest.raises(CorruptError, match=f"{names['json']} is no JSON .*nested too deep"):
        objects.json(names["json"])
    assert list(log(objects)) == []


def test_verify_parses_what_it_hashes(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path / "stock") as stock:
        objects = stock.local.objects
        with objects.writing() as writer:
            name = writer.add("fragment", b"HOPFRAG1" + b"\xff" * 100)
            pages = SortedMap(writer, None).update(writer, {encode(0): [name, 4, 5, 40]})
            record = ColumnRecord("tensor", "I64", (), False, 0, pages.root, 5, 40)
            root = SortedMap(writer, None).update(writer, {encode(("data", "x")): record.to_json()}).root
            commit = write_commit(writer, root, (), "crafted", "somebody")
        stock.local.references.set("heads/crafted", commit.digest, "somebody")
        (problem,) = stock.verify().problems
    assert problem.name == name
    assert "is not a fragment of it" in problem.reason
