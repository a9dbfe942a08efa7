"""Training a committed search again, from all that its commit pins, and comparing the outcome to the last bit."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopyard import tune
from hopyard.backend import Backend, InlineBackend, LocalBackend
from hopyard.backend.devices import visible_gpus
from hopyard.errors import FormatError, NotFoundError, UsageError
from hopyard.objects import StateRef, Tensor, flatten, save_state
from hopyard.stockroom import StockRoom
from hopyard.stockroom.catalog.shelves import Revision
from hopyard.stockroom.experiments import RunView
from hopyard.storage import LocalStore, Store
from hopyard.storage.format import check_format
from hopyard.tune.environment import environment_changes
from hopyard.tune.pinned import unpin
from hopyard.tune.recipe import load_search
from hopyard.tune.run import Run
from hopyard.tune.search import Search
from hopyard.tune.stock import ABOUT, CAPTURED, FORMAT, SEARCH, read_about, series_name
from hopyard.tune.weights import weights_tree

__all__ = ["HistoryDifference", "Reproduction", "TensorDifference", "reproduce"]


@dataclass(frozen=True)
class TensorDifference:
    """A tensor of the best model that is not the same.

    Attributes:
        path: in the model's state.
        elements: how many differ; None: dtype or shape differ, or only one of the two has it.
        largest: the largest difference of two elements; NaN where one is no number, or ``elements`` is None.
        text: the difference in words.
    """

    path: str
    elements: int | None
    largest: float
    text: str


@dataclass(frozen=True)
class HistoryDifference:
    """A series that is not the same, at the first epoch where it differs.

    Attributes:
        trial: number of the trial.
        metric: of its history.
        epoch: from 1.
        before, now: the values; None: there is none.
    """

    trial: int
    metric: str
    epoch: int
    before: float | None
    now: float | None


@dataclass(frozen=True)
class Reproduction:
    """Result of training a run again.

    Attributes:
        commit, run_id: of the run that was trained again.
        environment: differences of the environments, in words: with these, equality cannot be expected.
        num_tensors, num_series: numbers of tensors and series compared.
        tensors, histories: differences.
        clones: trials of the run that users have cloned: they are no part of the search, and not trained again.
    """

    commit: str
    run_id: str
    environment: list[str]
    num_tensors: int
    num_series: int
    tensors: list[TensorDifference]
    histories: list[HistoryDifference]
    clones: tuple[int, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all tensors and histories are the same to the last bit."""
        return not self.tensors and not self.histories

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"run {self.run_id} of {self.commit[:12]}, trained again:"
        same = self.num_tensors - len(self.tensors)
        yield f"  {same} of {self.num_tensors} tensors of the best model are the same to the last bit"
        for tensor in self.tensors:
            yield f"    {tensor.path}: {tensor.text}"
        same = self.num_series - len(self.histories)
        yield f"  {same} of {self.num_series} series of the histories are the same to the last bit"
        for series in sorted(self.histories, key=lambda each: (each.epoch, each.trial, each.metric)):
            yield (
                f"    trial {series.trial}, {series.metric}: differs from epoch {series.epoch} on: "
                f"{_said(series.before)} (commit), {_said(series.now)} (now)"
            )
        if self.clones:
            yield f"  left out, since users cloned them by hand: trials {', '.join(map(str, self.clones))}"
        if self.environment:
            yield f"  not as it was: {'; '.join(self.environment)}"
        if self.equal:
            yield "reproduced: equal to the last bit"
        elif self.environment:
            yield "not equal, which cannot be expected where versions, processor or device differ"
        else:
            yield "NOT reproduced, although versions and processor are the same"


