"""Bare functions as trials: reports, saved states, ends, and what they do wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.experiment.conftest import FUNCTION

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.errors import NotFoundError, TrialError
from hopyard.experiment.function_trial import saved_state
from hopyard.tune import Run

SINGLE = {"name": "single", "metric": "accuracy"}
GRID = {"lr": {"type": "categorical", "vals": [0.1, 0.3, 0.2]}}


def run_function(experiment: Callable[..., Run], folder: Path, backend: Any = None, **fields: Any) -> Run:
    return experiment(folder, backend, **{"entrypoint": "model_def:main", "searcher": SINGLE, **fields})


def histories(run: Run) -> dict[int, Any]:
    return {trial.number: trial.history for trial in run.state.trials.values()}


def test_a_function_runs_until_it_returns(definition: Any, experiment: Any) -> None:
    run = run_function(
        experiment,
        definition(FUNCTION),
        hyperparameters=GRID,
        searcher={"name": "grid", "metric": "accuracy"},
    )
    assert {number: each["val_accuracy"] for number, each in histories(run).items()} == {
        number: pytest.approx([lr, lr + 1, lr + 2, lr + 3]) for number, lr in enumerate([0.1, 0.3, 0.2])
    }
    assert [trial.status for trial in run.state.trials.values()] == ["completed"] * 3
    assert run.best.params == {"lr": 0.3}


def test_max_length_ends_a_function_at_a_report(definition: Any, experiment: Any, tmp_path: Path) -> None:
    code = f"""
    def main(context):
        try:
            for epoch in range(100):
                context.report(accuracy=epoch, train_loss=1 / (1 + epoch))
        finally:
            with open({str(tmp_path / "ended")!r}, "w") as file:
                file.write(str(epoch))
    """
    run = run_function(experiment, definition(code), searcher=SINGLE | {"max_length": {"epochs": 3}})
    (history,) = histories(run).values()
    assert history["val_accuracy"] == [0, 1, 2]
    assert history["train_loss"] == pytest.approx([1, 1 / 2, 1 / 3])


def test_asha_stops_functions_early(definition: Any, experiment: Any) -> None:
    lr = {"type": "double", "minval": 0, "maxval": 1}
    searcher = {
        "name": "async_halving",
        "metric": "accuracy",
        "max_trials": 9,
        "num_rungs": 3,
        "max_length": {"epochs": 4},
        "divisor": 2,
    }
    code = FUNCTION.replace("range(begun, 4)", "range(begun, 1000)")
    run = run_function(experiment, definition(code), searcher=searcher, hyperparameters={"lr": lr})
    lengths = sorted(len(each["val_accuracy"]) for each in histories(run).values())
    assert lengths[0] == 1
    assert lengths[-1] == 4
    assert len(lengths) == 9


LOSES = """
import os, pathlib
import numpy as np
import torch

def main(context):
    state = context.restored()
    if state is None:
        state = {{"epoch": 0, "weights": torch.zeros(3), "more": [np.arange(2.0), (1, "a"), None, b"x", {{7: True}}]}}
    mark = pathlib.Path(context.get_data_config()["mark"])
    for epoch in range(state["epoch"], 6):
        if epoch == 4 and not mark.exists():
            mark.touch()
            {how}
        state["weights"] += epoch
        state["epoch"] = epoch + 1
        if epoch % 2:
            context.save(state)
        context.report(accuracy=float(state["weights"].sum()), kept=len(state["more"]))
