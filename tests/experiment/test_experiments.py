"""Experiments in a store: listed, opened, gone on with, forked, deleted; checkpoints of their trials."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.numpy import load_file
from tests.experiment.conftest import TRIAL

from hopyard.backend import InlineBackend
from hopyard.cli.run import leaderboard
from hopyard.errors import CorruptError, HopyardError, NotFoundError, RunHeldError, TrialError, UsageError
from hopyard.experiment import (
    create,
    delete,
    download_checkpoint,
    fork,
    list_checkpoints,
    list_experiments,
    open_experiment,
    resume,
    saved_state,
)
from hopyard.experiment.definition import pack
from hopyard.experiment.experiments import UNREADABLE
from hopyard.hopper.journal import Journal, read_records
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, Run, compare, hp_choice

Definition = Callable[..., Path]
Experiment = Callable[..., Run]

FUNCTION = """
import numpy as np

def main(context):
    before = context.restored() or {"weights": np.zeros(3), "done": 0}
    for report in range(2):
        weights = before["weights"] + context.get_hparam("lr")
        before = {"weights": weights, "done": before["done"] + 1, "more": {"list": [1, "two"]}}
        context.save(before)
        context.report(accuracy=float(weights.sum()))
"""
TWO: dict[str, Any] = {
    "entrypoint": "model_def:main",
    "name": "two",
    "description": "two functions",
    "labels": ["small"],
    "hyperparameters": {"lr": {"type": "categorical", "vals": [1, 2]}},
    "searcher": {"name": "grid", "metric": "accuracy", "max_length": {"epochs": 2}},
}


def search_beside(store: LocalStore) -> Run:
    """A run of a search, which is no experiment."""

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(torch.nn.Linear(2, 2), torch.optim.SGD, torch.nn.CrossEntropyLoss())

    data = {"features": np.arange(64, dtype="float32").reshape(32, 2), "label": np.zeros(32, "int64")}
    space = {"lr": hp_choice([0.1])}
    return GridSearch(
        InlineBackend(), store, estimator, space, num_epochs=1, evaluation_metric="loss", progress=False
    ).fit(data).run  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def two(definition: Definition, experiment: Experiment) -> Run:
    """A finished experiment of two functions."""
    return experiment(definition(FUNCTION), **TWO)


def stop_after_the_first_trial(run_id: str, store: LocalStore) -> None:
    """Cut the journal of a finished run after the first trial, as if its driver had been killed there."""
    folder = store.runs.at(run_id)
    kept = []
    for record in read_records(folder):
        kept.append(record)
        if record["r"] == "end":
            break
    shutil.rmtree(folder.path("journal"))  # type: ignore[arg-type]
    journal = Journal(folder)
    for record in kept:
        journal.append(record)
    journal.close()


# Lists


def test_experiments_are_listed_without_other_runs_and_in_the_order_they_were_begun(
    two: Run, definition: Definition, experiment: Experiment, store: LocalStore
) -> None:
    other = experiment(definition(FUNCTION), **TWO | {"name": None, "seed": 7})
    search = Journal(store.runs.at("grid-0123456789"))
    search.append({"r": "run"})
    search.close()
    first, second = list_experiments(store)
    assert (first.experiment, second.experiment) == (two.run_id, other.run_id)
    assert (first.name, first.description, first.labels) == ("two", "two functions", ("small",))
    assert (first.status, first.trials, first.metric, first.best) == ("completed", 2, "val_accuracy", 12.0)
    assert (first.holder, first.error, second.name) == (None, None, None)
    assert first.created is not None
    assert second.created is not None
    assert first.created < second.created


def test_an_experiment_that_cannot_be_read_hides_no_other(two: Run, store: LocalStore) -> None:
    store.runs.at("experiment-broken").put("journal/000000000001", b"no journal at all\n" * 9)
    store.runs.at("experiment-broken").put("journal/000000000002", b"no journal at all\n" * 9)
    broken, whole = list_experiments(store)
    assert (broken.experiment, broken.status) == ("experiment-broken", UNREADABLE)
    assert broken.error is not None
    assert "is not what was written" in broken.error
    assert whole.experiment == two.run_id


def test_a_store_without_experiments_has_none(tmp_path: Path) -> None:
    assert list_experiments(tmp_path) == []


def test_what_is_no_experiment_is_not_opened_as_one(two: Run, store: LocalStore) -> None:
    assert open_experiment(store, two.run_id).run_id == two.run_id
    with pytest.raises(
        NotFoundError,
        match=f"holds no experiment '{two.run_id}x'; did you mean '{two.run_id}'"
        rf"\? The experiments there are: {two.run_id}\.",
    ):
        open_experiment(store, f"{two.run_id}x")
    search = search_beside(store).run_id
    with pytest.raises(
        UsageError,
        match=f"{search} is a run of a grid search, and no experiment. See it with `hopyard run describe .* {search}`",
    ):
        open_experiment(store, search)


# Going on


def test_one_that_was_interrupted_goes_on_from_what_the_store_has(
    two: Run, store: LocalStore, tmp_path: Path
) -> None:
    stop_after_the_first_trial(two.run_id, store)
    shutil.rmtree(tmp_path / "definition")
    assert open_experiment(store, two.run_id).status == "interrupted"
    run = resume(store, two.run_id, InlineBackend(), progress=False)
    assert (run.run_id, run.status, run.state.sessions) == (two.run_id, "completed", 2)
    assert run.histories() == two.histories()


def test_a_finished_one_is_left_as_it_is(two: Run, store: LocalStore) -> None:
    run = resume(store, two.run_id)
    assert (run.status, run.state.sessions) == ("completed", 1)


def test_one_begun_beside_another_goes_on_under_its_own_id(
    definition: Definition, experiment: Experiment, two: Run, store: LocalStore
) -> None:
    beside = experiment(definition(FUNCTION), options={"fresh": True}, **TWO)
    assert beside.run_id == f"{two.run_id}-2"
    stop_after_the_first_trial(beside.run_id, store)
    run = resume(store, beside.run_id, InlineBackend(), progress=False)
    assert (run.run_id, run.status) == (beside.run_id, "completed")
    assert open_experiment(store, two.run_id).state.sessions == 1


def test_one_that_another_process_drives_is_refused_unless_it_is_paused(two: Run, store: LocalStore) -> None:
    stop_after_the_first_trial(two.run_id, store)
    journal = Journal(store.runs.at(two.run_id))
    with pytest.raises(
        RunHeldError,
        match=f"{two.run_id} is driven by another process \\(host .*, pid .*, since .*\\) and is not paused. Look at "
        f"it with `hopyard experiment logs --follow {two.run_id} --store {store.url}`. If that process hangs or cannot "
        f"be reached: hopyard experiment resume --take-over {two.run_id} --store {store.url}",
    ):
        resume(store, two.run_id)
    run = resume(store, two.run_id, InlineBackend(), take_over=True, progress=False)
    assert run.status == "completed"
    journal.close()


def test_one_that_another_process_holds_is_called_an_experiment(
    two: Run, store: LocalStore, tmp_path: Path
) -> None:
    stop_after_the_first_trial(two.run_id, store)
    journal = Journal(store.runs.at(two.run_id))
    with pytest.raises(
        RunHeldError,
        match=r"if it hangs or cannot be reached, give the command again with --take-over \(take_over=True in "
        r"Python\): the other driver then stops at its next write",
    ):
        create(two.state.header["experiment"]["config"], tmp_path / "definition", store, InlineBackend())
    journal.close()


# Forks


def test_a_fork_has_the_same_code_and_a_changed_configuration(
    two: Run, store: LocalStore, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "definition")
    run = fork(store, two.run_id, ["hyperparameters.lr.vals=[3]"], InlineBackend(), progress=False)
    assert run.run_id != two.run_id
    assert [trial.params for trial in run.state.trials.values()] == [{"lr": 3}]
    assert run.best.get_history()["val_accuracy"] == [9.0, 18.0]
    [first, second] = compare([two, run]).to_dict("records")
    assert first["settings"].keys() == second["settings"].keys() == {"hyperparameters.lr.vals"}


def test_a_warm_start_begins_from_the_weights_of_the_trial(two: Run, store: LocalStore) -> None:
    best = fork(store, two.run_id, ["seed=1"], InlineBackend(), warm_start="best", progress=False)
    assert [each["val_accuracy"] for each in best.histories().values()] == [[15.0, 18.0], [18.0, 24.0]]
    other = fork(store, two.run_id, ["seed=1"], InlineBackend(), warm_start=0, progress=False)
    assert [each["val_accuracy"] for each in other.histories().values()] == [[9.0, 12.0], [12.0, 18.0]]
    warm = other.state.header["experiment"]["warm_start"]
    assert (warm["experiment"], warm["trial"], warm["epoch"]) == (two.run_id, 0, 2)
    delete(store, two.run_id)
    stop_after_the_first_trial(other.run_id, store)
    again = resume(store, other.run_id, InlineBackend(), progress=False)
    assert again.histories() == other.histories()


def test_weights_of_another_model_are_refused_in_words(
    definition: Definition, experiment: Experiment, store: LocalStore
) -> None:
    width = 'self.context.get_hparam("width")'
    code = TRIAL.replace("Linear(4, 8)", f"Linear(4, {width})").replace("Linear(8, 2)", f"Linear({width}, 2)")
    run = experiment(definition(code), hyperparameters={"lr": 0.1, "width": 8})
    with pytest.raises(TrialError) as caught:
        fork(
            store, run.run_id, ["hyperparameters.width=4"], InlineBackend(), warm_start="best", progress=False
        )
    said = str(caught.value)
    assert "on one batch, so no experiment was begun." in said
    assert re.search(
        r"The weights to begin from are of another model than the trial builds: (.|\n)*size mismatch", said
    )
    assert "Give the hyperparameters with which they were trained, and the same layers." in said
    assert len(list_experiments(store)) == 1


@pytest.mark.parametrize("overrides", [[], ["name=other"], ["resources.workers=3"]])
def test_a_fork_that_would_be_the_same_experiment_is_refused(
    overrides: list[str], two: Run, store: LocalStore
) -> None:
    with pytest.raises(
        UsageError,
        match=f"a fork of {two.run_id} was asked for, but no field was changed that decides results, so that it would "
        "be the same experiment. Give --config KEY=VALUE, such as --config seed=1, or --warm-start best.",
    ):
        fork(store, two.run_id, overrides)
    assert len(list_experiments(store)) == 1


def test_a_fork_of_a_wrong_configuration_begins_nothing(two: Run, store: LocalStore) -> None:
    with pytest.raises(
        UsageError, match=r"the configuration of experiment-\w+ with --config seed=-1(.|\n)*seed"
    ):
        fork(store, two.run_id, ["seed=-1"])
    with pytest.raises(
        UsageError,
        match=r"a trial is named by its number or as best, but 'worst' was given\. Write 0 or best\.",
    ):
        fork(store, two.run_id, warm_start="worst")
    with pytest.raises(NotFoundError, match=rf"run {two.run_id} has no model of trial 9"):
        fork(store, two.run_id, warm_start=9)
    assert len(list_experiments(store)) == 1


@pytest.mark.parametrize("detach", [False, True])
def test_a_fork_that_fails_before_it_begins_leaves_nothing(two: Run, store: LocalStore, detach: bool) -> None:
    before = store.names()
    with pytest.raises(HopyardError, match="host_path '/nowhere' of bind_mounts does not exist"):
        fork(
            store,
            two.run_id,
            ["bind_mounts=[{host_path: /nowhere, container_path: /data}]"],
            warm_start="best",
            progress=False,
            detach=detach,
        )
    assert store.names() == before  # neither the weights that it would have begun from, nor anything else


@pytest.mark.parametrize("test", [False, True])
def test_code_that_fails_its_check_or_is_only_tested_is_not_kept(
    definition: Definition, store: LocalStore, test: bool
) -> None:
    if test:
        assert create(TWO, definition(FUNCTION), store, InlineBackend(), test=True, progress=False) is None
    else:
        with pytest.raises(TrialError, match="it cannot"):
            create(TWO, definition("raise ValueError('it cannot')"), store, InlineBackend(), progress=False)
    assert store.names() == set()


def test_code_that_is_tested_again_stays_for_the_experiment_that_has_it(
    two: Run, definition: Definition, store: LocalStore
) -> None:
    before = store.names()
    create(TWO, definition(FUNCTION), store, InlineBackend(), test=True, progress=False)
    assert store.names() == before


def test_a_function_that_saved_nothing_starts_nobody(
    definition: Definition, experiment: Experiment, store: LocalStore
) -> None:
    run = experiment(definition("def main(context): context.report(accuracy=1)"), **TWO)
    with pytest.raises(
        NotFoundError,
        match=rf"trial 0 of {run.run_id} saved no state to begin from. Call context.save\({{...}}\) before",
    ):
        fork(store, run.run_id, warm_start="best")


# The configuration in the directory


def test_a_comment_in_a_configuration_that_lies_with_the_code_makes_no_other_experiment(
    definition: Definition, store: LocalStore
) -> None:
    fields = {name: value for name, value in TWO.items() if name != "searcher"}
    folder = definition(FUNCTION, const_dot_yaml=json.dumps({**fields, "template": "base.yaml"}))
    (folder / "base.yaml").write_text(json.dumps({"searcher": TWO["searcher"]}))
    first = create(folder / "const.yaml", folder, store, InlineBackend(), progress=False)
    for name in ("const.yaml", "base.yaml"):
        (folder / name).write_text(f"# for people\n{(folder / name).read_text()}")
    again = create(folder / "const.yaml", folder, store, InlineBackend(), progress=False)
    assert first is not None
    assert again is not None
    assert (again.run_id, again.state.sessions) == (first.run_id, 1)
    (folder / "model_def.py").write_text(f"# for people\n{FUNCTION}")
    changed = create(folder / "const.yaml", folder, store, InlineBackend(), progress=False)
    assert changed is not None
    assert changed.run_id != first.run_id


# Deletion


def test_what_is_deleted_is_gone_and_what_others_need_stays(two: Run, store: LocalStore) -> None:
    other = fork(store, two.run_id, ["seed=1"], InlineBackend(), progress=False)
    delete(store, two.run_id)
    assert [each.experiment for each in list_experiments(store)] == [other.run_id]
    names = store.names()
    assert not any(two.run_id in name for name in names)
    assert sum(name.startswith("definition/") for name in names) == 1
    for part in ("runs", "logs"):
        root = store.path(part)
        assert root is not None
        assert [each.name for each in root.iterdir()] == [other.run_id]
    delete(store, other.run_id)
    assert store.names() == set()


def test_weights_that_a_fork_began_from_go_with_the_last_that_needs_them(two: Run, store: LocalStore) -> None:
    forks = [
        fork(store, two.run_id, [f"seed={seed}"], InlineBackend(), warm_start=0, progress=False)
        for seed in (1, 2)
    ]
    [kept] = store.at("init_from").names()
    delete(store, forks[0].run_id)
    assert store.at("init_from").names() == {kept}
    delete(store, forks[1].run_id)
    assert store.at("init_from").names() == set()


def test_one_that_is_driven_is_not_deleted(two: Run, store: LocalStore) -> None:
    before = store.names()
    journal = Journal(store.runs.at(two.run_id))
    with pytest.raises(
        RunHeldError,
        match=rf"^{two.run_id} was not deleted, since another process drives it \(host .*, pid .*, since .*\)\. End it "
        rf"with `hopyard experiment kill {two.run_id} --store {store.url}`, and delete it then\.$",
    ):
        delete(store, two.run_id)
    journal.close()
    assert before - store.names() == set()
    assert open_experiment(store, two.run_id).histories() == two.histories()


def test_one_that_cannot_be_read_can_be_deleted(store: LocalStore) -> None:
    store.runs.at("experiment-broken").put("journal/000000000001", b"no journal at all\n" * 9)
    store.runs.at("experiment-broken").put("journal/000000000002", b"no journal at all\n" * 9)
    delete(store, "experiment-broken")
    assert store.names() == set()
    with pytest.raises(NotFoundError, match=r"The experiments there are: none\."):
        delete(store, "experiment-broken")


def test_a_deletion_that_was_interrupted_leaves_a_run_that_can_be_deleted(
    two: Run, store: LocalStore
) -> None:
    journal = store.runs.at(two.run_id).at("journal")
    for name in sorted(journal.names())[2:]:
        journal.delete(name)
    assert open_experiment(store, two.run_id).status == "interrupted"
    delete(store, two.run_id)
    assert store.names() == set()


# Checkpoints


def test_checkpoints_are_the_best_epochs_and_whether_they_are_kept(
    definition: Definition, experiment: Experiment, store: LocalStore, tmp_path: Path
) -> None:
    run = experiment(definition(FUNCTION), **TWO | {"checkpoints": {"keep": "best"}})
    best, other = list_checkpoints(store, run.run_id)
    assert (best.trial, best.epoch, best.metric, best.value) == (1, 2, "val_accuracy", 12.0)
    assert (best.params, best.metrics, best.status) == ({"lr": 2}, {"val_accuracy": 12.0}, "completed")
    assert best.bytes == 24
    assert (best.kept, other.trial, other.kept) == (True, 0, False)
    with pytest.raises(
        NotFoundError,
        match=f"the weights of trial 0 of {run.run_id} were not kept: those of completed trials and of the best one "
        "are. Write checkpoints: {keep: all} into the configuration to keep every trial's.",
    ):
        download_checkpoint(store, run.run_id, tmp_path / "other", 0)


def test_the_reports_of_a_copy_are_counted_on_from_those_of_its_source(
    definition: Definition,
    experiment: Experiment,
    store: LocalStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = """
        def main(context):
            done = (context.restored() or {"done": 0})["done"]
            while True:
                done += 1
                context.save({"done": done})
                context.report(accuracy=context.get_hparam("lr") + done)
    """
    pbt = {
        "name": "pbt",
        "metric": "accuracy",
        "population_size": 2,
        "num_rounds": 3,
        "length_per_round": {"epochs": 2},
        "replace_function": {"truncate_fraction": 0.5},
    }
    lr = {"type": "double", "minval": 0.0, "maxval": 0.5}
    fields: dict[str, Any] = {"searcher": pbt, "hyperparameters": {"lr": lr}, "checkpoints": {"keep": "all"}}
    run = experiment(definition(code), entrypoint="model_def:main", options={"progress": True}, **fields)
    shown = capsys.readouterr()
    listed = {each.trial: each.epoch for each in list_checkpoints(store, run.run_id)}
    copies = [trial for trial in run.state.trials.values() if trial.source is not None]
    assert len(copies) == 2
    table = Console(width=200, file=io.StringIO())
    table.print(leaderboard(run))
    lines = table.file.getvalue().splitlines()
    assert lines[0].split()[:4] == ["trial", "val_accuracy", "report", "seconds"]
    cells = {int(line.split()[0]): line.split()[2] for line in lines[1:]}
    for trial in copies:
        end = trial.progress.validated
        assert saved_state(run.model(trial.number))["done"] == end
        assert f"trial {trial.number} " in shown.out + shown.err
        assert f"report {end}/6" in shown.out + shown.err
        assert cells[trial.number] == f"{end}/{end}"
        assert listed[trial.number] == end
        path = download_checkpoint(store, run.run_id, tmp_path / str(trial.number), trial.number)
        assert json.loads((path / "checkpoint.json").read_text())["epoch"] == end


def test_weights_that_somebody_deleted_begin_nothing(two: Run, store: LocalStore, tmp_path: Path) -> None:
    folder = store.runs.at(two.run_id)
    for name in folder.at("00001").names():
        folder.delete(f"00001/{name}")
    before = store.names()
    gone = (
        rf"^the weights of trial 1 of {two.run_id}, its best one, are no longer in .*/runs/{two.run_id}\S*: somebody "
        r"deleted them\. Put them back there from a copy, or train again with `hopyard experiment create --fresh`\.$"
    )
    with pytest.raises(NotFoundError, match=gone):
        fork(store, two.run_id, ["seed=1"], InlineBackend(), warm_start="best", progress=False)
    with pytest.raises(NotFoundError, match=gone):
        download_checkpoint(store, two.run_id, tmp_path / "best")
    assert store.names() == before
    assert not (tmp_path / "best").exists()


def test_weights_that_are_cut_off_are_told_in_the_words_of_experiments(
    two: Run, store: LocalStore, tmp_path: Path
) -> None:
    best = two.state.trials[1].best
    assert best is not None
    [weights] = [name for name in best.state.files if name.endswith(".safetensors")]
    own = store.runs.at(two.run_id).at("00001")
    own.put(weights, own.get(weights)[:-4])
    with pytest.raises(
        CorruptError,
        match=r"is not what was written: .*\. Restore it from a copy, or train anew with `hopyard experiment create "
        r"--fresh`\.$",
    ):
        download_checkpoint(store, two.run_id, tmp_path / "best")
    assert not (tmp_path / "best").exists()


def test_a_checkpoint_of_a_function_has_what_it_saved(two: Run, store: LocalStore, tmp_path: Path) -> None:
    path = download_checkpoint(store, two.run_id, tmp_path / "new" / "best")
    assert path == tmp_path / "new" / "best"
    assert sorted(each.name for each in path.iterdir()) == [
        "checkpoint.json", "code", "config.yaml", "weights.safetensors",
    ]  # fmt: skip
    tensors = load_file(path / "weights.safetensors")
    assert {name: list(value) for name, value in tensors.items()} == {"weights": [4.0, 4.0, 4.0]}
    facts = json.loads((path / "checkpoint.json").read_text())
    assert facts["saved"] == {"done": 2, "more/list/0": 1, "more/list/1": "two"}
    assert (facts["experiment"], facts["trial"], facts["epoch"]) == (two.run_id, 1, 2)
    assert facts["hyperparameters"] == {"lr": 2}
    assert (path / "code" / "model_def.py").read_text().strip() == FUNCTION.strip()
    assert pack(path / "code", LocalStore(tmp_path / "other")).digest == facts["definition"]
    assert "entrypoint: model_def:main" in (path / "config.yaml").read_text()
    saved = saved_state(two.model(1))
    assert saved["more"] == {"list": [1, "two"]}


def test_a_checkpoint_of_a_class_has_its_state_dict(
    definition: Definition, experiment: Experiment, store: LocalStore, tmp_path: Path
) -> None:
    run = experiment(definition())
    path = download_checkpoint(store, run.run_id, tmp_path / "best", "0")
    module = run.best.torch()
    tensors = load_file(path / "weights.safetensors")
    assert tensors.keys() == module.state_dict().keys()
    for name, value in module.state_dict().items():
        np.testing.assert_array_equal(tensors[name], value.numpy())


def test_a_checkpoint_replaces_nothing(two: Run, store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").touch()
    with pytest.raises(
        UsageError,
        match=r"there is there already, but a checkpoint is written to a new directory\. Give another name, or delete",
    ):
        download_checkpoint(store, two.run_id, tmp_path / "there")
    assert [each.name for each in (tmp_path / "there").iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    assert (download_checkpoint(store, two.run_id, tmp_path / "empty") / "code").is_dir()
    assert not list(tmp_path.glob(".tmp-*"))
