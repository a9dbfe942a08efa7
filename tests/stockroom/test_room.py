"""What users type, line by line, and what becomes of it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopyard import StockRoom, make_torch_dataset
from hopyard.errors import ConflictError, HopyardError, NotFoundError, UsageError
from hopyard.stockroom.history.commits import write_commit
from hopyard.stockroom.history.locks import BusyError, collecting
from hopyard.stockroom.maps import SortedMap, encode
from hopyard.stockroom.session.status import Status
from hopyard.storage import LocalStore

IMAGES = np.arange(10 * 3 * 4 * 4, dtype=np.uint8).reshape(10, 3, 4, 4)


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[StockRoom]:
    with StockRoom.init(tmp_path / "repo") as stock:
        yield stock


@pytest.fixture
def filled(stock: StockRoom) -> StockRoom:
    with stock.enable_write("begin"):
        stock.data["image"] = IMAGES
        stock.data["label"] = np.arange(10)
        stock.experiment["lr"] = 0.1
    return stock


@contextmanager
def failing_block(stock: StockRoom) -> Iterator[None]:
    """A block that an exception leaves at its end."""
    with pytest.raises(ZeroDivisionError), stock.enable_write():  # noqa: PT012
        yield
        raise ZeroDivisionError


def test_the_calls_of_the_documented_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net = torch.nn.Linear(3, 2)
    stock = StockRoom.init("repo")
    with stock.enable_write():
        stock.data["image"] = IMAGES
        stock.data["old"] = {"a": np.zeros(2)}
        stock.data["label"] = np.arange(10)
    with stock.enable_write():
        del stock.data["old"]
        stock.data["image"]["cat-7"] = IMAGES[0]
        del stock.data["image"]["cat-7"]
        stock.model["resnet"] = net.state_dict()
        stock.experiment["lr"] = 0.01
    stock.close()
    stock = StockRoom("repo", enable_write=True)
    stock.experiment["lr"] = 0.02
    digest = stock.commit("message")
    assert stock.head.commit == digest
    assert stock.log()[0].message == "message"
    assert stock.data["image"][0].shape == (3, 4, 4)
    assert stock.data["image"][[3, 1, 2]].tobytes() == IMAGES[[3, 1, 2]].tobytes()
    assert len(stock.data["image"]) == 10
    assert list(stock.data["image"].keys()) == list(range(10))
    dataset = make_torch_dataset([stock.data["image"], stock.data["label"]])
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=5, num_workers=1, multiprocessing_context="spawn"
    )
    assert torch.cat([label for _, label in loader]).tolist() == list(range(10))
    copy = torch.nn.Linear(3, 2)
    copy.load_state_dict(stock.model["resnet"])
    assert torch.equal(copy.weight, net.weight)
    with stock.run(params={"lr": 0.01}) as run:
        run.log(step=1, loss=0.5)
    assert stock.experiment.runs()[0].metrics["loss"][1].tolist() == [0.5]
    stock.commit("a run")
    assert len(stock.log()) == 4
    assert str(stock.status()).startswith("on branch main, at ")
    stock.branch("dev")
    stock.switch("dev")
    stock.data["image"][3] = IMAGES[0]
    stock.commit("on dev")
    assert list(stock.diff("main", "dev")["data/image"].samples()) == [(3, "changed")]
    stock.switch("main")
    assert stock.merge("dev").how == "fast-forward"
    stock.tag("v1")
    assert stock.at("v1").data["image"][0].tobytes() == IMAGES[0].tobytes()
    url = str(tmp_path / "remote")
    stock.push(url)
    copy_room = StockRoom.clone(url, "copy")
    copy_room.fetch(data=["image"], keys=range(100), models=["resnet"])
    assert np.asarray(copy_room.data["image"]).tobytes() == np.asarray(stock.data["image"]).tobytes()
    copy_room.pull(url)


# Blocks


def test_a_block_commits_at_its_end_with_a_message_that_names_what_changed(filled: StockRoom) -> None:
    with filled.enable_write():
        filled.experiment["lr"] = 0.2
        filled.data["label"][3] = np.int64(9)
        filled.experiment["new"] = [1, 2]
    assert [commit.message for commit in filled.log()] == [
        "data/label, experiment/lr, experiment/new added",
        "begin",
    ]
    assert filled.experiment["lr"] == 0.2
    with filled.enable_write():
        pass
    with filled.enable_write():
        filled.experiment["lr"] = 0.2
    assert len(filled.log()) == 2


def test_an_exception_in_a_block_leaves_all_as_it_was(filled: StockRoom) -> None:
    before = filled.head
    with failing_block(filled):
        filled.data["label"][3] = np.int64(9)
        filled.data["big"] = np.zeros((2_000, 1_000))
        del filled.experiment["lr"]
    assert filled.head == before
    assert "big" not in filled.data
    assert filled.experiment["lr"] == 0.1
    assert filled.data["label"][3] == 3
    with pytest.raises(UsageError, match="was opened for reading"):
        filled.experiment["lr"] = 3
    with filled.enable_write():
        filled.experiment["lr"] = 0.3
    assert StockRoom(filled.place.root).experiment["lr"] == 0.3


def test_nested_blocks_commit_once_and_errors_undo_what_they_leave(filled: StockRoom) -> None:
    block = filled.enable_write("once")
    with block:
        filled.experiment["a"] = 1
        with block:
            filled.experiment["b"] = 2
        with failing_block(filled):
            filled.experiment["a"] = 9
            filled.data["label"][0] = np.int64(7)
        assert filled.experiment["a"] == 1
        assert filled.data["label"][0] == 0
    assert [commit.message for commit in filled.log()] == ["once", "begin"]
    assert (filled.experiment["a"], filled.experiment["b"]) == (1, 2)
    with block:
        filled.experiment["a"] = 2
    assert len(filled.log()) == 3


def test_a_commit_within_a_block_stays_also_if_the_block_fails(filled: StockRoom) -> None:
    with failing_block(filled):
        filled.experiment["a"] = 1
        filled.commit("first")
        filled.experiment["a"] = 2
    assert filled.log()[0].message == "first"
    assert filled.experiment["a"] == 1
    assert filled.status().staged == []


def test_what_was_taken_in_a_block_refuses_writes_after_it(filled: StockRoom) -> None:
    with filled.enable_write():
        column = filled.data["label"]
        shelf = filled.experiment
    assert column[3] == 3
    with pytest.raises(
        UsageError, match=r"its writing has ended, so nothing is written to it\. Take it anew"
    ):
        column[3] = np.int64(1)
    with pytest.raises(UsageError, match="its writing has ended"):
        shelf["lr"] = 1
    assert column[3] == 3


def test_a_block_begins_with_what_is_there_now(filled: StockRoom) -> None:
    other = StockRoom(filled.place.root)
    with other.enable_write():
        other.experiment["n"] = 0
    for number in range(3):
        for room in (filled, other):
            with room.enable_write():
                room.experiment["n"] += 1
        assert other.experiment["n"] == 2 * number + 2


def test_two_blocks_at_once_follow_each_other_or_conflict(filled: StockRoom) -> None:
    other = StockRoom(filled.place.root)
    with filled.enable_write():
        filled.experiment["mine"] = 1
        with other.enable_write():
            other.experiment["other"] = 2
    assert list(filled.experiment) == ["lr", "mine", "other"]
    with (  # noqa: PT012
        pytest.raises(ConflictError, match=r"Nothing of the block has happened\. Run it again") as caught,
        filled.enable_write(),
    ):
        filled.experiment["lr"] = 1
        with other.enable_write():
            other.experiment["lr"] = 2
    assert [conflict.path for conflict in caught.value.conflicts] == ["experiment/lr"]
    assert StockRoom(filled.place.root).experiment["lr"] == 2
    with filled.enable_write():
        filled.experiment["lr"] = 1
    assert len(filled.log()) == 5


# Staging


def test_writes_outside_of_blocks_are_staged_and_read_at_once_also_by_the_next_process(
    filled: StockRoom,
) -> None:
    writer = StockRoom(filled.place.root, enable_write=True)
    writer.data["image"][3] = IMAGES[0]
    writer.data["wide"] = np.ones((3, 400_000))
    writer.model["net"] = {"w": torch.arange(4.0)}
    writer.experiment["lr"] = 0.7
    writer.close()
    script = f"""
