"""Packages that models of Hugging Face need, and their oldest versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from hopyard.errors import MissingExtraError
from hopyard.missing import missing_extra

OLDEST = {"transformers": "5.0", "peft": "0.20"}
"""Those of pyproject.toml. transformers loads adapters with no older PEFT."""


def unmet() -> MissingExtraError | None:
    """The error for a package that is missing or too old; None if all is there. Models without adapters need no
    PEFT."""
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            return missing_extra(package, "transformers", "hopyard.transformers")
    for package, oldest in OLDEST.items():
        try:
            there = version(package)
        except PackageNotFoundError:
            continue
        if _numbers(there) < _numbers(oldest):
            return MissingExtraError(
                f"{package} {there} is installed, but hopyard.transformers needs {oldest} or newer. "
                "Install it with: pip install -U 'hopyard[transformers]'"
            )
    return None


def _numbers(version: str) -> list[int]:
    """``[0, 20]`` of ``0.20.1rc1``."""
    return [int(part) for part in version.split(".")[:2] if part.isdigit()]
