"""``hopyard model`` as users type it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.cli.shapes import document, shape, undocumented
from typer.testing import CliRunner

from hopyard import StockRoom, load_model, open_run
from hopyard.cli import app
from hopyard.errors import ConflictError, HopyardError, MissingKeyError, NotFoundError, UsageError
from hopyard.storage import LocalStore
from hopyard.tune import list_runs

Typed = Callable[..., str]

VERSION = {
    "model": "text",
    "version": "int",
    "description": "text",
    "labels": ["text"],
    "metrics": {"train_loss": "float", "val_loss": "float", "val_accuracy": "float"},
    "params": {"width": "int", "lr": "float"},
    "commit": None,
    "from_model": None,
    "run": "text",
    "trial": "int",
    "epoch": "int",
    "data": {"train": "text"},
    "registered": "text",
    "author": "text",
    "weights_digest": "text",
    "weights_bytes": "int",
    "loadable": "bool",
}


@pytest.fixture
def typed(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """The command in a folder with a store, and a stockroom that has a model; errors are raised."""
    shutil.copytree(finished / "store", tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Ada")
    monkeypatch.setenv("COLUMNS", "160")
    with StockRoom.init(".") as stock, stock.enable_write():
        stock.model["net"] = {"w": torch.ones(3)}

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["model", *arguments])
        if isinstance(done.exception, HopyardError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


@pytest.fixture
def run_id(typed: Typed) -> str:
    [found] = list_runs(LocalStore("store"))
    return found


def test_the_way_of_a_model(typed: Typed, run_id: str) -> None:
    assert typed("list") == "no model is registered. To register one: hopyard model register NAME MODEL\n"
    said = typed(
        "register", "digits", "--store", "store", "--run", run_id, "-l", "production", "-d", "the best"
    )
    assert said.startswith("digits, version 1, is committed as ")
    assert said.endswith(" on main\n")
    typed("register", "digits", "net", "--metric", "f1=0.5")
    typed("register", "other", "net")
    listed = typed("list").splitlines()
    assert listed[0].split()[:4] == ["model", "version", "labels", "metrics"]
    assert [line.split()[:2] for line in listed[1:]] == [["digits", "2"], ["other", "1"]]
    versions = typed("list", "digits").splitlines()[1:]
    assert [line.split()[1] for line in versions] == ["2", "1"]
    assert "f1 0.5" in versions[0]
    assert f"run {run_id}, trial " in versions[1]
    described = typed("describe", "digits", "--version", "production")
    assert described.startswith("digits, version 1\ndescription")
    for word in (
        "the best",
        "production",
        "metric val_accuracy",
        "param lr",
        run_id,
        "by Ada",
        "hopyard.load_model",
    ):
        assert word in described
    assert "version 1 of digits is in out\n" in typed("download", "digits", "out", "-v", "1")
    best = open_run("store", run_id).best
    rows = np.ones((5, 4), np.float32)
    np.testing.assert_array_equal(load_model("out").predict(rows), best.predict(rows))
    typed("download", "digits", "net.safetensors")
    assert load_file("net.safetensors")["w"].tolist() == [1, 1, 1]


def test_json(typed: Typed, run_id: str) -> None:
    arguments = ["register", "digits", "--store", "store", "--run", run_id, "-l", "production", "--json"]
    registered = document(typed(*arguments))
    assert shape(registered) == VERSION
    assert (registered["version"], registered["loadable"]) == (1, True)
    assert document(typed("describe", "digits", "--json")) == registered
    assert document(typed("list", "--json")) == document(typed("list", "digits", "--json")) == [registered]
    downloaded = document(typed("download", "digits", "out", "--json"))
    assert downloaded == {**registered, "path": str(Path.cwd() / "out")}
    changed = document(typed("change", "digits", "--no-labels", "-d", "worse", "--json"))
    assert changed == {**registered, "labels": [], "description": "worse"}
    assert document(typed("renumber", "digits", "1", "--json")) == {**changed, "version": 2}
    for command in ("register", "list", "describe", "change", "renumber"):
        assert undocumented(f"model {command}", registered) == set()
    assert undocumented("model download", downloaded) == set()
    commit = StockRoom().resolve("HEAD~3")
    from_shelf = document(typed("register", "other", "net", "--metric", "odd=nan", "--json"))
    assert (from_shelf["commit"], from_shelf["from_model"], from_shelf["run"]) == (commit, "net", None)
    assert from_shelf["metrics"] == {"odd": None}
    assert document(typed("list", "--at", "HEAD~1", "--json")) == [{**changed, "version": 2}]


def test_branches_that_register_the_same_number_keep_both(typed: Typed) -> None:
    stock = StockRoom()
    stock.branch("dev")
    typed("register", "digits", "net", "-d", "main")
    stock.switch("dev")
    typed("register", "digits", "net", "-d", "dev")
    stock.switch("main")
    with pytest.raises(ConflictError, match="hopyard model renumber digits 1"):
        stock.merge("dev")
    assert "digits, version 2, is committed" in typed("renumber", "digits", "1")
    stock.merge("dev")
    assert [version["description"] for version in document(typed("list", "digits", "--json"))] == [
        "main",
        "dev",
    ]


def test_commands_that_register_at_once_all_do(typed: Typed) -> None:
    command = [sys.executable, "-m", "hopyard", "model", "register", "digits", "net", "--json"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    registered = [document(process.communicate()[0])["version"] for process in processes]
    assert sorted(registered) == list(StockRoom().registry["digits"]) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ("describe digit", MissingKeyError, "no model is registered as 'digit'"),
        ("describe digits -v 9", MissingKeyError, "'digits' has no version 9 in .*It has 1 version: 1"),
        ("describe digits -v prod", MissingKeyError, "has the label 'prod' in .*; did you mean 'production'"),
        ("list digit", MissingKeyError, "did you mean 'digits'"),
        ("register digits nett", MissingKeyError, "there is no model 'nett' in .*did you mean 'net'"),
        ("register digits", UsageError, "neither a model nor a run"),
        ("register digits --run no", MissingKeyError, "there is no run 'no'"),
        ("register digits --store nowhere --run no", NotFoundError, "nowhere does not exist here"),
        ("register digits --store store --run no", NotFoundError, "holds no run 'no'. The runs there are: "),
        (
            "register digits --store store",
            UsageError,
            "Give --store STORE --run RUN, and neither a model of the",
        ),
        ("register digits net --trial 3", UsageError, "--trial 3 was given without --store"),
        (
            "register digits net --metric f1",
            UsageError,
            "--metric 'f1' must be name=number: --metric accuracy=0.97",
        ),
        ("download digits out", UsageError, r"Give a file for the weights: out\.safetensors"),
        (
            "change digits",
            UsageError,
            "nothing was to be changed. Give --description, --label or --no-labels",
        ),
        (
            "change digits -l a --no-labels",
            UsageError,
            "--label was given with --no-labels. Give one of them",
        ),
        ("renumber digits 1 1", UsageError, "a number is given once: it must be an int above 1"),
    ],
)
def test_what_is_refused(typed: Typed, arguments: str, kind: type[Exception], text: str) -> None:
    typed("register", "digits", "net", "-l", "production")
    before = StockRoom().head
    with pytest.raises(kind, match=text):
        typed(*arguments.split())
    assert StockRoom().head == before


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("describe d", "digits"),
        ("describe digits --version ", "2 1 production"),
        ("describe digits --version p", "production"),
        ("describe none --version ", ""),
        ("list --at m", "main"),
        ("register digits n", "net"),
        ("renumber digits ", "2 1"),
    ],
)
def test_a_shell_is_offered_models_and_versions(typed: Typed, words: str, offered: str) -> None:
    typed("register", "digits", "net", "-l", "production")
    typed("register", "digits", "net")
    given = ["hopyard", "model", *words.split(" ")]
    env = {
        "_HOPYARD_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(given),
        "COMP_CWORD": str(len(given) - 1),
        "_TYPER_COMPLETE_ARGS": " ".join(given),
    }
    assert CliRunner().invoke(app, prog_name="hopyard", env=env).output.split() == offered.split()


def test_what_is_staged_is_not_committed_along(typed: Typed) -> None:
    with StockRoom(enable_write=True) as stock:
        stock.experiment["x"] = 1
    with pytest.raises(UsageError, match="something is staged, which would be committed along"):
        typed("register", "digits", "net")
