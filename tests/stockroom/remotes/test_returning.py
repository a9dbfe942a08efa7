"""Samples that come back after they were purged, with a neighbour that somebody changed before he heard of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stockroom.maintenance.histories import holds

from hopyard import StockRoom
from hopyard.errors import BehindError
from hopyard.stockroom.history.commits import read_commit
from hopyard.stockroom.maps import SortedMap
from hopyard.stockroom.records import ColumnRecord
from hopyard.stockroom.remotes import Brought, Fetched
from hopyard.stockroom.remotes import returning as module
from hopyard.stockroom.views.view import Snapshot

AGAIN = (
    r"^1 sample of 'c' that .* purged on \d{4}-\S+ \(asked\) is in commits again: 2\. .*nothing here can tell which\. "
    r"If it must go, purge again: stock\.purge\('c', \[2\], why=\.\.\.\), or hopyard stock purge\.$"
)


@pytest.fixture
def ada(tmp_path: Path) -> Iterator[StockRoom]:
    with StockRoom.init(tmp_path / "ada") as ada:
        with ada.enable_write("samples"):
            ada.data["c"] = {key: f"SECRET{key}" for key in range(5)}
            ada.data["d"] = {2: "another column"}
        ada.push(tmp_path / "remote")
        yield ada


@pytest.fixture
def bob(ada: StockRoom, tmp_path: Path) -> Iterator[StockRoom]:
    """Has changed a neighbour and pushed that; then Ada, who has not heard of it, purged the sample 2."""
    with StockRoom.clone(tmp_path / "remote", tmp_path / "bob") as bob:
        with bob.enable_write("a neighbour"):
            bob.data["c"][3] = "new"
        bob.push()
        ada.purge("c", 2, "asked")
        yield bob


def told(found: Fetched | Brought) -> list[str]:
    return list(map(str, found.purges.returned if isinstance(found, Fetched) else found.returned))


@pytest.mark.parametrize("call", ["fetch", "pull"])
def test_a_purged_sample_that_comes_back_with_a_neighbour_is_told(
    ada: StockRoom, bob: StockRoom, call: str, tmp_path: Path
) -> None:
    assert ada.verify().returned == []
    with pytest.raises(BehindError):
        ada.push()
    pulled = ada.pull() if call == "pull" else None
    fetched = ada.fetch() if pulled is None else pulled.fetched
    (line,) = told(fetched)
    assert line in str(fetched)
    assert pulled is None or line in str(pulled)
    (again,) = fetched.purges.returned
    assert (again.column, again.keys, again.why) == ("c", [2], "asked")
    if pulled is None:
        ada.merge("origin/main")
    # It came with commits once; who brings data of them, and verify, tell it as long as it is so.
    assert told(ada.fetch()) == []
    assert told(ada.fetch(data=["c"])) == [line]
    verified = ada.verify()
    assert verified.ok
    assert list(map(str, verified.returned)) == [line]
    assert line in str(verified)
    assert line in repr(verified)
    assert ada.data["c"][2] == "SECRET2"
    ada.purge("c", 2, "asked")
    ada.push()
    assert ada.verify().returned == []
    assert holds(tmp_path / "ada", b"SECRET2") == holds(tmp_path / "remote", b"SECRET2") == []


def test_the_line_says_what_it_is_and_what_to_do(ada: StockRoom, bob: StockRoom) -> None:
    (line,) = told(ada.fetch(branches=["main"]))
    assert re.search(AGAIN, line)


def test_a_sample_that_only_history_has_again_is_told(ada: StockRoom, bob: StockRoom) -> None:
    with bob.enable_write("gone again"):
        del bob.data["c"]
    bob.push()
    fetched = ada.fetch()
    assert isinstance(fetched, Fetched)
    assert [one.keys for one in fetched.purges.returned] == [[2]]
    assert told(ada.fetch(data=["c"], history=True, revision="origin/main"))
    assert [one.keys for one in ada.verify().returned] == [[2]]


def test_a_sample_that_was_deleted_beside_the_change_has_not_come_back(
    ada: StockRoom, bob: StockRoom
) -> None:
    with bob.enable_write("without"):
        del bob.data["c"][4]
        bob.data["d"][2] = "of the other column"
    bob.push()
    ada.pull()
    with StockRoom.clone(ada.remotes()["origin"], bob.place.root.parent / "carl") as carl:
        with carl.enable_write("without"):
            del carl.data["c"][2]
            carl.data["c"][0] = "zero"
        ada.purge("c", 2, "asked")
        carl.push()
        assert told(ada.fetch()) == []


def test_what_the_purger_adds_again_is_a_remark_of_verify_and_not_told_by_fetches(
    ada: StockRoom, tmp_path: Path
) -> None:
    ada.purge("c", 2, "asked")
    with ada.enable_write("with consent"):
        ada.data["c"][2] = "given again"
    ada.push()
    assert told(ada.fetch()) == []
    with StockRoom.clone(tmp_path / "remote", tmp_path / "bob", accept_purges=True) as bob:
        with bob.enable_write("a neighbour of it"):
            bob.data["c"][1] = "new"
        bob.push()
    assert told(ada.fetch()) == []
    ada.pull()
    verified = ada.verify()
    assert verified.ok
    assert verified.problems == []
    assert [one.keys for one in verified.returned] == [[2]]


def test_who_accepts_a_purge_is_told_of_copies_that_cannot_be_compared(
    ada: StockRoom, bob: StockRoom, tmp_path: Path
) -> None:
    with StockRoom.clone(tmp_path / "remote", tmp_path / "carl") as carl:  # has no data yet
        with pytest.raises(BehindError):
            ada.push()
        ada.push(branches={"main": "purged"})
        fetched = carl.fetch(accept_purges=True)
        assert isinstance(fetched, Fetched)
        assert fetched.purges.accepted
        assert [one.keys for one in fetched.purges.returned] == [[2]]


def test_fragments_beyond_the_bound_are_counted_and_not_read(
    ada: StockRoom, bob: StockRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bob.enable_write("a gap"):
        bob.data["c"][9] = "new"
    bob.push()
    monkeypatch.setattr(module, "LOOKED", 0)
    fetched = ada.fetch()
    assert isinstance(fetched, Fetched)
    # Of the keys 0 to 4 in one fragment of five samples the map alone tells that 2 is there.
    assert [one.keys for one in fetched.purges.returned] == [[2]]
    assert fetched.purges.unseen == 2
    assert "whether purged samples are also in 2 fragments of the commits that came was not looked at" in str(
        fetched
    )


def test_without_purges_no_column_is_looked_at(ada: StockRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SortedMap, "get", None)
    look = module.Returning({}, ada.local.objects)
    assert ada.head.commit is not None
    assert look.versions([ada.head.commit]) == {}


def test_copies_that_a_block_replaced_itself_go_when_a_purge_is_accepted(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path / "own") as own:
        with own.enable_write("samples"):
            own.data["c"] = {key: f"SECRET{key}" for key in range(5)}
        own.push(tmp_path / "remote")
        with StockRoom.clone(tmp_path / "remote", tmp_path / "clone") as clone:
            clone.fetch(data=True)
            with clone.enable_write("replaced"):
                for first in range(10, 20_000, 5_000):
                    clone.data["c"].update({first + at: f"new {at}" for at in range(5_000)})
                    assert len(clone.data["c"]) > 5  # what it was until then is stored
            own.purge("c", 2, "asked")
            own.push()
            assert holds(tmp_path / "clone", b"SECRET2")
            found = clone.fetch(accept_purges=True)
            assert isinstance(found, Fetched)
            assert found.purges.accepted
            assert found.purges.kept == ""
            assert holds(tmp_path / "clone", b"SECRET2") == []


def test_a_purge_is_accepted_and_says_so_if_what_nothing_needs_cannot_be_deleted(
    tmp_path: Path, ada: StockRoom
) -> None:
    with StockRoom.clone(tmp_path / "remote", tmp_path / "bob") as bob:
        bob.fetch(data=True)
        ada.purge("c", 2, "asked")
        ada.push()
        assert bob.head.commit is not None
        objects = bob.local.objects
        record = Snapshot(objects, read_commit(objects, bob.head.commit).root, "").record("data", "d")
        assert isinstance(record, ColumnRecord)
        assert record.pages is not None
        place = objects.locate(record.pages)
        packfile = tmp_path / "bob/.hopyard" / place.packfile
        damaged = bytearray(packfile.read_bytes())
        damaged[place.start] ^= 1
        packfile.chmod(0o644)
        packfile.write_bytes(damaged)
        found = bob.fetch(accept_purges=True)
        assert isinstance(found, Fetched)
        assert found.purges.accepted
        assert found.purges.kept.startswith("not everything in ")
        assert "may still be in the stockroom's files: " in str(found)
        assert str(found).rstrip().count("hopyard stock gc") == 1
