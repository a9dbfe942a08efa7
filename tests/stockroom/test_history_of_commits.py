"""Branches, merges of every shape, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.long.stockroom.conftest import own_configuration as own_configuration
from tests.long.stockroom.conftest import stock as stock
from tests.long.stockroom.model import content

from hopyard import StockRoom
from hopyard.errors import ConflictError, FormatError, NotFoundError, UsageError
from hopyard.storage.format import format_header, root_format


def write(stock: StockRoom, **columns: dict[Any, Any] | None) -> str:
    with stock.enable_write():
        for name, samples in columns.items():
            if samples is None:
                del stock.data[name]
            elif name in stock.data:
                for key, sample in samples.items():
                    if sample is None:
                        del stock.data[name][key]
                    else:
                        stock.data[name][key] = sample
            else:
                stock.data[name] = samples
    assert stock.head.commit is not None
    return stock.head.commit


@pytest.fixture
def forked(stock: StockRoom) -> StockRoom:
    """``main`` and ``dev`` are at one commit."""
    write(stock, x={0: 0, 1: 1, 2: 2})
    stock.branch("dev")
    return stock


def on(stock: StockRoom, branch: str, **columns: dict[Any, Any] | None) -> str:
    stock.switch(branch)
    return write(stock, **columns)


def test_a_second_init_and_a_clean_commit_are_refused(stock: StockRoom) -> None:
    with pytest.raises(UsageError, match="already"):
        StockRoom.init(stock.place.root)
    write(stock, x={0: 1})
    with StockRoom(stock.place.root, enable_write=True) as writer:
        with pytest.raises(UsageError, match="nothing has changed"):
            writer.commit("clean")
        writer.data["x"][0] = 2
        writer.data["x"][0] = 1
        with pytest.raises(UsageError, match="nothing has changed"):
            writer.commit("as it was")
        assert writer.status().staged == []
    assert len(stock.log()) == 1


def test_a_branch_from_any_commit_and_the_log(stock: StockRoom) -> None:
    commits = [write(stock, x={n: n}) for n in range(4)]
    stock.branch("old", commits[1])
    on(stock, "old", x={9: 9})
    assert list(stock.data["x"]) == [0, 1, 9]
    stock.merge("main")
    assert len(stock.log()[0].parents) == 2
    assert {*commits} < {one.digest for one in stock.log()}
    assert [one.digest for one in stock.log("main")] == commits[::-1]
    assert [one.digest for one in stock.log("main", limit=1)] == commits[-1:]


def test_deleting_branches(forked: StockRoom) -> None:
    tip = on(forked, "dev", x={5: 5})
    with pytest.raises(UsageError, match="cannot be deleted"):
        forked.delete_branch("dev")
    forked.switch("main")
    with pytest.raises(UsageError, match="no other branch or tag"):
        forked.delete_branch("dev")
    with pytest.raises(NotFoundError, match="dev"):
        forked.delete_branch("dve")
    forked.delete_branch("dev", force=True)
    assert list(forked.branches()) == ["main"]
    assert content(forked.at(tip))["data/x"] == {0: 0, 1: 1, 2: 2, 5: 5}


def test_reset_discards_what_is_staged_and_nothing_else(stock: StockRoom) -> None:
    first = write(stock, x={0: 0})
    second = write(stock, x={0: 5})
    with StockRoom(stock.place.root, enable_write=True) as writer:
        writer.data["x"][7] = 7
        writer.experiment["lr"] = 1
        assert writer.status().staged == [("data/x", "changed"), ("experiment/lr", "added")]
        writer.reset()
        assert content(writer) == {"data/x": {0: 5}}
        assert writer.head.commit == second
        writer.reset(first)
        assert content(writer) == {"data/x": {0: 0}}


def test_what_is_staged_is_not_left_behind(forked: StockRoom) -> None:
    on(forked, "dev", x={5: 5})
    forked.switch("main")
    with StockRoom(forked.place.root, enable_write=True) as writer:
        writer.data["x"][7] = 7
        for call in (
            lambda: writer.switch("dev"),
            lambda: writer.merge("dev"),
            lambda: writer.revert("HEAD"),
            lambda: writer.pull(forked.place.root),
        ):
            with pytest.raises(UsageError, match="staged"):
                call()
        assert writer.data["x"][7] == 7
        assert writer.head == forked.head


def test_fast_forward_and_three_ways(forked: StockRoom) -> None:
    tip = on(forked, "dev", x={5: 5})
    forked.switch("main")
    assert forked.merge("dev").how == "fast-forward"
    assert forked.head.commit == tip
    assert forked.merge("dev").how == "up to date"
    on(forked, "dev", x={6: 6}, y={"a": "b"})
    on(forked, "main", x={7: 7})
    assert forked.merge("dev").how == "merged"
    assert content(forked) == {"data/x": {0: 0, 1: 1, 2: 2, 5: 5, 6: 6, 7: 7}, "data/y": {"a": "b"}}


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        ({9: 1}, {9: 2}, "both added"),
        ({0: None}, {0: 2}, "removed here, changed there"),
        ({0: 1}, {0: None}, "changed here, removed there"),
        ({0: 1}, {0: 2}, "both changed"),
    ],
)
def test_each_kind_of_conflict_is_found_and_decided(
    forked: StockRoom, ours: dict[int, Any], theirs: dict[int, Any], kind: str
) -> None:
    on(forked, "dev", x={**theirs, 50: 50})
    before = on(forked, "main", x={**ours, 60: 60})
    ((key, here),) = ours.items()
    there = theirs[key]
    with pytest.raises(ConflictError, match=kind) as caught:
        forked.merge("dev")
    (conflict,) = caught.value.conflicts
    assert (conflict.path, conflict.key, conflict.kind) == ("data/x", key, kind)
    assert (conflict.ours, conflict.theirs) == (here, there)
    assert forked.head.commit == before
    for resolve, chosen in (("ours", here), ("theirs", there), (lambda _: 77, 77)):
        forked.merge("dev", resolve)  # type: ignore[arg-type]
        found = content(forked)["data/x"]
        assert found.get(key) == chosen
        assert (found[50], found[60]) == (50, 60)
        forked.reset(before)


@pytest.mark.parametrize("change", [{9: 1}, {0: None}, {0: 5}])
def test_what_both_did_alike_is_no_conflict(forked: StockRoom, change: dict[int, Any]) -> None:
    on(forked, "dev", x={**change, 50: 50})
    on(forked, "main", x={**change, 60: 60})
    forked.merge("dev")
    expected = {0: 0, 1: 1, 2: 2, 50: 50, 60: 60} | change
    assert content(forked)["data/x"] == {key: value for key, value in expected.items() if value is not None}


def test_a_column_removed_here_to_which_samples_were_added_there_is_a_conflict(forked: StockRoom) -> None:
    on(forked, "dev", x={5: 5})
    on(forked, "main", x=None, y={0: 0})
    with pytest.raises(ConflictError, match="column removed here, samples changed there"):
        forked.merge("dev")
    forked.merge("dev", "theirs")
    assert content(forked) == {"data/x": {0: 0, 1: 1, 2: 2, 5: 5}, "data/y": {0: 0}}


def test_criss_cross_merges_lose_nothing_and_hide_no_conflict(forked: StockRoom) -> None:
    on(forked, "dev", x={0: 20, 5: 5})
    on(forked, "main", x={0: 10, 6: 6})
    forked.branch("main-before")
    forked.merge("dev", "ours")
    forked.switch("dev")
    forked.merge("main-before", "ours")
    on(forked, "dev", x={7: 7})
    with pytest.raises(ConflictError) as caught:
        forked.merge("main")
    assert [conflict.key for conflict in caught.value.conflicts] == [0]
    forked.merge("main", "theirs")
    assert content(forked)["data/x"] == {0: 10, 1: 1, 2: 2, 5: 5, 6: 6, 7: 7}


def test_the_base_of_a_merge_does_not_depend_on_clocks(
    forked: StockRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dev's clock is a hundred years ahead; main is merged in between."""
    from hopyard.stockroom.history import commits

    class Ahead(commits.datetime):  # type: ignore[name-defined, misc]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return super().now(tz).replace(year=2126)

    with monkeypatch.context() as patch:
        patch.setattr(commits, "datetime", Ahead)
        on(forked, "dev", x={0: 100})
    on(forked, "main", x={5: 5})
    forked.merge("dev")
    on(forked, "main", x={0: 200})
    on(forked, "dev", x={6: 6})
    forked.switch("main")
    forked.merge("dev")
    assert content(forked)["data/x"] == {0: 200, 1: 1, 2: 2, 5: 5, 6: 6}