from hopyard import StockRoom
stock = StockRoom({str(filled.place.root)!r}, enable_write=True)
print(stock.data["image"][3].tobytes().hex() == {IMAGES[0].tobytes().hex()!r}, stock.data["wide"][2].sum())
print(stock.model["net"]["w"].tolist(), stock.experiment["lr"])
print(stock.status())
stock.experiment["more"] = True
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["True 400000.0", "[0.0, 1.0, 2.0, 3.0] 0.7"]
    assert "    changed  data/image" in lines
    assert "    added    model/net" in lines
    again = StockRoom(filled.place.root, enable_write=True)
    assert again.experiment["more"] is True
    assert filled.experiment["lr"] == 0.1, "readers see commits only"
    assert ("experiment/lr", "changed") in filled.status().staged
    again.commit("staged")
    assert again.status().staged == []
    assert StockRoom(filled.place.root).data["wide"][1].sum() == 400_000


def test_what_is_staged_goes_into_the_commit_of_a_block_and_survives_its_failure(filled: StockRoom) -> None:
    writer = StockRoom(filled.place.root, enable_write=True)
    writer.experiment["staged"] = 1
    column = writer.data["label"]
    with failing_block(writer):
        writer.experiment["staged"] = 2
    assert writer.experiment["staged"] == 1
    assert [path for path, _ in StockRoom(filled.place.root).status().staged] == ["experiment/staged"]
    with pytest.raises(UsageError, match="was removed or replaced since it was taken"):
        column[0] = np.int64(5)
    with writer.enable_write():
        writer.experiment["block"] = 1
    assert writer.status().staged == []
    assert list(StockRoom(filled.place.root).experiment) == ["block", "lr", "staged"]
    writer.experiment["after"] = 1
    assert [path for path, _ in filled.status().staged] == ["experiment/after"]


