"""Every command over what others have named and written: it is shown as text, and steers no terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.cli.shapes import document, lines, undocumented
from tests.cli.test_json_everywhere import COMMANDS

from hopyard import StockRoom
from hopyard.backend import InlineBackend, LocalBackend
from hopyard.cli import main
from hopyard.experiment import create, list_experiments
from hopyard.storage import LocalStore
from hopyard.tune import GridSearch, hp_choice

EVIL = "\x1b]0;owned\x07\x1b[31m\u202e\u200b"
SHOWN = r"\x1b]0;owned\x07\x1b[31m\u202e\u200b"
SHOW_FAILURES = ("run describe", "experiment describe", "experiment logs")
STEERING = set("\x1b\x07\u202e\u200b")
NAME = "a[/b] x[mean] :smile:"
KEY = f"{NAME}{EVIL}"
FILE = f"bold[b]{EVIL}.parquet"

Typed = Callable[..., str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a stockroom, a store with a run, files and a searcher, whose names nobody would wish for."""
    folder = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("GIT_AUTHOR_NAME", f"Eve[/b]{EVIL}")
        patch.setenv("HOPYARD_CACHE", str(folder / "cache"))
        _make_room()
        _make_run()
        _make_experiment()
        pd.DataFrame({KEY: np.arange(64.0), "label": np.arange(64) % 2}).to_parquet(FILE)
        Path("searcher.json").write_text(
            json.dumps({"name": "random", "max_trials": 2, "max_length": {"epochs": 1}})
        )
        np.save("new.npy", np.arange(3))
        yield folder


def _make_room() -> None:
    stock = StockRoom.init(".")
    with stock.enable_write(f"first[/b]{EVIL} message\n\nbody{EVIL}"):
        stock.data[NAME] = {KEY: EVIL, "k": f"text[/b]{EVIL}"}
        stock.data["other"] = {"j": f"text[/b]{EVIL}"}
        stock.data["numbers"] = {KEY: np.arange(3)}
        stock.model[NAME] = {f"[/b]{EVIL}": np.arange(3.0), "w": np.ones(2)}
        stock.experiment[NAME] = f"[/b]{EVIL}"
        with stock.run(params={NAME: f"[/b]{EVIL}"}, tags={NAME: f"[/b]{EVIL}"}) as run:
            run.log(**{NAME: 1.0})
        stock.registry.register(
            NAME, NAME, params={NAME: EVIL}, metrics={NAME: 1}, description=EVIL, labels=[NAME]
        )
    stock.branch("dev")
    stock.tag("v1")
    stock.push("./remote[b]")
    stock.close()


def _make_run() -> None:
    import torch

    from hopyard.torch import TorchEstimator

    def estimator(params: dict[str, Any]) -> Any:
        if params[KEY] == "fails":
            raise ValueError(f"no[/b]{EVIL}")
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        return TorchEstimator(model, torch.optim.SGD, torch.nn.CrossEntropyLoss(), metrics=["accuracy"],
                              optimizer_params={"lr": 0.1})  # fmt: skip

    features = np.random.default_rng(0).standard_normal((48, 2)).astype("float32")
    GridSearch(
        InlineBackend(), LocalStore("store[x]"), estimator, {KEY: hp_choice([f"[/b]{EVIL}", "fails"])},
        num_epochs=1, evaluation_metric="accuracy", run_id="run", progress=False,
    ).fit({"features": features, "label": (features.sum(axis=1) > 0).astype("int64")})  # fmt: skip


def _make_experiment() -> None:
    folder = Path("code[b]")
    folder.mkdir()
    (folder / "model_def.py").write_text(
        f"def main(context):\n    print({EVIL!r})\n    context.report(accuracy=1, **{{{KEY!r}: 1}})\n"
        f"    if context.get_hparam({KEY!r}) == 'fails':\n        raise ValueError({EVIL!r})\n"
    )
    config = {
        "name": f"name[/b]{EVIL}",
        "description": f"text[/b]{EVIL}",
        "labels": [f"[/b]{EVIL}"],
        "entrypoint": "model_def:main",
        "data": {KEY: EVIL},
        "hyperparameters": {KEY: {"type": "categorical", "vals": [EVIL, "fails"]}},
        "searcher": {"name": "grid", "metric": "accuracy"},
        "max_restarts": 0,
    }
    Path("const.yaml").write_text(json.dumps(config))
    Path("determined.yaml").write_text(json.dumps({**config, KEY: EVIL, "searcher": {"name": KEY}}))
    create("const.yaml", folder, LocalStore("store[x]"), LocalBackend(num_workers=1), progress=False)


@pytest.fixture(scope="module")
def ids(place: Path) -> dict[str, str]:
    """What stands for the ids of its run and its experiment below."""
    [experiment] = list_experiments(LocalStore(place / "store[x]"))
    return {"RUN": StockRoom(place).experiment.runs()[0].id, "EXP": experiment.experiment}


