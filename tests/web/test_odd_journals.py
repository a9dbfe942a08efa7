"""Journals whose records are not as this version writes them: each reader says so in words, or shows what there is."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sampling import sample
from tests.web.conftest import RUN, rows, search
from typer.testing import CliRunner

from hopyard.cli import app
from hopyard.cli.run import looked_at
from hopyard.documents.runs import compared_json, run_json, summary_json
from hopyard.errors import StorageError
from hopyard.hopper.journal import read_records
from hopyard.hopper.segments import Segments
from hopyard.hopper.state import JournalRecord
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.tune import open_run
from hopyard.tune.comparing import compared_rows
from hopyard.tune.listing import summary
from hopyard.web.answers import encoded
from hopyard.web.runs import changes_json, described_json, listed_json
from hopyard.web.watched import WatchedRun

_ABSENT = "<absent>"
ODD = [None, "x", -1, 2.5, 1e400, True, [], [None], ["x"], {}, {"a": 1}, [[1]], _ABSENT]
_RECORD = "record {n} of the journal of run odd in {url} does not follow from those before it"
_FIRST = "run odd in {url} is not as Hopyard writes runs: the first record of its journal"
_NEXT = "Restore the journal from a copy, or begin the run anew with fresh=True."
_MEND = "Restore its journal from a copy, or delete the run."
KINDS = ["run", "session", "trial", "train", "validate", "end", "failed", "control", "extend", "finish"]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[JournalRecord]:
    """Those of a run of three trials that a user paused and extended."""
    store = LocalStore(tmp_path_factory.mktemp("few"))
    search(store, [0.1]).fit(rows())
    found = list(read_records(store.runs.at(RUN)))
    clock, settings = found[-1]["seconds"], found[0]["settings"]
    control = {"r": "control", "c": 1, "do": "pause", "z": clock}
    extend = {"r": "extend", "num_models": None, "num_epochs": 2, "settings": settings}
    return [*found[:-1], control, extend, found[-1]]


def _kind(record: JournalRecord) -> str:
    if record["r"] == "end" and record.get("error"):
        return "failed"
    return str(record.get("ph", record["r"]))


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of all fields in a record."""
    items = (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    )
    for name, each in items:
        yield (*path, name)
        yield from _paths(each, (*path, name))


def _changed(record: JournalRecord, path: tuple[Any, ...], value: Any) -> JournalRecord:
    found = copy.deepcopy(record)
    inner: Any = found
    for name in path[:-1]:
        inner = inner[name]
    if value is _ABSENT:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return found


def _written(store: Store, records: list[JournalRecord], run_id: str = RUN) -> None:
    Segments(store.runs.at(run_id)).append("".join(f"{json.dumps(each)}\n" for each in records).encode())


def _compared(store: Store, other: Store) -> None:
    encoded(compared_json(compared_rows([open_run(other, RUN), open_run(store, RUN)])))


def _listed(store: Store, _: Store) -> None:
    encoded(summary_json(RUN, summary(store, RUN)))


def _described(store: Store, _: Store) -> None:
    encoded(run_json(*looked_at(store.runs.at(RUN), RUN)))


def _watched(store: Store, _: Store) -> None:
    run = WatchedRun(store, RUN, 0.0)
    run.refresh()
    encoded([listed_json(0, RUN, run), described_json(run), changes_json(run, 0, {})])


@pytest.mark.long
@pytest.mark.parametrize("kind", sample("odd-records", KINDS, quick=2, ci=5))
@pytest.mark.parametrize("look", [_compared, _listed, _described, _watched])
def test_whatever_a_field_of_a_record_is_no_reader_fails_without_words(
    kind: str, look: Callable[[Store, Store], None], records: list[JournalRecord]
) -> None:
    at = max(number for number, record in enumerate(records) if _kind(record) == kind)
    other, refused, left = MemoryStore(), list[str](), records[at + 1 : None if kind == "finish" else -1]
    _written(other, records)
    for path in _paths(records[at]):
        for value in ODD:
            store = MemoryStore()
            _written(store, [*records[:at], _changed(records[at], path, value), *left])
            try:
                look(store, other)
            except StorageError as error:
                refused.append(str(error))
    assert refused or look is _listed
    assert all(f"run {RUN} in " in said or "the journal " in said for said in refused)


@pytest.mark.parametrize(
    ("kind", "path", "value", "text"),
    [
        ("trial", ("params",), 7, f"{_RECORD} (TypeError('params are an object, not 7')). {_NEXT}"),
        ("train", ("t",), [77], f"{_RECORD} (KeyError(77)). {_NEXT}"),
        ("validate", ("m", 0, "values", "accuracy"), "good", f"{_RECORD} (TypeError("),
        ("failed", ("error", "kind"), _ABSENT, f"{_RECORD} (TypeError("),
        ("extend", ("settings",), {}, f"{_RECORD} (ValueError('the settings of an extension are those of the run,"),
        ("finish", ("status",), 3, f"{_RECORD} (TypeError('a status is a word, not 3')). {_NEXT}"),
        ("run", ("created",), "today", f"{_FIRST} has 'today' as created, which is a time in seconds since 1970. "),
        ("run", ("settings", "data"), _ABSENT, f"{_FIRST} has no settings.data, which is there in every run. {_MEND}"),
        ("run", ("passes",), 7, f"{_FIRST} has '7' as passes, which is an object with batches, round_batches, "),
        ("run", ("passes",), {"visits": 2}, "each a whole number above 0. Restore its journal from a copy"),
        ("run", ("format", "flags"), 7, "run odd in {url} has no readable format header: "),
    ],
    ids=lambda value: str(value)[:12],
)  # fmt: skip
def test_a_record_of_another_shape_is_told_by_compare(
    kind: str, path: tuple[Any, ...], value: Any, text: str,
    records: list[JournalRecord], serve: Any, tmp_path: Path,
) -> None:  # fmt: skip
    store = LocalStore(tmp_path)
    at = max(number for number, record in enumerate(records) if _kind(record) == kind)
    _written(store, records)
    _written(store, [*records[:at], _changed(records[at], path, value), *records[at + 1 :]], "odd")
    said = text.format(n=at + 1, url=store.runs.at("odd").url)
    with serve([str(tmp_path)]) as client:
        found = client.get(f"/api/runs/compare?run=0/{RUN}&run=0/odd")
        assert (found.status, said in found.error) == (503, True), found.body
        assert len(client.get(f"/api/runs/compare?run=0/{RUN}").json) == 1
    typed = CliRunner().invoke(app, ["run", "compare", str(tmp_path), RUN, "odd"])
    assert said in str(typed.exception)
    assert isinstance(typed.exception, StorageError)


def test_what_only_lists_read_of_an_end_is_looked_at(records: list[JournalRecord], tmp_path: Path) -> None:
    _written(LocalStore(tmp_path), records)
    _written(LocalStore(tmp_path), [*records[:-1], records[-1] | {"best": "good"}], "odd")
    listed = CliRunner().invoke(app, ["run", "list", str(tmp_path), "--json"])
    first, odd = sorted(json.loads(listed.stdout), key=lambda row: str(row["run"]))
    assert (first["run"], first["status"]) == (RUN, "completed")
    assert odd["error"].endswith(
        "the last record of its journal has 'good' as best, which is a number or null. Restore its journal from a "
        "copy, or delete the run."
    )
