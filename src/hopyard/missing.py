"""Errors for names that are not here: of packages that are not installed, and of versions that are still to come."""

from __future__ import annotations

from collections.abc import Collection

from hopyard.errors import HopyardError, MissingExtraError, UsageError


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtraError:
    """The error for an optional dependency that is not installed."""
    return MissingExtraError(
        f"{purpose} needs the package {package!r}, which is not installed. "
        f"Install it with: pip install 'hopyard[{extra}]'"
    )


_LATER = {
    "KerasTrial": "hopyard.experiment",
    "TorchTrial": "hopyard.experiment",
}

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


def name_of_later(module: str, name: str, names: Collection[str] = ()) -> type:
    """A name of the documented interface that a later version brings, or one of Cerebro's: a class that can be
    imported, and that says so when it is made or inherited from. Scripts may import what they do not use.

    Raises:
        AttributeError: neither has such a name.
    """
    if name in CALLED_ELSEWHERE and module in ("hopyard.tune", "hopyard.keras"):
        return _refusing(name, f"Cerebro has {name}; {CALLED_ELSEWHERE[name]}", UsageError)
    if name not in _LATER:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    message = f"{_LATER[name]}.{name} is not in this version of Hopyard; it comes with a later one. " + (
        f"What {module} has: {', '.join(names)}." if names else "Searches in Python are in hopyard.tune."
    )

    return _refusing(name, message, MissingExtraError)


def _refusing(name: str, message: str, error: type[HopyardError]) -> type:
    """A class that cannot be made."""

    def refuse(*_: object, **__: object) -> None:
        raise error(message)

    return type(name, (), {"__init__": refuse, "__init_subclass__": refuse, "__doc__": message})
