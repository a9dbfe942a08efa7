"""A remote that may change anything which it stores: what is read under a commit is what was committed, or an error."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stockroom.maintenance.histories import begun, reopened
from tests.stockroom.maintenance.purges import readable
from tests.stockroom.remotes.lies import RECORD, column, fragment, lazy, lie, pushed, read_from
from tests.stockroom.remotes.repositories import at, commit, samples, tip
from typer.testing import CliRunner

from hopyard import StockRoom
from hopyard.cli import app
from hopyard.errors import CorruptError, NotFoundError, StorageError
from hopyard.stockroom.data.repacking import bury_samples
from hopyard.stockroom.maintenance import gc, purge, verify
from hopyard.stockroom.packfiles.tombstones import FOLDER, Purged, Tombstone
from hopyard.stockroom.remotes import Fetched, OnDemand, Repository, fetch, push
from hopyard.storage import LocalStore


@pytest.mark.parametrize("accept", [False, True])
def test_what_is_here_is_not_replaced_by_what_a_remote_says(tmp_path: Path, accept: bool) -> None:
    repository, remote, made = pushed(tmp_path)
    expected = readable(column(repository, made))
    tombstone = lie(tmp_path / "remote", fragment(repository, made))
    told = fetch(repository, remote, accept_purges=accept).purges
    assert (told.claimed, told.accepted) == ([], [])
    (reason,) = told.refused.values()
    assert f"{tombstone.name} says that 1 sample of 'image' was purged by Mallory on 2026-01-01" in reason
    assert (
        "but what stands in is not the fragment without the samples that it names. Nothing changed here"
        in reason
    )
    assert readable(column(reopened(repository), made)) == expected
    assert next(repository.store.list(FOLDER), None) is None
    assert not verify(reopened(repository)).problems
    there = verify(at(tmp_path / "remote", index=False)).problems
    assert any(one.name == tombstone.name and "it is not true" in one.reason for one in there)
    gc(at(tmp_path / "remote", index=False))
    assert at(tmp_path / "remote", index=False).objects.packed([tombstone.object])


def test_a_fresh_clone_reads_no_stand_in_that_nobody_accepted(tmp_path: Path) -> None:
    repository, remote, made = pushed(tmp_path)
    name = fragment(repository, made)
    (tmp_path / "remote" / remote.objects.locate(name).packfile).unlink()
    lie(tmp_path / "remote", name)
    clone = lazy(tmp_path / "clone", at(tmp_path / "remote", "origin", index=False))
    assert [one.object for one in fetch(clone, remote).purges.claimed] == [name]
    with pytest.raises(NotFoundError, match=r"was purged by Mallory .* That was not accepted here"):
        readable(column(clone, made))


def test_a_stand_in_has_the_keys_and_the_kind_of_the_column(tmp_path: Path) -> None:
    repository = begun(tmp_path / "own")
    made = commit(repository, image=samples(5))  # the lie has four
    remote = at(tmp_path / "remote", "origin", index=False)
    push(repository, remote, ["main"])
    name = fragment(repository, made)
    (tmp_path / "remote" / remote.objects.locate(name).packfile).unlink()
    lie(tmp_path / "remote", name)
    clone = begun(tmp_path / "clone")
    told = fetch(clone, at(tmp_path / "remote", "origin", index=False), accept_purges=True).purges
    assert "what stands in has other keys than the column" in next(iter(told.refused.values()))
    assert next(clone.store.list(FOLDER), None) is None


def test_an_accepted_claim_is_made_from_what_is_here(tmp_path: Path) -> None:
    repository, remote, made = pushed(tmp_path)
    name, expected = fragment(repository, made), readable(column(repository, made))
    clone = lazy(tmp_path / "clone", remote)
    fetch(clone, remote)
    readable(column(clone, made))
    purge(repository, "image", 1, "asked", "Ada")
    push(repository, remote, ["main"])
    assert fetch(clone, remote, accept_purges=True).purges.accepted
    # A claim of more samples, whose stand-in has other values: further samples go, and the others stay.
    more = (*RECORD, Purged(1, "2026-01-01T00:00:00+00:00", "Mallory", "because"))
    lie(tmp_path / "remote", name, more)
    assert fetch(clone, remote, accept_purges=True).purges.accepted
    assert readable(column(reopened(clone), made)) == expected | {0: None, 1: None}
    assert not verify(reopened(clone)).problems


def test_an_honest_purge_of_fragments_that_are_not_here_is_accepted_at_once(tmp_path: Path) -> None:
    repository, _, made = pushed(tmp_path)
    commit(repository, image=samples(1, 9))
    remote = at(tmp_path / "remote", "origin")  # which remembers what its packfiles held
    push(repository, at(tmp_path / "remote", "origin", index=False), ["main"])
    clone = begun(tmp_path / "clone")
    fetch(clone, remote)
    assert remote.objects.has(fragment(repository, made))
    purge(repository, "image", 1, "asked", "Ada")
    push(repository, at(tmp_path / "remote", "origin", index=False), ["main"])
    told = fetch(clone, remote, accept_purges=True).purges
    assert (told.refused, told.undecided, told.claimed, len(told.accepted)) == ({}, {}, [], 2)
    assert fetch(clone, remote).purges.claimed == []
    lazily = Repository.at(clone.store, absent=OnDemand(clone, [remote]))
    assert readable(column(lazily, made)) == readable(column(repository, made))


def test_a_read_of_what_was_purged_meanwhile_says_how_to_accept_that(tmp_path: Path) -> None:
    repository, _, made = pushed(tmp_path)
    remote = at(tmp_path / "remote", "origin")
    clone = begun(tmp_path / "clone")
    fetch(clone, remote)
    assert remote.objects.has(fragment(repository, made))
    purge(repository, "image", 1, "asked", "Ada")
    push(repository, at(tmp_path / "remote", "origin", index=False), ["main"])
    lazily = Repository.at(clone.store, absent=OnDemand(clone, [remote]))
    with pytest.raises(
        NotFoundError, match=r"was purged by Ada .* hopyard stock fetch origin --accept-purges"
    ):
        readable(column(lazily, made))
    assert 1 in column(lazily, made)  # history says so, and no sample is read for that
    assert 4 not in column(lazily, made)


def test_a_purge_of_a_branch_that_was_never_pushed_concerns_nobody_else(tmp_path: Path) -> None:
    repository, remote, made = pushed(tmp_path)
    clone = lazy(tmp_path / "clone", remote)
    fetch(clone, remote)
    assert readable(column(clone, made))
    repository.references.set("heads/dev", tip(repository), "Ada")
    commit(repository, branch="dev", image=samples(1, 9))
    purge(repository, "image", 1, "asked", "Ada")
    push(repository, remote, ["main"])
    assert len(list(remote.store.list(FOLDER))) == 2
    told = fetch(clone, remote, accept_purges=True).purges
    assert (told.refused, told.undecided, told.claimed, len(told.accepted)) == ({}, {}, [], 1)
    assert readable(column(reopened(clone), made)) == readable(column(repository, made))
    push(repository, remote, ["dev"])
    assert len(fetch(clone, remote, accept_purges=True).purges.accepted) == 1


def test_what_cannot_be_compared_accuses_nobody(tmp_path: Path) -> None:
    repository, remote, _ = pushed(tmp_path)
    purge(repository, "image", 1, "asked", "Ada")
    push(repository, remote, ["main"])
    for entry in list(remote.store.list("packfiles")):
        if "data-" in entry.name:
            remote.store.delete(entry.name)
    clone = begun(tmp_path / "clone")
    told = fetch(clone, at(tmp_path / "remote", "origin", index=False), accept_purges=True).purges
    assert (told.refused, told.accepted) == ({}, [])
    (reason,) = told.undecided.values()
    url = remote.store.url
    assert "1 sample of 'image' was purged by Ada on " in reason
    assert (
        f"That cannot be compared now: what is left of the fragment is neither here nor at {url}. Nothing changed "
        "here because of it. When that is mended, fetch again." in reason
    )
    assert f"not purged here yet: {reason}" in told.lines()


def test_status_says_of_a_purge_that_waits_to_be_accepted(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path / "own") as own:
        with own.enable_write("samples"):
            own.data["image"] = np.zeros((4, 8), np.uint8)
        own.push(tmp_path / "remote")
        with StockRoom.clone(tmp_path / "remote", tmp_path / "older") as older:
            told = str(own.purge("image", key=1, why="asked"))
            assert "buckets that were pushed to by address only may have them, too: push there" in told
            own.push()
            assert "purged" not in str(older.status())
            older.pull()
            assert "origin says that samples were purged, which was not accepted here" in str(older.status())
        with StockRoom.clone(tmp_path / "remote", tmp_path / "newer") as newer:
            (line,) = [line for line in newer.status().advice if "purged" in line]
            assert line.endswith("hopyard stock fetch origin --accept-purges purges them here too, for good")
            assert (0 in newer.data["image"], 4 in newer.data["image"]) == (True, False)
            newer.fetch(accept_purges=True)
            assert "purged" not in str(newer.status())
            assert (0 in newer.data["image"], 1 in newer.data["image"]) == (True, False)


def accepted_on_a_word(folder: Path, is_a_lie: bool) -> tuple[Repository, Repository, str, Repository]:
    """A clone that accepted a purge of the sample 0 without the fragment; the remote, the commit; and a remote that has
    the fragment as it was."""
    repository, remote, made = pushed(folder)
    push(repository, at(folder / "backup", "backup", index=False), ["main"])
    if is_a_lie:
        (folder / "remote" / remote.objects.locate(fragment(repository, made)).packfile).unlink()
        lie(folder / "remote", fragment(repository, made))
    else:
        purge(repository, "image", 0, "because", "Mallory")
        push(repository, remote, ["main"])
    clone = begun(folder / "clone")
    told = fetch(clone, at(folder / "remote", "origin", index=False), accept_purges=True).purges
    assert [one.column for one in told.unproven] == ["image"]
    assert any(
        line.startswith(
            "the samples beside those, in 1 fragment, rest on the remote's word: neither it nor this"
        )
        for line in told.lines()
    )
    return clone, remote, made, at(folder / "backup", "backup", index=False)


@pytest.mark.parametrize("is_a_lie", [False, True])
def test_verify_names_the_samples_that_rest_on_a_remotes_word(tmp_path: Path, is_a_lie: bool) -> None:
    clone, remote, _, _ = accepted_on_a_word(tmp_path, is_a_lie)
    found = verify(reopened(clone))
    assert found.ok
    (one,) = found.unproven
    assert (one.column, one.keys, one.remote, one.by, one.why) == (
        "image", [1, 2, 3], remote.store.url, "Mallory", "because",
    )  # fmt: skip
    text = str(found)
    assert (
        f"3 samples of 'image' (1, 2, 3) rest on the word of {remote.store.url}: they lay together with"
        in text
    )
    assert "what Mallory purged on 20" in text
    assert "nothing here can prove that they are as committed" in text
    assert "hopyard stock fetch FOLDER_OR_URL compares with it" in text
    gc(clone)
    assert verify(reopened(clone)).unproven == [one]


def test_what_was_accepted_on_a_word_is_proved_by_who_has_the_fragment(tmp_path: Path) -> None:
    clone, remote, made, backup = accepted_on_a_word(tmp_path, is_a_lie=False)
    before = readable(column(clone, made))
    assert fetch(clone, remote).purges.proved == []  # it has not what it takes
    told = fetch(clone, backup).purges
    assert ([one.column for one in told.proved], told.disproved) == (["image"], {})
    assert (
        "proved by this remote, which has the fragment: 1 sample of 'image' was purged by Mallory"
        in told.lines()[0]
    )
    assert verify(reopened(clone)).unproven == []
    assert readable(column(reopened(clone), made)) == before
    assert fetch(clone, backup).purges.proved == []


@pytest.mark.parametrize("way", ["fetch", "verify"])
def test_a_lie_that_was_accepted_is_undone_by_who_has_the_fragment(tmp_path: Path, way: str) -> None:
    clone, remote, made, backup = accepted_on_a_word(tmp_path, is_a_lie=True)
    own = at(tmp_path / "own")
    true = readable(column(own, made)) | {0: None}
    assert readable(column(clone, made)) != true
    if way == "fetch":
        (told,) = fetch(clone, backup).purges.disproved.values()
    else:
        found = verify(clone, repair_from=backup)
        (told,) = [one.reason for one in found.problems]
        assert found.ok
    assert told.startswith(f"{remote.store.url} said that 1 sample of 'image' was purged by Mallory")
    assert f"but {backup.store.url} has the fragment, and what was read instead was not that" in told
    assert "The other samples are read as they were committed from now on." in told
    assert readable(column(reopened(clone), made)) == true
    after = verify(reopened(clone))
    assert (after.problems, after.unproven) == ([], [])
    assert fetch(clone, remote, accept_purges=True).purges.accepted == []  # which still has the lie
    assert readable(column(reopened(clone), made)) == true


def test_a_lie_about_samples_that_there_are_not_is_undone_whole(tmp_path: Path) -> None:
    repository = begun(tmp_path / "own")
    made = commit(repository, image={key: np.full(8, key, np.uint8) for key in (0, 2, 3, 5)})
    remote, backup = (at(tmp_path / name, name, index=False) for name in ("remote", "backup"))
    for each in (remote, backup):
        push(repository, each, ["main"])
    true, name = readable(column(repository, made)), fragment(repository, made)
    # As many samples, with the same ends; the one that was purged was never there.
    other = begun(tmp_path / "other")
    wrong = commit(other, image={key: np.full(8, 9, np.uint8) for key in (0, 1, 3, 5)})
    record = (Purged(1, "2026-01-01T00:00:00+00:00", "Mallory", "because"),)
    instead = bury_samples(other.objects, fragment(other, wrong), "image", record).instead
    (tmp_path / "remote" / remote.objects.locate(name).packfile).unlink()
    for entry in other.store.list("packfiles"):
        remote.store.put(entry.name, other.store.get(entry.name))
    tombstone = Tombstone(name, instead, "image", record)
    remote.store.put(tombstone.name, tombstone.encode())
    clone = begun(tmp_path / "clone")
    assert fetch(clone, at(tmp_path / "remote", "remote", index=False), accept_purges=True).purges.accepted
    assert list(fetch(clone, backup).purges.disproved) == [tombstone.name]
    assert readable(column(reopened(clone), made)) == true
    assert next(clone.store.list(FOLDER), None) is None
    assert verify(reopened(clone)).ok


def test_who_is_killed_while_a_lie_is_undone_undoes_it_with_the_next_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, _, made, backup = accepted_on_a_word(tmp_path, is_a_lie=True)
    delete = LocalStore.delete

    def killed(store: LocalStore, name: str) -> None:
        if name.startswith(FOLDER):
            raise KeyboardInterrupt
        delete(store, name)

    monkeypatch.setattr(LocalStore, "delete", killed)
    with pytest.raises(KeyboardInterrupt):
        fetch(clone, backup)
    monkeypatch.undo()
    assert verify(reopened(clone)).unproven
    assert len(fetch(clone, backup).purges.disproved) == 1
    assert readable(column(reopened(clone), made)) == readable(column(at(tmp_path / "own"), made)) | {0: None}
    after = verify(reopened(clone))
    assert (after.problems, after.unproven) == ([], [])


def test_a_purge_that_was_proved_here_rests_on_nobodys_word(tmp_path: Path) -> None:
    repository, remote, made = pushed(tmp_path)
    clone = lazy(tmp_path / "clone", remote)
    read_from(clone, remote, made)
    purge(repository, "image", 1, "asked", "Ada")
    push(repository, remote, ["main"])
    told = fetch(clone, remote, accept_purges=True).purges
    assert (len(told.accepted), told.unproven) == (1, [])
    for each in (clone, repository):
        assert verify(reopened(each)).unproven == []


def test_the_word_is_named_before_it_is_taken_and_in_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StockRoom.init(tmp_path / "own") as own:
        with own.enable_write("samples"):
            own.data["image"] = np.zeros((4, 8), np.uint8)
        own.push(tmp_path / "backup")
        own.push(tmp_path / "remote", name="other")
        own.purge("image", key=1, why="asked")
        own.push("other")
    with StockRoom.clone(tmp_path / "remote", tmp_path / "clone") as clone:
        told = clone.fetch()
        assert isinstance(told, Fetched)
        (line,) = [line for line in told.purges.lines() if line.startswith("the samples beside those")]
        assert "would then rest on the remote's word" in line
        assert line in repr(told.purges)
        with pytest.raises(
            NotFoundError, match=r"That the other samples are unchanged is then that remote's word"
        ):
            clone.data["image"][0]
    monkeypatch.chdir(tmp_path / "clone")
    run = CliRunner()
    assert "rest on the remote's word" in unwrapped(
        run.invoke(app, ["stock", "fetch", "--accept-purges"]).output
    )
    verified = run.invoke(app, ["stock", "verify"])
    assert verified.exit_code == 0
    assert "3 samples of 'image' (0, 2, 3) rest on the word of" in unwrapped(verified.output)
    fetched = run.invoke(app, ["stock", "fetch", str(tmp_path / "backup")])
    assert "proved by this remote, which has the fragment: 1 sample" in unwrapped(fetched.output)
    assert "rest on the word" not in unwrapped(run.invoke(app, ["stock", "verify"]).output)


def test_what_fetch_and_pull_return_reads_as_lines_and_escapes_what_others_wrote(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path / "own") as own:
        with own.enable_write("samples"):
            own.data["image"] = np.zeros((4, 8), np.uint8)
        own.push(tmp_path / "remote")
        with StockRoom.clone(tmp_path / "remote", tmp_path / "clone") as clone:
            with own.enable_write("more"):
                own.data["image"].append(np.zeros(8, np.uint8))
            own.purge("image", key=1, why="asked\x1b[31m\nby nobody")
            own.push()
            fetched, pulled = clone.fetch(), clone.pull()
    assert str(fetched) == repr(fetched)
    first, *_, last = str(fetched).split("\n")
    assert first.startswith("the remote says that 1 sample of 'image' was purged by ")
    assert "(asked\\x1b[31m\\nby nobody): 1" in first
    assert last.startswith("main: ")
    assert f"-> {(own.head.commit or '')[:12]}" in last
    assert repr(pulled).split("\n")[-1] == f"fast-forward: the branch is at {(own.head.commit or '')[:12]}"
    assert repr(fetched.purges).split("\n")[0] == first  # type: ignore[union-attr]


def unwrapped(text: str) -> str:
    return " ".join(text.split())


GARBAGE: dict[str, Any] = {
    "no JSON": b"nothing",
    "nothing": b"",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "no audit": {"purged": []},
    "nobody's reason": {"purged": [[0, "2026-01-01T00:00:00+00:00", "Ada", " "]]},
    "no time": {"purged": [[0, "yesterday", "Ada", "asked"]]},
    "the same twice": {"purged": [list(RECORD[0]), list(RECORD[0])]},
    "no key": {"purged": [[None, *RECORD[0][1:]]]},
    "itself": {"instead": None},
    "no digest": {"instead": "../../etc/passwd"},
    "more fields": {"more": 1},
    "no column": {"column": ""},
}


@pytest.mark.usefixtures("nothing_collected")
@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_among_tombstones_is_named_and_not_passed_on(tmp_path: Path, what: str) -> None:
    repository, remote, made = pushed(tmp_path)
    name = fragment(repository, made)
    given = GARBAGE[what]
    if isinstance(given, dict):
        value = json.loads(Tombstone(name, "1" * 64, "image", RECORD).encode()) | given
        value["instead"] = value["instead"] or name
        given = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    bad = f"{FOLDER}/{name}/{'c' * 64}"
    for each in (remote, repository):
        each.store.put(bad, given)
    clone = lazy(tmp_path / "clone", remote)
    told = fetch(clone, remote, accept_purges=True).purges
    assert f"{remote.store.url}/{bad} is not a tombstone (" in told.refused[bad]
    assert "Nothing is read or deleted because of it" in told.refused[bad]
    assert readable(column(clone, made)) == readable(column(repository, made))
    assert [one.name for one in verify(repository).problems] == [bad]
    commit(repository, image=samples(1, 9))
    backup = at(tmp_path / "backup", "backup", index=False)
    push(repository, backup, ["main"])
    assert next(backup.store.list(FOLDER), None) is None
    gc(repository)
    assert not [one for one in verify(repository).problems if one.name != bad]


def test_a_huge_tombstone_is_not_read(tmp_path: Path) -> None:
    repository, remote, made = pushed(tmp_path)
    bad = f"{FOLDER}/{fragment(repository, made)}/{'c' * 64}"
    remote.store.put(bad, b"")
    os.truncate(tmp_path / "remote" / bad, 1 << 40)
    assert "it has 1099511627776 bytes" in fetch(repository, remote).purges.refused[bad]


def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    repository, remote, made = pushed(tmp_path)
    (tmp_path / "mounted").symlink_to(tmp_path / "remote")  # the folder itself may be one
    clone = lazy(tmp_path / "clone", at(tmp_path / "mounted", "origin", index=False))
    fetch(clone, at(tmp_path / "mounted", "origin", index=False))
    assert readable(column(clone, made)) == readable(column(repository, made))
    outside = tmp_path / "outside"
    shutil.move(tmp_path / "remote" / "refs", outside)
    (tmp_path / "remote" / "refs").symlink_to(outside)
    commit(repository, image=samples(1, 9))
    text = r"remote/refs is a link\. In a folder that others may write to, what is below .*remote is read only where it"
    for call in (fetch, lambda *both: push(*both, ["main"])):
        with pytest.raises(CorruptError, match=text):
            call(repository, remote)
    assert len(list(outside.rglob("0*"))) == 1


@pytest.mark.parametrize("kind", ["packfiles/data", "packfiles/meta", "refs", "FORMAT", FOLDER])
def test_a_link_in_place_of_a_file_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    repository, remote, made = pushed(tmp_path)
    name = f"{FOLDER}/{'a' * 64}/{'b' * 64}"
    if kind == FOLDER:
        remote.store.put(name, b"")
    else:
        name = next(entry.name for entry in remote.store.list() if entry.name.startswith(kind))
    (tmp_path / "target").write_bytes(remote.store.get(name))
    (tmp_path / "remote" / name).unlink()
    (tmp_path / "remote" / name).symlink_to(tmp_path / "target")
    remote = at(tmp_path / "remote", "origin", index=False)
    clone = lazy(tmp_path / "clone", remote)
    if kind == FOLDER:
        assert f"{name} is a link" in fetch(clone, remote).purges.refused[name]
        assert readable(column(clone, made)) == readable(column(repository, made))
    else:
        with pytest.raises(StorageError, match=f"{name} is a link"):
            read_from(clone, remote, made)
    if kind != "FORMAT":
        assert any(
            f"{name} is a link" in one.reason for one in verify(at(tmp_path / "remote", index=False)).problems
        )


def test_what_is_pushed_over_a_link_does_not_write_where_it_leads(tmp_path: Path) -> None:
    repository, _, _ = pushed(tmp_path)
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    shutil.rmtree(tmp_path / "remote" / "refs" / "heads")
    (tmp_path / "remote" / "refs" / "heads" / "main").mkdir(parents=True)
    (tmp_path / "remote" / "refs" / "heads" / "main" / "000000000001").symlink_to(target)
    with pytest.raises(CorruptError, match="000000000001 is a link"):
        push(repository, at(tmp_path / "remote", "origin", index=False), ["main"])
    assert target.read_bytes() == b"mine"


@pytest.mark.usefixtures("nothing_collected")
def test_a_remote_whose_format_is_nested_deeply_is_refused_in_words(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path / "a") as stock:
        with stock.enable_write():
            stock.experiment["x"] = 1
        stock.push(str(tmp_path / "remote"))
        (tmp_path / "remote" / "FORMAT").write_bytes(b"[" * 100_000)
        for call in (stock.fetch, stock.pull, stock.push, lambda: stock.gc(remote="origin")):
            with pytest.raises(CorruptError, match="is not a JSON object"):
                call()
    with pytest.raises(CorruptError, match="is not a JSON object"):
        StockRoom.clone(str(tmp_path / "remote"), tmp_path / "b")


def test_collecting_at_a_remote_whose_lock_is_a_link_waits_for_nobody(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path / "a") as stock:
        with stock.enable_write():
            stock.experiment["x"] = 1
        stock.push(str(tmp_path / "remote"))
        lock = tmp_path / "remote" / "gc.lock"
        lock.unlink(missing_ok=True)
        lock.symlink_to("nowhere")
        told: list[str] = []
        with pytest.raises(CorruptError, match="link"):
            gc(Repository.at(LocalStore(tmp_path / "remote").without_links()), tell=told.append)
        assert told == []
        with pytest.raises(CorruptError, match="link"):
            stock.gc(remote="origin")


def test_a_push_says_how_many_purges_it_brought(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path / "a") as stock:
        with stock.enable_write():
            stock.data["c"] = {key: f"SECRET{key}" for key in range(5)}
        stock.push(str(tmp_path / "remote"))
        stock.purge("c", 2, "asked")
        done = stock.push()
        assert len(done.purges) == 1
        assert "1 purge is new there, and the samples are deleted there too: 1 sample of 'c' was" in str(done)
        assert "(asked): 2" in str(done)
        assert str(stock.push()) == "nothing is new; the remote has all of it"