def test_beginnings_of_digests(stock: StockRoom) -> None:
    digest = write(stock, x={0: 0})
    assert stock.resolve(digest[:7]) == digest
    other = f"{int(digest[:8], 16) ^ 1:08x}"
    for wrong in (other, "7777" if not digest.startswith("7777") else "8888", "nothing", "HEAD~7", "HEAD^2"):
        with pytest.raises(NotFoundError):
            stock.resolve(wrong)
    for wrong in ("", "a" * 3, "~", "main..dev"):
        with pytest.raises((UsageError, NotFoundError)):
            stock.resolve(wrong)


def test_revert_and_reverting_it_again(stock: StockRoom) -> None:
    write(stock, x={0: 0, 1: 1})
    write(stock, x={0: 5, 1: None, 2: 2}, y={0: "a"})
    write(stock, x={7: 7})
    stock.revert("HEAD~1")
    assert content(stock) == {"data/x": {0: 0, 1: 1, 7: 7}}
    with pytest.raises(UsageError, match="is left to be undone"):
        stock.revert("HEAD~2")
    assert len(stock.log()) == 4
    stock.revert("HEAD")
    assert content(stock) == {"data/x": {0: 5, 2: 2, 7: 7}, "data/y": {0: "a"}}


def test_differences_between_any_two_revisions(forked: StockRoom) -> None:
    on(forked, "dev", x={0: 5, 1: None, 9: 9})
    forked.tag("v1")
    tip = forked.head.commit
    for a in ("main", forked.resolve("main")):
        for b in ("dev", "v1", "HEAD", str(tip), str(tip)[:10]):
            (found,) = forked.diff(a, b)
            assert (found.path, found.how) == ("data/x", "changed")
            assert dict(found.samples()) == {0: "changed", 1: "removed", 9: "added"}
    assert not list(forked.diff("dev", "v1"))


