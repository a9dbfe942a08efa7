"""TensorFlow's generators in sessions of units."""

from __future__ import annotations

import pytest

keras = pytest.importorskip("keras")
if keras.backend.backend() != "tensorflow":
    pytest.skip("others have no generators of their own", allow_module_level=True)

import tensorflow as tf  # noqa: E402
from tensorflow.python import pywrap_tfe  # noqa: E402

from hopyard.training.keras.session import open_session  # noqa: E402


def drawn(seed: int, count: int = 3) -> list[float]:
    session = open_session(1)
    try:
        session.seed(seed)
        return [float(tf.random.uniform(())) for _ in range(count)]
    finally:
        session.close()


def test_what_runs_by_itself_draws_the_same_for_a_seed_whatever_was_drawn_before() -> None:
    first = drawn(1)
    assert drawn(1) == first
    drawn(2, count=5)
    assert drawn(1) == first != drawn(2)


def test_kernels_are_forgotten_only_if_something_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn(1, count=0)  # after whatever other tests drew
    forgotten: list[int] = []
    clear = pywrap_tfe.TFE_ContextClearCaches
    monkeypatch.setattr(
        pywrap_tfe, "TFE_ContextClearCaches", lambda handle: (forgotten.append(1), clear(handle))
    )
    drawn(1, count=0)
    drawn(1)
    assert len(forgotten) == 0
    drawn(2)
    assert len(forgotten) == 1


def test_the_users_own_generator_goes_on() -> None:
    tf.random.set_seed(5)
    expected = [float(tf.random.uniform(())) for _ in range(4)]
    tf.random.set_seed(5)
    begun = [float(tf.random.uniform(())) for _ in range(2)]
    drawn(1)
    assert begun + [float(tf.random.uniform(())) for _ in range(2)] == expected