def test_two_writers_of_one_working_tree_keep_what_the_other_stages(filled: StockRoom) -> None:
    one, two = (StockRoom(filled.place.root, enable_write=True) for _ in range(2))
    one.experiment["one"] = 1
    two.experiment["two"] = 2
    one.commit("one")
    assert list(one.at("HEAD").experiment) == ["lr", "one"]
    with StockRoom(filled.place.root) as reader:
        assert (reader.status().elsewhere, reader.status().staged) == ({}, [("experiment/two", "added")])
    two.commit("two")
    assert list(two.experiment) == ["lr", "one", "two"]
    assert StockRoom(filled.place.root).status().elsewhere == {}
    assert [commit.message for commit in two.log()] == ["two", "one", "begin"]


def test_a_commit_that_conflicts_stays_staged_until_a_branch_is_made(filled: StockRoom) -> None:
    writer = StockRoom(filled.place.root, enable_write=True)
    writer.experiment["lr"] = 5
    # The branch moves on in another working tree.
    tip = filled.local.references.tip("heads/main")
    draft = filled.local.objects.writing()
    root = (
        SortedMap(draft, filled._session.root)
        .update(draft, {encode(("experiment", "lr")): {"value": 6}})
        .root
    )
    commit = write_commit(draft, root, [str(filled.head.commit)], "six", "x")
    draft.publish()
    assert filled.local.references.move("heads/main", tip, commit.digest, "x") is not None
    with pytest.raises(ConflictError, match="It stays staged: make a branch for it"):
        writer.commit("five")
    assert writer.experiment["lr"] == 5
    writer.branch("mine")
    writer.switch("mine")
    writer.commit("five")
    writer.switch("main")
    assert writer.experiment["lr"] == 6
    with pytest.raises(ConflictError, match=r"hopyard stock merge mine --resolve ours"):
        writer.merge("mine")
    assert writer.merge("mine", resolve="theirs").how == "merged"
    assert writer.experiment["lr"] == 5


def test_what_others_stage_meanwhile_goes_on_upon_the_commit_of_a_block(filled: StockRoom) -> None:
    root = filled.place.root
    other = StockRoom(root, enable_write=True)
    other.experiment["before"] = 0
    for number, block in enumerate((StockRoom(root), StockRoom(root, enable_write=True))):
        with block.enable_write():
            block.data["label"][0] = np.int64(50 + number)
            other.data["label"][1] = np.int64(60 + number)
            other.data["label"].update({key: np.int64(key) for key in range(100, 2000)})
            other.experiment["during"] = number
        assert block.status().staged == [
            ("data/label", "changed"),
            ("experiment/during", "added" if not number else "changed"),
        ]
        assert StockRoom(root).status().elsewhere == {}
        assert other.data["label"][0] == 50 + number
        other.experiment["after"] = number
        other.commit("others")
        with StockRoom(root) as after:
            assert [int(after.data["label"][key]) for key in (0, 1, 100, 1999)] == [
                50 + number,
                60 + number,
                100,
                1999,
            ]
            assert (after.experiment["before"], after.experiment["during"], after.experiment["after"]) == (
                0,
                number,
                number,
            )