def test_many_readers_beside_a_writer(stock: StockRoom) -> None:
    """What is open stays what it was; closing one changes nothing for others; what is closed says so."""
    write(stock, x={0: 0})
    readers = [StockRoom(stock.place.root) for _ in range(3)]
    column = readers[0].data["x"]
    write(stock, x={0: 1})
    readers[0].close()
    readers[0].close()
    assert column[0] == 0
    assert [reader.data["x"][0] for reader in readers[1:]] == [0, 0]
    with StockRoom(stock.place.root) as late:
        assert late.data["x"][0] == 1
    with pytest.raises(UsageError, match="closed"):
        readers[0].commit("x")
    for reader in readers:
        reader.close()


def test_what_was_taken_in_a_block_is_closed_after_it(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.data["x"] = {0: 0}
        column = stock.data["x"]
    with pytest.raises(UsageError, match="its writing has ended"):
        column[1] = 1
    with pytest.raises(UsageError, match="enable_write"):
        stock.data["x"] = {0: 1}
    with pytest.raises(UsageError, match="enable_write"):
        stock.commit("reader")


def test_a_missing_branch_leaves_all_as_it_was(stock: StockRoom) -> None:
    write(stock, x={0: 0})
    for call in (stock.switch, stock.merge, stock.branch, stock.revert):
        with pytest.raises((NotFoundError, UsageError)):
            call("no such" if call == stock.branch else "missing")
    write(stock, x={0: 1})


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_a_block_undoes_it_and_the_next_one_commits(
    stock: StockRoom, error: type[BaseException]
) -> None:
    first = write(stock, x={0: 0})

    def fail() -> None:
        with stock.enable_write():
            stock.data["x"][1] = 1
            stock.data["y"] = np.arange(5000)
            stock.model["m"] = {"w": np.ones(3)}
            raise error

    with pytest.raises(error):
        fail()
    assert content(stock) == {"data/x": {0: 0}}
    assert stock.status().staged == []
    assert stock.head.commit == first
    write(stock, x={2: 2})
    assert content(stock) == {"data/x": {0: 0, 2: 2}}


def test_each_commit_has_its_own_time_and_whole_message(stock: StockRoom) -> None:
    write(stock, x={0: 0})
    write(stock, x={0: 1})
    with StockRoom(stock.place.root, enable_write=True) as writer:
        writer.experiment["a"] = 1
        writer.commit("a\nb ü")
        commits = writer.log()
    assert len({one.time for one in commits}) == 3
    assert commits[0].message == "a\nb ü"
    assert commits[-1].message == "data/x added"


def test_two_roots_are_no_damage(stock: StockRoom, tmp_path: Path) -> None:
    write(stock, x={0: 0})
    with StockRoom.init(tmp_path / "other") as other:
        write(other, y={0: "a"})
        stock.fetch(other.place.objects)
    stock.merge("origin/main")
    assert content(stock) == {"data/x": {0: 0}, "data/y": {0: "a"}}
    assert len(stock.log()) == 3


def test_a_newer_repository_is_refused(stock: StockRoom) -> None:
    file = stock.place.objects / "FORMAT"
    for newer in (format_header("stockroom", 99), format_header("stockroom", flags=["from-the-future"])):
        file.write_bytes(root_format(newer))
        with pytest.raises(FormatError, match=r"99|from-the-future"):
            StockRoom(stock.place.root)
