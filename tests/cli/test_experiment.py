"""``hopyard experiment``: what the commands show, print as JSON, and say when something is wrong."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Hopyard, run_python
from tests.cli.shapes import document, lines, shape, undocumented
from typer.testing import CliRunner, Result

from hopyard.cli import app
from hopyard.errors import ConfigError, NotFoundError, RunHeldError, UsageError
from hopyard.experiment import list_experiments, open_experiment, schema
from hopyard.experiment.yaml_text import read_yaml, write_yaml
from hopyard.hopper.journal import Journal
from hopyard.storage import LocalStore

FUNCTION = """
def main(context):
    for report in range(2):
        print("report", report, flush=True)
        context.save({"report": report})
        context.report(accuracy=context.get_hparam("lr") + report)
"""
CONFIG = """
name: two
description: two functions
entrypoint: model_def:main
hyperparameters: {lr: {type: categorical, vals: [0.1, 0.2]}}
searcher: {name: grid, metric: accuracy, max_length: {epochs: 2}}
resources: {workers: 1}
"""


def write_experiment(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "model_def.py").write_text(FUNCTION)
    (folder / "const.yaml").write_text(CONFIG)


@pytest.fixture(scope="session")
def created(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which an experiment was run by the command: its store is ``experiments``. Tests leave it so."""
    folder = tmp_path_factory.mktemp("experiment")
    write_experiment(folder)
    done = run_python("-m", "hopyard", "experiment", "create", "const.yaml", "code", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "output").write_text(done.stdout)
    return folder


