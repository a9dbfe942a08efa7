"""Base of the trials of every kind: the surroundings of their code, and what their estimators say of them."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopyard.experiment.lengths import Facts
from hopyard.masking import masked_output
from hopyard.training.estimator import Estimator

TRAINS_ALONE = "the code of each trial trains one model"
"""Why trials train one at a time."""

_imported: set[str] = set()
"""Directories that this process has imported code of trials from."""


@dataclass(frozen=True)
class TrialSurroundings:
    """Surroundings of a trial's code: its modules can be imported, and its files are in the working directory.

    Attributes:
        code: directory that modules are imported from.
        directory: working directory, for this trial alone.
        variables: environment variables.
    """

    code: Path
    directory: Path
    variables: Mapping[str, str]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Have them meanwhile, and afterwards those of before."""
        before, path = Path.cwd(), list(sys.path)
        known = {name: os.environ.get(name) for name in self.variables}
        os.chdir(self.directory)
        os.environ.update(self.variables)
        self._forget_others()
        sys.path.insert(0, str(self.code))
        try:
            with masked_output(sys.stdout, sys.stderr):
                yield
        finally:
            sys.path[:] = path
            for name, value in known.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            os.chdir(before)

    def _forget_others(self) -> None:
        """Forget the modules of other definitions, which may have the same names."""
        own = str(self.code)
        others = tuple(f"{folder}{os.sep}" for folder in _imported if folder != own)
        if others:
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", None) or "").startswith(others):
                    del sys.modules[name]
            _imported.clear()
            importlib.invalidate_caches()
        _imported.add(own)


class TrialEstimator(Estimator):
    """Estimator of a trial of an experiment."""

    @abstractmethod
    def facts(self) -> Facts:
        """Facts about the data of the trial."""


def why_no_metric(name: Any) -> str:
    """Why a metric of a trial cannot have this name, as the end of a message; empty: it can."""
    if not isinstance(name, str):
        return "but names are texts. Rename it."
    if not name.removeprefix("val_").removeprefix("train_").strip():
        return "but a name has more than spaces, also after 'val_' or 'train_'. Rename it."
    return ""