def test_a_block_that_conflicts_with_what_others_stage_meanwhile_has_not_happened(filled: StockRoom) -> None:
    root, head = filled.place.root, filled.head.commit
    other = StockRoom(root, enable_write=True)
    rule = r"(?s)1 of the changes conflict with what others have staged .*experiment/lr: both changed.*Run it again"
    with pytest.raises(ConflictError, match=rule), filled.enable_write():  # noqa: PT012
        filled.experiment["lr"] = 6
        filled.experiment["mine"] = 1
        other.experiment["lr"] = 5
        other.experiment["other"] = 2
    assert (StockRoom(root).head.commit, filled.head.commit) == (head, head)
    assert dict(other.experiment) == {"lr": 5, "other": 2}
    assert StockRoom(root).status().elsewhere == {}
    with filled.enable_write():
        assert filled.experiment["lr"] == 5
        filled.experiment["lr"] = 6
    assert dict(StockRoom(root).experiment) == {"lr": 6, "other": 2}
    assert other.status().staged == []


def test_what_others_staged_or_committed_is_read_at_the_next_look(filled: StockRoom) -> None:
    one, two = (StockRoom(filled.place.root, enable_write=True) for _ in range(2))
    one.data["new"] = {"a": np.arange(3)}
    assert "new" in two.data
    two.data["new"]["b"] = np.arange(3)
    assert list(one.data["new"]) == ["a", "b"]
    one.model["net"] = {"w": np.arange(2.0)}
    assert list(two.model) == ["net"]
    one.commit("one")
    assert two.status().staged == []
    assert two.head.commit == one.head.commit
    two.experiment["x"] = 1
    one.reset()
    assert "x" not in two.experiment
    with one.enable_write():
        two.experiment["y"] = 1
        assert "y" not in one.experiment
    assert one.experiment["y"] == 1


def test_an_empty_column_can_be_given_another_name(filled: StockRoom) -> None:
    stock = StockRoom(filled.place.root, enable_write=True)
    stock.data.create("a", dtype="int16", shape=(2, None))
    stock.data["b"] = stock.data["a"]
    with StockRoom(filled.place.root, enable_write=True) as again:
        assert len(again.data["b"]) == 0
        again.data["b"][0] = np.zeros((2, 5), np.int16)
        assert "b" in again.data
        assert len(again.data["a"]) == 0
        with pytest.raises(HopyardError, match="int16"):
            again.data["b"][1] = np.zeros((3, 5), np.int16)
        del again.data["b"][0]
        again.data["label"] = again.data["b"]
    with StockRoom(filled.place.root, enable_write=True) as again:
        assert (len(again.data["label"]), again.data["label"].dtype) == (0, again.data["a"].dtype)


def test_nothing_to_commit_is_an_error(filled: StockRoom) -> None:
    with pytest.raises(UsageError, match="this was opened for reading, so there is nothing to commit"):
        filled.commit("x")
    writer = StockRoom(filled.place.root, enable_write=True)
    with pytest.raises(UsageError, match="nothing has changed since"):
        writer.commit("x")


def test_reset_discards_what_is_staged_and_moves_the_branch(filled: StockRoom) -> None:
    writer = StockRoom(filled.place.root, enable_write=True)
    writer.experiment["lr"] = 1
    writer.commit("one")
    writer.experiment["lr"] = 2
    writer.reset()
    assert writer.experiment["lr"] == 1
    assert StockRoom(filled.place.root, enable_write=True).experiment["lr"] == 1
    writer.experiment["lr"] = 3
    writer.reset("HEAD~1")
    assert writer.experiment["lr"] == 0.1
    assert (writer.head.branch, writer.branches()["main"]) == ("main", writer.head.commit)


# Readers


