"""Code of trials: found in a model definition, imported on a worker, and run in its trial's own surroundings.

The code of a definition is unpacked and imported once in a process. The working directory of a trial is a copy of the
definition for that trial alone: it may write there without another trial's seeing it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import inspect
import itertools
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hopyard.data.cache.node import cache_directory
from hopyard.errors import EstimatorError
from hopyard.experiment.context import TrialContext
from hopyard.experiment.definition import definition_archive, unpack
from hopyard.experiment.downloads import Downloads
from hopyard.experiment.lengths import Visits
from hopyard.experiment.secrets import resolve_secrets
from hopyard.experiment.surrounded import TrialSurroundings
from hopyard.storage import Store, files
from hopyard.training.estimator import Estimator
from hopyard.wording import brief, nearest, shortened

_KEPT_SECONDS = 7 * 86_400
"""How long what trials wrote into their working directories stays, since a run was last on the machine."""

_OF_CLASSES = ("hopyard.experiment.torch_trial", "hopyard.experiment.keras_trial")
"""Modules of the classes that trials extend; those of them are imported which the trial's code has imported."""

_FROM_DETERMINED = " docs/determined.md shows a trial of Determined and one of Hopyard side by side."


@dataclass(frozen=True)
class TrialFunction:
    """Function from a point of the hyperparameters to the estimator of a trial, as searches take it.

    Attributes:
        store: has the model definition, or is the definition itself, as ``definition_archive`` gives it.
        definition: digest of the model definition.
        entrypoint: ``module:name`` of the trial class or function.
        data: field of the configuration, with references to secrets.
        has_hyperparameters: whether the configuration has any; without, points hold nothing of the trial's.
        variables: environment variables of its code, with references to secrets.
        metric: name of the metric that ranks trials.
        slots: processes that train a trial together.
        visits: how a trial with its own loader is cut into visits; None before that is known.
        trial: its number.
        run: URL of the run's folder; empty: training is tried out; None: the trained model is used.
    """

    store: Store | bytes
    definition: str
    entrypoint: str
    data: Mapping[str, Any]
    has_hyperparameters: bool
    variables: Mapping[str, str] = field(default_factory=dict)
    metric: str = "loss"
    slots: int = 1
    visits: Visits | None = None
    trial: int = 0
    run: str | None = ""

    def __hopyard_identity__(self) -> list[Any]:
        return [self.definition, self.entrypoint, dict(self.data), self.has_hyperparameters]

    def of_trial(self, trial: int, run: str | None) -> TrialFunction:
        """The function for this trial of the run that has this URL."""
        return TrialFunction(**{**self.__dict__, "trial": trial, "run": run})

    def with_definition(self) -> TrialFunction:
        """The function with its code, so that it needs no store: for a model that goes elsewhere."""
        if isinstance(self.store, bytes):
            return self
        return replace(self, store=definition_archive(self.store, self.definition), run=None)

    def __call__(self, params: dict[str, Any]) -> Estimator:
        """The estimator of the trial with this point.

        Raises:
            EstimatorError: the entrypoint cannot be imported, or is no trial class or function.
        """
        here = None
        if self.slots > 1 and self.run is not None:
            from hopyard.experiment.ranks import place, together

            here = place()
            if here.size == 1:  # not yet one of the ranks
                return together(self, params, self.slots)
        surroundings = self._surroundings()
        with surroundings.entered():
            found = load_entrypoint(self.entrypoint, surroundings.code)
            point = params if self.has_hyperparameters else {}
            context = TrialContext(self.data, point, Downloads(), here)
            if not inspect.isclass(found):
                from hopyard.experiment.function_trial import FunctionEstimator

                _check_call(found, self.entrypoint.partition(":")[2], ["context"], "a trial's function")
                _check_runs(found, self.entrypoint)
                return FunctionEstimator(found, context, surroundings, self.metric)
            contracts = {base.__name__ for base in found.__mro__ if base.__module__ in _OF_CLASSES}
            if "TorchTrial" in contracts:
                from hopyard.experiment.torch_trial import TorchTrial, TorchTrialEstimator

                trial = _made(found, context, TorchTrial)
                return TorchTrialEstimator(trial, surroundings, self.visits, self.run is not None)
            if "KerasTrial" in contracts:
                from hopyard.experiment.keras_trial import KerasTrial, KerasTrialEstimator

                return KerasTrialEstimator(
                    _made(found, context, KerasTrial), surroundings, self.visits, self.run is not None
                )
            raise EstimatorError(
                f"the entrypoint {self.entrypoint} is a class, but neither a TorchTrial nor a KerasTrial. Write class "
                f"{found.__name__}(hopyard.experiment.TorchTrial), or KerasTrial, or name a function def main(context)."
                + (_FROM_DETERMINED if any(map(_is_determineds, found.__mro__)) else "")
            )

    def _surroundings(self) -> TrialSurroundings:
        """The surroundings of the trial, unpacked on this machine."""
        root = Path(f"{cache_directory()}-trials")
        _sweep_old(root)
        run = hashlib.blake2b(f"{self.definition}\n{self.run}".encode(), digest_size=16).hexdigest()
        folders = root / "code" / self.definition, root / "runs" / run
        code = unpack(self.store, self.definition, folders[0])
        directory = unpack(self.store, self.definition, folders[1] / f"{self.trial:05d}")
        for folder in folders:
            os.utime(folder)
        return TrialSurroundings(
            code, directory, resolve_secrets(dict(self.variables), "environment.environment_variables")
        )


