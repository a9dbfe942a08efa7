"""The three ways to data in examples/experiments, on a server of S3, and the results beside plain computations."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import cross_entropy

from hopyard.backend import Backend, InlineBackend, LocalBackend
from hopyard.experiment import complete, create, read_config, saved_state
from hopyard.experiment.mounts import Mount, check
from hopyard.storage import LocalStore, open_store
from hopyard.training.session import Session
from hopyard.tune import Run

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "experiments"


@pytest.fixture
def digits(url: str) -> str:
    """A prefix with what the example writes."""
    runpy.run_path(str(EXAMPLES / "object_storage" / "make_data.py"))["main"](url)
    return url


def run_example(folder: Path, tmp_path: Path, backend: Backend | None = None, **fields: Any) -> Run:
    """Run an example with fields in the places of those of its const.yaml."""
    config = complete(read_config(folder / "const.yaml").written() | fields)
    store = LocalStore(tmp_path / "store")
    run = create(config, folder, store, backend or InlineBackend(), progress=False)
    assert run is not None
    assert run.status == "completed"
    return run


def rows_of_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows to validate and to train on, as the example shuffles them."""
    from sklearn.datasets import load_digits

    data = load_digits()
    rows = np.column_stack([data.data, data.target]).astype(np.uint8)
    np.random.default_rng(0).shuffle(rows)
    return torch.from_numpy(rows[:297].astype(np.int64)), torch.from_numpy(rows[297:].astype(np.int64))


def plain_loop(lr: float, width: int, epochs: int) -> tuple[torch.nn.Module, list[float]]:
    """The network after so many epochs, and its loss on the held-out rows after each."""
    with Session(1) as session:
        session.seed(0, 0, "init")
        model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
    val, train = rows_of_digits()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for _ in range(epochs):
        for batch in train.split(64):
            optimizer.zero_grad()
            cross_entropy(model(batch[:, :64] / 16), batch[:, 64]).backward()
            optimizer.step()
        with torch.no_grad():
            losses.append(float(cross_entropy(model(val[:, :64] / 16), val[:, 64])))
    return model, losses


SINGLE = {"name": "single", "metric": "loss", "max_length": {"epochs": 3}}


def test_downloads_objects_and_byte_ranges_train_the_network_that_a_plain_loop_trains(
    digits: str, tmp_path: Path
) -> None:
    expected, losses = plain_loop(0.01, 32, 3)
    assert losses == sorted(losses, reverse=True)  # the last epoch is the best
    for name in ("Downloaded", "OneObjectPerBatch", "Records"):
        run = run_example(
            EXAMPLES / "object_storage",
            tmp_path,
            entrypoint=f"model_def:{name}",
            data={"url": digits},
            hyperparameters={"lr": 0.01, "width": 32},
            searcher=SINGLE,
        )
        [trial] = run.state.trials.values()
        assert trial.history["val_loss"] == pytest.approx(losses, rel=1e-4)
        found = run.best.torch().state_dict()
        for key, value in expected.state_dict().items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-4)


def test_a_search_over_a_stream_finds_a_good_network(digits: str, tmp_path: Path) -> None:
    run = run_example(
        EXAMPLES / "object_storage", tmp_path, entrypoint="model_def:Records", data={"url": digits}
    )
    assert len(run.state.trials) == 8
    val, _ = rows_of_digits()
    with torch.no_grad():
        found = run.best.torch()(val[:, :64] / 16).argmax(1)
    accuracy = float((found == val[:, 64]).float().mean())
    assert accuracy > 0.93
    best = run.state.ranked()[0].best
    assert best is not None
    assert accuracy == pytest.approx(best.value, abs=0.01)  # which is the mean over batches of 64 rows


