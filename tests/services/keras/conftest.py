"""Fixtures of the tests beside the package that tests of Keras use, too."""

import os

import pytest
from tests import forked
from tests.data.conftest import make_dataset as make_dataset
from tests.experiment.conftest import definition as definition
from tests.experiment.conftest import experiment as experiment
from tests.training.conftest import _nothing_resident as _nothing_resident
from tests.training.conftest import chain as chain
from tests.training.conftest import data as data
from tests.training.conftest import visits as visits
from tests.tune.conftest import contents_of as contents_of
from tests.tune.conftest import local as local
from tests.tune.conftest import local_of_three as local_of_three
from tests.tune.conftest import make_rows as make_rows
from tests.tune.conftest import search as search

if os.environ.get("KERAS_BACKEND") == "jax":
    import jax

    # Its compiler takes most of the time that tests on it take, and what it makes runs for milliseconds.
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True)
def _workers_that_have_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are forked off one that has imported Keras with TensorFlow, if they are to have these."""
    monkeypatch.setenv(forked.WITH, "keras")