@functools.cache
def _sweep_old(root: Path) -> None:
    """Remove what trials left on this machine, of runs that have not been here for long."""
    for folder in itertools.chain.from_iterable((root / part).glob("*") for part in ("code", "runs", "tmp")):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _KEPT_SECONDS:
                files.remove_tree(folder)


def _made(found: Callable[..., Any], context: TrialContext, contract: type) -> Any:
    """The trial of a class.

    Raises:
        EstimatorError: a method is missing, or takes other arguments than it will be given; in place of Python's own
            errors.
    """
    name = getattr(found, "__name__", "")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        listed = ", ".join(f"{each}()" for each in missing)
        are = "are" if len(missing) > 1 else "is"
        raise EstimatorError(
            f"the trial class {name} lacks {listed}, which {are} part of every {contract.__name__}. Define "
            f"{'them' if len(missing) > 1 else 'it'} in {name}."
        )
    what = f"a {contract.__name__}"
    _check_call(found, f"{name}.__init__", ["self", "context"], what)
    trial = found(context)
    for each, method in vars(contract).items():
        if inspect.isfunction(method) and each != "__init__":
            wanted = list(inspect.signature(method).parameters)
            _check_call(getattr(trial, each), f"{name}.{each}", wanted, what)
    return trial


def _check_call(call: Callable[..., Any], shown: str, parameters: list[str], what: str) -> None:
    """Raise EstimatorError if a function or method takes other arguments than it will be given.

    Args:
        shown: its name.
        parameters: as it should be defined.
        what: is called with them, for the message.
    """
    given = [each for each in parameters if each != "self"]
    if inspect.ismethod(call):  # looked at as it is written: it may lack self
        call, given = call.__func__, ["self", *given]
    try:
        own = inspect.signature(call)
    except ValueError:  # one of C that does not say
        return
    try:
        own.bind(*given)
    except TypeError:
        raise EstimatorError(
            f"{shown}({', '.join(map(str, own.parameters.values()))}) takes other arguments than {what} is called "
            f"with. Write def {shown.rpartition('.')[2]}({', '.join(parameters)}).{_FROM_DETERMINED}"
        ) from None


def _check_runs(function: Callable[..., Any], entrypoint: str) -> None:
    """Raise EstimatorError if a call of a function does not run its code, but makes an object that would."""
    kinds = {
        "a generator function, with yield in it": (inspect.isgeneratorfunction, inspect.isasyncgenfunction),
        "a coroutine function, async def": (inspect.iscoroutinefunction,),
    }
    for kind, tests in kinds.items():
        if any(test(each) for test in tests for each in (function, getattr(function, "__call__", None))):  # noqa: B004
            raise EstimatorError(
                f"the entrypoint {shortened(entrypoint)} is {kind}, of which a call runs nothing. Write a plain "
                "function def main(context), which trains and calls context.report({name: value}) after each epoch."
            )


def _is_determineds(base: type) -> bool:
    return base.__module__.partition(".")[0] == "determined"


def load_entrypoint(entrypoint: str, code: Path) -> Callable[..., Any]:
    """The class or function that ``module:name`` names, imported from a directory.

    Raises:
        EstimatorError: the module cannot be imported, with the file and the line, or has no such name.
    """
    module_name, _, name = entrypoint.partition(":")
    shown = shortened(entrypoint)
    if not any((code / module_name.replace(".", "/")).with_suffix(ending).exists() for ending in (".py", "")):
        there = sorted(path.stem for path in code.glob("*.py"))
        listed = f"It has {', '.join(f'{each}.py' for each in there)}." if there else "It has no .py files."
        raise EstimatorError(
            f"the entrypoint {shown} names the module {shortened(module_name)}, but the model definition has no such "
            f"file{nearest(module_name, there, '.')} {listed} Correct entrypoint: in the configuration."
        )
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "determined":
            raise EstimatorError(
                f"the entrypoint {shown} imports {error.name}{_where(error, code)}, but trials are classes of "
                "hopyard.experiment here, or functions. Write class NAME(TorchTrial), class NAME(KerasTrial), or "
                f"def main(context).{_FROM_DETERMINED}"
            ) from error
        message = error.msg if isinstance(error, SyntaxError) else error  # without the place, which follows
        raise EstimatorError(
            f"the entrypoint {shown} cannot be imported: {type(error).__name__}: {message}{_where(error, code)}. "
            f"Mend it, and try it with: python -c 'import {module_name}'"
        ) from error
    found = getattr(module, name, None)
    if found is None:
        own = [
            each for each, value in vars(module).items() if getattr(value, "__module__", "") == module_name
        ]
        raise EstimatorError(
            f"the entrypoint {shown} names {brief(name)}, which {module_name}.py does not define"
            f"{nearest(name, own, '.')} It defines {', '.join(own) or 'no class or function'}. Correct entrypoint: in "
            "the configuration."
        )
    if not callable(found):
        raise EstimatorError(
            f"the entrypoint {shown} is {type(found).__name__}, but it must be a TorchTrial, a KerasTrial, or a "
            "function def main(context)."
        )
    result: Callable[..., Any] = found
    return result


def _where(error: BaseException, code: Path) -> str:
    """Place of an error in the user's code: `` (model_def.py, line 3)``; empty if it is elsewhere."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({Path(error.filename).name}, line {error.lineno})"
    own = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(code))
    ]
    return f" ({Path(own[-1].filename).relative_to(code)}, line {own[-1].lineno})" if own else ""
