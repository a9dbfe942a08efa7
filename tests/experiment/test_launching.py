"""Experiments from their configuration to their outcome: surroundings of trials, and errors before anything begins."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.experiment.conftest import FUNCTION, TRIAL

import hopyard.experiment
from hopyard.backend import InlineBackend, LocalBackend
from hopyard.errors import MissingExtraError, TrialError, UsageError, WorkerLostError, WorkerMismatchError
from hopyard.experiment import create
from hopyard.experiment.mounts import Mount, start_with
from hopyard.storage import LocalStore
from hopyard.tune import Run, list_runs

Definition = Callable[..., Path]
Experiment = Callable[..., Run]

FUNCTIONS = {"entrypoint": "model_def:main", "searcher": {"name": "single", "metric": "accuracy"}}
TWO = {
    "hyperparameters": {"lr": {"type": "categorical", "vals": [1, 2]}},
    "searcher": {"name": "grid", "metric": "accuracy"},
}


def test_the_same_configuration_and_code_are_the_same_experiment(
    definition: Definition, experiment: Experiment, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    first = experiment(definition(FUNCTION), **FUNCTIONS)
    again = experiment(definition(FUNCTION), **FUNCTIONS, name="other", description="words", grace=1.0)
    assert again.run_id == first.run_id
    assert again.state.sessions == first.state.sessions == 1
    others = [
        experiment(definition(FUNCTION + "\n# changed"), **FUNCTIONS),
        experiment(definition(FUNCTION), **FUNCTIONS, seed=1),
        experiment(definition(FUNCTION), **FUNCTIONS, data={"a": 1}),
        experiment(definition(FUNCTION), **FUNCTIONS, environment={"environment_variables": {"A": "1"}}),
        experiment(definition(FUNCTION), options={"fresh": True}, **FUNCTIONS),
    ]
    assert len({first.run_id, *(run.run_id for run in others)}) == 6
    assert len(list_runs(store)) == 6
    assert others[-1].run_id == f"{first.run_id}-2"


def test_replicates_train_each_point_with_several_seeds_and_are_ranked_by_the_mean(
    definition: Definition, experiment: Experiment
) -> None:
    searcher = {
        "name": "grid", "metric": "accuracy", "max_length": {"epochs": 1}, "replicates": 2, "max_concurrent_trials": 3
    }  # fmt: skip
    lr = {"type": "categorical", "vals": [0.01, 0.05]}
    code = TRIAL.replace("        torch.manual_seed(5)\n", "")
    run = experiment(definition(code), hyperparameters={"lr": lr}, searcher=searcher)
    trials = run.trials().sort_values("number")
    assert list(trials["point"]) == [0, 0, 1, 1]
    assert list(trials["replicate"]) == [0, 1, 0, 1]
    assert [params["lr"] for params in trials["params"]] == [0.01, 0.01, 0.05, 0.05]
    histories = [trial.history["train_loss"] for trial in run.state.trials.values()]
    assert histories[0] != histories[1]
    means = trials.groupby("point")["mean"].first()
    assert run.best.trial // 2 == means.idxmax()


def test_code_runs_among_its_files_and_apart_from_other_trials(
    definition: Definition, experiment: Experiment
) -> None:
    code = """
    import os
    import helper

    def main(context):
        here = sorted(os.listdir())
        assert "data.csv" in here and "mine" not in here, here
        with open("mine", "w") as file:
            file.write("x")
        with open("data.csv") as file:
            value = float(file.read())
        context.report(accuracy=value + helper.add(context.get_hparam("lr")))
    """
    before = Path.cwd()
    folder = definition(code, data_dot_csv="0.5", helper_dot_py="def add(x): return x + 10")
    run = experiment(folder, **FUNCTIONS | TWO)
    assert sorted(trial.history["val_accuracy"][0] for trial in run.state.trials.values()) == [11.5, 12.5]
    assert Path.cwd() == before
    # Another definition has modules of the same names.
    folder = definition(code, data_dot_csv="0.5", helper_dot_py="def add(x): return x + 100")
    run = experiment(folder, **FUNCTIONS | TWO)
    assert sorted(trial.history["val_accuracy"][0] for trial in run.state.trials.values()) == [101.5, 102.5]
    assert not (folder / "mine").exists()


def test_environment_variables_are_there_before_code_is_imported(
    definition: Definition, experiment: Experiment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = """
    import os

    FOUND = os.environ["FOUND"], os.environ["SECRET_ONE"]

    def main(context):
        value = "-".join(["very", "secret", "value"])
        assert FOUND == ("7", f"a-{value}-b"), FOUND
        assert context.get_data_config() == {"key": value}
        context.report(accuracy=1)
    """
    monkeypatch.setenv("HOPYARD_TEST_KEY", "very-secret-value")
    run = experiment(
        definition(code),
        LocalBackend(num_workers=1),
        **FUNCTIONS,
        environment={"environment_variables": {"FOUND": "7", "SECRET_ONE": "a-${secret:HOPYARD_TEST_KEY}-b"}},
        data={"key": "${secret:HOPYARD_TEST_KEY}"},
    )
    assert run.status == "completed"
    assert "FOUND" not in os.environ
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"very-secret-value" in path.read_bytes()]


@pytest.mark.parametrize("how", ["print(key, file=sys.stderr); print('key', key)", "raise ValueError(key)"])
def test_secrets_that_code_shows_are_masked(
    how: str,
    definition: Definition,
    experiment: Experiment,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    code = f"""
    import sys

    def main(context):
        key = context.get_data_config()["key"]
        context.report(accuracy=1)
        {how}
        context.report(accuracy=2)
    """
    monkeypatch.setenv("HOPYARD_TEST_KEY", "very-secret-value")
    fields = {**FUNCTIONS, "data": {"key": "${secret:HOPYARD_TEST_KEY}"}, "max_restarts": 1}
    backend = LocalBackend(num_workers=1)
    run = experiment(definition(code), backend, options={"progress": True}, **fields)
    shown = "".join(capfd.readouterr())
    assert "***" in shown
    assert "very-secret-value" not in shown
    if "raise" in how:
        (trial,) = run.failures()
        assert trial.error is not None
        assert trial.error.message == "***"
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert not [path for path in files if b"very-secret-value" in path.read_bytes()]


@pytest.mark.parametrize(
    ("code", "entrypoint", "message"),
    [
        (
            FUNCTION,
            "modeldef:main",
            r"names the module modeldef, but the model definition has no such file.*model_def.* Correct entrypoint:",
        ),
        (
            FUNCTION,
            "model_def:mian",
            r"names 'mian', which model_def\.py does not define.*'main'.* It defines main\. Correct entrypoint:",
        ),
        (
            "main = 3",
            "model_def:main",
            r"is int, but it must be a TorchTrial, a KerasTrial, or a function def main",
        ),
        (
            "class main: pass",
            "model_def:main",
            r"is a class, but .*no TorchTrial|neither a TorchTrial nor a KerasTrial",
        ),
        (
            "import os\n\nx = 1 / 0\n",
            "model_def:main",
            r"cannot be imported: ZeroDivisionError: division by zero \(model_def\.py, line 3\)\. Mend it",
        ),
        (
            "def main(:\n",
            "model_def:main",
            r"cannot be imported: SyntaxError: [^()]* \(model_def\.py, line 1\)\. Mend it",
        ),
        (
            "import torch\nfrom determined.pytorch import PyTorchTrial\n",
            "model_def:main",
            r"imports determined \(model_def\.py, line 2\), but .* here, or functions\. Write .* docs/determined\.md",
        ),
        (
            "class Base: __module__ = 'determined.pytorch'\n\nclass main(Base): pass",
            "model_def:main",
            r"neither a TorchTrial nor a KerasTrial\. .* docs/determined\.md shows a trial of Determined and",
        ),
        (
            TRIAL.replace(
                "def train_batch(self, batch, model)", "def train_batch(self, batch, epoch_idx, batch_idx)"
            ),
            "model_def:Trial",
            r"\(self, batch, epoch_idx, batch_idx\) takes other .*Write def train_batch\(self, batch, model\)\.",
        ),
        (
            TRIAL.replace("def evaluate_batch(self, batch, model)", "def evaluate_batch(self, batch)"),
            "model_def:Trial",
            r"\.evaluate_batch\(self, batch\) takes other .* Write def evaluate_batch\(self, batch, model\)\.",
        ),
        (
            TRIAL.replace(
                "    def build_model", "    def __init__(self):\n        pass\n\n    def build_model", 1
            ),
            "model_def:Trial",
            r"Trial\.__init__\(\) takes other arguments than a TorchTrial is .* Write def __init__\(self, context\)\.",
        ),
        (
            "def main():\n    pass",
            "model_def:main",
            r"main\(\) takes other arguments than a trial's function is called with\. Write def main\(context\)\.",
        ),
        (
            "def train(context, lr, *, epochs=3):\n    pass",
            "model_def:train",
            r"train\(context, lr, \*?,? ?epochs=3\) takes other arguments than .* Write def train\(context\)\.",
        ),
        (
            "def main(context):\n    yield 1",
            "model_def:main",
            r"is a generator function, with yield in it, of which a call runs nothing\. Write a plain function def",
        ),
        (
            "async def main(context):\n    pass",
            "model_def:main",
            r"model_def:main is a coroutine function, async def, of which a call runs nothing\. Write a plain function",
        ),
        (
            "async def main(context):\n    yield 1",
            "model_def:main",
            r"model_def:main is a generator function, with yield in it, of which",
        ),
        (
            "class Main:\n    async def __call__(self, context):\n        pass\n\nmain = Main()",
            "model_def:main",
            r"model_def:main is a coroutine function, async def, of which a call runs nothing\. Write a plain function",
        ),
        (
            "import not_a_package",
            "model_def:main",
            r"cannot be imported: ModuleNotFoundError: No module named 'not_a_package' \(model_def\.py, line 1\)",
        ),
    ],
)
def test_an_entrypoint_that_cannot_be_used_is_named_before_anything_begins(
    code: str,
    entrypoint: str,
    message: str,
    definition: Definition,
    experiment: Experiment,
    tmp_path: Path,
) -> None:
    with pytest.raises(TrialError, match=message):
        experiment(definition(code), **FUNCTIONS | {"entrypoint": entrypoint})
    assert list_runs(LocalStore(tmp_path / "store")) == []


def test_code_that_ends_the_worker_is_named_and_no_experiment_was_begun(
    definition: Definition, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    config: dict[str, Any] = {"entrypoint": "model_def:main", **FUNCTIONS}
    with pytest.raises(WorkerLostError) as caught:
        create(config, definition("import os\nos._exit(7)\n"), store, LocalBackend(1), progress=False)
    first, second = str(caught.value).split("\n")
    assert first == (
        "a worker ended while it imported and built the entrypoint model_def:main, so no experiment was begun. Code "
        "that calls os._exit, crashes or needs too much memory ends a process so. Try it in the directory of the code: "
        "python -c 'import model_def'"
    )
    assert re.fullmatch(
        r"Worker 0 \(pid \d+\) ended by itself with exit code 7 \(.*\) while it ran the task 'look'\. It printed .*",
        second,
    )
    dies = definition("import os\n\ndef main(context):\n    os._exit(7)\n")
    with pytest.raises(
        WorkerLostError, match=r"^a worker ended while it ran the entrypoint model_def:main, so no ex"
    ):
        create(config, dies, store, LocalBackend(1), progress=False, test=True)
    assert list_runs(store) == []


def test_a_test_runs_one_batch_and_begins_nothing(definition: Definition, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    config: dict[str, Any] = {
        "entrypoint": "model_def:Trial",
        "hyperparameters": {"lr": 0.01},
        "searcher": {"name": "single", "metric": "accuracy", "max_length": {"epochs": 2}},
    }
    options: dict[str, Any] = {"backend": InlineBackend(), "test": True, "progress": False}
    assert create(config, definition(TRIAL), store, **options) is None
    wrong = TRIAL.replace("cross_entropy(model(x), y)}", "cross_entropy(model(x), y, x)}", 1)
    with pytest.raises(TrialError, match=r"model_def\.py(.|\n)*in train_batch"):
        create(config, definition(wrong), store, **options)
    config |= FUNCTIONS
    assert create(config, definition(FUNCTION), store, **options) is None
    with pytest.raises(TrialError, match=r"fails before its first report(.|\n)*KeyError: 'x'"):
        create(config, definition("def main(context):\n    {}['x']\n"), store, **options)
    with pytest.raises(
        TrialError, match=r"searcher\.metric is 'accuracy', but main\(context\) reported loss"
    ):
        create(config, definition("def main(context):\n    context.report(loss=1)\n"), store, **options)
    assert list_runs(store) == []


def test_a_trial_class_needs_a_length(definition: Definition, experiment: Experiment) -> None:
    with pytest.raises(
        UsageError,
        match=r"searcher\.max_length is missing, and model_def:Trial is a trial class, .* max_length: \{epochs: 8\}",
    ):
        experiment(definition(TRIAL), searcher={"name": "single", "metric": "accuracy"})


def test_a_loader_without_length_has_no_epochs(definition: Definition, experiment: Experiment) -> None:
    code = TRIAL.replace(
        "class Trial",
        "class Endless:\n    def __init__(self, loader):\n        self.loader = loader\n"
        "    def __iter__(self):\n        return iter(self.loader)\n\n\nclass Trial",
    ).replace(
        "return DataLoader(TensorDataset(*points(100, 1)), batch_size=8)",
        "return Endless(DataLoader(TensorDataset(*points(100, 1)), batch_size=8))",
    )
    with pytest.raises(
        UsageError,
        match=r"max_length is \{epochs: 2\}, but the training data loader does not say how many batches",
    ):
        experiment(definition(code))
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 20}}
    run = experiment(definition(code), searcher=searcher)
    assert run.state.num_visits == 4


def test_a_bind_mount_that_is_not_there_is_said_before_anything_begins(
    definition: Definition, experiment: Experiment, tmp_path: Path
) -> None:
    gone = str(tmp_path / "gone")
    mounts = [{"host_path": gone, "container_path": gone}]
    for backend, kind in ((InlineBackend(), UsageError), (LocalBackend(num_workers=1), WorkerMismatchError)):
        with pytest.raises(
            kind, match=r"host_path '.*gone' of bind_mounts does not exist, but must, on every machine"
        ):
            experiment(definition(FUNCTION), backend, **FUNCTIONS, bind_mounts=mounts)
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "value").write_text("0.25")
    code = f"""
    def main(context):
        with open({gone + "/value"!r}) as file:
            context.report(accuracy=float(file.read()))
    """
    run = experiment(definition(code), **FUNCTIONS, bind_mounts=mounts)
    assert [trial.history for trial in run.state.trials.values()] == [{"val_accuracy": [0.25]}]


def test_trials_that_fail_are_tried_again_as_often_as_the_configuration_says(
    definition: Definition, experiment: Experiment, tmp_path: Path
) -> None:
    code = f"""
    import os

    def main(context):
        with open({str(tmp_path / "tries")!r}, "a") as file:
            file.write("x")
        if context.get_hparam("lr") == 1:
            raise ConnectionError("no answer")
        context.report(accuracy=1)
    """
    run = experiment(definition(code), **FUNCTIONS | TWO, max_restarts=2)
    first, second = run.state.trials.values()
    assert (first.status, first.restarts) == ("failed", 2)
    assert (second.status, second.restarts) == ("completed", 0)
    assert (tmp_path / "tries").read_text() == "xxxx"


OWN_TMP = """
    import os, pathlib

    def main(context):
        folder = f"/tmp/hopyard-test-data-rank{context.distributed.get_rank()}"
        os.makedirs(folder, exist_ok=True)
        path = pathlib.Path(folder) / "data.csv"
        found = path.exists()
        path.write_text("x")
        context.report(accuracy=float(found))