def test_what_readers_handed_out_stays_and_can_be_sent(filled: StockRoom) -> None:
    shelf, column = filled.data, filled.data["label"]
    sent: Any = pickle.loads(pickle.dumps(filled))
    at = pickle.loads(pickle.dumps(filled.at("HEAD")))
    with filled.enable_write():
        filled.data["label"] = np.zeros(2)
    filled.close()
    assert len(filled.data["label"]) == 2
    for old in (shelf["label"], column, sent.data["label"], at.data["label"]):
        assert np.asarray(old).tolist() == list(range(10))
    with pytest.raises(UsageError, match=r"this stockroom was closed. Open it again: StockRoom\("):
        filled.enable_write().__enter__()
    writer = StockRoom(filled.place.root, enable_write=True)
    with pytest.raises(UsageError, match="open for writing cannot be pickled"):
        pickle.dumps(writer)
    column = writer.data["label"]
    writer.close()
    writer.close()
    with pytest.raises(UsageError, match="its writing has ended"):
        column[0] = 1.0


def test_a_stockroom_is_found_upwards_and_made_once(
    stock: StockRoom, tmp_path: Path, monkeypatch: Any
) -> None:
    below = stock.place.root / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert StockRoom().place == stock.place
    with pytest.raises(UsageError, match=r"is a stockroom already. Open it: StockRoom\("):
        StockRoom.init(stock.place.root)
    with pytest.raises(NotFoundError, match="is in no stockroom"):
        StockRoom(tmp_path)
    with pytest.raises(UsageError, match="fetch='sometimes' must be 'auto'"):
        StockRoom(fetch="sometimes")  # type: ignore[arg-type]


def test_an_empty_stockroom_says_so(stock: StockRoom) -> None:
    assert stock.log() == []
    assert "nothing is committed yet" in str(stock.status())
    assert str(stock.diff()) == "nothing differs"
    with pytest.raises(NotFoundError, match="nothing is committed yet"):
        stock.at("HEAD")
    with pytest.raises(UsageError, match="the tag 'v1' would name nothing"):
        stock.tag("v1")
    assert os.fspath(stock.place.objects).endswith(".hopyard")


def test_shelves_are_mappings_alike(filled: StockRoom) -> None:
    with filled.enable_write():
        filled.model["net"] = [np.arange(3)]
    for shelf in (filled.data, filled.model, filled.experiment):
        names = list(shelf)
        assert isinstance(shelf, MutableMapping)
        assert (len(shelf), sorted(shelf.keys()), len(shelf.values())) == (len(names), names, len(names))
        assert [name for name, _ in shelf.items()] == names
        assert all(name in shelf for name in names)
        assert (shelf.get("nothing"), shelf.get("nothing", 7), "nothing" in shelf, 3 in shelf) == (
            None,
            7,
            False,
            False,
        )
        assert repr(shelf).startswith(f"<{type(shelf).__name__.removesuffix('Shelf').lower()} of ")
        with pytest.raises(UsageError, match="was opened for reading"):
            shelf.pop(names[0])
    with filled.enable_write():
        filled.experiment.update({"one": 1, "two": 2})
        assert filled.experiment.pop("one") == 1
        assert filled.experiment.pop("one", None) is None
        assert filled.experiment.setdefault("two", 3) == 2
        for shelf in (filled.data, filled.model):
            before = len(shelf)
            shelf.pop(next(iter(shelf)))
            assert len(shelf) == before - 1
    assert filled.experiment["two"] == 2


def test_what_errors_of_fetch_advise_works(tmp_path: Path) -> None:
    stock = StockRoom.init(tmp_path / "a")
    with stock.enable_write():
        stock.data["x"] = np.arange(4)
        stock.model["net"] = {"w": np.ones(2)}
    stock.push(tmp_path / "remote")
    copy = StockRoom.clone(tmp_path / "remote", tmp_path / "copy", fetch="never")
    wrong: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
        ({"data": "*"}, r"data='\*' was given, but all that there are is data=True", {"data": True}),
        ({"models": ["*"]}, r"models=\['\*'\] was given, but all that there are is models=True", {"models": True}),
        ({"data": "x"}, r"names are a list: data=\['x'\]; all that there are is data=True", {"data": ["x"]}),
        ({"data": ["y"]}, r"there is no column or dataset 'y'.*It has 'x'", {"data": ["x"]}),
        ({"keys": [1]}, r"Name the columns: data=\['image'\], keys=range\(100\)", {"data": ["x"], "keys": range(100)}),
        ({"data": ["x"], "keys": 3}, r"keys=3 was given, but keys are.*keys=\[3\]", {"data": ["x"], "keys": [3]}),
        ({"data": ["x"], "keys": "3"}, r"keys='3' was given, but keys are a list", {"data": ["x"], "keys": [3]}),
        ({"data": ["x"], "keys": [9]}, r"Name other keys, or a range", {"data": ["x"], "keys": range(3, 10)}),
    ]  # fmt: skip
    for given, text, advised in wrong:
        with pytest.raises(HopyardError, match=text):
            copy.fetch(**given)
        copy.fetch(**advised)
    assert copy.data["x"][3] == 3


