"""Start of a worker as the first thing that a command does which will need one: its imports take longer than the
driver's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_CREATE = (["experiment", "create"], ["create", "experiment"])
_ELSEWHERE = ("--help", "--detach", "-d", "--backend")
"""Options with which no worker is needed, or none of this process's."""

_OF_CLASSES = {"TorchTrial": "hopyard.experiment.torch_trial", "KerasTrial": "hopyard.experiment.keras_trial"}
_PACKAGES = re.compile(r"^\s*(?:import|from)\s+(torch|keras|tensorflow|jax)\b", re.MULTILINE)


@contextmanager
def worker_started_early(words: Sequence[str]) -> Iterator[None]:
    """Have a spare worker meanwhile if a command line begins an experiment; it imports what the code seems to need."""
    directory = next((word for word in words[2:] if Path(word).is_dir()), None)
    is_elsewhere = any(word.partition("=")[0] in _ELSEWHERE for word in words)
    if list(words[:2]) not in _CREATE or is_elsewhere or directory is None:
        yield
        return
    from hopyard.worker_start import end_spare, start_spare

    start_spare(["hopyard.experiment.looking", *_modules_of(Path(directory))])
    try:
        yield
    finally:
        end_spare()


def _modules_of(directory: Path) -> list[str]:
    """Modules that the Python files in a directory take long to import."""
    found: list[str] = []
    for path in sorted(directory.glob("*.py")):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:  # the command itself says so
            continue
        found += [module for name, module in _OF_CLASSES.items() if name in text]
        found += _PACKAGES.findall(text)
    return list(dict.fromkeys(found))
