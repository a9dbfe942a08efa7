"""In what an experiment differs from the newest one of its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopyard.experiment import complete, create, delete, fork
from hopyard.experiment.config import ExperimentConfig
from hopyard.experiment.definition import definition_object, pack
from hopyard.experiment.differences import OtherExperiment, differing_namesake, forked_from
from hopyard.storage import LocalStore

FUNCTION = """
def main(context):
    context.save({})
    context.report(accuracy=context.get_hparam("lr"))
"""
FIELDS: dict[str, Any] = {
    "name": "one",
    "entrypoint": "model_def:main",
    "hyperparameters": {"lr": 0.5},
    "searcher": {"name": "single", "metric": "accuracy", "max_length": {"epochs": 1}},
    "resources": {"workers": 1},
}


def configured(**fields: Any) -> ExperimentConfig:
    return complete(FIELDS | fields)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def code(definition: Callable[..., Path]) -> Path:
    return definition(FUNCTION)


def test_it_is_the_newest_one_of_the_name(store: LocalStore, code: Path) -> None:
    digest = pack(code, store).digest
    assert differing_namesake(store, configured(), digest) is None
    first = create(configured(), code, store, progress=False)
    other = create(configured(name="other", seed=7), code, store, progress=False)
    assert first is not None
    assert other is not None
    found = differing_namesake(store, configured(seed=3), digest)
    assert found == OtherExperiment(first.run_id, {"seed": "0 -> 3"}, {})
    second = create(configured(seed=3), code, store, progress=False)
    assert second is not None
    found = differing_namesake(store, configured(hyperparameters={"rate": [1, 2]}), digest)
    assert found is not None
    assert (found.experiment, found.lines) == (
        second.run_id,
        ["hyperparameters.lr: gone", "hyperparameters.rate: new: [1, 2]", "seed: 3 -> 0"],
    )
    assert differing_namesake(store, configured(), digest) is None  # there is the first one
    delete(store, first.run_id)
    assert differing_namesake(store, configured(), digest) is not None


def test_a_fork_from_weights_is_passed_over(store: LocalStore, code: Path) -> None:
    first = create(configured(), code, store, progress=False)
    assert first is not None
    fork(store, first.run_id, ["seed=4"], warm_start="best", progress=False)
    found = differing_namesake(store, configured(seed=4), pack(code, store).digest)
    assert found is not None
    assert found.experiment == first.run_id


def test_files_are_named_by_their_paths(store: LocalStore, code: Path) -> None:
    (code / "sub").mkdir()
    (code / "sub" / "old\nname.txt").write_text("")
    (code / "run.sh").write_text("")
    first = create(configured(), code, store, progress=False)
    assert first is not None
    (code / "sub" / "old\nname.txt").rename(code / "new.txt")
    (code / "run.sh").chmod(0o755)
    digest = pack(code, store).digest
    found = differing_namesake(store, configured(), digest)
    assert found is not None
    assert found.lines == ["new.txt: new", "run.sh: changed", "sub/old\\nname.txt: gone"]
    before = first.state.header["experiment"]["definition"]
    whole = store.get(definition_object(before))
    store.put(definition_object(before), whole[:10])
    found = differing_namesake(store, configured(), digest)
    assert found is not None
    assert found.lines == [f".: others than {before[:12]}, which is damaged in the store"]
    assert forked_from(store, first.run_id, configured(seed=3)).lines == ["seed: 0 -> 3"]
    store.delete(definition_object(before))
    found = differing_namesake(store, configured(), digest)
    assert found is not None
    assert found.lines == [f".: others than {before[:12]}, which the store no longer has"]