def reproduce(
    stock: StockRoom,
    commit: str = "HEAD",
    run: str | None = None,
    *,
    trust: bool = False,
    num_workers: int = 1,
    progress: bool = True,
) -> Reproduction:
    """Train a search again from the data, code and settings that a commit pins, and compare the outcome.

    It is trained in a store of its own, which is deleted afterwards; the working tree is not looked at, and nothing is
    written to the stockroom.

    Args:
        stock: the stockroom.
        commit: a revision: a digest, a branch, a tag, ``HEAD~1``.
        run: id of the run; None: the one that the commit has brought, or the only one that it has.
        trust: that code of the commit may be run, with all that you may do.
        num_workers: processes of this machine to train on; 0: this one.
        progress: show what is going on.

    Raises:
        UsageError: ``trust`` is not given, or a user has cloned the best trial from another.
        NotFoundError: the commit has no such run.
        CorruptError: what is stored has changed.
    """
    revision = stock.at(commit)
    digest, made = revision.commit.digest, revision.commit
    stored = _run_of(stock, revision, run)
    if not trust:
        raise UsageError(
            f"to reproduce run {stored.id} is to run code that is in the commit {digest[:12]}, by {made.author} at "
            f"{made.time[:16]}, with all rights that you have. If you trust whoever made it, say so: trust=True "
            "(hopyard stock reproduce --trust)."
        )
    about = read_about(stored)
    check_format(about["format"], FORMAT, where=f"{ABOUT} of the run {stored.id}")
    clones = {each["number"]: each for each in about["trials"] if "clone_of" in each}
    if about["best"]["trial"] in clones:
        best = clones[about["best"]["trial"]]
        raise UsageError(
            f"the best trial of run {stored.id}, {best['number']}, was cloned from trial {best['clone_of']} by a "
            "user's command, which a search that is trained again does not get. Train it by a search that tries its "
            f"hyperparameters first: initial_params=[{best['params']}]."
        )
    backend, device = _backend(about, num_workers)
    with tempfile.TemporaryDirectory(prefix="hopyard-reproduce-") as folder, backend:
        trained = _train(revision, stored, about, backend, LocalStore(folder), progress)
        changes = environment_changes(about["environment"], trained.state.header["environment"])
        if device != about["device"]:
            changes.append(f"device: {about['device']} (run) -> {device} (now)")
        before = revision.model.tree(stored.id)
        tensors = _tensors(flatten(before)[0], flatten(weights_tree(trained.best))[0])
        number, histories = _histories(stored, about, trained)
    count = len(flatten(before)[0])
    return Reproduction(digest, stored.id, changes, count, number, tensors, histories, tuple(sorted(clones)))


def _run_of(stock: StockRoom, revision: Revision, run: str | None) -> RunView:
    """The run that is meant."""
    if run is not None:
        found = revision.experiment.run(run)
        if SEARCH not in found.artifacts:
            raise NotFoundError(
                f"the run {run!r} of {revision.view.revision} is not of a search with stock=, so there is nothing to "
                "train again."
            )
        return found
    runs = {each.id: each for each in revision.experiment.runs() if SEARCH in each.artifacts}
    before = {
        (id, record)
        for parent in revision.commit.parents
        for view in [stock.at(parent).view]
        for id in view.names("run")
        for record in [view.record("run", id)]
    }
    new = [id for id in runs if (id, revision.view.record("run", id)) not in before]
    for candidates in (new, list(runs)):
        if len(candidates) == 1:
            return runs[candidates[0]]
    if not runs:
        raise NotFoundError(
            f"{revision.view.revision} has no run of a search. A search commits one if it is given stock=: name a "
            "commit that has it; hopyard stock list run --at COMMIT lists runs."
        )
    raise NotFoundError(
        f"{revision.view.revision} has {len(runs)} runs of searches with stock=, and has not brought one of them. "
        f"Name one: run=... (--run ID), of {', '.join(sorted(runs))}; or a commit that has brought one."
    )


def _backend(about: dict[str, Any], num_workers: int) -> tuple[Backend, str]:
    """Workers as they were, as far as this machine has them; and their device."""
    found = "cuda" if visible_gpus() else "cpu"
    threads = about["environment"]["threads_per_worker"]
    if not num_workers:
        return InlineBackend(threads), found
    device = about["device"] if about["device"] in ("cpu", found) else found
    return LocalBackend(num_workers, device=device, threads_per_worker=threads), device