@pytest.fixture
def place(created: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(created)
    monkeypatch.delenv("HOPYARD_STORE", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    return created


@pytest.fixture
def own(created: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that a test may change."""
    shutil.copytree(created, tmp_path / "own")
    monkeypatch.chdir(tmp_path / "own")
    monkeypatch.delenv("HOPYARD_STORE", raising=False)
    return tmp_path / "own"


@pytest.fixture
def experiment(created: Path) -> str:
    [found] = list_experiments(created / "experiments")
    return found.experiment


def invoke(*arguments: str, code: int = 0, given: str | None = None) -> Result:
    done = CliRunner().invoke(app, ["experiment", *arguments], input=given, catch_exceptions=code != 0)
    if done.exit_code != code and done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def run_command(*arguments: str) -> str:
    return CliRunner().invoke(app, ["run", *arguments], catch_exceptions=False).output


def typed(*arguments: str, words: int = 1) -> Any:
    done = invoke(*arguments, "--json")
    found = document(done.stdout)
    assert undocumented(" ".join(("experiment", *arguments[:words])), found) == set()
    return found


# Create


def test_create_says_how_long_trials_train_and_how_it_ended(created: Path, experiment: str) -> None:
    shown = (created / "output").read_text()
    assert "trials train for 2 reports of the function." in shown
    assert f"run {experiment} on 1 local worker: 1 partition, 2 reports" in shown
    assert re.search(r"^trial 1 lr=0.2  report 2/2  val_accuracy 1.2$", shown, re.MULTILINE)
    assert re.search(r"^\[trial 0 · worker 0\] report 1$", shown, re.MULTILINE)
    assert shown.splitlines()[-2:] == [
        f"{experiment}: completed, best val_accuracy 1.2000 in trial 1",
        f"see it: hopyard experiment describe {experiment}",
    ]


def test_the_same_again_says_that_it_is_finished(own: Path, experiment: str) -> None:
    shown = CliRunner().invoke(
        app, ["create", "experiment", "const.yaml", "code", "--store", "experiments"], catch_exceptions=False
    )
    assert shown.exit_code == 0
    assert f"run {experiment} is finished: its result is returned. --fresh runs it again." in shown.output


def test_create_as_json_is_one_document_with_all_else_on_stderr(own: Path) -> None:
    done = invoke("create", "const.yaml", "code", "--config", "seed=5", "--workers", "1", "--json")
    found = document(done.stdout)
    assert undocumented("experiment create", found) == set()
    assert shape(found) == {
        "experiment": "text", "status": "text", "length": "text", "num_trials": "int", "best_trial": "int",
        "metric": "text", "best": "float", "pid": None, "output": None,
        "differs_from": {"experiment": "text", "fields": ["text"], "files": []},
    }  # fmt: skip
    assert (found["status"], found["length"], found["best"]) == (
        "completed",
        "2 reports of the function",
        1.2,
    )
    assert "trials train for 2 reports of the function." in done.stderr


def test_another_one_of_the_name_says_in_what_it_differs(own: Path, experiment: str) -> None:
    code = own / "code"
    (code / "model_def.py").write_text(f"{FUNCTION}# changed\n")
    (code / "more.py").write_text("")
    changed = ("--config", "searcher.max_length.epochs=1", "--config", "data={token: abc}")
    found = typed("create", "const.yaml", "code", *changed)
    fields = ["data.token", "searcher.max_length.epochs"]
    assert found["differs_from"] == {
        "experiment": experiment,
        "fields": fields,
        "files": ["model_def.py", "more.py"],
    }
    (code / "more.py").unlink()
    shown = invoke("create", "const.yaml", "code").output
    assert shown.startswith(
        f"this is another experiment than {found['experiment']}, the newest of its name:\n"
        "  data.token: gone\n"
        "  searcher.max_length.epochs: 1 -> 2\n"
        "  more.py: gone\n"
        "trials train"
    )


def test_the_same_one_and_one_of_another_name_differ_from_none(own: Path) -> None:
    for changed in ("name=two", "name=three", "labels=[a]", "name=null"):
        assert typed("create", "const.yaml", "code", "--config", changed)["differs_from"] is None
    assert typed("create", "const.yaml", "code", "--fresh")["differs_from"] is None


def test_test_runs_one_batch_and_begins_nothing(own: Path, experiment: str) -> None:
    shown = invoke("create", "const.yaml", "code", "--config", "seed=6", "--test").output
    assert "one batch of everything works; no experiment was begun." in shown
    found = typed("create", "const.yaml", "code", "--config", "seed=6", "--test")
    assert (found["experiment"], found["status"]) == (None, "tested")
    assert [each.experiment for each in list_experiments("experiments")] == [experiment]


def test_detached_it_says_who_drives_it(own: Path, until: Callable[[Callable[[], bool]], None]) -> None:
    shown = invoke("create", "const.yaml", "code", "--fresh", "--detach").output
    said = re.fullmatch(
        r"(experiment-\w+-2): trials train for 2 reports of the function\.\n"
        r"process \d+ drives it; what it says is in (.*\.log)\n"
        r"follow it: hopyard experiment logs \1 --follow\n",
        shown,
    )
    assert said is not None
    until(lambda: Path(said[2]).read_text().endswith(f"{said[1]}: completed\n"))
    assert open_experiment("experiments", said[1]).status == "completed"


def test_warnings_of_the_configuration_are_said(own: Path) -> None:
    done = invoke("create", "const.yaml", "code", "--test", "--config", "searcher.smaller_is_better=true")
    assert (
        "warning: searcher.smaller_is_better is true, but more of 'accuracy' is better. Write false."
        in done.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (["nowhere.yaml", "code"], ConfigError, r"nowhere\.yaml cannot be read: No such file or directory\."),
        (["const.yaml", "nowhere"], UsageError, r"the model definition directory .*nowhere' cannot be read"),
        (["const.yaml", "code", "--config", "seed"], ConfigError, r"--config 'seed' is no override"),
        (
            ["const.yaml", "code", "--backend", "local1"],
            UsageError,
            r"the backend is 'local1', but it must be one of 'local', 'ray', 'spark'; did you mean 'local'\?",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_begins(
    arguments: list[str], error: type[Exception], text: str, place: Path, experiment: str
) -> None:
    with pytest.raises(error, match=text):
        invoke("create", *arguments)
    assert [each.experiment for each in list_experiments("experiments")] == [experiment]


def test_the_status_is_1_if_it_fails_and_the_message_says_why(tmp_path: Path, hopyard: Hopyard) -> None:
    write_experiment(tmp_path)
    (tmp_path / "code" / "model_def.py").write_text(
        "def main(context):\n    raise ValueError('on purpose')\n"
    )
    arguments = ("experiment", "create", "const.yaml", "code", "--config", "max_restarts=0")
    done = hopyard(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("TrialError: the first 2 trials fail alike")
    assert "ValueError: on purpose" in done.stderr


def test_a_metric_that_is_no_number_in_any_trial_is_said_in_words_of_experiments(
    tmp_path: Path, hopyard: Hopyard
) -> None:
    write_experiment(tmp_path)
    code = "def main(context):\n    context.report(accuracy=float('nan'))\n"
    (tmp_path / "code" / "model_def.py").write_text(code)
    done = hopyard("experiment", "create", "const.yaml", "code", "--json", cwd=tmp_path)
    assert done.returncode == 1
    found = document(done.stdout)
    assert (found["status"], found["best"], found["num_trials"]) == ("completed", None, 2)
    [said] = [line for line in done.stderr.splitlines() if line.startswith("TrialError")]
    assert said == (
        f"TrialError: run {found['experiment']} has no model: 0 of 2 trials failed. val_accuracy was no number in any "
        "epoch. Rank by another metric (searcher.metric), or train and validate on rows for which it is defined."
    )


def test_the_failure_of_all_trials_stays_known_until_they_are_tried_again(
    own: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    Path("code/model_def.py").write_text(
        f"""
import pathlib

def main(context):
    if not pathlib.Path({str(own / "mended")!r}).exists():
        raise ValueError("on purpose")
    context.report(accuracy=1.0)
"""
    )
    found = typed("create", "const.yaml", "code", "--config", "max_restarts=0", "--detach")
    experiment, output = found["experiment"], found["output"]
    until(lambda: "TrialError: the first 2 trials fail alike" in Path(output).read_text())
    until(lambda: open_experiment("experiments", experiment).holder is None)
    [listed] = [each for each in typed("list") if each["experiment"] == experiment]
    assert (listed["status"], listed["error"]) == ("gave up", "ValueError: on purpose")
    assert re.search(rf"^{experiment} +two +gave up ", invoke("list").output, re.MULTILINE)
    assert f"{experiment}: ValueError: on purpose" in invoke("list").output
    assert f"{experiment}: ValueError: on purpose" in run_command("list", "experiments")
    assert f"{experiment} (two): gave up\n" in invoke("describe", experiment).output
    described = typed("describe", experiment)
    assert (described["error"]["kind"], described["error"]["message"]) == ("ValueError", "on purpose")
    assert [each["status"] for each in described["trials"]] == ["not begun"] * 2
    assert described["output"] == output
    shown = invoke("describe", experiment).output
    assert "2 trials (2 not begun)" in shown
    assert "all trials failed alike before any unit was done: ValueError: on purpose (train" in shown
    assert f"what its driver said is in {output} on {socket.gethostname()}" in shown
    assert "mend the code, and create it again; if the code is not to blame, go on with it: hopyard" in shown
    assert f"what its driver said is in {output} on " in invoke("logs", experiment).stderr
    assert (
        json.loads(run_command("describe", "experiments", experiment, "--json"))["error"]
        == described["error"]
    )
    (own / "mended").touch()
    found = typed("resume", experiment)
    assert (found["status"], found["best"]) == ("completed", 1.0)
    assert typed("describe", experiment)["error"] is None


# Looking


def test_list(place: Path, experiment: str) -> None:
    [found] = typed("list")
    assert shape(found) == {
        "experiment": "text", "name": "text", "description": "text", "labels": [], "status": "text", "begun": "text",
        "num_trials": "int", "metric": "text", "best": "float", "driver": None, "error": None,
    }  # fmt: skip
    assert (found["experiment"], found["name"], found["best"]) == (experiment, "two", 1.2)
    title, line = invoke("list").output.splitlines()
    assert title.split() == ["experiment", "name", "status", "begun", "trials", "best"]
    assert re.fullmatch(
        rf"{experiment} +two +completed +\d{{4}}-\d\d-\d\d \d\d:\d\d +2 +val_accuracy 1\.2000 *", line
    )


def test_the_store_is_an_option_or_a_variable_and_is_not_made(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    assert (
        "holds no experiments. To run one: hopyard experiment create CONFIG DIR --store"
        in invoke("list", "--store", str(tmp_path / "empty")).output
    )
    monkeypatch.setenv("HOPYARD_STORE", str(tmp_path / "nowhere"))
    with pytest.raises(
        NotFoundError, match=r"nowhere does not exist here \(.*\)\. Give --store PATH, or set HOPYARD_STORE\."
    ):
        invoke("list")
    assert not (tmp_path / "nowhere").exists()
    monkeypatch.setenv("HOPYARD_STORE", str(place / "experiments"))
    monkeypatch.chdir(tmp_path)
    assert len(typed("list")) == 1


def test_describe(place: Path, experiment: str) -> None:
    found = typed("describe", experiment)
    assert list(found)[:8] == [
        "experiment", "name", "description", "labels", "config", "definition", "length", "warm_start",
    ]  # fmt: skip
    assert found["config"]["searcher"] == {"name": "grid", "metric": "accuracy", "max_length": {"epochs": 2}}
    assert (found["epochs"], found["num_trials"], found["trials"][0]["value"]) == (2, 2, 1.2)
    shown = invoke("describe", experiment, "--most", "1").output
    assert shown.startswith(
        f"{experiment} (two): completed\ntwo functions\nmodel_def:main, searcher grid, seed 0; trials"
    )
    assert "and 1 more" in shown
    assert f"get its best weights: hopyard experiment checkpoints download {experiment} best DIR" in shown
    assert re.search(r"^\d+ units on 1 worker in ", shown, re.MULTILINE)
    assert "data that stayed" not in shown  # functions have no partitions
    assert "partition" not in shown


def test_describe_of_a_function_without_a_length_has_none(own: Path) -> None:
    config = read_yaml(CONFIG, "it")
    del config["searcher"]["max_length"]
    Path("const.yaml").write_text(write_yaml(config))
    shown = invoke("create", "const.yaml", "code").output
    assert "1000000" not in shown.replace(",", "")
    assert "trials train for as long as the function runs." in shown
    assert "report 2  val_accuracy" in shown
    experiment = max(list_experiments("experiments"), key=lambda each: each.created or 0.0).experiment
    assert typed("describe", experiment)["epochs"] is None
    described = invoke("describe", experiment).output
    assert "1000000" not in described.replace(",", "")
    assert re.search(r"^ +1 +1.2000 +2/2 ", described, re.MULTILINE)


def test_logs(place: Path, experiment: str) -> None:
    shown = invoke("logs", experiment, "--trial", "1").output.splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line) for line in shown] == [
        f"[trial 1 · worker 0] report {number}" for number in range(2)
    ]
    done = invoke("logs", experiment, "--tail", "1", "--json")
    [found] = lines(done.stdout)
    assert undocumented("experiment logs", found) == set()
    assert shape(found) == {"time": "text", "trial": "int", "worker": "int", "stream": "text", "text": "text"}
    assert found["text"] == "report 1"
    assert len(lines(invoke("logs", experiment, "--follow", "--json").stdout)) == 4
    nothing = invoke("logs", experiment, "--since", "2999-01-01")
    assert (nothing.stdout, nothing.stderr) == ("", "nothing was printed that these options ask for.\n")
    with pytest.raises(
        NotFoundError,
        match=rf"{experiment} has no trial 99; it has 2 so far, the first is 0\. `hopyard experiment describe "
        rf"{experiment}` shows them",
    ):
        invoke("logs", experiment, "--trial", "99")
    with pytest.raises(
        UsageError, match=r"--since 'soon' is no time\. Write 90s, 10m, 2h or 3d, or a time such as"
    ):
        invoke("logs", experiment, "--since", "soon")


def test_checkpoints(place: Path, experiment: str, tmp_path: Path) -> None:
    best, other = typed("checkpoints", "list", experiment, words=2)
    assert shape(best) == {
        "trial": "int", "status": "text", "epoch": "int", "metric": "text", "value": "float",
        "metrics": {"val_accuracy": "float"}, "params": {"lr": "float"}, "weights_bytes": "int", "kept": "bool",
    }  # fmt: skip
    assert (best["trial"], best["kept"], other["trial"]) == (1, True, 0)
    shown = invoke("checkpoints", "list", experiment).output.splitlines()
    assert shown[0].split() == ["trial", "epoch", "val_accuracy", "size", "kept", "state", "hyperparameters"]
    found = typed("checkpoints", "download", experiment, "0", str(tmp_path / "new"), words=2)
    assert found == {"path": str(tmp_path / "new")}
    assert json.loads((tmp_path / "new" / "checkpoint.json").read_text())["trial"] == 0
    assert (
        "has weights.safetensors"
        in invoke("checkpoints", "download", experiment, "best", str(tmp_path / "best")).output
    )


def test_export_and_compare(own: Path, experiment: str) -> None:
    assert (
        invoke("export", experiment, "trials.jsonl").output == f"{experiment} is exported to trials.jsonl\n"
    )
    assert len(Path("trials.jsonl").read_text().splitlines()) == 2
    invoke("fork", experiment, "--config", "seed=9")
    other = next(each.experiment for each in list_experiments("experiments") if each.experiment != experiment)
    first, second = typed("compare", experiment, other)
    assert (first["settings"], second["settings"]) == ({"seed": 0}, {"seed": 9})
    Path("code/more.py").write_text("")
    wider = "hyperparameters.lr.vals=[0.1, 0.3]"
    changed = typed("create", "const.yaml", "code", "--config", wider)["experiment"]
    warm = typed("fork", experiment, "--warm-start", "best")["experiment"]
    first, second, third = typed("compare", experiment, changed, warm)
    digest = first["settings"].pop("definition")
    assert first["settings"] == {"hyperparameters.lr.vals": [0.1, 0.2]}
    assert second["settings"].pop("definition") != digest
    assert second["settings"] == {"hyperparameters.lr.vals": [0.1, 0.3]}
    assert third["settings"] == {
        "hyperparameters.lr.vals": [0.1, 0.2], "definition": digest, "warm_start": f"trial 1 of {experiment}",
    }  # fmt: skip
    shown = invoke("compare", experiment, other).output
    assert re.search(rf"(?m)^experiment +status .*\n(.*\n)*{other} ", shown)


# Going on


def test_commands_for_one_that_nobody_drives_say_so(place: Path, experiment: str) -> None:
    for command in ("pause", "stop", "kill"):
        shown = invoke(command, experiment).output
        assert shown == f"run {experiment} is not running, so there is nothing to {command}.\n"


@pytest.mark.parametrize("command", ["resume", "continue"])
def test_resume(command: str, own: Path, experiment: str) -> None:
    assert invoke(command, experiment).output == f"{experiment} is finished.\n"
    folder = LocalStore("experiments").runs.at(experiment)
    journal = folder.at("journal")
    for name in sorted(journal.names())[2:]:
        journal.delete(name)
    shutil.rmtree("code")
    found = typed(command, experiment)
    assert (found["experiment"], found["status"], found["best"]) == (experiment, "completed", 1.2)


def test_a_trial_of_a_finished_one_is_cloned_and_trained_when_it_is_resumed(
    own: Path, experiment: str
) -> None:
    with pytest.raises(UsageError, match="no hyperparameter 'lrr'; did you mean 'lr'"):
        run_command("clone", "experiments", experiment, "0", "--set", "lrr=0.5")
    cloned = document(run_command("clone", "experiments", experiment, "0", "--set", "lr=0.5", "--json"))
    assert undocumented("run clone", cloned) == set()
    assert (cloned["run"], cloned["clone_of"], cloned["trials"]) == (experiment, 0, None)
    assert "lr=0.5 lies outside of hp_choice([0.1, 0.2]), which is allowed." in cloned["said"]
    found = typed("resume", experiment)
    assert (found["status"], found["best"]) == ("completed", 1.5)
    assert invoke("resume", experiment).output == f"{experiment} is finished.\n"
    with pytest.raises(
        UsageError, match="trial 2 has trained to its end, so a clone with its weights would have nothing"
    ):
        run_command("clone", "experiments", experiment, "2", "--weights")


def test_run_resume_needs_no_directory_either(own: Path, experiment: str) -> None:
    journal = LocalStore("experiments").runs.at(experiment).at("journal")
    for name in sorted(journal.names())[2:]:
        journal.delete(name)
    shutil.rmtree("code")
    done = CliRunner().invoke(app, ["run", "resume", "experiments", experiment], catch_exceptions=False)
    assert done.exit_code == 0
    assert f"{experiment}: completed" in done.output


def test_one_that_is_driven_is_neither_resumed_nor_deleted(own: Path, experiment: str) -> None:
    journal_names = LocalStore("experiments").runs.at(experiment).at("journal")
    for name in sorted(journal_names.names())[2:]:
        journal_names.delete(name)
    journal = Journal(LocalStore("experiments").runs.at(experiment))
    with pytest.raises(RunHeldError, match=f"{experiment} is driven by another process .* and is not paused"):
        invoke("resume", experiment)
    with pytest.raises(RunHeldError, match=f"{experiment} was not deleted, since another process drives it"):
        invoke("delete", experiment, "--yes")
    with pytest.raises(RunHeldError, match="--take-over"):
        invoke("create", "const.yaml", "code")
    shown = invoke("create", "const.yaml", "code", "--take-over").output
    assert f"{experiment}: completed, best val_accuracy 1.2000 in trial 1" in shown
    journal.close()


def test_fork_begins_from_weights_if_asked(own: Path, experiment: str) -> None:
    found = typed("fork", experiment, "--config", "seed=3", "--warm-start", "best")
    assert found["status"] == "completed"
    assert found["differs_from"] == {"experiment": experiment, "fields": ["seed"], "files": []}
    shown = invoke("describe", found["experiment"]).output
    assert f"trials began from trial 1 of {experiment}" in shown
    assert typed("describe", found["experiment"])["warm_start"] == {
        "experiment": experiment, "trial": 1, "epoch": 2,
    }  # fmt: skip


def test_fork_says_what_it_changes_so_that_a_misspelt_hyperparameter_is_seen(
    own: Path, experiment: str
) -> None:
    shown = invoke("fork", experiment, "--config", "hyperparameters.stepp=2", "--config", "seed=3").output
    assert shown.startswith(
        f"this fork of {experiment} changes:\n  hyperparameters.stepp: new: 2\n  seed: 0 -> 3\n"
    )
    same = typed("fork", experiment, "--warm-start", "best")
    assert same["differs_from"] == {"experiment": experiment, "fields": [], "files": []}


def test_delete_asks_first(own: Path, experiment: str) -> None:
    done = invoke("delete", experiment, code=1, given="n\n")
    assert f"Delete {experiment} with all its results?" in done.output
    assert len(list_experiments("experiments")) == 1
    assert invoke("delete", experiment, "--yes").output == f"{experiment} is deleted.\n"
    assert list_experiments("experiments") == []


# Configurations


def test_schema_is_json(place: Path) -> None:
    assert json.loads(invoke("schema").output) == schema()


def test_convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("det.yaml").write_text(
        "name: old\nentrypoint: model_def:T\nhyperparameters: {global_batch_size: 64}\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 100}, smaller_is_better: true}\n"
        "environment: {image: python}\n"
    )
    done = invoke("convert", "det.yaml")
    assert read_yaml(done.stdout, "it")["entrypoint"] == "model_def:T"
    assert "environment.image has no counterpart." in done.stderr
    found = typed("convert", "det.yaml")
    assert read_yaml(found["yaml"], "it") == read_yaml(done.stdout, "it")
    assert found["notes"][0].keys() == {"field", "advice"}
    assert "const.yaml is written; " in invoke("convert", "det.yaml", "--output", "const.yaml").stdout
    assert Path("const.yaml").read_text() == done.stdout
    with pytest.raises(UsageError, match=r"const\.yaml exists already\. Give another name, or delete it\."):
        invoke("convert", "det.yaml", "--output", "const.yaml")
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read: No such file or directory"):
        invoke("convert", "nowhere.yaml")


# Completion


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["experiment", "des"], {"describe"}),
        (["experiment", "describe", "exp"], {"ID"}),
        (["experiment", "describe", "--store", "nowhere", "exp"], set()),
        (["experiment", "create", "const.yaml", "code", "--backend", "r"], {"ray"}),
        (["create", ""], {"experiment"}),
        (["experiment", "logs", "ID", "--trial", ""], {"0", "1"}),
        (["experiment", "stop", "--trial", "1", "exp"], {"ID"}),
        (["experiment", "stop", "ID", "--trial", "1"], {"1"}),
        (["experiment", "fork", "ID", "--warm-start", ""], {"best", "0", "1"}),
        (["experiment", "fork", "experiment-0", "--warm-start", ""], set()),
        (["experiment", "checkpoints", "download", "ID", "b"], {"best"}),
        (["experiment", "checkpoints", "download", "--store", "experiments", "ID", ""], {"best", "0", "1"}),
    ],
)
def test_a_shell_is_offered_ids_and_trials(
    words: list[str], offered: set[str], place: Path, experiment: str
) -> None:
    words = [experiment if each == "ID" else each for each in words]
    given = {
        "_HOPYARD_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("hopyard", *words)),
        "COMP_CWORD": str(len(words)),
        "_TYPER_COMPLETE_ARGS": " ".join(("hopyard", *words)),
    }
    found = CliRunner().invoke(app, prog_name="hopyard", env=given).output.split()
    assert set(found) == {experiment if each == "ID" else each for each in offered}
