"""``stock=``: a finished search as one commit of a stockroom.

Under the run's id the commit has, on the shelf of

* data: what it was trained on, by reference, unless the stockroom has that already;
* models: the best model's weights; and large tensors that the search's functions hold, such as a base;
* experiments: a run with the best point as parameters, all histories as series, and the files ``search.json``
  (settings, leaderboard, environment, where the data is) and ``search.pkl`` (the search, with the user's code).

The run in the store comes first: it is finished and safe before anything is committed, and a commit that fails is made
by the next ``fit`` with the same arguments. An outcome that is committed already is not committed again.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hopyard.backend.devices import visible_gpus
from hopyard.errors import HopyardError, NotWritableError, UsageError
from hopyard.hopper.state import TrialState
from hopyard.objects import digest_json, load_state
from hopyard.stockroom import StockRoom
from hopyard.stockroom.experiments import ExperimentShelf, RunView, StockRun
from hopyard.stockroom.git import GitFacts, facts
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.models import ModelShelf
from hopyard.storage.format import format_header
from hopyard.training import Program, load_program
from hopyard.tune.arguments import Arguments
from hopyard.tune.inputs import Ready, SearchData
from hopyard.tune.pinned import Given, check_pinnable, names_of, pin
from hopyard.tune.recipe import PickledSearch
from hopyard.tune.registering import opened
from hopyard.tune.run import Run
from hopyard.tune.weights import weights_of

FORMAT = "stock-search"
ABOUT, SEARCH = "search.json", "search.pkl"
CAPTURED = "tensors"
"""Below the run's id, the model of tensors that ``search.pkl`` names."""


class FitOutcome:
    """Outcome of one ``fit`` with ``stock=``, and its commit.

    Args:
        arguments: of the search; its ``stock`` is a stockroom, or the path of one.
        more: settings that the search adds to a run's.
        inputs: data that the search trains on.
        search: see ``hopyard.tune.recipe``.
    """

    def __init__(
        self, arguments: Arguments, more: Mapping[str, Any], inputs: SearchData, search: PickledSearch
    ) -> None:
        self._arguments, self._inputs, self._more = arguments, inputs, dict(more)
        self._search = search

    def check(self) -> None:
        """Look, before anything is trained, whether the outcome could be committed.

        Raises:
            UsageError: commits would be on no branch, or the data cannot be committed by reference.
            NotWritableError, StorageError: the stockroom cannot be read or written.
        """
        if isinstance(self._inputs, Ready):
            check_pinnable(self._inputs.given)
        stock = self._arguments.stock
        with StockRoom(stock.place.root if isinstance(stock, StockRoom) else stock) as room:
            root, branch = room.place.root, room.head.branch
            if branch is None:
                raise UsageError(
                    f"stock= was given the stockroom in {root}, but commits there are on no branch. Make one first: "
                    "stock.branch('NAME'), or hopyard stock branch NAME."
                )
            for folder in (root, room.place.objects):
                if not os.access(folder, os.W_OK):
                    raise NotWritableError(
                        f"stock= was given the stockroom in {root}, but {folder} cannot be written to. Mend its "
                        "permissions, or leave stock= out."
                    )

    def commit(self, run: Run, announce: Callable[[str], None]) -> None:
        """Commit the outcome of a completed run, unless it is committed already.

        Raises:
            HopyardError: it could not be; the run is safe, and the next ``fit`` tries again.
        """
        try:
            with opened(self._arguments.stock) as room, room.enable_write(_message(run)):
                if self._is_there(room, run):
                    return
                assert isinstance(room.view, Draft)
                self._write(room.view, run, asdict(facts(room.place)))
            with opened(self._arguments.stock) as room:
                announce(f"the outcome of run {run.run_id} is committed: {str(room.head.commit)[:12]}")
        except HopyardError as error:
            said = (
                f"Run {run.run_id} is finished and safe in its store, but its outcome could not be committed. Mend "
                "what is said, and run the same script again: it commits without training."
            )
            error.add_note(said)
            announce(said)
            raise

    def _is_there(self, room: StockRoom, run: Run) -> bool:
        if room.view.record("run", run.run_id) is None:
            return False
        return bool(read_about(room.experiment.run(run.run_id))["outcome"] == outcome_digest(run))

    def _write(self, draft: Draft, run: Run, git: dict[str, Any]) -> None:
        best, program = run.best, load_program(*run.program)
        data, files = pin(draft, self._given(program), run.run_id)
        ModelShelf(draft)[run.run_id] = weights_of(best)
        models = [run.run_id]
        if program.init_from is not None:
            models.append(f"{run.run_id}/init_from")
            ModelShelf(draft)[models[1]] = load_state(*program.init_from, verify=True)
        if self._search.tensors:
            models.append(f"{run.run_id}/{CAPTURED}")
            ModelShelf(draft)[models[-1]] = self._search.tensors
        files |= {ABOUT: json.dumps(self._about(run, program, data), indent=1)}
        stored = _run(draft, run, None if git == asdict(GitFacts()) else git)
        with stored, tempfile.TemporaryDirectory() as folder:
            _log(stored, run)
            stored.link(models, list(names_of(data)))
            contents = {name: text.encode() for name, text in files.items()} | {SEARCH: self._search.data}
            for name, content in contents.items():
                path = Path(folder) / name
                path.write_bytes(content)
                stored.log_artifact(path)

    def _given(self, program: Program) -> Given:
        if isinstance(self._inputs, Ready):
            return self._inputs.given
        assert program.train is not None
        return program.train, program.val

    def _about(self, run: Run, program: Program, data: dict[str, Any]) -> dict[str, Any]:
        """Content of ``search.json`` for a run."""
        header, best = run.state.header, run.best
        is_split = "val" not in data and program.val is not None
        device = program.device
        if device == "auto":
            device = "cuda" if visible_gpus() else "cpu"
        return {
            "format": format_header(FORMAT),
            "run_id": run.run_id,
            "outcome": outcome_digest(run),
            "settings": {**self._more, **run.settings, "num_epochs": run.state.num_epochs},
            "environment": header["environment"],
            "device": device,
            "data": data,
            "validation": self._arguments.validation if is_split else None,
            "trained_on": header.get("data"),
            "metric": header["metric"],
            "best": {"trial": best.trial, "epoch": best.info.epoch, "value": best.info.value},
            "has_init_from": program.init_from is not None,
            "trials": [_trial(trial) for trial in run.state.ranked()],
        }


