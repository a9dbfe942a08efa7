"""TorchTrial: results against plain loops, exact lengths, and going on where training stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.experiment.conftest import FUNCTION, TRIAL
from torch.nn.functional import cross_entropy

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.data import open_dataset, prepare
from hopyard.errors import MetricError, TrialError
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, Run, hp_choice, load_model
from hopyard.tune.rows import epoch_numbers, epochs_of, validations_of


def points(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=random)
    return x, (x.sum(1) > 0).long()


def network() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def batches(n: int = 100, size: int = 8) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    x, y = points(n, 1)
    while True:
        for first in range(0, n, size):
            yield x[first : first + size], y[first : first + size]


def plain_loop(count: int, lr: float = 0.01) -> torch.nn.Module:
    """The network after so many batches, without Hopyard."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _, (x, y) in zip(range(count), batches(), strict=False):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def assert_equal(run: Run, expected: torch.nn.Module) -> None:
    """The weights of the run's best trial are those of a module."""
    found = run.best.torch().state_dict()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)


def outcome(run: Run) -> Any:
    """All that a run measured, and the weights that it keeps, to the last bit."""
    weights = {name: value.tolist() for name, value in run.best.torch().state_dict().items()}
    return [(trial.number, trial.history) for trial in run.state.ranked()], weights


OPTIMIZER = 'return torch.optim.Adam(model.parameters(), lr=self.context.get_hparam("lr"))'
SINGLE = {"name": "single", "metric": "loss", "max_length": {"epochs": 2}}


@pytest.mark.parametrize(
    ("length", "unit", "total"),
    [
        ({"epochs": 2}, 5, 26),
        ({"epochs": 1}, 100, 13),
        ({"batches": 17}, 5, 17),
        ({"batches": 40}, 7, 40),
        ({"records": 100}, 4, 13),
    ],
)
def test_a_loader_of_the_trials_own_trains_as_many_batches_as_a_plain_loop(
    definition: Callable[..., Path], experiment: Callable[..., Run], length: Any, unit: int, total: int
) -> None:
    run = experiment(definition(), searcher=SINGLE | {"max_length": length}, scheduling_unit=unit)
    (trial,) = run.state.trials.values()
    assert trial.status == "completed"
    x, y = points(50, 2)
    expected = plain_loop(total)
    with torch.no_grad():
        outputs = expected(x)
    accuracy = float((outputs.argmax(1) == y).float().mean())
    assert trial.history["val_loss"][-1] == pytest.approx(float(cross_entropy(outputs, y)), abs=1e-6)
    assert trial.history["val_accuracy"][-1] == pytest.approx(accuracy, abs=1e-6)
    assert trial.best is not None
    assert trial.best.value == min(trial.history["val_loss"])
    assert_equal(run, expected)


