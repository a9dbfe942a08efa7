"""InlineBackend keeps the rules of a backend, in the caller's thread."""

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


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_an_impossible_number_of_threads_is_refused(threads: object) -> None:
    with pytest.raises(UsageError, match=r"threads_per_worker=.*, but it must be an integer of at least 1"):
        InlineBackend(threads_per_worker=threads)  # type: ignore[arg-type]
