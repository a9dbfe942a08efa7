"""docs/format-stockroom.md says all that a reader needs: ``reader.py``, written from it alone, reads all."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stockroom import reader

import sample_stockroom
from hopyard import StockRoom
from hopyard.errors import PurgedError
from hopyard.objects.tensors import ITEM_SIZES, Tensor
from hopyard.stockroom.experiments import ExperimentShelf, StockRun
from hopyard.stockroom.history.commits import read_commit, write_commit
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.publish import commit_draft
from hopyard.stockroom.history.references import References
from hopyard.stockroom.maps import SortedMap, encode
from hopyard.stockroom.models import ModelShelf
from hopyard.stockroom.packfiles import Objects
from hopyard.storage import LocalStore
from hopyard.storage.format import FORMAT_NAME, claim_format, format_header, root_format

Change = Callable[[Draft], None]


class Made:
    """A stockroom that Hopyard writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = LocalStore(root)
        claim_format(self.store, "stockroom")
        self.objects = Objects(self.store)
        self.references = References(self.store)

    def commit(self, change: Change, branch: str = "main") -> str:
        tip = self.references.tip(f"heads/{branch}")
        parents = [] if tip.commit is None else [tip.commit]
        draft = Draft(self.objects, read_commit(self.objects, tip.commit).root if tip.commit else None)
        change(draft)
        facts = ("Ada <ada@example.org>", None)
        commit = commit_draft(draft, self.references, f"heads/{branch}", parents, "a message", lambda: facts)
        assert commit is not None
        return commit.digest

    def read(self) -> reader.Repository:
        return reader.Repository(self.root)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "root")


# Keys

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
parts = st.integers(-(2**63), 2**63 - 1) | texts | st.sampled_from(["\0", "\0\0", "a\0b", "\0\xff", ""])
keys = parts | st.tuples(parts, parts)


@given(st.lists(keys, min_size=1, max_size=20))
def test_keys_are_as_documented(some: list[Any]) -> None:
    from hopyard.stockroom.maps.keys import hash_key

    for key in some:
        assert reader.encode(key) == encode(key)
        assert reader.decode(encode(key)) == key
        assert reader.key_hash(key) == hash_key(encode(key))


# Columns


@st.composite
def tensors(draw: st.DrawFn) -> Callable[[st.DrawFn], Tensor]:
    dtype = draw(st.sampled_from(sorted(ITEM_SIZES)))
    lengths = st.integers(0, 3)
    shape = draw(st.lists(lengths | st.none(), max_size=3))

    def one(draw: st.DrawFn) -> Tensor:
        lengths_now = tuple(draw(lengths) if length is None else length for length in shape)
        size = ITEM_SIZES[dtype] * math.prod(lengths_now)
        content = draw(st.binary(min_size=size, max_size=size))
        data = np.frombuffer(content, np.uint8)
        return Tensor(dtype, lengths_now, data & 1 if dtype == "BOOL" else data)

    return one


@st.composite
def columns(draw: st.DrawFn) -> dict[Any, Any]:
    kind = draw(st.sampled_from(["tensor", "string", "bytes"]))
    one = draw(tensors()) if kind == "tensor" else None
    nested = draw(st.booleans())
    each = st.tuples(parts, parts) if nested else parts
    chosen = draw(st.lists(each, min_size=1, max_size=12, unique=True))
    if one is not None:
        return {key: one(draw) for key in chosen}
    samples = texts if kind == "string" else st.binary(max_size=9)
    return {key: draw(samples) for key in chosen}


def expected(sample: Any) -> Any:
    if isinstance(sample, Tensor):
        return sample.shape, sample.data.tobytes()
    return sample


def found(sample: Any) -> Any:
    return (sample.shape, sample.tobytes()) if isinstance(sample, np.ndarray) else sample


