"""The registry: versions of models, what is noted of them, and what merges, remotes and maintenance make of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.sampling import by_level

from hopyard import StockRoom
from hopyard.errors import (
    ConflictError,
    CorruptError,
    DataError,
    MissingKeyError,
    NotFoundError,
    UsageError,
)
from hopyard.stockroom.catalog.registry import ModelVersion
from hopyard.stockroom.history.conflicts import BOTH_REGISTERED
from hopyard.stockroom.records import Record, Shelf
from hopyard.stockroom.views.view import Snapshot


def weights(number: float) -> dict[str, Any]:
    return {"w": torch.full((64,), float(number))}


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[StockRoom]:
    """A stockroom with the model ``net``, of a run with two metrics, and a later commit."""
    with StockRoom.init(tmp_path / "repo") as stock:
        with stock.enable_write("net is trained"):
            stock.data["image"] = np.zeros((3, 2))
            stock.model["net"] = weights(1)
            with stock.run(params={"lr": 0.1, "sizes": (4, 2)}) as run:
                run.log(loss=0.5, accuracy=0.75)
                run.log(loss=0.25)
                run.link(model="net", data="image")
        with stock.enable_write("something else"):
            stock.experiment["x"] = 1
        yield stock


def register(stock: StockRoom, name: str, model: Any = None, **more: Any) -> ModelVersion:
    with stock.enable_write():
        return stock.registry.register(name, model, **more)


def objects(stock: StockRoom) -> int:
    """Bytes of all packfiles."""
    return sum(path.stat().st_size for path in stock.place.objects.rglob("*") if path.is_file())


# Registering


def test_a_version_has_what_its_run_logged_and_the_commit_that_brought_it(stock: StockRoom) -> None:
    brought = stock.resolve("HEAD~1")
    version = register(stock, "digits", "net", description="the first", labels=["candidate", "candidate"])
    run = stock.experiment.runs()[0]
    for found in (version, stock.registry["digits"][1], stock.at("HEAD").registry["digits"].latest):
        assert (found.name, found.number, found.path) == ("digits", 1, "digits/1")
        assert (found.description, found.labels) == ("the first", ("candidate",))
        assert found.params == {"lr": 0.1, "sizes": (4, 2)}
        assert found.metrics == {"loss": 0.25, "accuracy": 0.75}
        assert (found.source.commit, found.source.model, found.source.run) == (brought, "net", run.id)
        assert found.source.data == {"image": stock.at("HEAD~1").data["image"].record.pages}
        assert found.author == stock.log()[0].author
        assert not found.is_loadable
    assert torch.equal(stock.model["digits/1"]["w"], weights(1)["w"])
    assert stock.log()[0].message == "model/digits/1 added"


def test_weights_that_are_there_are_not_written_again(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.model["large"] = {"w": torch.rand(1 << 18)}
    before = objects(stock)
    register(stock, "digits", "large")
    assert objects(stock) - before < 1 << 15
    assert stock.model.record("digits/1").tree == stock.model.record("large").tree


def test_versions_outlive_the_model_that_they_were_registered_from(stock: StockRoom) -> None:
    register(stock, "digits", "net")
    with stock.enable_write():
        del stock.model["net"]
    stock.gc()
    assert stock.verify().ok
    assert torch.equal(stock.model["digits/1"]["w"], weights(1)["w"])


def test_models_can_be_registered_as_they_are(stock: StockRoom) -> None:
    version = register(
        stock, "a/b", weights(7), metrics={"accuracy": 1, "odd": float("nan")}, params={"n": 3}
    )
    assert version.source.commit is None
    found = stock.registry["a/b"].latest
    assert (found.params, found.metrics["accuracy"]) == ({"n": 3}, 1.0)
    assert np.isnan(found.metrics["odd"])
    assert torch.equal(stock.model["a/b/1"]["w"], weights(7)["w"])


def test_a_run_is_registered_by_its_id(stock: StockRoom) -> None:
    run = stock.experiment.runs()[0]
    assert register(stock, "digits", run=run.id).source.model == "net"
    with stock.enable_write():
        stock.model["net"] = weights(2)
    with pytest.raises(UsageError, match="model/net is no longer what the run was linked to"):
        register(stock, "digits", run=run.id)
    version = register(stock, "digits", "net", run=run.id, metrics={"f1": 0.5, "loss": 0.125})
    assert version.metrics == {"loss": 0.125, "accuracy": 0.75, "f1": 0.5}
    with stock.enable_write(), stock.run() as other:
        other.log(loss=1)
    with pytest.raises(UsageError, match=r"this one is linked to none. Name it: register\(name, MODEL, run="):
        register(stock, "digits", run=other.id)


def test_a_version_is_registered_anew_with_all_that_is_noted_of_it(stock: StockRoom) -> None:
    first = register(stock, "digits", "net", metrics={"f1": 0.5})
    again = register(stock, "production/digits", "digits/1", labels=["eu"])
    assert (again.metrics, again.params, again.source) == (first.metrics, first.params, first.source)
    assert again.labels == ("eu",)


def test_outside_of_blocks_registering_is_staged(stock: StockRoom) -> None:
    writer = StockRoom(stock.place.root, enable_write=True)
    writer.registry.register("digits", "net")
    assert writer.status().staged == [("model/digits/1", "added")]
    again = StockRoom(stock.place.root, enable_write=True)
    assert again.registry.register("digits", "net").number == 2
    assert list(writer.registry["digits"]) == [1, 2]
    assert "digits" not in stock.registry


def test_an_exception_undoes_a_registration(stock: StockRoom) -> None:
    def fails() -> None:
        with stock.enable_write():
            stock.registry.register("digits", "net")
            raise RuntimeError("undo")

    with pytest.raises(RuntimeError, match="undo"):
        fails()
    assert list(stock.registry) == []
    assert list(stock.model) == ["net"]


def test_numbers_that_other_models_have_are_left_out(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.model["digits/4"] = weights(4)
        stock.model["digits/init"] = weights(5)
    assert "digits" not in stock.registry
    assert register(stock, "digits", "net").number == 5
    assert list(stock.registry["digits"]) == [5]


# What cannot be registered


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "A registered model was given an empty name. Give it one of at least one character."),
        (3, "A registered model was given the name 3 of type int. Names are strings."),
        (
            "digits/3",
            "the name 'digits/3', but its last part is a number, as that of a version is: digits/3. Give a ",
        ),
        ("7", "the name '7', but its last part is a number"),
        ("/digits", "the name '/digits', but names neither begin nor end with a slash. Leave it out."),
        ("digits/", "names neither begin nor end with a slash"),
        ("a\tb", "holds control characters"),
        ("x" * 250, "A version of the registered model was given a name of 260 bytes"),
    ],
)
def test_names_that_cannot_be(stock: StockRoom, name: Any, text: str) -> None:
    before = stock.head
    with pytest.raises(UsageError) as error:
        register(stock, name, "net")
    assert text in str(error.value)
    assert stock.head == before


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        (
            {"model": "nett"},
            MissingKeyError,
            "there is no model 'nett' in the working tree; did you mean 'net'?",
        ),
        ({"run": "no"}, MissingKeyError, "there is no run 'no' in the working tree. It has 1 runs"),
        (
            {},
            UsageError,
            "register was given neither a model nor a run. Give the name of a model, or run=ID.",
        ),
        (
            {"model": "net", "metrics": {"a": "x"}},
            DataError,
            "The metric 'a' of a version was given as 'x', but met",
        ),
        (
            {"model": "net", "metrics": {"a": 10**400}},
            DataError,
            "metrics are numbers that float64 holds. Other",
        ),
        (
            {"model": "net", "metrics": [1]},
            DataError,
            "A version's metrics were given as list. Give a dict of them",
        ),
        (
            {"model": "net", "params": {"a": object()}},
            DataError,
            "The parameters of a version['a'] is a builtins",
        ),
        ({"model": "net", "labels": "production"}, UsageError, "Give a list of texts."),
        (
            {"model": "net", "labels": ["3"]},
            UsageError,
            "A version was to get the label '3', but a number names a ver",
        ),
        (
            {"model": "net", "description": None},
            UsageError,
            "the description of a version was given as None of type",
        ),
    ],
)
def test_what_is_refused_before_anything_is_written(
    stock: StockRoom, given: dict[str, Any], kind: type[Exception], text: str
) -> None:
    before = stock.head
    with pytest.raises(kind) as error:
        register(stock, "digits", **given)
    assert text in str(error.value)
    assert (stock.head, list(stock.registry)) == (before, [])


def test_reading_only_is_said(stock: StockRoom) -> None:
    for registry in (stock.registry, stock.at("HEAD").registry):
        with pytest.raises(UsageError, match="was opened for reading"):
            registry.register("digits", "net")


def test_versions_are_not_written_over_and_the_last_is_not_deleted(stock: StockRoom) -> None:
    register(stock, "digits", "net")
    with stock.enable_write():
        with pytest.raises(
            UsageError, match="model/digits/1 is version 1 of the registered model 'digits', whose wei"
        ):
            stock.model["digits/1"] = weights(3)
        with pytest.raises(
            UsageError, match="digits/1 is the last version of the registered model 'digits', so its"
        ):
            del stock.model["digits/1"]
        stock.registry.register("digits", weights(2))
        del stock.model["digits/1"]
    assert list(stock.registry["digits"]) == [2]
    assert register(stock, "digits", "net").number == 3


# Finding


def test_versions_are_found_by_number_and_label(stock: StockRoom) -> None:
    for labels in (["production"], ["staging"], []):
        register(stock, "digits", "net", labels=labels)
    registry = stock.registry
    assert [registry.version("digits", which).number for which in (None, 2, "production")] == [3, 2, 1]
    with stock.enable_write():
        stock.registry.change("digits", 2, labels=["production"], description="faster")
    changed = stock.registry.version("digits", "production")
    assert (changed.number, changed.description, changed.metrics) == (
        2,
        "faster",
        {"loss": 0.25, "accuracy": 0.75},
    )
    lines = str(stock.diff("HEAD~1", "HEAD")).splitlines()
    assert lines == [
        "~ model/digits/2",
        "    description: '' -> 'faster'",
        "    labels: ('staging',) -> ('production',)",
    ]
    at = stock.head.commit
    assert at is not None
    for find, text in [
        (
            lambda: registry["digit"],
            "no model is registered as 'digit' in .*; did you mean 'digits'",
        ),
        (
            lambda: registry.version("digits", 9),
            r"'digits' has no version 9 in .*\. It has 3 versions: 1, 2, 3\.",
        ),
        (
            lambda: registry.version("digits", "prod"),
            "no version of 'digits' has the label 'prod' in .*did you mean",
        ),
        (lambda: registry[{}], r"no model is registered as \{\} in"),  # type: ignore[index]
        (lambda: registry["digits"][True], "has no version True"),
    ]:
        with pytest.raises(MissingKeyError, match=text):
            find()


def test_many_models_are_listed_at_one_look(stock: StockRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    with stock.enable_write():
        for number in range(30):
            stock.registry.register(f"model-{number}", "net")
            stock.registry.register(f"model-{number}", "net")
    looked: list[str] = []
    record = Snapshot.record

    def counted(self: Snapshot, shelf: Shelf, name: str) -> Record | None:
        looked.append(name)
        return record(self, shelf, name)

    monkeypatch.setattr(Snapshot, "record", counted)
    assert {model.latest.number for model in stock.registry.values()} == {2}
    assert len(looked) <= 4 * 30
    looked.clear()
    assert stock.registry["model-7"].latest.number == 2
    assert len(looked) <= 4


def test_what_consoles_and_notebooks_show(stock: StockRoom) -> None:
    version = register(stock, "digits", "net", labels=["<b>"])
    assert repr(version) == "<version 1 of digits: accuracy 0.75, loss 0.25>"
    assert repr(stock.registry["digits"]) == "<digits: 1 version: 1>"
    assert repr(stock.registry).endswith(": digits>")
    for shown in (version, stock.registry["digits"], stock.registry):
        assert "&lt;b&gt;" in shown._repr_html_()
    assert [line.what for line in stock.model.listed()] == ["model, registered version", "model"]
    with pytest.raises(
        UsageError, match="version 1 of 'digits' is registered, and its parameters and metrics never"
    ):
        version.metrics["loss"] = 0


# Downloading


def test_weights_are_downloaded_as_safetensors(stock: StockRoom, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    version = register(stock, "digits", "net")
    file = version.download(tmp_path / "digits.safetensors")
    assert torch.equal(load_file(file)["w"], weights(1)["w"])
    assert file.read_bytes() == stock.export("model/digits/1", tmp_path / "same.safetensors").read_bytes()
    with pytest.raises(UsageError, match=r"but only versions .* Give a file for the weights: x\.saf"):
        version.download(tmp_path / "x")
    with pytest.raises(
        NotFoundError, match=r"cannot be written to .*: there is no directory .*nowhere\. Make it\."
    ):
        version.download(tmp_path / "nowhere" / "x.safetensors")


def test_a_clone_has_the_notes_and_fetches_the_weights(stock: StockRoom, tmp_path: Path) -> None:
    register(stock, "digits", "net", labels=["production"])
    stock.push(tmp_path / "remote")
    with StockRoom.clone(tmp_path / "remote", tmp_path / "clone", fetch="never") as clone:
        version = clone.registry.version("digits", "production")
        assert version.metrics == {"loss": 0.25, "accuracy": 0.75}
        # The first of the things that need the weights is named.
        with pytest.raises(NotFoundError, match=r"stock.fetch\(models=\['net'\]\)"):
            version.download(tmp_path / "a.safetensors")
        clone.fetch(models=["digits/1"])
        version.download(tmp_path / "a.safetensors")
    with StockRoom(tmp_path / "clone") as clone:
        register(clone, "digits", weights(2))
        clone.push()
    stock.pull()
    assert [version.metrics for version in stock.registry["digits"].values()] == [version.metrics, {}]
    assert stock.verify().ok


def test_a_note_that_was_damaged_is_found(stock: StockRoom) -> None:
    with stock.enable_write():
        draft: Any = stock.view
        about = draft.writer.add_json({"format": {"kind": "registered-version", "version": 1}, "labels": 3})
        record = stock.model.record("net")
        draft.set("model", "digits/1", type(record)(record.tree, record.nbytes, about))
    with pytest.raises(CorruptError, match="noted of the registered version 'digits/1' cannot be read"):
        _ = stock.registry["digits"][1].labels
    (problem,) = stock.verify().problems
    assert "model/digits/1" in str(problem)


def test_damaged_weights_are_found_and_mended_from_a_remote(stock: StockRoom, tmp_path: Path) -> None:
    register(stock, "digits", {"w": torch.rand(1 << 18)}, labels=["production"])
    stock.push(tmp_path / "remote")
    [packfile] = [path for path in stock.place.objects.rglob("data-*") if path.stat().st_size > 1 << 20]
    content = bytearray(packfile.read_bytes())
    content[-(1 << 18)] ^= 1
    packfile.chmod(0o644)
    packfile.write_bytes(content)
    with StockRoom(stock.place.root) as damaged:
        version = damaged.registry["digits"].latest
        assert (version.labels, version.nbytes) == (("production",), 1 << 20)
        with pytest.raises(CorruptError, match="verify --repair-from"):
            version.download(tmp_path / "w.safetensors")
        assert not list(tmp_path.glob("w.safetensors*"))
        (problem,) = damaged.verify().problems
        assert "needed by model/digits/1" in str(problem)
        assert damaged.verify(repair_from=tmp_path / "remote").ok
        assert version.download(tmp_path / "w.safetensors").stat().st_size > 1 << 20


# Merging


def both_register(stock: StockRoom) -> None:
    """``main`` and ``dev`` register a first version of ``digits`` each."""
    stock.branch("dev")
    register(stock, "digits", weights(1), description="main")
    stock.switch("dev")
    register(stock, "digits", weights(2), description="dev")


def test_two_versions_of_one_number_are_a_conflict_that_says_how_to_keep_both(stock: StockRoom) -> None:
    both_register(stock)
    stock.switch("main")
    with pytest.raises(ConflictError) as error:
        stock.merge("dev")
    assert [conflict.kind for conflict in error.value.conflicts] == [BOTH_REGISTERED]
    text = str(error.value)
    assert "model/digits/1: both registered a version of this number (base -, ours 256 bytes, " in text
    assert (
        "Of two versions of one number --resolve keeps one. To keep both, give one of them a number that neither side "
        "has, commit, and do this again: on the branch where it may change, hopyard model renumber digits 1; in Python "
        "stock.registry.renumber('digits', 1)."
    ) in text
    stock.switch("dev")
    with stock.enable_write():
        assert stock.registry.renumber("digits", 1).number == 2
    assert list(stock.registry["digits"]) == [2]
    stock.switch("main")
    stock.merge("dev")
    assert [each.description for each in stock.registry["digits"].values()] == ["main", "dev"]
    assert torch.equal(stock.model["digits/2"]["w"], weights(2)["w"])


def test_a_number_is_given_once(stock: StockRoom) -> None:
    register(stock, "digits", "net")
    register(stock, "digits", "net")
    for number in (1, 2, 10**9, "3"):
        with (
            pytest.raises(
                UsageError,
                match=r"given once: it must be an int above 2, .* Leave it out for 3",
            ),
            stock.enable_write(),
        ):
            stock.registry.renumber("digits", 1, number)  # type: ignore[arg-type]
    with stock.enable_write():
        stock.registry.renumber("digits", 1, 7)
    assert list(stock.registry["digits"]) == [2, 7]


def test_of_two_that_register_at_once_one_is_told_to_do_it_again(stock: StockRoom) -> None:
    other = StockRoom(stock.place.root)

    def at_once() -> None:
        with stock.enable_write():
            stock.registry.register("digits", weights(1))
            register(other, "digits", weights(2))

    with pytest.raises(ConflictError) as error:
        at_once()
    assert BOTH_REGISTERED in str(error.value)
    assert "Run it again" in str(error.value)
    assert register(stock, "digits", weights(1)).number == 2


class Registrations(RuleBasedStateMachine):
    """Branches on which models are registered, renumbered and merged, against plain dicts: no version is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.stock = StockRoom.init(self.folder / "repo")
        self.branches: dict[str, dict[tuple[str, int], int]] = {
            "main": {}
        }  # name and number to a unique weight
        self.branch = "main"
        self.count = 0

    @initialize()
    def begin(self) -> None:
        with self.stock.enable_write():
            self.stock.experiment["x"] = 1

    @property
    def state(self) -> dict[tuple[str, int], int]:
        return self.branches[self.branch]

    def last(self, name: str) -> int:
        return max((number for of, number in self.state if of == name), default=0)

    @rule(name=st.sampled_from(["a", "a/b"]), times=st.integers(1, 2))
    def register(self, name: str, times: int) -> None:
        with self.stock.enable_write():
            for _ in range(times):
                self.count += 1
                version = self.stock.registry.register(name, weights(self.count), description=str(self.count))
                assert version.number == self.last(name) + 1
                self.state[name, version.number] = self.count

    @rule(name=st.sampled_from(["dev", "fix"]))
    def make(self, name: str) -> None:
        if name not in self.branches:
            self.stock.branch(name)
            self.branches[name] = dict(self.state)

    @rule(data=st.data())
    def switch(self, data: st.DataObject) -> None:
        self.branch = data.draw(st.sampled_from(sorted(self.branches)))
        self.stock.switch(self.branch)

    @rule()
    def reopen(self) -> None:
        self.stock.close()
        self.stock = StockRoom(self.folder / "repo")

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        theirs = self.branches[name := data.draw(st.sampled_from(sorted(self.branches)))]
        clash = sorted(
            place for place in theirs.keys() & self.state.keys() if theirs[place] != self.state[place]
        )
        if clash:
            with pytest.raises(ConflictError) as error:
                self.stock.merge(name)
            assert [each.path for each in error.value.conflicts] == [
                f"model/{of}/{number}" for of, number in clash
            ]
            with self.stock.enable_write():
                for of, number in clash:
                    free = (
                        max(number for known in (theirs, self.state) for each, number in known if each == of)
                        + 1
                    )
                    self.stock.registry.renumber(of, number, free)
                    self.state[of, free] = self.state.pop((of, number))
        before = {*self.state.values(), *theirs.values()}
        self.stock.merge(name)
        self.state.update(theirs)
        assert {*self.state.values()} == before

    @invariant()
    def is_as_the_model(self) -> None:
        found = {
            (name, number): int(version.description)
            for name, model in self.stock.registry.items()
            for number, version in model.items()
        }
        assert found == self.state

    def teardown(self) -> None:
        self.stock.gc()
        for (name, number), weight in self.state.items():
            assert torch.equal(self.stock.model[f"{name}/{number}"]["w"], weights(weight)["w"])
        assert self.stock.verify().ok
        self.stock.close()
        shutil.rmtree(self.folder)


TestRegistrations: Any = Registrations.TestCase
TestRegistrations.settings = settings(stateful_step_count=by_level(15, 15, 50))