def test_notebooks_show_bounded_tables_of_text_and_complete_names_and_keys(tmp_path: Path) -> None:
    stock = StockRoom.init(tmp_path)
    with stock.enable_write():
        stock.data["<b>"] = {"<i>": "<script>", "k": "x" * 10_000}
        stock.data["n"] = np.arange(5000)
        stock.data["image"] = np.full((2, 3, 5), 5.1, np.float32)
        stock.model["net"] = {"w": np.ones(2)}
        for number in range(40):
            stock.experiment[f"value-{number}"] = "<script>"
        assert stock.data["n"]._ipython_key_completions_() == list(range(1000))
        assert "&lt;script&gt;" in stock.data["<b>"]._repr_html_()
    pages = [
        each._repr_html_()
        for each in (stock, stock.at("HEAD"), stock.data, stock.experiment, stock.data["<b>"])
    ]
    for page in pages:
        assert not [each for each in ("<script>", "<i>", "<b>") if each in page]
        assert len(page) < 10_000
    assert all("data/&lt;b&gt;" in pages[at] for at in (0, 2))
    assert ["and more" in page for page in pages] == [True, True, False, True, False]
    commits = [f"<b>{number}</b>\nsecond line" for number in range(40)]
    for message in commits:
        with stock.enable_write(message):
            stock.experiment["n"] = message
    log = stock.log()._repr_html_()
    assert "<p>41 commits</p>" in log
    assert "&lt;b&gt;39&lt;/b&gt;</td>" in log
    assert "<b>" not in log
    assert "and more" in log
    last = stock.log()[0]
    page = last._repr_html_()
    assert f"commit {last.digest}" in page
    assert f"<td>follows</td><td>{last.parents[0]}</td>" in page
    assert "&lt;b&gt;39&lt;/b&gt;\nsecond line" in page
    assert stock.data._ipython_key_completions_() == ["<b>", "image", "n"]
    assert f"[{', '.join(['5.1'] * 8)}, ... (15 in all)]" in stock.data["image"]._repr_html_()
    assert stock.model._ipython_key_completions_() == ["net"]
    assert stock.data["<b>"]._ipython_key_completions_() == ["<i>", "k"]


def test_status_and_differences_are_shown_bounded_and_as_text(stock: StockRoom) -> None:
    with stock.enable_write("first"):
        stock.data["<b>"] = np.arange(5)
        stock.model["net"] = {"w": np.ones(2)}
        stock.experiment["long"] = "<script>" * 1000
    root = stock.place.root
    with StockRoom(root, enable_write=True) as writer:
        writer.data["<b>"].append(5)
        writer.experiment["long"] = "short"
        status, diff = writer.status(), writer.diff()
        assert repr(status) == str(status)
        assert repr(status).endswith(":\n    changed  data/<b>\n    changed  experiment/long")
        assert "<td>changed</td><td>data/&lt;b&gt;</td>" in status._repr_html_()
        assert repr(diff) == "~ data/<b>\n~ experiment/long\nprint(...) tells what differs inside"
        assert "<td>int64 scalar, 5 samples</td><td>int64 scalar, 6 samples</td>" in diff._repr_html_()
        for number in range(100):
            writer.experiment[f"{number:03}"] = number
        status, diff = writer.status(), writer.diff()
        assert len(str(status).splitlines()) == 2 + 102
        assert repr(status).splitlines()[-1] == "    and 72 more: print(...) lists them"
        assert repr(diff).splitlines()[-2:] == ["and 72 more", "print(...) tells what differs inside"]
        assert "<p>102 things staged</p>" in status._repr_html_()
        assert "<p>102 things differ</p>" in diff._repr_html_()
        for each in (status, diff):
            assert len(repr(each).splitlines()) < 40
            page = each._repr_html_()
            assert len(page) < 10_000
            assert page.endswith("<p>and more</p></div>" + "</div>" * (each is status))
            assert not [one for one in ("<script>", "<b>") if one in page]
    same = stock.diff("HEAD", "HEAD")
    assert (repr(same), "nothing differs" in same._repr_html_()) == ("nothing differs", True)