def test_a_shared_directory_is_read_where_the_code_expects_it(tmp_path: Path) -> None:
    shared, place = tmp_path / "shared", tmp_path / "place"
    runpy.run_path(str(EXAMPLES / "shared_files" / "make_data.py"))["main"](shared)
    place.mkdir()
    mount = Mount(str(shared), str(place), read_only=True)
    if check([mount]):  # the kernel lets users mount nothing here
        mount = Mount(str(shared), str(shared), read_only=True)
    example = shutil.copytree(EXAMPLES / "shared_files", tmp_path / "example")
    for file in (example / "const.yaml", example / "model_def.py"):
        file.write_text(file.read_text().replace("/mnt/data", mount.container_path))
    given = {name: getattr(mount, name) for name in ("host_path", "container_path", "read_only")}
    run = run_example(example, tmp_path, LocalBackend(num_workers=1), bind_mounts=[given])
    assert list(place.iterdir()) == []
    folder = shared / "validation"
    pixels, digits = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("pixels", "digits"))
    with torch.no_grad():
        right = run.best.torch()(pixels).argmax(1) == digits  # of a model that this process has no data of
    [trial] = run.state.trials.values()
    means = [float(part.float().mean()) for part in right.split(64)]
    assert max(trial.history["val_accuracy"]) == pytest.approx(
        np.average(means, weights=[len(part) for part in right.split(64)]), abs=1e-6
    )
    assert float(right.float().mean()) > 0.93


def regression(lr: float, steps: int = 20) -> tuple[list[float], list[float], np.ndarray[Any, Any]]:
    """Losses, accuracies on the held-out rows, and weights after so many steps of gradient descent, in NumPy."""
    rows = pd.read_csv(EXAMPLES / "small_files" / "data.csv").to_numpy()
    flowers, species = rows[:, :4], rows[:, 4].astype(int)
    flowers = np.column_stack([(flowers - flowers.mean(0)) / flowers.std(0, ddof=1), np.ones(len(rows))])
    held_out = np.arange(len(rows)) % 5 == 0
    truth = np.eye(3)[species]
    weights, losses, accuracies = np.zeros((5, 3)), [], []
    for _ in range(steps):
        scores = np.exp(flowers[~held_out] @ weights)
        chances = scores / scores.sum(1, keepdims=True)
        losses.append(-np.log((chances * truth[~held_out]).sum(1)).mean())
        weights -= lr * flowers[~held_out].T @ (chances - truth[~held_out]) / (~held_out).sum()
        accuracies.append(((flowers[held_out] @ weights).argmax(1) == species[held_out]).mean())
    return losses, accuracies, weights


def test_a_file_beside_the_code_is_read_from_the_working_directory(tmp_path: Path) -> None:
    run = run_example(EXAMPLES / "small_files", tmp_path)
    assert len(run.state.trials) == 3
    for trial in run.state.trials.values():
        losses, accuracies, _ = regression(trial.params["lr"])
        assert trial.history["train_loss"] == pytest.approx(losses, rel=1e-4)
        assert trial.history["val_accuracy"] == pytest.approx(accuracies, abs=1e-6)
    best, saved = run.best, saved_state(run.best)
    _, accuracies, weights = regression(best.params["lr"], saved["step"])
    assert accuracies[-1] == max(regression(best.params["lr"])[1])
    np.testing.assert_allclose(saved["model"]["weight"].T, weights[:4], atol=1e-4)
    np.testing.assert_allclose(saved["model"]["bias"], weights[4], atol=1e-4)


def test_keras_trains_on_a_stream(digits: str, tmp_path: Path) -> None:
    run = run_example(
        EXAMPLES / "object_storage",
        tmp_path,
        entrypoint="keras_def:Streamed",
        data={"url": digits},
        hyperparameters={"lr": 0.01, "width": 32},
        searcher={"name": "single", "metric": "accuracy", "max_length": {"epochs": 3}},
    )
    val = rows_of_digits()[0].numpy()
    for split in ("train", "val"):  # a model is used where its data are not
        open_store(digits).delete(f"{split}.bin")
    outputs = run.best.keras().predict(val[:, :64].astype("float32") / 16, verbose=0)
    accuracy = float((outputs.argmax(1) == val[:, 64]).mean())
    [trial] = run.state.trials.values()
    assert max(trial.history["val_accuracy"]) == pytest.approx(accuracy, abs=1e-6)
    assert accuracy > 0.9