@given(st.lists(columns(), min_size=1, max_size=3))
def test_columns_of_every_dtype_with_any_keys(
    tmp_path_factory: pytest.TempPathFactory, some: list[Any]
) -> None:
    made = Made(tmp_path_factory.mktemp("root"))

    def change(draft: Draft) -> None:
        for number, samples in enumerate(some):
            draft.column(f"c {number}").update(samples)

    commit = made.commit(change)
    repository = made.read()
    for number, samples in enumerate(some):
        read = repository.column(commit, f"c {number}")
        assert list(read) == sorted(samples, key=encode)
        for key, sample in samples.items():
            assert found(read[key]) == expected(sample)
            assert found(repository.sample(commit, f"c {number}", key)) == expected(sample)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_large_columns_end_where_documented_also_after_changes(made: Made, seed: int) -> None:
    random = np.random.default_rng(seed)
    fixed = {int(key): random.integers(0, 255, 3000, np.uint8) for key in random.permutation(4000)[:1500]}
    varying = {
        f"{key:05}": random.bytes(int(size))
        for key, size in enumerate(random.pareto(1, 2000) * 500 % 200_000)
    }
    tiny = {(n // 7, f"part {n % 7}"): np.array(n, np.float32) for n in range(7000)}
    every: dict[str, dict[Any, Any]] = {"fixed": fixed, "varying": varying, "tiny": tiny}

    def change(draft: Draft) -> None:
        for name, samples in every.items():
            draft.column(name).update(samples)

    def again(draft: Draft) -> None:
        for name, samples in every.items():
            for key in [key for key in samples if random.random() < 0.1]:
                del draft.column(name)[key], samples[key]
        fixed.update(
            {int(key): random.integers(0, 255, 3000, np.uint8) for key in random.integers(0, 9000, 50)}
        )
        draft.column("fixed").update(fixed)

    before = {name: dict(samples) for name, samples in every.items()}
    first, second = made.commit(change), made.commit(again)
    repository = made.read()
    for commit, samples in ((first, before), (second, every)):
        for name in every:
            assert same(repository.column(commit, name), samples[name])


def same(read: Mapping[Any, Any], samples: Mapping[Any, Any]) -> bool:
    return read.keys() == samples.keys() and all(found(read[key]) == found(samples[key]) for key in read)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 500, 60_000])
def test_pages_end_where_documented(made: Made, count: int) -> None:
    some = {encode((number * 7919 % 2**31, "k")): number for number in range(count)}
    with made.objects.writing() as writer:
        root = SortedMap(writer, None).update(writer, some).root
    assert [encode(key) for key, _ in made.read().items(root)] == sorted(some)


