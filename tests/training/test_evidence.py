"""What a failed trial tells."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest

from hopyard.backend import LocalBackend
from hopyard.errors import EstimatorError, Evidence
from hopyard.training.evidence import gather

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file


def fail_after(lines: list[str]) -> Evidence:
    for line in lines:
        print(line)
    try:
        raise ValueError("too wide")
    except ValueError as error:
        return gather(error, "build", 3, "hopyard.backend.output:last_lines")


@pytest.mark.parametrize(
    ("lines", "told"), [([], []), (["\x1b[1mfirst\x1b[0m", "second"], ["first", "second"])]
)
def test_the_last_lines_of_a_worker_are_plain_text(lines: list[str], told: list[str], capfd: Any) -> None:
    with LocalBackend(num_workers=1, device="cpu") as backend:
        evidence = backend.submit(0, fail_after, lines).result()
    assert evidence.log.splitlines() == told
    assert ("last output of the worker:" in evidence.describe()) == bool(lines)
    assert evidence.describe().startswith("ValueError: too wide (build of partition 3")


def test_an_error_that_explains_another_is_said_once() -> None:
    try:
        try:
            raise ValueError("\x1b[1mbad shape\x1b[0m")
        except ValueError as error:
            raise EstimatorError(f"The layer failed: {error}. Change it.") from error
    except EstimatorError as error:
        evidence = gather(error, "train", None)
    told = evidence.describe().splitlines()
    assert told[0] == "EstimatorError: The layer failed: bad shape. Change it. (train)"
    assert told[-1] == "ValueError: bad shape"
    assert sum("Change it." in line for line in told) == 1