"""


def test_workers_whose_code_names_files_in_tmp_have_one_of_their_own(
    definition: Definition, experiment: Experiment, capfd: pytest.CaptureFixture[str]
) -> None:
    if start_with([Mount("/", "/mnt", read_only=True)]) == []:
        pytest.skip("no mount namespace can be made here")
    shared = Path("/tmp/hopyard-test-data-rank0")
    assert not shared.exists()
    for store in ("one", "two"):
        run = experiment(definition(OWN_TMP), LocalBackend(num_workers=1), store, **FUNCTIONS)
        assert [trial.history for trial in run.state.trials.values()] == [{"val_accuracy": [0.0]}]
    assert not shared.exists()


def test_where_no_private_tmp_can_be_made_a_warning_says_what_is_shared(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("hopyard.experiment.mounts._reason_against", lambda prefix: "Operation not permitted")
    assert start_with([], ["model_def.py, line 5"]) == []
    assert re.search(
        r"^model_def\.py, line 5 of the model definition names files in /tmp, which all trials on .* share, as no "
        r"private one can be made there: .*Operation not permitted.* Use context\.download\(\), .* or a relative path",
        capfd.readouterr().err,
    )


def test_a_trial_class_whose_framework_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in [each for each in sys.modules if each.partition(".")[0] == "keras"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "hopyard.experiment.keras_trial", raising=False)
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(
        MissingExtraError, match=r"KerasTrial needs the package 'keras', .* 'hopyard\[tensorflow\]'"
    ):
        _ = hopyard.experiment.KerasTrial