# The other shelves

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts | st.integers(-9, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_plain_values(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    made = Made(tmp_path_factory.mktemp("root"))

    def change(draft: Draft) -> None:
        ExperimentShelf(draft)["v"] = value
        ExperimentShelf(draft)["large"] = [value, "x" * 5000]

    commit = made.commit(change)
    assert repr(made.read().value(commit, "v")) == repr(value)
    assert repr(made.read().value(commit, "large")[0]) == repr(value)


def test_models_of_every_dtype(made: Made) -> None:
    random = np.random.default_rng(0)
    tree = {
        dtype: Tensor(dtype, (2, 1, 3), random.integers(0, 2, 6 * size, np.uint8))
        for dtype, size in ITEM_SIZES.items()
    }
    nested = {"~/a": [(np.zeros((0, 2)), 1.5)], 3: {"": None, "nan": math.nan}, "dtypes": tree}

    def change(draft: Draft) -> None:
        ModelShelf(draft)["m"] = nested

    commit = made.commit(change)
    read = made.read().model(commit, "m")
    assert read["~/a"][0][0].shape == (0, 2)
    assert read["~/a"][0][1] == 1.5
    assert math.isnan(read[3]["nan"])
    assert read[3][""] is None
    for dtype, tensor in tree.items():
        assert found(read["dtypes"][dtype]) == expected(tensor)


def test_runs(made: Made, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("done")
    run: StockRun | None = None

    def change(draft: Draft) -> None:
        nonlocal run
        ModelShelf(draft)["net"] = [np.arange(3)]
        with ExperimentShelf(draft).start({"lr": 0.1, "sizes": (1, 2)}, {"kind": "test"}) as run:
            for step in range(5):
                run.log(step=step, loss=1.0 / (step + 1))
            run.log_artifact(tmp_path / "note.txt")
            run.link(model="net")

    commit = made.commit(change)
    assert run is not None
    read = made.read().run(commit, run.id)
    assert read["params"] == {"lr": 0.1, "sizes": (1, 2)}
    assert read["tags"] == {"kind": "test"}
    assert [(step, value) for step, value, _ in read["series"]["loss"]] == [
        (n, 1.0 / (n + 1)) for n in range(5)
    ]
    assert read["artifacts"] == {"note.txt": b"done"}
    assert read["links"]["model"]["net"] == made.read().records(commit)["model", "net"]


# What is refused


def test_references_and_what_is_refused(made: Made) -> None:
    def change(draft: Draft) -> None:
        ExperimentShelf(draft)["x"] = 1

    commit = made.commit(change)
    made.references.set("heads/feature/ü ~1".replace(" ~", "-"), commit, "Ada")
    made.references.set("heads/old", commit, "Ada")
    made.references.set("heads/old", None, "Ada")
    made.references.set("remotes/origin/main", commit, "Ada")
    assert made.read().references("heads") == {"feature/ü-1": commit, "main": commit}
    assert made.read().references("remotes") == {"origin/main": commit}
    assert made.read().log(commit) == [commit]
    path = next((made.root / "packfiles").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(reader.RefusedError):
        made.read().records(commit)
    (made.root / FORMAT_NAME).write_bytes(root_format(format_header("stockroom", 1, ["new"])))
    with pytest.raises(reader.RefusedError, match="newer format"):
        made.read()
    (made.root / FORMAT_NAME).write_bytes(root_format(format_header("stockroom")).replace(b": 1,", b": 3,"))
    with pytest.raises(reader.RefusedError, match="CRC-32 of FORMAT"):
        made.read()


# The sample


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A copy, whose files may be linked and locked."""
    shutil.copytree(sample_stockroom.SAMPLE, tmp_path / "sample")
    return tmp_path / "sample"


def expected_of(sample: Path) -> Any:
    return json.loads((sample / "expected.json").read_text())


def test_the_sample_is_read_exactly(sample: Path) -> None:
    assert json.loads(json.dumps(sample_stockroom.contents(sample))) == expected_of(sample)


def test_the_sample_opens_as_a_stockroom(sample: Path, tmp_path: Path) -> None:
    (sample / "objects").rename(sample / ".hopyard")
    with StockRoom(sample) as stock:
        assert stock.verify().problems == []
        assert stock.data["caption"]["cat-7"] == "a cat, and a dog"
        with pytest.raises(PurgedError, match="asked to"):
            stock.data["caption"]["secret"]
    with StockRoom(sample, enable_write=True) as stock:
        assert stock.experiment["staged"] is True
        assert stock.data["caption"]["x"] == "ü"
        assert stock.commit("what was staged") == stock.head.commit


def test_a_column_that_an_early_version_began_is_written_to(sample: Path) -> None:
    (sample / "objects").rename(sample / ".hopyard")
    with StockRoom(sample, enable_write=True) as stock:
        stock.reset()
        many = stock.data["many"]
        expected = {key: many[key] for key in many}
        for key in (450, -7, 2000):
            many[key] = expected[key] = bytes(300_000)
            stock.commit("one more")
        del many[3], expected[3]
        stock.commit("one less")
        assert {key: many[key] for key in many} == expected
        assert stock.verify().ok
    assert reader.Repository(sample / ".hopyard").column(stock.head.commit, "many") == expected


def test_the_sample_is_read_by_the_documents_reader(sample: Path) -> None:
    repository = reader.Repository(sample / "objects")
    expected = expected_of(sample)
    for kind, names in expected["references"].items():
        assert repository.references(kind) == names
    for digest, commit in expected["commits"].items():
        read = repository.commit(digest)
        assert {**commit, **{field: read[field] for field in read if field in commit}} == commit
        found = {
            f"{shelf}/{name}": as_json(repository, digest, shelf, name)
            for shelf, name in repository.records(digest)
        }
        numbers = commit["things"]
        assert found.keys() == numbers.keys()
        for path, thing in found.items():
            assert json.loads(json.dumps(thing)) == expected["things"][numbers[path]], path
    assert repository.log(expected["references"]["heads"]["main"]) == expected["order"]
    (last,) = (sample / "objects/stage/main").iterdir()
    (setting, images), (_, texts), (deleting, none), (said, _) = repository.stage("main", last.name)
    assert (setting["column"], setting["gone"]) == ("image", [])
    assert images[7].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert texts == {"new": "text", "x": "ü"}
    assert (deleting["column"], deleting["gone"], none) == ("blob", [1], {})
    assert said["things"] == [["experiment", "staged", {"value": True}]]


def as_json(repository: reader.Repository, commit: str, shelf: str, name: str) -> Any:
    described = sample_stockroom.described
    if shelf == "model":
        return described(repository.model(commit, name))
    if shelf == "experiment":
        return described(repository.value(commit, name))
    if shelf == "run":
        run = repository.run(commit, name)
        series = {}
        for metric, points in run["series"].items():
            steps, values, _ = zip(*points, strict=True)
            series[metric] = [list(steps), np.array(values).tobytes().hex()]
        return {
            "status": run["status"], "params": described(run["params"]), "tags": described(run["tags"]),
            "series": series, "git": described(run["git"]), "links": run["links"],
            "artifacts": {file: data.decode() for file, data in run["artifacts"].items()},
        }  # fmt: skip
    if "dataset" in repository.records(commit)[shelf, name]:
        manifest, files = repository.dataset(commit, name)
        assert [len(data) for data in files] == [entry["size"] for entry in manifest["files"]]
        return {"rows": manifest["rows"], "files": [entry["digest"] for entry in manifest["files"]]}
    purged = {"purged": True}
    return {
        repr(key): purged if isinstance(value, reader.PurgedError) else described(value)
        for key, value in repository.column(commit, name).items()
    }


def test_the_sample_is_written_again(sample: Path, tmp_path: Path) -> None:
    """The sample is of an early version: its columns end fragments elsewhere, so what names them differs. The rest is
    equal to the last byte, and all that it holds is the same."""
    again = tmp_path / "again"
    again.mkdir()
    sample_stockroom.make(again, sample_stockroom.dataset_of(sample))
    for kind in ("tensor", "file"):
        assert objects_of(again / "objects", kind) == objects_of(sample / "objects", kind)
    assert without_digests(sample_stockroom.contents(again)) == without_digests(expected_of(sample))


def test_what_is_written_is_the_same_to_the_last_byte(sample: Path, tmp_path: Path) -> None:
    """If this fails the format has changed: what was written before would get other digests, or cannot be read."""
    sample_stockroom.make(tmp_path, sample_stockroom.dataset_of(sample))
    assert reader.Repository(tmp_path / "objects").references("heads") == {
        "dev": "355e2849b0bd0c4e1a492c82202a66b0f579354b026c4937056ad0fd0f5a9841",
        "main": "69b3518ca17d11ac6b3b9a07922a0dc57126b7520cb633f0c4dc7c8b6f2d46b5",
    }


def objects_of(root: Path, kind: str) -> set[str]:
    return {name for name, place in reader.Repository(root).places.items() if place[3] == kind}


def without_digests(contents: Any) -> list[Any]:
    """The history in order, with all that is in its commits, but not what objects are called."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: plain(item) for key, item in value.items() if key not in ("bits", "links", "parents")
            }
        return value

    commits = [contents["commits"][digest] for digest in contents["order"]]
    things = [plain(thing) for thing in contents["things"]]
    return [
        plain(commit) | {"things": {path: things[number] for path, number in commit["things"].items()}}
        for commit in commits
    ]


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_sample_is_small() -> None:
    assert sum(path.stat().st_size for path in sample_stockroom.SAMPLE.rglob("*") if path.is_file()) < 200_000


def test_digests_are_the_same_in_all_releases(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def digests(version: str) -> set[str]:
        monkeypatch.setattr("hopyard.storage.format.__version__", version)
        draft = Draft(made.objects, None)
        ModelShelf(draft)["m"] = [np.arange(3)]
        root = draft.write()
        commit = write_commit(draft.writer, root, [], "", "Ada", time=datetime(2026, 1, 1, tzinfo=UTC))
        draft.publish()
        draft.release()
        return {commit.digest, *made.read().places}

    assert digests("0.1.0") == digests("7.0")


def test_the_reader_has_nothing_of_hopyard() -> None:
    assert not re.search(r"^\s*(from|import) hopyard", Path(reader.__file__).read_text(), re.MULTILINE)
