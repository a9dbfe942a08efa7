"""Experiments on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.experiment.anywhere import (
    check_functions_among_their_files,
    check_the_command,
    check_trials_as_on_one_machine,
)

from hopyard.backend import SparkBackend


def test_functions_run_among_their_files(spark: Any, definition: Any, experiment: Any) -> None:
    check_functions_among_their_files(SparkBackend(num_workers=2), definition, experiment)


def test_trials_have_the_results_of_one_machine(
    spark: Any, definition: Any, experiment: Any, tmp_path: Path
) -> None:
    check_trials_as_on_one_machine(SparkBackend(num_workers=2), definition, experiment, tmp_path)


def test_the_command_has_the_results_of_one_machine(spark: Any, definition: Any, tmp_path: Path) -> None:
    check_the_command("spark", definition, tmp_path)
