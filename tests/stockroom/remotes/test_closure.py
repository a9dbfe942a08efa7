"""What a commit needs: pages that differ, and all kinds of things on the shelves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stockroom.remotes.repositories import at, commit, root_of, samples, tip

from hopyard.data import open_dataset, prepare
from hopyard.errors import CorruptError
from hopyard.stockroom.data.datasets import open_stored, store_dataset
from hopyard.stockroom.experiments import RunView, StockRun
from hopyard.stockroom.history.commits import write_commit
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.maps import SortedMap, encode
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.records import DatasetRecord, RunRecord
from hopyard.stockroom.remotes import ALL, Need, Repository, bring, fetch, needs, needs_of_root, push, select
from hopyard.stockroom.remotes.closure import changed_pages
from hopyard.stockroom.views.view import Snapshot
from hopyard.storage import MemoryStore

MAPS = st.dictionaries(st.integers(0, 3000), st.integers(0, 2), max_size=60)


def grown(objects: Objects, entries: dict[int, int], crowd: int) -> SortedMap:
    """A map of these entries, among ``crowd`` others that are always the same."""
    with objects.writing() as writer:
        crowded = {encode(-n - 1): n for n in range(crowd)} | {
            encode(key): value for key, value in entries.items()
        }
        return SortedMap(objects, SortedMap(writer, None).update(writer, crowded).root)


@given(MAPS, MAPS, st.sampled_from([0, 100, 3000]), st.sampled_from([0, 100, 3000]))
def test_changed_pages_are_those_that_the_other_map_lacks(
    one: dict[int, int], two: dict[int, int], crowd: int, other_crowd: int
) -> None:
    objects = Objects(MemoryStore())
    new, old = grown(objects, one, crowd), grown(objects, two, other_crowd)
    found = list(changed_pages(objects, new.root, old.root))
    assert sorted(page for page, _ in found) == sorted(set(new.pages()) - set(old.pages()))
    changes = [entry for _, entries in found for entry in entries]
    differing = [(key, value, before) for key, value, before in new.diff(old) if value is not None]
    assert sorted(changes) == sorted(differing)


def test_without_an_older_map_all_pages_and_entries_are_new() -> None:
    objects = Objects(MemoryStore())
    new = grown(objects, {}, 2000)
    found = list(changed_pages(objects, new.root))
    assert [page for page, _ in found] == sorted(new.pages(), key=[page for page, _ in found].index)
    assert sum(len(entries) for _, entries in found) == 2000
    assert list(changed_pages(objects, None, new.root)) == []


def test_a_small_change_reads_few_pages(local: Repository) -> None:
    commit(local, image={n: np.full(3000, n % 251, np.uint8) for n in range(20_000)})
    first = tip(local)
    commit(local, image={77: np.zeros(3000, np.uint8)})

    class Counting:
        reads = 0

        def __getattr__(self, name: str) -> object:
            return getattr(local.objects, name)

        def read_many(self, digests: list[str]) -> object:
            self.reads += len(list(digests))
            return local.objects.read_many(digests)

    counting = Counting()
    found = list(needs(counting, [tip(local)], [first]))  # type: ignore[arg-type]
    assert [need.kind for need in found if not need.is_metadata] == ["fragment"]
    assert len(found) <= 6
    assert counting.reads <= 14


def kinds(found: Iterator[Need]) -> dict[str, set[str]]:
    result: dict[str, set[str]] = {}
    for need in found:
        result.setdefault(need.thing, set()).add(need.kind)
    return result


def test_everything_on_the_shelves_is_needed(local: Repository, remote: Repository, tmp_path: Path) -> None:
    """A dataset, a run with an artifact, a large value, a model, a column."""
    table = {"x": np.arange(400, dtype=np.float32), "label": np.arange(400) % 3}
    prepare(table, store=str(tmp_path / "prepared"))
    (tmp_path / "note").write_text("note")
    commit(
        local, image=samples(3), models={"net": {"w": np.ones(5)}}, values={"long": "x" * 9000, "short": 1}
    )
    draft = Draft(local.objects, root_of(local, tip(local)))
    draft.set("data", "table", store_dataset(draft.writer, open_dataset(str(tmp_path / "prepared"))))
    with StockRun(draft) as run:
        run.log(loss=1.0)
        run.log_artifact(tmp_path / "note")
    root = draft.flush()
    assert kinds(needs_of_root(local.objects, root)) == {
        "": {"page"},
        "data/image": {"page", "fragment"},
        "data/table": {"page", "json", "file"},
        "experiment/long": {"json"},
        "model/net": {"json", "tensor"},
        f"run/{run.id}": {"json", "tensor", "file"},
    }
    record = Snapshot(local.objects, root, "x").record("run", run.id)
    assert isinstance(record, RunRecord)
    of_run = {need.digest for need in needs_of_root(local.objects, root) if need.thing.startswith("run/")}
    assert of_run == set(RunView(local.objects, run.id, record).reached())
    with local.objects.writing() as writer:
        made = write_commit(writer, root, [tip(local)], "all", "Ada").digest
    local.references.set("heads/main", made, "Ada")
    push(local, remote, ["main"])
    copy = at(tmp_path / "copy")
    fetch(copy, remote)
    bring(copy, [remote], select(copy.objects, [made], ALL))
    stored = Snapshot(copy.objects, root, "x").record("data", "table")
    assert isinstance(stored, DatasetRecord)
    assert len(open_stored(copy.objects, stored, "table")) == stored.rows > 0


def test_a_record_of_a_newer_version_is_refused(local: Repository) -> None:
    with local.objects.writing() as writer:
        root = SortedMap(writer, None).update(writer, {encode(("data", "x")): {"hologram": {}}}).root
    with pytest.raises(CorruptError, match="the record of data/x cannot be read"):
        list(needs_of_root(local.objects, root))