def is_reproducible(stored: RunView) -> bool:
    """Whether a stored run is of a search that can be trained again: its best trial was not cloned by a user."""
    if SEARCH not in stored.artifacts or ABOUT not in stored.artifacts:
        return False
    about = read_about(stored)
    return all(each["number"] != about["best"]["trial"] for each in about["trials"] if "clone_of" in each)


def read_about(stored: RunView) -> dict[str, Any]:
    """Content of ``search.json`` of a stored run."""
    about: dict[str, Any] = json.loads(stored.read(ABOUT))
    return about


def outcome_digest(run: Run) -> str:
    """Digest of all trials, their histories and best weights: it changes when a run is extended."""
    trials = {
        str(number): [trial.params, trial.status, trial.history, trial.best and trial.best.state.digest]
        for number, trial in run.state.trials.items()
    }
    return digest_json(trials, "hopyard.outcome")


def series_name(trial: int, metric: str) -> str:
    """The series of a trial's metric."""
    return f"trial {trial}: {metric}"


def _message(run: Run) -> str:
    info = run.best.info
    return f"search {run.run_id}: {info.metric} {info.value:.6g} by trial {info.trial} of {len(run.state.trials)}"


def _run(draft: Draft, run: Run, git: dict[str, Any] | None) -> StockRun:
    info, settings = run.best.info, run.settings
    tags = {
        "search": settings["kind"],
        "metric": info.metric,
        "value": info.value,
        "trial": info.trial,
        "epoch": info.epoch,
        "trials": len(run.state.trials),
        "search_seconds": sum(trial.seconds for trial in run.state.trials.values()),
    }
    return ExperimentShelf(draft).start(info.params, tags, git, run.run_id)


def _log(stored: StockRun, run: Run) -> None:
    """The best trial's history under the metrics' names, and that of every trial under its own."""
    for metric, values in run.best.info.history.items():
        for epoch, value in enumerate(values, 1):
            stored.log(epoch, **{metric: value})
    for number, trial in sorted(run.state.trials.items()):
        for metric, values in trial.history.items():
            for epoch, value in enumerate(values, 1):
                stored.log(epoch, **{series_name(number, metric): value})


def _trial(trial: TrialState) -> dict[str, Any]:
    """A trial in ``search.json``. One that a user has cloned has ``clone_of``; ``draws`` is the number that the search
    gave one, where it is another because of clones."""
    draws = {} if trial.draws_as == trial.number else {"draws": trial.draws_as}
    clone = {} if trial.clone_of is None else {"clone_of": trial.clone_of}
    return {
        "number": trial.number,
        "params": trial.params,
        "status": trial.status,
        "epochs": trial.epochs,
        "seconds": trial.seconds,
        "best": None if trial.best is None else {"epoch": trial.best.epoch, "value": trial.best.value},
        "error": None if trial.error is None else f"{trial.error.kind}: {trial.error.message}",
        **draws,
        **clone,
    }