@pytest.fixture
def printed(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """The command as the console script runs it: what it printed to standard output, and to standard error."""
    monkeypatch.chdir(place)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("GIT_AUTHOR_NAME", f"Eve[/b]{EVIL}")
    monkeypatch.setenv("HOPYARD_CACHE", str(place / "cache"))

    def run(*arguments: str) -> tuple[str, str]:
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["hopyard", *arguments])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr()

    return run


@pytest.fixture
def typed(printed: Callable[..., tuple[str, str]]) -> Typed:
    """The command as the console script runs it: what it printed, on both streams."""
    return lambda *arguments: "".join(printed(*arguments))


STORE = ["--store", "store[x]"]
WALK: dict[str, list[list[str]]] = {
    "version": [[]],
    "plan": [["--searcher", "searcher.json"], ["--searcher", KEY]],
    "store check": [["store[x]", "--megabytes", "1"], [KEY, "--megabytes", "1"]],
    "run list": [["store[x]"], [KEY]],
    "run describe": [["store[x]", "run"], ["store[x]", KEY]],
    "run compare": [["store[x]", "run"]],
    "run export": [["store[x]", "run", f"{FILE}.csv"], ["store[x]", "run", f"{FILE}.odd"]],
    "run watch": [["store[x]", "run"], ["store[x]", KEY]],
    "run pause": [["store[x]", "run"]],
    "run resume": [["store[x]", "run"]],
    "run stop": [["store[x]", "run"]],
    "run extend": [["store[x]", "run", "--num-models", "1"], ["store[x]", KEY, "--num-models", "1"]],
    "run clone": [
        ["store[x]", "run", "0", "--set", KEY],
        ["store[x]", "run", "0", "--set", f"{KEY}=1"],
        ["store[x]", "run", "99"],
        ["store[x]", KEY, "0"],
    ],
    "create experiment": [["const.yaml", "code[b]", *STORE], ["const.yaml", KEY, *STORE]],
    "experiment create": [
        ["const.yaml", "code[b]", *STORE],
        ["const.yaml", "code[b]", *STORE, "--config", KEY],
    ],
    "experiment list": [STORE, ["--store", KEY]],
    "experiment describe": [["EXP", *STORE], [KEY, *STORE], ["run", *STORE]],
    "experiment logs": [["EXP", *STORE], ["EXP", "--since", KEY, *STORE]],
    "experiment export": [["EXP", f"e{FILE}.csv", *STORE], [KEY, "x.csv", *STORE]],
    "experiment compare": [["EXP", "EXP", *STORE], [KEY, *STORE]],
    "experiment schema": [[]],
    "experiment convert": [["determined.yaml"], ["const.yaml", "--output", f"made{EVIL}.yaml"], [KEY]],
    "experiment pause": [["EXP", *STORE], [KEY, *STORE]],
    "experiment resume": [["EXP", *STORE], [KEY, *STORE]],
    "experiment continue": [["EXP", *STORE]],
    "experiment stop": [["EXP", *STORE], [KEY, *STORE]],
    "experiment kill": [["EXP", *STORE], [KEY, *STORE]],
    "experiment fork": [
        ["EXP", "--config", KEY, *STORE],
        [KEY, *STORE],
        ["EXP", "--warm-start", KEY, *STORE],
    ],
    "experiment delete": [[KEY, "--yes", *STORE]],
    "experiment checkpoints list": [["EXP", *STORE], [KEY, *STORE]],
    "experiment checkpoints download": [["EXP", "best", f"weights{EVIL}", *STORE], ["EXP", KEY, "x", *STORE]],
    "data inspect": [[FILE], [KEY]],
    "data prepare": [[FILE, f"prepared{EVIL}"], [KEY, "prepared"]],
    "data convert-petastorm": [[KEY, "prepared"]],
    "data throughput": [[FILE, "--epochs", "1"], [FILE, "--columns", KEY + "x"]],
    "data verify": [["store[x]"], [FILE], [KEY]],
    "data cache list": [[], ["--path", KEY]],
    "data cache clear": [["--path", KEY]],
    "stock init": [[], [f"room{EVIL}"]],
    "stock status": [[]],
    "stock log": [[], ["--graph", "--all"], [KEY]],
    "stock diff": [[], ["HEAD", KEY]],
    "stock import": [[], [KEY], ["parquet", "--from", FILE], ["numpy", "--from", KEY], ["numpy", "-o", KEY]],
    "stock commit": [["-m", f"second[/b]{EVIL}"]],
    "stock export": [
        [f"experiment/{NAME}", f"{FILE}.json"],
        [f"data/{KEY}", "x"],
        [f"data/{NAME}", f"{FILE}.npy"],
    ],
    "stock list": [[], ["data"], [KEY]],
    "stock inspect": [
        [f"data/{NAME}"],
        ["data/numbers"],
        [f"model/{NAME}"],
        [f"experiment/{NAME}"],
        [KEY],
        ["run/RUN"],
    ],
    "stock leaks": [[NAME, "other"], [KEY, "other"]],
    "stock branch": [[], [KEY], ["new"], ["-d", KEY]],
    "stock tag": [[], [KEY], ["new"]],
    "stock switch": [[KEY], ["dev"], ["main"]],
    "stock merge": [["dev"], [KEY]],
    "stock revert": [[KEY]],
    "stock reset": [[], [KEY]],
    "stock remote list": [[]],
    "stock remote forget": [[KEY]],
    "stock clone": [["remote[b]", f"copy{EVIL}"], [KEY, "copy2"]],
    "stock push": [[], ["--branch", KEY], [f"{KEY}/x"]],
    "stock pull": [[], [KEY]],
    "stock fetch": [["--data", NAME], ["--data", KEY], []],
    "stock verify": [[], ["--repair-from", KEY]],
    "stock gc": [["--dry-run"], ["--remote", KEY]],
    "stock reproduce": [[], [KEY]],
    "model list": [[], [NAME], [KEY], ["--at", KEY]],
    "model describe": [[NAME], [KEY], [NAME, "-v", KEY], [NAME, "-v", NAME]],
    "model download": [[NAME, f"{FILE}.safetensors"], [NAME, f"out{EVIL}"], [KEY, "x.safetensors"]],
    "model register": [
        [f"{NAME} again", f"{NAME}/1", "-d", EVIL],
        [KEY, NAME],
        [NAME, KEY],
        [NAME, "-l", KEY],
        ["x", NAME, "--metric", KEY],
        ["x", "--store", "store[x]", "--run", "run"],
        ["x", "--store", KEY, "--run", KEY],
    ],
    "model change": [[NAME, "-d", f"since[/b]{EVIL}"], [NAME, "-v", KEY, "-l", "x"], [KEY, "--no-labels"]],
    "model renumber": [[NAME, "1"], [KEY, "1"]],
    "stock purge": [[NAME, "--key", KEY, "--why", KEY, "--yes"], [KEY, "--key", "1", "--why", "x", "--yes"]],
}
NOT_WALKED = {
    "demo": "its names are its own, and it trains for half a minute",
    "stock merge-driver": "git calls it, and its texts are tested in tests/stockroom/git",
    "web": "it serves until it is ended; its pages are tested in tests/web",
}
LINES = ("run watch", "experiment logs")
WITH_JSON = [name for name in WALK if any("--json" in each.opts for each in COMMANDS[name].params)]