@pytest.mark.parametrize(
    ("length", "total"),
    [
        ({"batches": 9}, 9),
        ({"batches": 14}, 14),
        ({"batches": 20}, 20),
        ({"batches": 33}, 33),
        ({"records": 180}, 23),
    ],
)
def test_a_trial_is_validated_after_each_pass_over_its_loader_and_its_end_is_counted_in_passes(
    definition: Callable[..., Path], experiment: Callable[..., Run], length: Any, total: int
) -> None:
    run = experiment(definition(), searcher=SINGLE | {"max_length": length}, scheduling_unit=3)
    (trial,) = run.state.trials.values()
    x, y = points(50, 2)
    ends = [13 * number for number in range(1, total // 13 + 1)] + ([total] if total % 13 else [])
    losses = [cross_entropy(plain_loop(end)(x), y).item() for end in ends]
    assert trial.history["val_loss"] == pytest.approx(losses, abs=1e-6)
    assert epoch_numbers(run.state, trial) == [end / 13 for end in ends]
    assert epochs_of(run.state, trial) == total / 13
    assert_equal(run, plain_loop(ends[losses.index(min(losses))]))


def test_trials_with_batches_of_other_sizes_are_validated_after_each_of_their_own_passes(
    definition: Callable[..., Path], experiment: Callable[..., Run]
) -> None:
    folder = definition(TRIAL.replace("batch_size=8)", 'batch_size=self.context.get_hparam("size"))'))
    run = experiment(
        folder,
        hyperparameters={"lr": 0.01, "size": {"type": "categorical", "vals": [8, 16]}},
        searcher={"name": "grid", "metric": "loss", "max_length": {"records": 130}},
        scheduling_unit=3,
    )
    x, y = points(50, 2)
    for trial in run.state.trials.values():
        size = trial.params["size"]
        expected = network()
        optimizer = torch.optim.Adam(expected.parameters(), lr=0.01)
        losses = []
        a_pass, total = -(-100 // size), -(-130 // size)
        for number, (inputs, labels) in zip(range(1, total + 1), batches(size=size), strict=False):
            optimizer.zero_grad()
            cross_entropy(expected(inputs), labels).backward()
            optimizer.step()
            if number in (a_pass, total):
                with torch.no_grad():
                    losses.append(float(cross_entropy(expected(x), y)))
        assert trial.history["val_loss"] == pytest.approx(losses, abs=1e-6)


SHUFFLED = TRIAL.replace("batch_size=8)", "batch_size=8, shuffle=True)").replace(
    "        x, y = batch\n        return",
    """        x, y = batch
        with open("seen", "a") as file:
            file.write("".join(f"{value:.9g}\\n" for value in x[:, 0].tolist()))
        return""",
    1,
)


def test_each_pass_over_a_shuffled_loader_has_every_row_once_in_another_order(
    definition: Callable[..., Path],
    experiment: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HOPYARD_CACHE", str(tmp_path / "cache"))
    folder = definition(SHUFFLED)
    first = experiment(folder)
    check, seen = sorted(
        (path.read_text().split() for path in (tmp_path / "cache-trials").glob("runs/*/00000/*/seen")),
        key=len,
    )
    assert len(check) == 8  # one batch
    passes = seen[:100], seen[100:]
    expected = sorted(f"{value:.9g}" for value in points(100, 1)[0][:, 0].tolist())
    assert [sorted(each) for each in passes] == [expected, expected]
    assert passes[0] != passes[1]
    again = experiment(folder, store="again")
    assert outcome(again) == outcome(first)
    other = experiment(folder, store="other", seed=1)
    assert outcome(other) != outcome(first)


NOISY = (
    SHUFFLED.replace("TensorDataset(*points(100, 1))", "Noisy(*points(100, 1))")
    .replace(
        "\nclass Trial(",
        """
class Noisy(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(4) + numpy.random.normal(0, 0.1), y


class Trial(""",
    )
    .replace("import torch\n", "import numpy\nimport torch\n", 1)
)

STUMBLES = """
    def train_batch(self, batch, model):
        import pathlib
        self.count = getattr(self, "count", 0) + 1
        mark = pathlib.Path(self.context.get_data_config()["mark"])
        if self.count == 12 and not mark.exists():
            mark.touch()
            {how}
        x, y = batch
"""


@pytest.mark.parametrize(
    ("how", "backend", "trial", "length"),
    [
        ('raise ConnectionError("the server is gone")', InlineBackend, NOISY, {"epochs": 2}),
        ("import os; os.kill(os.getpid(), 9)", LocalBackend, NOISY, {"epochs": 2}),
        ("raise KeyboardInterrupt", InlineBackend, SHUFFLED, {"epochs": 2}),
        ("raise KeyboardInterrupt", InlineBackend, NOISY, {"batches": 23}),
    ],
    ids=["error", "worker killed", "driver interrupted", "driver interrupted, a length in batches"],
)
def test_whatever_interrupts_a_trial_it_goes_on_to_the_same_result(
    how: str,
    backend: Any,
    trial: str,
    length: dict[str, int],
    definition: Callable[..., Path],
    experiment: Callable[..., Run],
    tmp_path: Path,
) -> None:
    searcher = {"name": "single", "metric": "accuracy", "max_length": length}
    code = trial.replace(
        "    def train_batch(self, batch, model):\n        x, y = batch\n", STUMBLES.format(how=how)
    )
    assert how in code
    (tmp_path / "calm").touch()
    calm = {"data": {"mark": str(tmp_path / "calm")}, "searcher": searcher}
    undisturbed = experiment(definition(code), store="calm-store", **calm)
    folder, fields = definition(code), {**calm, "data": {"mark": str(tmp_path / "mark")}}
    workers = backend() if backend is InlineBackend else backend(num_workers=1)
    if "KeyboardInterrupt" in how:
        with pytest.raises(KeyboardInterrupt):
            experiment(folder, workers, **fields)
    run = experiment(folder, workers, **fields)
    assert (tmp_path / "mark").exists()
    assert outcome(run) == outcome(undisturbed)
    (only,) = run.state.trials.values()
    assert only.restarts == ("ConnectionError" in how)


DATASET = (
    TRIAL.replace(
        "DataLoader(TensorDataset(*points(100, 1)), batch_size=8)",
        'self.context.dataset("train").loader(8, shuffle=True, columns=["x", "y"], tail="join", output="torch")',
    )
    .replace(
        "DataLoader(TensorDataset(*points(50, 2)), batch_size=16)",
        'self.context.dataset("val").loader(16, columns=["x", "y"], output="torch")',
    )
    .replace("x, y = batch", 'x, y = batch["x"], batch["y"].long()')
)


def test_a_trial_over_a_dataset_hops_between_partitions_as_a_search_does(
    definition: Callable[..., Path], experiment: Callable[..., Run], tmp_path: Path
) -> None:
    x, y = (values.numpy() for values in points(400, 1))
    data = LocalStore(tmp_path / "data")
    prepare({"x": x, "y": y}, data, validation=0.25, feature_columns=["x"], label_columns=["y"])
    train = open_dataset(data, "train")
    run = experiment(
        definition(DATASET),
        data={"store": data.url},
        hyperparameters={"lr": {"type": "categorical", "vals": [0.01, 0.03]}},
        searcher={"name": "grid", "metric": "accuracy", "max_length": {"epochs": 3}},
    )

    def step(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
        outputs = model(batch["x"])
        labels = batch["y"].long()
        return {
            "loss": cross_entropy(outputs, labels),
            "accuracy": (outputs.argmax(1) == labels).float().mean(),
        }

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            network(),
            lambda model: torch.optim.Adam(model.parameters(), **params),
            step=step,
            metrics=["accuracy"],
            batch_size=8,
        )

    search = GridSearch(
        InlineBackend(),
        LocalStore(tmp_path / "beside"),
        estimator,
        {"lr": hp_choice([0.01, 0.03])},
        3,
        evaluation_metric="accuracy",
        feature_columns=["x"],
        label_columns=["y"],
        num_partitions=run.state.layout.train,
        progress=False,
    )
    beside = search.fit_on_parquet(train, open_dataset(data, "val")).run
    assert [trial.history["train_loss"] for trial in run.state.ranked()] == [
        trial.history["train_loss"] for trial in beside.state.ranked()
    ]
    assert outcome(run)[1] == outcome(beside)[1]
    assert run.broken_rules() == []


@pytest.mark.parametrize(
    "options",
    ["", ", transform=lambda batch, rng: dict(x=batch['x'].astype('float32'), y=batch['y'])", ", views=True"],
    ids=["no output", "a transform of arrays", "views"],
)
def test_batches_of_a_dataset_are_tensors_whatever_output_the_loader_has(
    options: str, definition: Callable[..., Path], experiment: Callable[..., Run], tmp_path: Path
) -> None:
    x, y = (values.numpy() for values in points(400, 1))
    data = LocalStore(tmp_path / "data")
    prepare({"x": x, "y": y}, data, validation=0.25, feature_columns=["x"], label_columns=["y"])
    said = DATASET if "views" not in options else DATASET.replace("shuffle=True, ", "")
    assert said.count(', output="torch"') == 2
    tensors = experiment(definition(said), data={"store": data.url})
    assert outcome(tensors) == outcome(
        experiment(definition(said.replace(', output="torch"', options)), data={"store": data.url})
    )


@pytest.mark.parametrize(
    ("length", "visits"),
    [({"epochs": 3}, 3), ({"records": 301}, 2), ({"batches": 75}, 2), ({"batches": 76}, 3)],
)
def test_lengths_over_a_dataset_are_rounded_up_to_whole_visits(
    length: Any,
    visits: int,
    definition: Callable[..., Path],
    experiment: Callable[..., Run],
    tmp_path: Path,
) -> None:
    x, y = (values.numpy() for values in points(400, 1))
    data = LocalStore(tmp_path / "data")
    prepare({"x": x, "y": y}, data, validation=0.25, feature_columns=["x"], label_columns=["y"])
    run = experiment(definition(DATASET), data={"store": data.url}, searcher=SINGLE | {"max_length": length})
    assert run.state.layout.train == 1  # 300 rows
    (trial,) = run.state.trials.values()
    assert trial.progress.trained == visits
    assert f"{visits} visits of 1 partition" in run.state.header["experiment"]["length"]


def test_pbt_copies_states_of_trials_with_loaders_of_their_own(
    definition: Callable[..., Path], experiment: Callable[..., Run]
) -> None:
    pbt = {
        "name": "pbt",
        "metric": "loss",
        "population_size": 2,
        "num_rounds": 3,
        "length_per_round": {"batches": 10},
        "replace_function": {"truncate_fraction": 0.5},
    }
    lr = {"type": "log", "minval": -4, "maxval": -1, "base": 10}
    run = experiment(definition(), searcher=pbt, hyperparameters={"lr": lr})
    copies = [trial for trial in run.state.trials.values() if trial.source is not None]
    assert len(copies) == 2
    for trial in run.state.trials.values():
        done = validations_of(run.state, trial).epochs
        all_ends = [10 / 13, 1, 20 / 13, 2, 30 / 13]  # those of rounds and of passes
        begun = round(13 * run.state.epochs_after(trial.began))
        own = [end for end in all_ends if end * 13 > begun]
        assert done == (own if trial.status == "completed" else own[: len(done)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("    def build_model", "    def build_models"),
            r"the trial class Trial lacks build_model\(\), which is part of every TorchTrial\. Define it in Trial",
        ),
        (
            ("    def train_batch", "    def train_batches"),
            r"lacks train_batch\(\), which",
        ),
        (
            (
                "return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))",
                "pass",
            ),
            r"Trial\.build_model\(\) returned NoneType, but must return a torch\.nn\.Module\. End it with return model",
        ),
        (
            ("return DataLoader(TensorDataset(*points(100, 1)), batch_size=8)", "return iter([])"),
            r"build_training_data_loader\(\) returned list_iterator, but it must return .* End it with return loader",
        ),
        (
            ("return DataLoader(TensorDataset(*points(100, 1)), batch_size=8)", "return []"),
            r"build_training_data_loader\(\) returned a loader of no batches\. Give it at least one",
        ),
        (
            ('return {"loss": torch.nn.functional.cross_entropy(model(x), y)}', "return 1"),
            r"train_batch\(batch, model\) returned int, but must return a dict with 'loss', .* end it with return",
        ),
        (
            ('"accuracy": accuracy}', '"accuracy": outputs}'),
            r"evaluate_batch\(batch, model\) gave \(16, 2\) for 'accuracy', but a metric is one number, .*\.mean\(\)",
        ),
        (
            ('return {"loss": torch.nn.functional.cross_entropy(outputs, y), "accuracy": accuracy}', "pass"),
            r"evaluate_batch\(batch, model\) returned NoneType, but must return a dict of metrics; end it with",
        ),
    ],
)
def test_what_a_trial_class_does_wrong_is_named(
    change: tuple[str, str], message: str, definition: Callable[..., Path], experiment: Callable[..., Run]
) -> None:
    assert change[0] in TRIAL
    with pytest.raises(TrialError, match=message):
        experiment(definition(TRIAL.replace(*change)))


OTHERS = "return torch.optim.SGD(torch.nn.Linear(4, 2).parameters(), lr=0.1)"
LOSS = 'return {"loss": torch.nn.functional.cross_entropy(model(x), y)}'
PLATEAU = "return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)"
SAID = [
    (
        (OPTIMIZER, "return None"),
        (
            "Trial.build_optimizer(model) returned NoneType for the model, but must return a torch.optim.Optimizer; "
            "end it with e.g. `return torch.optim.SGD(model.parameters(), lr=0.1)`."
        ),
    ),
    (
        (OPTIMIZER, OTHERS),
        (
            "Trial.build_optimizer(model) returned an optimizer of 2 parameters of something else than the model, so "
            "that no step would change the model. Make it of parameters of the model that the function is called with: "
            "torch.optim.SGD(model.parameters(), lr=0.1)."
        ),
    ),
    (
        (LOSS, 'return {"loss": 1.0}'),
        (
            "Trial.train_batch(batch, model) returned a loss of type float, but the loss must be a tensor with one "
            "number that gradients can be taken of. Return it as a function of torch.nn gives it, not as loss.item()."
        ),
    ),
    (
        (LOSS, 'return {"loss": model(x)}'),
        (
            "Trial.train_batch(batch, model) returned a loss of shape (8, 2), but the loss must be a tensor with one "
            "number that gradients can be taken of. Take its mean over the batch: loss.mean()."
        ),
    ),
    (
        (LOSS, "return model(x).mean().detach()"),
        (
            "Trial.train_batch(batch, model) returned a loss without gradients, but the loss must be a tensor with one "
            "number that gradients can be taken of. Compute it from the model's outputs, outside of torch.no_grad() "
            "and without .detach()."
        ),
    ),
    (
        (LOSS, 'return {"loss": float("nan") * model(x).sum()}'),
        (
            "The loss became nan in epoch 1, partition 0, batch 1; lower the learning rate, clip gradients before each "
            "step of the optimizer, by its register_step_pre_hook in build_optimizer, or look for values in the data "
            "that are not finite."
        ),
    ),
    (
        (LOSS, 'return {"loss": model(x).sum(), 3: 1.0}'),
        "Trial.train_batch(batch, model) gave a metric of the name 3, but names are texts. Rename it.",
    ),
    (
        ('"accuracy": accuracy}', '"accuracy": accuracy, 3: 1.0}'),
        "Trial.evaluate_batch(batch, model) gave a metric of the name 3, but names are texts. Rename it.",
    ),
    (
        ('"accuracy": accuracy}', '"accuracy": accuracy, " ": 1.0}'),
        (
            "Trial.evaluate_batch(batch, model) gave a metric of the name ' ', but a name has more than spaces, also "
            "after 'val_' or 'train_'. Rename it."
        ),
    ),
    (
        (
            "    def build_training",
            f"    def build_lr_scheduler(self, optimizer):\n        {PLATEAU}\n\n    def build_training",
        ),
        (
            "Trial.build_lr_scheduler(optimizer) returned ReduceLROnPlateau, but must return a schedule of "
            "torch.optim.lr_scheduler that steps after each batch, without a metric; end it with e.g. return "
            "torch.optim.lr_scheduler.StepLR(optimizer, 100)."
        ),
    ),
    (
        ('"accuracy": accuracy}', '"acc": accuracy}'),
        (
            "searcher.metric is 'accuracy', but the trial measures ['acc', 'loss']; did you mean 'acc'? Name one of "
            "these, or have the trial measure it."
        ),
    ),
]


@pytest.mark.parametrize(("change", "message"), SAID)
def test_what_a_method_returns_wrong_is_said_by_its_name(
    change: tuple[str, str], message: str, definition: Callable[..., Path], experiment: Callable[..., Run]
) -> None:
    assert change[0] in TRIAL
    with pytest.raises((TrialError, MetricError)) as caught:
        experiment(definition(TRIAL.replace(*change)))
    assert message in str(caught.value)


def test_gradients_are_clipped_by_a_hook_of_the_optimizer(
    definition: Callable[..., Path], experiment: Callable[..., Run]
) -> None:
    clip = """optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        optimizer.register_step_pre_hook(
            lambda *_: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01) and None
        )
        return optimizer"""
    run = experiment(definition(TRIAL.replace(OPTIMIZER, clip)), searcher=SINGLE)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _, (x, y) in zip(range(26), batches(), strict=False):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
    assert_equal(run, model)


def test_why_trials_train_one_at_a_time_is_said_without_names_of_classes(
    definition: Callable[..., Path],
    experiment: Callable[..., Run],
    capsys: pytest.CaptureFixture[str],
) -> None:
    grid = {"name": "grid", "metric": "accuracy", "max_length": {"epochs": 1}}
    lr = {"lr": {"type": "categorical", "vals": [0.1, 0.01]}}
    for code, entrypoint in ((TRIAL, "model_def:Trial"), (FUNCTION, "model_def:main")):
        options = {"progress": True, "test": True}
        experiment(
            definition(code), options=options, entrypoint=entrypoint, searcher=grid, hyperparameters=lr
        )
        said = capsys.readouterr()
        assert "trials train one at a time: the code of each trial trains one model" in said.out + said.err


def test_two_processes_train_a_trial_as_one_that_takes_two_batches_a_step(
    definition: Callable[..., Path], experiment: Callable[..., Run]
) -> None:
    code = TRIAL.replace(
        "    def train_batch(self, batch, model):\n",
        "    def train_batch(self, batch, model):\n"
        "        place = self.context.distributed\n"
        "        assert place.get_size() == 2 and place.get_rank() == place.get_local_rank()\n"
        "        assert torch.distributed.get_rank() == place.get_rank()\n",
        1,
    )
    fields: dict[str, Any] = {"searcher": SINGLE, "resources": {"slots_per_trial": 2}}
    run = experiment(definition(code), LocalBackend(num_workers=1), **fields)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = points(100, 1)
    for first, last in [(0, 4), (4, 8), (8, 13)] * 2:  # batches of the units
        for at in range(first, last, 2):
            rows = slice(at * 8, min(at + 2, last) * 8)
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    assert_equal(run, model)


def test_a_saved_model_has_its_code_with_it(
    definition: Callable[..., Path], experiment: Callable[..., Run], tmp_path: Path
) -> None:
    code = TRIAL.replace("torch.nn.Linear(8, 2))", "torch.nn.Linear(8, widths.OUTPUTS))")
    code = code.replace("import torch\n", "import torch\nimport widths\n", 1)
    run = experiment(definition(code, widths_dot_py="OUTPUTS = 2\n"))
    run.best.save(tmp_path / "saved")
    expected = run.best.torch().state_dict()
    shutil.rmtree(tmp_path / "store")
    shutil.rmtree(tmp_path / "definition")
    module = load_model(tmp_path / "saved").torch()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=0)
    x, _ = points(10, 3)
    assert module(x).shape == (10, 2)