"""


@pytest.mark.parametrize(
    ("how", "backend"),
    [('raise OSError("gone")', InlineBackend), ("os.kill(os.getpid(), 9)", LocalBackend)],
    ids=["error", "worker killed"],
)
def test_a_function_goes_on_from_what_it_saved(
    how: str, backend: Any, definition: Any, experiment: Any, tmp_path: Path
) -> None:
    workers = backend() if backend is InlineBackend else backend(num_workers=1)
    data = {"mark": str(tmp_path / "mark")}
    run = run_function(experiment, definition(LOSES.format(how=how)), workers, data=data)
    (trial,) = run.state.trials.values()
    weights, expected = 0.0, []
    for epoch in range(6):
        weights += 3 * epoch
        expected.append(weights)
    assert trial.history["val_accuracy"] == expected
    assert trial.history["val_kept"] == [5] * 6
    assert trial.restarts == (backend is InlineBackend)


def test_a_saved_state_is_that_of_the_best_report(definition: Any, experiment: Any, tmp_path: Path) -> None:
    code = (
        LOSES.format(how="pass")
        .replace("accuracy=float(state", "accuracy=-abs(9 - float(state")
        .replace("sum()), kept", "sum())), kept")
    )
    run = run_function(experiment, definition(code), data={"mark": str(tmp_path / "mark")})
    saved = saved_state(run.best)
    assert saved["epoch"] == 2
    assert saved["weights"].tolist() == [1.0] * 3
    array, pair, nothing, text, inner = saved["more"]
    assert array.tolist() == [0.0, 1.0]
    assert (pair, nothing, text, inner) == ((1, "a"), None, b"x", {7: True})


def test_a_function_that_saves_nothing_has_no_state(definition: Any, experiment: Any) -> None:
    run = run_function(experiment, definition("def main(context):\n    context.report(accuracy=1)\n"))
    with pytest.raises(
        NotFoundError, match=r"trial 0 saved no state\. Call context\.save\(\{\.\.\.\}\) before"
    ):
        saved_state(run.best)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "pass",
            r"main\(context\) returned without a report, .* Call context\.report\(\{'accuracy': value\}\) after",
        ),
        (
            "context.report(acuracy=1)",
            r"searcher\.metric is 'accuracy', but main\(context\) reported acuracy",
        ),
        (
            "context.report()",
            r"report\(\) was called without metrics\. Write context\.report\(\{'loss': loss\}\)",
        ),
        ("context.report(accuracy='x')", r"report\(\) was given accuracy='x', but a metric is one number"),
        ("context.save(3)", r"save\(\) was given int, but takes a dict: save\(\{'model': state\}\)"),
        (
            "context.save({'a': [1, {'b': object()}]})",
            (
                r"save\(\) was given a object at state\['a'\]\[1\]\['b'\], but keeps numbers, texts, bytes, .*"
                r"\. Give pickle\.dumps\(\.\.\.\) of it, which is bytes, or leave it out\."
            ),
        ),
        (
            "context.save({'a': np.array([1], object)})",
            r"save\(\) was given NumPy's object at state\['a'\], but keeps",
        ),
        (
            "context.save({'a': np.ma.array([1])})",
            r"save\(\) was given a MaskedArray at state\['a'\], but keeps",
        ),
        ("context.save({'a': torch.Size([1])})", r"save\(\) was given a Size at state\['a'\], but keeps"),
        (
            "a = []; a.append(a); context.save({'a': a})",
            r"save\(\) was given what is nested deeper than 100 levels",
        ),
        (
            "context.report({1: 2.0})",
            r"report\(\) was given a metric of the name 1, but names are texts\. Rename it",
        ),
        (
            "context.report({'': 2.0})",
            r"report\(\) was given a metric of the name '', but a name has more than spaces, also after",
        ),
        (
            "context.report({'accuracy': 1.0, 'val_ ': 2.0})",
            r"report\(\) was given a metric of the name 'val_ ', but a name has more than spaces",
        ),
        (
            "context.report(acc=1.0)",
            r"searcher\.metric is 'accuracy', but main\(context\) reported acc; did you mean 'acc'\? Report it",
        ),
        (
            "context.report(0.5)",
            r"report\(\) was given 0\.5, but takes metrics by name: report\(accuracy=\.\.\.\)",
        ),
        (
            "context.report(accuracy=10**400)",
            r"report\(\) was given accuracy=int\(\.\.\.\), but a metric is one number",
        ),
        (
            "context.report(accuracy=1, val_accuracy=2)",
            r"was given both 'accuracy' and 'val_accuracy', which are one metric: .* Report one of them, or rename it",
        ),
        ("context.save({'a': {1.5: 1}})", r"save\(\) was given the key 1\.5 at state\['a'\], but keys are"),
        (
            "import threading; t = threading.Thread(target=lambda: None); t.start(); t.join(); context.missing()",
            r"no attribute 'missing'",
        ),
        ("raise ValueError('own words')", r"ValueError.*own words(.|\n)*model_def\.py"),
        ("raise SystemExit(3)", r"SystemExit"),
        ("context.get_hparam('wdth')", r"get_hparam\('wdth'\) asks for a hyperparameter"),
    ],
)
def test_what_a_function_does_wrong_is_named(
    body: str, message: str, definition: Any, experiment: Any
) -> None:
    code = f"import numpy as np\nimport torch\n\ndef main(context):\n    {body}\n"
    with pytest.raises(TrialError, match=message):
        run_function(experiment, definition(code), max_restarts=1)


def test_to_exit_with_status_0_is_to_return(definition: Any, experiment: Any) -> None:
    code = "import sys\n\ndef main(context):\n    context.report(accuracy=1)\n    sys.exit(0)\n"
    run = run_function(experiment, definition(code))
    (trial,) = run.state.trials.values()
    assert trial.status == "completed"
    assert trial.history["val_accuracy"] == [1]


def test_what_is_restored_is_what_was_saved(definition: Any, experiment: Any, tmp_path: Path) -> None:
    code = """
    import pickle
    import numpy as np
    import torch

    STATE = {
        "epoch": 1, 0: "zero", "float": np.float32(0.5), "int": np.int64(3), "bool": np.bool_(True), "large": 10**30,
        "mean": np.mean([1.0, 2.0]), "array": np.arange(3), "zero": np.array(1.5), "tensor": torch.ones(2, 2),
        "pair": ("array", np.arange(2)), "list": [1, (2, [3.5, None])], "nested": {1: {"a": b"bytes"}},
        "nan": float("nan"),
    }

    def main(context):
        restored = context.restored()
        if restored is None:
            context.save(STATE)
            context.report(accuracy=0)
            raise ConnectionError("gone")
        assert list(restored) == list(STATE)
        for key, value in STATE.items():
            assert type(restored[key]) is type(value), key
            assert pickle.dumps(restored[key]) == pickle.dumps(value) or key == "tensor", key
        assert torch.equal(restored["tensor"], STATE["tensor"])
        context.report(accuracy=1)
    """
    run = run_function(experiment, definition(code))
    (trial,) = run.state.trials.values()
    assert trial.error is None, trial.error
    assert (trial.history["val_accuracy"], trial.restarts) == ([0, 1], 1)


def test_report_belongs_to_the_thread_of_the_function(definition: Any, experiment: Any) -> None:
    code = """
    from concurrent.futures import ThreadPoolExecutor

    def main(context):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(context.report, accuracy=1.0).result()
    """
    with pytest.raises(
        TrialError, match=r"called from a thread of the function's own\. Call it from the thread that"
    ):
        run_function(experiment, definition(code))


def test_a_length_in_batches_is_none_of_a_function(definition: Any, experiment: Any) -> None:
    with pytest.raises(
        Exception,
        match=r"max_length is \{batches: 100\}, but the entrypoint is a function, .* Write max_length: \{epochs",
    ):
        run_function(experiment, definition(FUNCTION), searcher=SINGLE | {"max_length": {"batches": 100}})
