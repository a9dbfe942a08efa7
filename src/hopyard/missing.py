"""Names that are not here: imported when they are first asked for, of packages that are not installed, of other
modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

from hopyard.errors import HopyardError, MissingExtraError, UsageError


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtraError:
    """The error for an optional dependency that is not installed."""
    return MissingExtraError(
        f"{purpose} needs the package {package!r}, which is not installed. "
        f"Install it with: pip install 'hopyard[{extra}]'"
    )


def imported_later(
    module: str, places: Mapping[str, str], names: Collection[str], extras: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a module some of whose names are imported when they are first asked for, so
    that who needs the others does not pay for these.

    Args:
        module: name of the module.
        places: the module of each such name; one that begins with a dot is below this one.
        names: all its public names.
        extras: packages that some of these modules need, and the extras that install them.
    """
    installing = extras or {}

    def get(name: str) -> Any:
        if name not in places:
            return name_of_elsewhere(module, name, names)
        try:
            found = import_module(places[name], module)
        except ModuleNotFoundError as error:
            if error.name is None or error.name not in installing:
                raise
            raise missing_extra(error.name, installing[error.name], f"{module}.{name}") from error
        return getattr(found, name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *names})

    return get, list_names


_IN_EXPERIMENT = ("KerasTrial", "TorchTrial")

CALLED_ELSEWHERE = {
    "TPESearch": "it is called HyperOpt here: from hopyard.tune import HyperOpt.",
    "HILGridSearch": "there is no database of experiments; write GridSearch, and steer the run with "
    "`hopyard run pause`, `stop` and `resume`.",
    "HILRandomSearch": "there is no database of experiments; write RandomSearch, and steer the run with "
    "`hopyard run pause`, `stop` and `resume`.",
    "ModelSelectionResult": "fit(...) returns the best model itself, with model.run and model.get_all_models().",
    "CerebroModel": "fit(...) returns a hopyard.tune.Model, which transforms frames of Spark, too.",
    "SparkModel": "fit(...) returns a hopyard.tune.Model, which transforms frames of Spark, too.",
}
"""Names of Cerebro that stand for something of another name here."""


def name_of_elsewhere(module: str, name: str, names: Collection[str] = ()) -> type:
    """A trial class, looked for in the wrong module, or a name of Cerebro's: a class that can be imported, and that
    says so when it is made or inherited from. Scripts may import what they do not use.

    Raises:
        AttributeError: neither has such a name.
    """
    if name in CALLED_ELSEWHERE and module in ("hopyard.tune", "hopyard.keras"):
        return _refusing(name, f"Cerebro has {name}; {CALLED_ELSEWHERE[name]}", UsageError)
    if name not in _IN_EXPERIMENT:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    message = f"{name} is in hopyard.experiment: from hopyard.experiment import {name}. " + (
        f"What {module} has: {', '.join(names)}." if names else ""
    )
    return _refusing(name, message.rstrip(), UsageError)


def _refusing(name: str, message: str, error: type[HopyardError]) -> type:
    """A class that cannot be made."""

    def refuse(*_: object, **__: object) -> None:
        raise error(message)

    return type(name, (), {"__init__": refuse, "__init_subclass__": refuse, "__doc__": message})