def test_every_command_is_walked() -> None:
    assert set(COMMANDS) == set(WALK) | set(NOT_WALKED)


@pytest.mark.parametrize("command", WALK)
def test_a_command_shows_what_others_wrote_as_text(command: str, typed: Typed, ids: dict[str, str]) -> None:
    for arguments in WALK[command]:
        shown = typed(*command.split(), *_with_ids(arguments, ids))
        assert not set(shown) & STEERING, shown
        assert "Traceback" not in shown or command in SHOW_FAILURES


@pytest.mark.parametrize("command", WITH_JSON)
def test_with_json_there_is_one_document_or_an_error_and_nothing_else(
    command: str, printed: Callable[..., tuple[str, str]], ids: dict[str, str]
) -> None:
    for arguments in WALK[command]:
        given = [*command.split(), *_with_ids(arguments, ids), "--json"]
        out, err = printed(*given)
        assert not set(out + err) & STEERING, given
        if out:
            found = lines(out) if command in LINES else document(out)
            assert undocumented(command, found) == set()
        else:
            assert re.match(r"\w+Error: |Usage: ", err.lstrip()), given


def _with_ids(arguments: list[str], ids: dict[str, str]) -> list[str]:
    return [ids.get(each, each.replace("RUN", ids["RUN"])) for each in arguments]


def test_names_are_shown_whole(typed: Typed, place: Path) -> None:
    log = typed("stock", "log", "--all")
    assert f"Eve[/b]{SHOWN}" in log
    assert f"first[/b]{SHOWN} message" in log
    assert f"data/{NAME}" in typed("stock", "list")
    assert f"[~1b]{SHOWN}" in typed("stock", "inspect", f"model/{NAME}")
    assert f"{NAME}{SHOWN}" in typed("data", "inspect", FILE)
    assert "no[/b]" in typed(
        "run", "describe", "store[x]", "run"
    )  # errors are kept without sequences for terminals
    assert f"{NAME}{SHOWN}=[/b]{SHOWN}" in typed("run", "describe", "store[x]", "run").replace("\n", "")
    assert SHOWN in typed("stock", "list", "--at", KEY)


def test_what_was_typed_wrongly_is_shown_as_text(typed: Typed) -> None:
    for arguments in (["stock", "status", KEY], ["stock", f"--no{EVIL}"], [KEY], ["stock", "log", "-n", KEY]):
        assert not set(typed(*arguments)) & STEERING