def test_what_is_shown_of_crafted_names_steers_no_terminal_and_forges_no_line() -> None:
    hostile = "a\x1b[2J\nb\u202e"
    status = Status(hostile, "0" * 64, None, [(f"data/{hostile}", "added")], remotes={hostile: (1, 0)})
    for shown in (repr(status), str(status)):
        assert len(shown.splitlines()) == 4
        assert not [each for each in "\x1b\u202e" if each in shown]
    page = status._repr_html_()
    assert not [each for each in "\x1b\u202e" if each in page]


def test_looking_at_a_hundred_thousand_staged_things_shows_a_few_of_them() -> None:
    staged = [(f"experiment/{number:06}", "added") for number in range(100_000)]
    elsewhere: dict[str | None, int] = {f"{number:064x}": 1 for number in range(1000)}
    status = Status("main", None, None, staged, elsewhere)
    assert len(str(status).splitlines()) == 2 + 100_000 + 1000
    assert len(repr(status).splitlines()) == 2 + 31 + 31
    assert "and 99,970 more" in repr(status)
    assert len(status._repr_html_()) < 10_000


def test_of_many_things_a_few_are_named(stock: StockRoom) -> None:
    with stock.enable_write():
        for number in range(100):
            stock.experiment[f"{number:03}"] = number
    shown = repr(stock.experiment)
    assert shown.endswith(", 028, 029 and 70 more>")
    for look in (lambda: stock.experiment["no"], lambda: stock.diff("HEAD", "HEAD")["experiment/no"]):
        with pytest.raises(NotFoundError) as caught:
            look()
        assert len(str(caught.value)) < 500
    with pytest.raises(NotFoundError, match=r"It has '000', .*, '029' and 70 more\."):
        stock.experiment["no"]
    with StockRoom(stock.place.root, enable_write=True) as writer:
        for name in list(writer.experiment):
            del writer.experiment[name]
        with pytest.raises(NotFoundError, match=r"What differs: experiment/000, .*/029 and 70 more\."):
            writer.diff()["experiment/no"]


def test_a_log_is_shown_in_short_lines(stock: StockRoom) -> None:
    for number in range(40):
        with stock.enable_write(f"{number} \x1b[2J" + "long " * 100 + "\nsecond line"):
            stock.experiment["n"] = number
    lines = repr(stock.log()).splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("40 commits, times in UTC", "and 10 more", 32)
    assert lines[1].startswith(stock.log()[0].digest[:12])
    assert "39 \\x1b[2Jlong" in lines[1]
    assert max(map(len, lines)) < 130


def held_up(root: Path) -> bool:
    """Whether somebody keeps the collector out now."""
    try:
        with collecting(LocalStore(root / ".hopyard")):
            return False
    except BusyError:
        return True


