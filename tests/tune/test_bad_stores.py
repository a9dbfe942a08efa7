"""Stores that cannot be written, files that are damaged or gone, formats of the future."""

# ruff: noqa: E501 - the messages stand in one piece
from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from hopyard import load_model, open_run
from hopyard.data import open_dataset, prepare
from hopyard.data.manifest import MANIFEST_DOMAIN
from hopyard.errors import (
    ColumnError,
    CorruptError,
    DataError,
    FormatError,
    HopyardError,
    InvalidNameError,
    NotFoundError,
    NotWritableError,
    StorageError,
    UsageError,
    WorkerLostError,
    WorkerMismatchError,
)
from hopyard.hopper.journal import Journal, read_records
from hopyard.hopper.removal import remove_run
from hopyard.objects.digests import digest_json
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.training.program import forget_program
from hopyard.training.unit import residents
from hopyard.tune import Callback, list_runs
from hopyard.tune.asking import ask
from hopyard.tune.listing import summary
from hopyard.tune.progress import ProgressDisplay
from hopyard.tune.watching import watch


def refused(kind: type[HopyardError], text: str) -> Any:
    """``text`` must be in the message as it stands."""
    return pytest.raises(kind, match=re.escape(text))


def rewrite(path: Path, data: bytes) -> None:
    """Stored files are not meant to be changed: they are read-only."""
    path.chmod(0o644)
    path.write_bytes(data)


def of_the_future(path: Path, old: bytes = b'"version": 1', new: bytes = b'"version": 9') -> None:
    data = path.read_bytes()
    assert old in data
    data = data.replace(old, new, 1).replace(b'"hopyard": "0.1.0"', b'"hopyard": "9.9.0"', 1)
    if path.name == "manifest.json":
        fields = json.loads(data)
        del fields["digest"]
        data = json.dumps({**fields, "digest": digest_json(fields, MANIFEST_DOMAIN)}).encode()
    rewrite(path, data)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory that not even root can write."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a read-only file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_a_store_that_is_not_writable_is_refused_before_any_work(
    backend: str, search: Any, make_rows: Any, local: Any, read_only: Path
) -> None:
    text = "cannot be written: Read-only file system. Give this user the right to write there, or use another directory."
    with refused(NotWritableError, text):
        search(LocalStore(read_only), local if backend == "local" else None).fit(make_rows())
    assert local.submit(0, int, "3").result() == 3


