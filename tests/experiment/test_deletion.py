"""Experiments that are deleted while others, or they themselves, begin: each is there whole, or it is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.sampling import moments

from hopyard.backend import InlineBackend
from hopyard.errors import NotFoundError, RunHeldError
from hopyard.experiment import complete, create, delete, download_checkpoint, list_experiments
from hopyard.experiment.definition import pack
from hopyard.experiment.driver import Driving
from hopyard.storage import LocalStore, Store
from hopyard.storage.wrappers import Call, Wrapper
from hopyard.tune import Run

T = TypeVar("T")

FUNCTION = """
def main(context):
    for report in range(2):
        context.save({"report": report})
        context.report(accuracy=context.get_hparam("lr") + report)
"""
FIELDS: dict[str, Any] = {
    "entrypoint": "model_def:main",
    "hyperparameters": {"lr": 0.5},
    "searcher": {"name": "single", "metric": "accuracy", "max_length": {"epochs": 2}},
}


class MeanwhileStore(Wrapper):
    """Another store, before whose call of a number something else happens. Where it is sent to it is that other store.

    Args:
        number: of the call, from 0.
        action: what happens, on the thread that makes the call.
    """

    def __init__(self, inner: Store, number: int, action: Callable[[], object]) -> None:
        super().__init__(inner)
        self._number, self._action = number, action
        self.calls: list[Call] = []

    def _called(self, call: Call, name: str, action: Callable[[], T], sent: int = 0) -> T:
        self.calls.append(call)
        if len(self.calls) == self._number + 1:
            self._action()
        return action()

    def __copy__(self) -> MeanwhileStore:
        copied = object.__new__(MeanwhileStore)
        copied.__dict__.update(self.__dict__)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.inner,)


def _itself(store: Store) -> Store:
    return store


@pytest.fixture
def code(definition: Callable[..., Path]) -> Path:
    return definition(FUNCTION)


def created(code: Path, store: Store, seed: int = 0) -> Run:
    run = create(complete({**FIELDS, "seed": seed}), code, store, InlineBackend(), progress=False)
    assert run is not None
    return run


def taken_over(code: Path, store: Store) -> Run:
    """As ``hopyard experiment create --take-over``."""
    definition = pack(code, store, []).digest
    run = Driving(complete(FIELDS), definition, store, InlineBackend(), take_over=True).here(progress=False)
    assert run is not None
    return run


def check_whole(store: LocalStore, folder: Path) -> None:
    """All experiments of a store are completed, and have their code and weights; nothing else is in it."""
    known = [each.experiment for each in list_experiments(store)]
    for number, experiment in enumerate(known):
        download_checkpoint(store, experiment, folder / f"{number}")
    assert {each.status for each in list_experiments(store)} <= {"completed"}
    parts = [name.split("/") for name in store.names()]
    assert {part[1] for part in parts if part[0] in ("runs", "logs")} == set(known)
    if not known:
        assert [part for part in parts if part[0] != "definition"] == []


@pytest.mark.parametrize("seed", [0, 1])
def test_one_that_begins_is_whole_or_says_to_create_it_again(seed: int, code: Path, tmp_path: Path) -> None:
    """Seed 0 is that of the one that is deleted."""
    for moment in moments(f"begins {seed}", 13, 5):
        inner = LocalStore(tmp_path / f"store-{moment}")
        first = created(code, inner).run_id
        refused: list[RunHeldError] = []

        def deletion(inner: LocalStore = inner, first: str = first, refused: Any = refused) -> None:
            try:
                delete(inner, first)
            except RunHeldError as error:
                refused.append(error)

        store = MeanwhileStore(inner, moment, deletion)
        try:
            run = created(code, store, seed)
        except NotFoundError as error:
            assert "Create the experiment again from its directory" in str(error)  # noqa: PT017 - or there is none
            assert not list_experiments(inner)
            run = created(code, inner, seed)
        assert run.status == "completed"
        known = {each.experiment for each in list_experiments(inner)}
        assert known <= {first, run.run_id}
        assert seed == 0 or run.run_id in known
        check_whole(inner, tmp_path / f"checkpoints-{moment}")
        if len(store.calls) <= moment:
            return
        assert bool(refused) or first not in known or first == run.run_id


@pytest.mark.parametrize("seed", [0, 1])
def test_a_deletion_takes_nothing_from_one_that_begins_meanwhile(
    seed: int, code: Path, tmp_path: Path
) -> None:
    for moment in moments(f"deletion {seed}", 11, 4):
        inner = LocalStore(tmp_path / f"store-{moment}")
        first = created(code, inner).run_id
        held: list[RunHeldError] = []

        def creation(inner: LocalStore = inner, held: Any = held) -> None:
            try:
                created(code, inner, seed)
            except RunHeldError as error:
                held.append(error)

        store = MeanwhileStore(inner, moment, creation)
        delete(store, first)
        if not held and len(store.calls) > moment:
            assert seed == 0 or len(list_experiments(inner)) == 1
        check_whole(inner, tmp_path / f"checkpoints-{moment}")
        if len(store.calls) <= moment:
            return


def test_what_is_being_deleted_is_not_taken_over(code: Path, tmp_path: Path) -> None:
    for moment in moments("taken over", 13, 6):
        inner = LocalStore(tmp_path / f"store-{moment}")
        first = created(code, inner).run_id
        said: list[str] = []

        def taking_over(inner: LocalStore = inner, said: list[str] = said) -> None:
            try:
                said.append(taken_over(code, inner).status)
            except RunHeldError as error:
                said.append(str(error))

        store = MeanwhileStore(inner, moment, taking_over)
        try:
            delete(store, first)
        except RunHeldError:
            assert said == ["completed"]
        check_whole(inner, tmp_path / f"checkpoints-{moment}")
        if len(store.calls) <= moment:
            return
        being_deleted = (
            f"{inner.runs.at(first).url} is being deleted by another process. Wait until that has ended"
        )
        assert said[0].startswith((being_deleted, "completed"))