def test_looking_at_what_is_staged_keeps_no_collector_out(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.data["c"], stock.data["d"] = np.arange(300.0), np.arange(300.0)
    root = stock.place.root
    looks: list[Callable[[StockRoom], Any]] = [
        lambda each: str(each.diff()),
        lambda each: each.diff()["data/c"].lines(),
        lambda each: each._repr_html_(),
        lambda each: each.data._repr_html_(),
        lambda each: each.data.record("c"),
        lambda each: str(each.status()),
        lambda each: [list(each.data["c"].items()), each.data["c", "d"][0], np.asarray(each.data["c"])],
    ]
    with StockRoom(root, enable_write=True) as writer:
        writer.data["c"][1] = 7.0
        for at, look in enumerate(looks):
            seen = look(writer)
            assert not held_up(root), at
            del seen
        with StockRoom(root) as reader:
            diff = reader.diff()
            assert not held_up(root)
            assert list(diff["data/c"].samples()) == [(1, "changed")]


@pytest.mark.parametrize("staged", [False, True])
def test_a_link_notes_the_column_as_it_was_when_it_was_linked(stock: StockRoom, staged: bool) -> None:
    def fill(of: StockRoom) -> None:
        of.data["same"] = np.arange(5)
        of.data["label"] = np.arange(5)
        with of.run() as run:
            run.link(data="label")
            of.data["label"][0] = 7
            of.data["label"][0] = 8
            run.link(data="same")

    if staged:
        with StockRoom(stock.place.root, enable_write=True) as writer:
            fill(writer)
            assert not held_up(writer.place.root)
            with StockRoom(stock.place.root, enable_write=True) as other:
                assert other.data["label"][:].tolist() == [8, 1, 2, 3, 4]
                other.commit("staged")
    else:
        with stock.enable_write():
            fill(stock)
    with StockRoom(stock.place.root) as reader:
        linked = reader.experiment.runs()[0].links["data"]
        assert linked["label"] == linked["same"] == reader.data["same"].record.to_json()
        assert reader.data["label"][:].tolist() == [8, 1, 2, 3, 4]
        assert reader.verify().ok


@pytest.mark.parametrize("has_looked", [False, True])
def test_what_was_undone_keeps_no_collector_out_and_what_was_staged_stays(
    stock: StockRoom, has_looked: bool
) -> None:
    with stock.enable_write():
        stock.data["c"] = np.arange(300.0)
    root = stock.place.root
    with StockRoom(root, enable_write=True) as writer:
        column = writer.data["c"]
        column[1] = 7.0
        if has_looked:
            str(writer.diff())
        with failing_block(writer):
            writer.data["c"][2] = 9.0
            writer.model["m"] = {"w": np.eye(3)}
        assert not held_up(root)
        with StockRoom(root) as other:
            other.gc()
        assert (writer.data["c"][1], writer.data["c"][2], "m" in writer.model) == (7.0, 2.0, False)
        writer.data["c"][1] = 1.0
        with pytest.raises(UsageError, match="nothing has changed"):
            writer.commit("nothing")
        assert not held_up(root)
        writer.data["c"][2] = 5.0
        assert writer._session.draft is not None
        writer._session.draft.write()
        assert held_up(root)
        writer.reset()
        assert not held_up(root)
        writer.data["c"][3] = 11.0
        writer.commit("three")
    with StockRoom(root) as other:
        other.gc()
        assert (other.data["c"][1], other.data["c"][3]) == (1.0, 11.0)
        assert other.verify().ok


@pytest.mark.parametrize("given", [3, None, slice(1, 2), {1: 2}, "ab", np.array(1), object()])
def test_positions_are_asked_for_with_keys_in_a_list(filled: StockRoom, given: Any) -> None:
    with pytest.raises(UsageError, match="Give a list of keys"):
        filled.data["label"].positions(given)
    assert filled.data["label"].positions(iter([3, 1])).tolist() == [3, 1]


@pytest.mark.parametrize("given", [[1, [2]], [[[1]]], [1.5], np.array([2**64 - 1], np.uint64), "ab"])
def test_what_is_no_position_is_refused(filled: StockRoom, given: Any) -> None:
    with pytest.raises(UsageError, match="position"):
        filled.data["label"].take(given)
    with pytest.raises(UsageError, match=r"NumPy array|need a writable array"):
        filled.data["label"].take([1], out=given)  # type: ignore[arg-type]


def test_what_is_nested_too_deeply_is_refused_in_words(filled: StockRoom) -> None:
    deep: Any = []
    for _ in range(3000):
        deep = [deep]
    column = filled.at("HEAD").data["label"]
    calls: list[Callable[[], Any]] = [
        lambda: column[deep], lambda: column.positions(deep), lambda: filled.data[deep], lambda: filled.model[deep],
        lambda: filled.experiment[deep], lambda: filled.resolve(deep), lambda: StockRoom(deep),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(UsageError):
            call()
    assert deep not in column


@pytest.mark.parametrize("given", [3, object(), "x" * 5000, "a/" + "x" * 300, ["a"]])
def test_what_is_no_path_is_refused(tmp_path: Path, given: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: StockRoom(given), lambda: StockRoom.clone(given, tmp_path / "x"), lambda: StockRoom.init(given),
        lambda: StockRoom.verify_in(given),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(UsageError, match=r"Give (it as text or|the path of a file or folder)"):
            call()