def test_a_run_in_a_store_that_is_not_writable_is_not_deleted(
    search: Any, make_rows: Any, read_only: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,rw", str(read_only)], check=True)
    store = LocalStore(read_only)
    search(store, run_id="mine").fit(make_rows())
    subprocess.run(["mount", "-o", "remount,ro", str(read_only)], check=True)
    names = store.names()
    with refused(
        NotWritableError, "lease.use cannot be written: Read-only file system. Give this user the right"
    ):
        remove_run(store.runs.at("mine"))
    assert store.names() == names


def test_logs_that_cannot_be_written_are_refused_before_any_work(
    search: Any, make_rows: Any, read_only: Path, tmp_path: Path
) -> None:
    for folder in (read_only, read_only / "logs"):
        with pytest.raises(NotWritableError, match=f"{folder} cannot be written"):
            search(LocalStore(tmp_path / "store"), logdir=folder).fit(make_rows())
    (tmp_path / "file").touch()
    with refused(InvalidNameError, f"{tmp_path}/file is a file"):
        search(LocalStore(tmp_path / "store"), logdir=tmp_path / "file" / "logs").fit(make_rows())
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_a_store_below_a_file_or_of_no_path_is_refused(search: Any, make_rows: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused(
        InvalidNameError, f"{tmp_path}/file is a file, and nothing is both an object and a prefix of another."
    ):
        search(LocalStore(tmp_path / "file")).fit(make_rows())
    for path in (3, "", b"x"):
        with refused(
            UsageError, f"a store's path must be a non-empty string or Path, not {path!r}. Give a directory."
        ):
            LocalStore(path)  # type: ignore[arg-type]


# Runs ------------------------------------------------------------------------------------------


def test_a_run_of_a_newer_format_says_what_to_install(search: Any, make_rows: Any, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    search(store, run_id="mine").fit(make_rows())
    header = next(iter(read_records(store.runs.at("mine"))))
    header = header | {"run_id": "later", "format": header["format"] | {"version": 9, "hopyard": "9.9.0"}}
    journal = Journal(store.runs.at("later"))
    journal.append(header)
    journal.close()
    text = "was written by Hopyard 9.9.0 in format 9; this is Hopyard 0.1.0, which reads formats up to 1. Install that version or a later one: pip install 'hopyard>=9.9.0'"
    with refused(FormatError, f"run later in {tmp_path}/runs/later {text}"):
        open_run(store, "later")
    for changes in ({}, {"num_models": 5}, {"seed": 3}):
        with refused(FormatError, text):
            search(store, run_id="later", **changes).fit(make_rows())
    assert list_runs(store) == ["later", "mine"]


@pytest.mark.filterwarnings("ignore:the last segment of the journal")
def test_a_run_whose_power_failed_before_it_had_begun_says_so_and_begins(
    search: Any, make_rows: Any, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path)
    folder = store.runs.at("mine")
    folder.put("journal/000000000001", b'{"r":"run","run_id":"mi')
    text = f"run mine in {tmp_path}/runs/mine has no record: power failed while its first one was written. Run its"
    for look in (
        lambda: open_run(store, "mine"),
        lambda: summary(store, "mine"),
        lambda: watch(folder, "mine", ProgressDisplay(enabled=False)),
        lambda: ask(folder, "mine", {"do": "extend", "num_models": 3}),
    ):
        with refused(CorruptError, text):
            look()
    assert search(store, run_id="mine").fit(make_rows()).run.status == "completed"


def test_a_torn_journal_is_not_believed(search: Any, make_rows: Any, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    search(store, run_id="mine").fit(make_rows())
    first, second, *_ = sorted((tmp_path / "runs" / "mine" / "journal").iterdir())
    whole = first.read_bytes()
    for damaged in (whole[:-20], b"", b"{}\n", b"\xff\x00" + whole[2:]):
        rewrite(first, damaged)
        with pytest.raises(CorruptError, match=r"is not what was written.*fresh=True"):
            open_run(store, "mine")
        with pytest.raises(CorruptError, match=r"is not what was written.*fresh=True"):
            search(store, run_id="mine").fit(make_rows())
    rewrite(first, whole)
    second.unlink()
    with refused(CorruptError, "lacks 000000000002, but has"):
        open_run(store, "mine")


def test_damaged_and_newer_states_are_not_believed(search: Any, make_rows: Any, tmp_path: Path) -> None:
    store, data = LocalStore(tmp_path), make_rows()
    model = search(store, run_id="mine").fit(data)
    [weights] = {
        tmp_path / "runs" / "mine" / f"{model.trial:05d}" / name
        for name in model.run.state.trials[model.trial].best.state.files
    }
    whole = weights.read_bytes()
    rewrite(weights, whole[:-8])
    with refused(CorruptError, "is not what was written: it has"):
        open_run(store, "mine").best.predict(data["features"])
    rewrite(weights, whole)
    of_the_future(weights, rb"\"kind\":\"state\",\"version\":1", rb"\"kind\":\"state\",\"version\":9")
    with refused(FormatError, "in format 9; this is Hopyard 0.1.0, which reads formats up to 1."):
        open_run(store, "mine").best.predict(data["features"])
    weights.unlink()
    with refused(NotFoundError, "were not kept: a run keeps those of completed trials and of the best one."):
        open_run(store, "mine").best.predict(data["features"])


def test_one_changed_byte_of_the_weights_is_noticed(search: Any, make_rows: Any, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    model = search(store).fit(make_rows())
    [name] = model.weights()[1].files
    [path] = (tmp_path / "runs").glob(f"*/*/{name}")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    rewrite(path, bytes(data))
    with refused(CorruptError, name):
        open_run(store, model.run_id).model(model.trial).predict(make_rows()["features"])


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    rewrite(path, data[:-8] + (b"changed!" if how == "changed" else b""))
    if how == "gone":
        path.unlink()


def over(base: Any) -> Any:
    def estimator(params: dict[str, Any]) -> TorchEstimator:
        def model(base: torch.nn.Module) -> torch.nn.Module:
            return torch.nn.Sequential(base, torch.nn.Linear(5000, 2))

        loss, options = torch.nn.CrossEntropyLoss(), {"lr": params["lr"]}
        return TorchEstimator(model, torch.optim.SGD, loss, optimizer_params=options, base=base)

    return estimator


@pytest.mark.parametrize("how", ["short", "changed", "gone"])
def test_a_damaged_base_on_the_store_is_not_needed_where_a_function_makes_it(
    how: str, search: Any, make_rows: Any, tmp_path: Path
) -> None:
    def base() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Linear(4, 5000)

    store, rows = LocalStore(tmp_path), make_rows()
    made = search(store, estimator_gen_fn=over(base), evaluation_metric="loss", num_epochs=1).fit(rows)
    whole, team = made.predict(rows), made.run.ensemble(2)
    expected = load_model(team.save(tmp_path / "saved")).predict(rows)
    [path] = (tmp_path / "runs" / "_frozen").rglob("*.safetensors")
    damage(path, how)
    opened = open_run(store, made.run_id)
    assert np.array_equal(opened.best.predict(rows), whole)
    assert np.array_equal(team.predict(rows), expected)
    assert np.array_equal(opened.ensemble(2).predict(rows), expected)


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("short", CorruptError, "is not what was written: it has"),
        ("changed", CorruptError, "is not what was written: the bytes of the tensor"),
        (
            "gone",
            NotFoundError,
            "It held tensors that runs share, such as those of a base. Restore it from a copy",
        ),
    ],
)
def test_a_damaged_base_that_the_store_alone_has_is_named(
    how: str, kind: type[HopyardError], words: str, search: Any, make_rows: Any, tmp_path: Path
) -> None:
    store, rows = LocalStore(tmp_path), make_rows()
    torch.manual_seed(0)
    make, options = over(torch.nn.Linear(4, 5000)), {"evaluation_metric": "loss", "num_epochs": 1}
    made = search(store, estimator_gen_fn=make, **options).fit(rows)
    whole = made.predict(rows)
    [path] = (tmp_path / "runs" / "_frozen").rglob("*.safetensors")
    damage(path, how)
    opened = open_run(store, made.run_id).best
    forget_program(store.runs.at(made.run_id), opened.contents()[1].program)  # as in another process
    with refused(kind, words) as caught:
        opened.predict(rows)
    assert path.name in str(caught.value)
    assert "fresh=True" in str(caught.value)
    forget_program(store.runs.at(made.run_id), opened.contents()[1].program)
    with refused(kind, words) as caught:
        open_run(store, made.run_id).ensemble(2)
    assert path.name in str(caught.value)
    path.unlink(missing_ok=True)
    search(store, estimator_gen_fn=make, fresh=True, **options).fit(rows)
    assert np.array_equal(open_run(store, made.run_id).best.predict(rows), whole)


def test_a_run_stops_at_another_base_and_goes_on_over_the_right_one(
    search: Any, make_rows: Any, tmp_path: Path
) -> None:
    def fit(name: str, num_epochs: int) -> Any:
        def base() -> torch.nn.Module:
            return torch.load(tmp_path / "base.pt", weights_only=False)  # type: ignore[no-any-return]

        residents.clear()  # as in another process
        for program in store.runs.at(name).names("program"):
            forget_program(store.runs.at(name), program)
        return search(
            store, run_id=name, estimator_gen_fn=over(base), evaluation_metric="loss",
            num_epochs=num_epochs,
        ).fit(make_rows())  # fmt: skip

    store = LocalStore(tmp_path / "store")
    torch.manual_seed(0)
    right, wrong = torch.nn.Linear(4, 5000), torch.nn.Linear(4, 5000)
    torch.save(right, tmp_path / "base.pt")
    expected, first = fit("whole", 2), fit("mine", 1)
    outputs = first.predict(make_rows())
    torch.save(wrong, tmp_path / "base.pt")
    with refused(
        WorkerMismatchError, "another base than the estimator function now gives; 0.weight, 0.bias differ"
    ):
        fit("mine", 2)
    residents.clear()
    assert np.array_equal(open_run(store, "mine").best.predict(make_rows()), outputs)
    torch.save(right, tmp_path / "base.pt")
    assert fit("mine", 2).get_all_model_history() == expected.get_all_model_history()


def test_runs_and_models_that_are_not_there_are_named(search: Any, make_rows: Any, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    model = search(store, run_id="mine").fit(make_rows())
    with refused(
        NotFoundError, f"{tmp_path} holds no run 'mime'; did you mean 'mine'? The runs there are: mine."
    ):
        open_run(store, "mime")
    with refused(NotFoundError, "run mine has no model of trial 99; the trials with a result are ["):
        model.run.model(99)
    with refused(
        NotFoundError,
        f"{tmp_path} holds no model (no model.json); give the directory that model.save(...) wrote.",
    ):
        load_model(tmp_path)


def test_saved_models_are_checked(search: Any, make_rows: Any, tmp_path: Path) -> None:
    model = search(LocalStore(tmp_path / "store")).fit(make_rows())
    saved = model.save(tmp_path / "saved")
    assert model.save(saved) == saved  # it is there
    assert load_model(saved).save(saved) == saved
    with refused(
        UsageError, f"{saved} already holds another model; delete the directory or give another one."
    ):
        model.get_all_models()[-1].save(saved)
    with refused(
        NotFoundError, f"its run {model.run_id} is not at hand. Open it with hopyard.open_run(store, run_id)."
    ):
        load_model(saved).run.trials()
    of_the_future(saved / "model.json")
    with refused(FormatError, f"the model in {saved} was written by Hopyard 9.9.0 in format 9"):
        load_model(saved)
    for content in (b"{", b"[]", b"{}"):
        rewrite(saved / "model.json", content)
        with refused(CorruptError, f"{saved}/model.json is not what model.save(...) wrote ("):
            load_model(saved)


# Data ------------------------------------------------------------------------------------------


def test_truncated_files_are_refused_before_any_work(search: Any, make_rows: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame({"features": list(make_rows()["features"]), "label": make_rows()["label"]})
    frame.to_parquet(tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    store = LocalStore(tmp_path / "store")
    for name, content in (("cut.parquet", whole[:-200]), ("empty.parquet", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CorruptError, match=rf"{tmp_path}/{name}.* Restore it"):
            search(store).fit(tmp_path / name)
        with pytest.raises(CorruptError, match=rf"{tmp_path}/{name}.* Restore it"):
            search(store).fit_on_parquet(tmp_path / name, tmp_path / "whole.parquet")
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_prepared_files_that_were_changed_are_refused_and_prepared_anew_from_the_data(
    search: Any, make_rows: Any, tmp_path: Path, contents_of: Any
) -> None:
    store, data = LocalStore(tmp_path), make_rows()
    expected = contents_of(search(store).fit(data).run)
    [file] = (tmp_path / "train_data").rglob("*.parquet")
    whole = file.read_bytes()
    rewrite(file, whole[:-100])
    text = f"{file} has {len(whole) - 100} bytes, but had {len(whole)} when the dataset was made: it was truncated or changed."
    with refused(CorruptError, text):
        search(store).fit_on_prepared_data()
    assert contents_of(search(store, fresh=True).fit(data).run) == expected
    assert file.read_bytes() == whole
    file.unlink()
    with refused(NotFoundError, "a file of the dataset, cannot be read (No such file or directory)."):
        search(store, seed=1).fit_on_prepared_data()


def test_prepared_data_of_a_newer_format_says_what_to_install(
    search: Any, make_rows: Any, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path)
    prepare(make_rows(), store, feature_columns=["features"], label_columns=["label"])
    for manifest in tmp_path.rglob("manifest.json"):
        of_the_future(manifest)
    for call in (
        lambda: search(store).fit(make_rows()),
        search(store).fit_on_prepared_data,
        lambda: open_dataset(store, "train"),
    ):
        with refused(
            FormatError,
            "was written by Hopyard 9.9.0 in format 9; this is Hopyard 0.1.0, which reads formats up to 1.",
        ):
            call()
    assert not (tmp_path / "runs").exists()


def test_data_that_is_damaged_while_a_run_is_interrupted_is_not_trained_on(
    search: Any, make_rows: Any, tmp_path: Path
) -> None:
    class Stop(Callback):
        def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
            raise KeyboardInterrupt

    store = LocalStore(tmp_path)
    prepare(make_rows(), store, feature_columns=["features"], label_columns=["label"])
    with pytest.raises(KeyboardInterrupt):
        search(store, run_id="mine", callbacks=[Stop()]).fit_on_prepared_data()
    [file] = (tmp_path / "train_data").rglob("*.parquet")
    rewrite(file, file.read_bytes()[:-8])
    with refused(CorruptError, "it was truncated or changed."):
        search(store, run_id="mine").fit_on_prepared_data()


@pytest.mark.long
def test_data_that_is_damaged_stops_the_run_and_once_mended_it_goes_on(
    search: Any, make_rows: Any, contents_of: Any, local: Any, tmp_path: Path
) -> None:
    undisturbed = search(LocalStore(tmp_path / "undisturbed")).fit(make_rows())
    store = LocalStore(tmp_path / "store")

    class Damage(Callback):
        def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
            [file] = (tmp_path / "store" / "train_data").rglob("*.parquet")
            if not damaged:
                damaged.append((file, file.read_bytes()))
                file.unlink()
                for worker in range(2):  # fresh workers map the file anew
                    with contextlib.suppress(WorkerLostError):
                        local.submit(worker, os._exit, 1).result()

    damaged: list[tuple[Path, bytes]] = []
    with pytest.raises(StorageError):
        search(store, local, run_id="mine", callbacks=[Damage()]).fit(make_rows())
    [(file, whole)] = damaged
    file.write_bytes(whole)
    model = search(store, local, run_id="mine").fit(make_rows())
    assert contents_of(model.run) == contents_of(undisturbed.run)


def test_a_state_that_is_lost_costs_its_trial_and_no_other(
    search: Any, make_rows: Any, tmp_path: Path
) -> None:
    class Stop(Callback):
        def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
            raise KeyboardInterrupt

    store = LocalStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        search(store, run_id="mine", callbacks=[Stop()]).fit(make_rows())
    for path in (tmp_path / "runs" / "mine" / "00001").iterdir():
        path.unlink()
    residents.clear()
    model = search(store, run_id="mine").fit(make_rows())
    states = dict(model.trials().set_index("number")["state"])
    assert states == {0: "completed", 1: "failed", 2: "completed"}


# What a trained model is given -----------------------------------------------------------------


def test_what_a_model_cannot_predict_on_is_refused(search: Any, make_rows: Any, tmp_path: Path) -> None:
    data = make_rows()
    model = search(LocalStore(tmp_path)).fit(data)
    with refused(
        ColumnError,
        "the data lacks the columns ['features']; did you mean 'feature'? It has ['feature']; the model needs ['features'].",
    ):
        model.predict({"feature": data["features"]})
    with refused(
        ColumnError,
        "the data lacks the columns ['label']. It has ['features']; the model needs ['features', 'label'].",
    ):
        model.evaluate({"features": data["features"]})
    with refused(
        DataError,
        "column 'features' has rows of 3 values, but all that the model was trained on have 4. Give rows of that length, or train with ragged='pad' or ragged='keep' on rows of several.",
    ):
        model.predict(data["features"][:, :3])
    with refused(
        DataError,
        "transform was given ndarray; it takes a dict of arrays, a list of dicts, a pandas or polars DataFrame or a pyarrow Table",
    ):
        model.transform(data["features"])
    with refused(
        UsageError, "the model gives 1 outputs for the output columns ['a', 'b']; name one per output"
    ):
        model.set_output_columns(["a", "b"]).transform(data)
    with refused(
        UsageError,
        "the data has a column 'label' already, where the model's output would go. Name another one",
    ):
        model.set_output_columns(["label"]).transform(data)
    with refused(UsageError, "output columns are 'a'; give a list of names, one per output of the model."):
        model.set_output_columns("a")
