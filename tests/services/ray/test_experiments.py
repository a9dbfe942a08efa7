"""Experiments on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.experiment.anywhere import (
    check_functions_among_their_files,
    check_the_command,
    check_trials_as_on_one_machine,
)

from hopyard.backend import RayBackend


def test_functions_run_among_their_files(cluster: Any, definition: Any, experiment: Any) -> None:
    check_functions_among_their_files(RayBackend(num_workers=2), definition, experiment)


def test_trials_have_the_results_of_one_machine(
    cluster: Any, definition: Any, experiment: Any, tmp_path: Path
) -> None:
    check_trials_as_on_one_machine(RayBackend(num_workers=2), definition, experiment, tmp_path)


def test_the_command_has_the_results_of_one_machine(cluster: Any, definition: Any, tmp_path: Path) -> None:
    check_the_command("ray", definition, tmp_path)
