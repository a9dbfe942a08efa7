"""Data by name, by a budget, and when they are read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stockroom.remotes.repositories import at, commit, content, root_of, samples, tip

from hopyard.errors import CorruptError, NotFoundError, UsageError
from hopyard.stockroom.data import SampleColumn
from hopyard.stockroom.experiments import StockRun
from hopyard.stockroom.history.commits import log, write_commit
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.records import ColumnRecord
from hopyard.stockroom.remotes import (
    ALL,
    FetchSelection,
    Never,
    OnDemand,
    Repository,
    bring,
    fetch,
    push,
    select,
)
from hopyard.stockroom.remotes.repository import claim
from hopyard.stockroom.views.view import Snapshot
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.testing import CountingStore

WIDE = 40_000  # bytes of a sample, so that each is a fragment


@pytest.fixture
def copy(local: Repository, remote: Repository, tmp_path: Path) -> Repository:
    """What was fetched from a remote with three columns, a model and an older version of a column."""
    commit(
        local, image=samples(40, size=WIDE), models={"net": {"w": np.ones(3)}, "big": {"w": np.zeros(9000)}}
    )
    parts = {(f"s{n}", part): np.full(5, n, np.uint8) for n in range(3) for part in ("left", "right")}
    commit(
        local,
        "main",
        "2",
        image=samples(2, size=WIDE, seed=5),
        label=dict.fromkeys(range(3), "x"),
        pair=parts,
    )
    push(local, remote, ["main"])
    copy = at(tmp_path / "copy")
    fetch(copy, remote)
    copy.references.set("heads/main", tip(local), "Ada")
    return copy


def column(repository: Repository, name: str) -> SampleColumn:
    snapshot = Snapshot(repository.objects, root_of(repository, tip(repository)), "main")
    record = snapshot.record("data", name)
    assert isinstance(record, ColumnRecord)
    return SampleColumn(repository.objects, name, record)


def brought(copy: Repository, remote: Repository, **wanted: Any) -> Any:
    options = {name: wanted.pop(name) for name in ("max_bytes", "report") if name in wanted}
    return bring(copy, [remote], select(copy.objects, [tip(copy)], FetchSelection(**wanted)), **options)


def test_a_column_comes(copy: Repository, remote: Repository, local: Repository) -> None:
    assert brought(copy, remote, data=["image"]).nbytes > 40 * WIDE
    assert np.array_equal(np.asarray(column(copy, "image")), np.asarray(column(local, "image")))
    with pytest.raises(NotFoundError, match="is not in"):
        column(copy, "label")[0]
    assert brought(copy, remote, data=["image"]).objects == 0


def test_keys_bring_their_fragments_only(copy: Repository, remote: Repository, local: Repository) -> None:
    few = brought(copy, remote, data=["image"], keys=range(3, 5))
    assert few.objects <= 2
    for key in (3, 4):
        assert np.array_equal(column(copy, "image")[key], column(local, "image")[key])
    more = brought(copy, remote, data=["image"], keys=[39, 3])
    assert more.objects <= 1
    assert np.array_equal(column(copy, "image")[39], column(local, "image")[39])
    with pytest.raises(
        NotFoundError, match=r"near the key 100, nor near one up to 199, .*nearest keys are 39\. Name"
    ):
        brought(copy, remote, data=["image"], keys=range(100, 200))
    with pytest.raises(
        NotFoundError, match="data/pair has no sample near the key 0, nor near one up to 4, so none"
    ):
        brought(copy, remote, data=["pair"], keys=range(5))
    assert brought(copy, remote, data=True, keys=range(3)).objects  # pair has no such keys, others have
    assert brought(copy, remote, data=["image"], keys=range(0)).objects == 0
    with pytest.raises(NotFoundError, match="data/image has no sample near the key 'cat'"):
        brought(copy, remote, data=["image"], keys=["cat"])


def test_all_parts_of_a_nested_sample_come(copy: Repository, remote: Repository) -> None:
    brought(copy, remote, data=["pair"], keys=["s1"])
    assert column(copy, "pair")["s1"]["right"].tolist() == [1] * 5


def test_models_come_by_name(copy: Repository, remote: Repository) -> None:
    assert brought(copy, remote, models=["net"]).objects == 1
    with pytest.raises(
        NotFoundError, match=r"no model 'nett' in .*; did you mean 'net'\? It has 'big', 'net'"
    ):
        brought(copy, remote, models=["nett"])
    with pytest.raises(
        UsageError, match=r"names are a list: models=\['net'\]; all that there are is models=True"
    ):
        brought(copy, remote, models="net")
    with pytest.raises(UsageError, match="keys= was given without data="):
        brought(copy, remote, models=["net"], keys=[1])


def test_everything_comes(copy: Repository, remote: Repository, local: Repository) -> None:
    bring(copy, [remote], select(copy.objects, [tip(copy)], ALL))
    assert content(copy, tip(copy)) == content(local, tip(local))
    first = next(iter(_past(copy)))
    with pytest.raises(NotFoundError, match="is not in"):
        content(copy, first)
    brought(copy, remote, data=True, models=True, history=True)
    assert content(copy, first) == content(local, first)


def test_keys_of_all_of_history_come(copy: Repository, remote: Repository) -> None:
    assert brought(copy, remote, data=["image"], keys=[0], history=True).objects == 2


def _past(repository: Repository) -> list[str]:
    return [one.digest for one in log(repository.objects, tip(repository)) if not one.parents]


def test_a_budget_is_kept(copy: Repository, remote: Repository) -> None:
    result = brought(copy, remote, data=["label", "image"], max_bytes=600_000)
    assert result.nbytes <= 600_000
    assert result.left["data/image"].nbytes + result.nbytes > 40 * WIDE
    came, left = str(result).splitlines()
    assert came.startswith(f"{result.objects} objects, ")
    assert left.startswith(f"left: {result.left['data/image'].objects} objects of data/image, ")
    assert column(copy, "label")[2] == "x"
    column(copy, "image")[0]
    assert brought(copy, remote, data=True, max_bytes=0).objects == 0
    with pytest.raises(UsageError, match=r"max_bytes=-1, but it must be"):
        brought(copy, remote, data=True, max_bytes=-1)


def test_a_range_takes_few_requests(local: Repository, tmp_path: Path) -> None:
    commit(local, image=samples(400, size=WIDE))
    store = CountingStore(MemoryStore())
    there = Repository.at(store, tmp_path / "i.sqlite", name="origin")
    push(local, there, ["main"])
    copy = at(tmp_path / "copy")
    fetch(copy, there)
    copy.references.set("heads/main", tip(local), "Ada")
    store.reset()
    result = brought(copy, there, data=["image"])
    assert result.objects > 20
    assert store.calls["get"] <= 4  # 16 MB in ranges of 8 MB
    assert store.calls.total() <= 6


def test_what_no_remote_has_is_named(copy: Repository, remote: Repository) -> None:
    with pytest.raises(
        NotFoundError, match=r"of data/label is neither in .* nor at memory://.*Nothing was fetched"
    ):
        bring(
            copy,
            [at(MemoryStore(), "empty")],
            select(copy.objects, [tip(copy)], FetchSelection(data=["label"])),
        )
    with pytest.raises(
        NotFoundError,
        match=r"no remote is known here from which they could come. Fetch from where they are by its address",
    ):
        bring(copy, [], select(copy.objects, [tip(copy)], FetchSelection(data=["label"])))
    empty = at(MemoryStore(), "empty")
    assert (
        bring(
            copy, [empty, remote], select(copy.objects, [tip(copy)], FetchSelection(data=["label"]))
        ).objects
        == 1
    )


def test_damaged_data_do_not_come(local: Repository, tmp_path: Path) -> None:
    commit(local, image=samples(3))
    store = MemoryStore()
    there = at(store, "origin")
    push(local, there, ["main"])
    (packfile,) = [entry.name for entry in store.list("packfiles") if "data" in entry.name]
    data = store.get(packfile)
    store.put(packfile, data[:-1] + bytes([data[-1] ^ 1]))
    copy = at(tmp_path / "copy")
    fetch(copy, there)
    copy.references.set("heads/main", tip(local), "Ada")
    with pytest.raises(CorruptError, match="has changed"):
        brought(copy, there, data=["image"])
    assert not [entry for entry in copy.store.list("packfiles") if "data" in entry.name]


# On demand


def on_demand(copy: Repository, *remotes: Repository) -> Repository:
    index = copy.store.path("index.sqlite")
    return Repository.at(copy.store, index, OnDemand(copy, remotes))


def test_what_is_read_comes(copy: Repository, remote: Repository, local: Repository) -> None:
    lazy = on_demand(copy, remote)
    assert content(lazy, tip(copy)) == content(local, tip(local))
    assert content(copy, tip(copy)) == content(local, tip(local))  # it stays


def test_one_sample_brings_one_fragment(copy: Repository, remote: Repository, local: Repository) -> None:
    lazy = on_demand(copy, remote)
    assert np.array_equal(column(lazy, "image")[17], column(local, "image")[17])
    packfiles = [entry.size for entry in copy.store.list("packfiles") if "data" in entry.name]
    assert sum(packfiles) < 1_200_000


def test_a_copy_in_another_process_brings_too(local: Repository, tmp_path: Path) -> None:
    commit(local, image=samples(3))
    there = Repository.at(LocalStore(tmp_path / "remote"), name="origin")
    push(local, there, ["main"])
    copy = at(tmp_path / "copy")
    fetch(copy, there)
    copy.references.set("heads/main", tip(local), "Ada")
    lazy = pickle.loads(pickle.dumps(column(on_demand(copy, there), "image")))
    assert np.array_equal(lazy[1], column(local, "image")[1])


def test_reading_in_order_reads_ahead(local: Repository, tmp_path: Path) -> None:
    commit(local, image=samples(400, size=WIDE))
    store = CountingStore(MemoryStore())
    there = Repository.at(store, tmp_path / "i.sqlite", name="origin")
    push(local, there, ["main"])
    copy = at(tmp_path / "copy")
    fetch(copy, there)
    copy.references.set("heads/main", tip(local), "Ada")
    lazy = column(on_demand(copy, there), "image")
    store.reset()
    for key in range(400):
        lazy[key]
    assert store.calls["get"] <= 9, store.asked  # of 400 fragments; one was for a header
    assert store.received < 400 * WIDE * 1.2  # rows are aligned


def test_never_says_which_call_brings_it(copy: Repository, remote: Repository) -> None:
    never = Repository.at(copy.store, copy.store.path("index.sqlite"), Never(copy, [remote.store.url]))
    with pytest.raises(NotFoundError) as error:
        column(never, "image")[0]
    assert "1 object of data/image is read, but not here, and fetch='never' was given" in str(error.value)
    assert f"Bring them from {remote.store.url}: stock.fetch(data=['image'])" in str(error.value)


def test_what_no_remote_has_is_not_found(copy: Repository) -> None:
    empty = at(MemoryStore(), "empty")
    lazy = on_demand(copy, empty)
    with pytest.raises(
        NotFoundError, match=r"there is no stockroom at the remote memory://.* any more. See that"
    ):
        column(lazy, "image")[0]
    claim(empty.store)
    with pytest.raises(NotFoundError, match="is not in"):
        column(lazy, "image")[0]


def test_files_come(local: Repository, remote: Repository, store: Store, tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text("hello" * 1000)
    draft = Draft(local.objects, None)
    with StockRun(draft) as run:
        run.log(loss=0.5)
        run.log_artifact(tmp_path / "report.txt")
    root = draft.flush()
    with local.objects.writing() as writer:
        made = write_commit(writer, root, [], "run", "Ada").digest
    local.references.set("heads/main", made, "Ada")
    push(local, remote, ["main"])
    copy = at(tmp_path / "copy")
    fetch(copy, remote)
    copy.references.set("heads/main", made, "Ada")
    assert list(copy.store.list("files")) == []
    assert brought(copy, remote, runs=True).objects == 4
    (entry,) = copy.store.list("files")
    assert copy.store.get(entry.name) == b"hello" * 1000
    other = at(tmp_path / "other")
    fetch(other, remote)
    assert on_demand(other, remote).objects.read(entry.name.removeprefix("files/")).size == 5000
    (name,) = [one.name for one in store.list("files")]
    store.put(name, b"no" * 2500)
    third = at(tmp_path / "third")
    fetch(third, remote)
    with pytest.raises(CorruptError, match="it has another digest than its name says"):
        bring(third, [remote], select(third.objects, [made], ALL))