def _train(
    revision: Revision, stored: RunView, about: dict[str, Any], backend: Backend, store: Store, progress: bool
) -> Run:
    where = f"{SEARCH} of the run {stored.id}"
    captured = f"{stored.id}/{CAPTURED}"
    tensors = revision.model.tree(captured) if captured in revision.model else {}
    recorded, arguments = load_search(stored.read(SEARCH), tensors, where)
    kind = getattr(tune, recorded, None) if isinstance(recorded, str) else recorded
    if kind is None or not issubclass(kind, Search):
        version = about["environment"]["versions"]["hopyard"]
        raise FormatError(
            f"{where} is a {recorded!r}, which is none of the searches of this version of Hopyard. Install the version "
            f"that committed it: {version}."
        )
    init_from = None
    if about["has_init_from"]:
        folder = store.at("init_from")
        init_from = _Weights(folder, save_state(folder, revision.model.tree(f"{stored.id}/init_from")))
    # A user's command may have extended the run, which ends where a run of that size does.
    budget = {name: about["settings"].get(name) for name in ("num_models", "num_epochs") if name in arguments}
    arguments |= {name: total for name, total in budget.items() if total is not None}
    search = kind(
        **arguments, backend=backend, store=store, init_from=init_from, validation=about["validation"],
        progress=progress,
    )  # fmt: skip
    trained: Run = search.fit(*unpin(revision.data, about["data"], stored)).run
    return trained


@dataclass(frozen=True)
class _Weights:
    """Weights as ``init_from=`` takes them."""

    store: Store
    state: StateRef

    def weights(self) -> tuple[Store, StateRef]:
        return self.store, self.state


# What differs


def _tensors(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> list[TensorDifference]:
    found = []
    for path in before.keys() | now.keys():
        old, new = before.get(path), now.get(path)
        if old is None or new is None:
            which = "the commit" if new is None else "what was trained now"
            found.append(TensorDifference(path, None, math.nan, f"only {which} has it"))
        elif old.digest != new.digest:
            found.append(_difference(path, old, new))
    return sorted(found, key=lambda each: each.path)


def _difference(path: str, old: Tensor, new: Tensor) -> TensorDifference:
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return TensorDifference(path, None, math.nan, f"{old} (commit), {new} (now)")
    size = max(old.data.size // max(math.prod(old.shape), 1), 1)
    differ = (old.data.reshape(-1, size) != new.data.reshape(-1, size)).any(axis=1)
    largest = math.nan
    a, b = old.numpy().reshape(-1), new.numpy().reshape(-1)
    if old.dtype not in _WITHOUT_NUMPY:
        kind = np.complex128 if a.dtype.kind == "c" else np.float64
        with np.errstate(invalid="ignore"):
            largest = float(np.max(np.abs(a.astype(kind) - b.astype(kind))))
    count = int(differ.sum())
    far = "" if math.isnan(largest) else f", by up to {largest:.3g}"
    return TensorDifference(path, count, largest, f"{count} of {len(differ)} elements differ{far}")


_WITHOUT_NUMPY = ("BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0")


def _histories(stored: RunView, about: dict[str, Any], trained: Run) -> tuple[int, list[HistoryDifference]]:
    """Number of series compared, and the differences."""
    before = {name: values for name, (_, values) in stored.metrics.items()}
    searched = [each for each in about["trials"] if "clone_of" not in each]
    known = {
        each.get("draws", each["number"]): each["number"] for each in searched
    }  # as the search has numbered them
    found, count = [], 0
    for own in sorted(known.keys() | trained.state.trials.keys()):
        trial, number = trained.state.trials.get(own), known.get(own, own)
        now = {} if trial is None else trial.history
        names = {name for name in before if name.startswith(series_name(number, ""))}
        names |= {series_name(number, metric) for metric in now}
        count += len(names)
        for name in sorted(names):
            metric = name.removeprefix(series_name(number, ""))
            old = before.get(name, np.empty(0))
            new = np.array(now.get(metric, ()), np.float64)
            epoch = _first_difference(old, new)
            if epoch is not None:
                found.append(HistoryDifference(number, metric, epoch + 1, _at(old, epoch), _at(new, epoch)))
    return count, found


def _first_difference(old: Any, new: Any) -> int | None:
    both = min(len(old), len(new))
    differ = np.flatnonzero(old[:both].view(np.int64) != new[:both].view(np.int64))
    if len(differ):
        return int(differ[0])
    return both if len(old) != len(new) else None


def _at(values: Any, place: int) -> float | None:
    return float(values[place]) if place < len(values) else None


def _said(value: float | None) -> str:
    return "none" if value is None else repr(value)
