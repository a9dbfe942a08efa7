"""What a failed trial tells."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle
import pytest

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.errors import ConfigError, EstimatorError, Evidence
from hopyard.experiment import complete
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


def raised(function: Callable[[], object]) -> str:
    """What the evidence of an error shows, as text."""
    try:
        function()
    except Exception as error:
        return gather(error, "train", None).describe()
    raise AssertionError("nothing was raised")


def test_an_error_of_ours_about_users_code_comes_with_the_frames_of_that_code_alone() -> None:
    told = raised(lambda: complete({}))
    assert told.startswith("ConfigError: ")
    frames = [line.strip() for line in told.splitlines() if line.lstrip().startswith("File ")]
    assert frames
    assert all(f'File "{__file__}"' in frame for frame in frames)
    assert sum("ConfigError" in line for line in told.splitlines()) == 1


def test_an_error_of_ours_that_users_code_did_not_call_for_is_its_message() -> None:
    # A thread of its own, since below this function all frames are of the test, which is user's code.
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(complete, {}).exception()
    assert isinstance(error, ConfigError)
    assert gather(error, "build", None).describe() == f"ConfigError: {error} (build)"


def test_frames_through_which_users_code_was_called_are_left_out() -> None:
    def fails() -> None:
        json.loads("{")

    told = raised(lambda: InlineBackend().submit(0, fails).result()).splitlines()
    names = [line.split(" in ")[-1] for line in told if line.lstrip().startswith("File ")]
    assert names[-2:] == ["fails", "raw_decode"]
    assert told[-1].startswith("json.decoder.JSONDecodeError: ")
