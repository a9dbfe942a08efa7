"""InlineBackend keeps the rules of a backend, in the caller's thread."""

import os
import threading

import pytest

from hopyard.backend import InlineBackend
from hopyard.backend.testing import BackendSuite
from hopyard.errors import UsageError


class TestInlineBackend(BackendSuite):
    setup = "from hopyard.backend import InlineBackend\nbackend = InlineBackend()"

    def make_backend(self, unit_timeout: float | None = None) -> InlineBackend:
        return InlineBackend()


def test_the_future_is_finished_when_submit_returns() -> None:
    future = InlineBackend().submit(0, threading.current_thread)
    assert future.done()
    assert future.result() is threading.current_thread()


def test_ctrl_c_leaves_submit() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InlineBackend().submit(0, interrupted)


def test_a_command_to_start_through_is_refused() -> None:
    with pytest.raises(
        UsageError,
        match=r"started through the command \['nice'\], but InlineBackend\(threads_per_worker=1\) runs tasks in this "
        r"process, which has been started\. Use LocalBackend\(num_workers=1\)",
    ):
        InlineBackend().surrounded(prefix=lambda: ["nice"])
    with pytest.raises(UsageError, match=r"is 'nice', but must be a list of texts"):
        InlineBackend().surrounded(prefix=lambda: "nice")
    assert InlineBackend().surrounded(prefix=list).submit(0, abs, -1).result() == 1


def test_what_a_prefix_raises_leaves_surrounded() -> None:
    def fail() -> list[str]:
        raise UsageError("the file system is not there. Mount it.")

    with pytest.raises(UsageError, match=r"^the file system is not there\. Mount it\.$"):
        InlineBackend().surrounded(prefix=fail)


def test_variables_are_as_before_after_a_task_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPYARD_SURROUNDINGS", "before")
    monkeypatch.delenv("HOPYARD_OTHERS", raising=False)

    def fail() -> None:
        raise ValueError(os.environ["HOPYARD_SURROUNDINGS"] + os.environ["HOPYARD_OTHERS"])

    around = InlineBackend().surrounded({"HOPYARD_SURROUNDINGS": "a", "HOPYARD_OTHERS": "b"})
    with pytest.raises(ValueError, match="ab"):
        around.submit(0, fail).result()
    assert os.environ["HOPYARD_SURROUNDINGS"] == "before"
    assert "HOPYARD_OTHERS" not in os.environ


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_an_impossible_number_of_threads_is_refused(threads: object) -> None:
    with pytest.raises(UsageError, match=r"threads_per_worker=.*, but it must be an integer of at least 1"):
        InlineBackend(threads_per_worker=threads)  # type: ignore[arg-type]
