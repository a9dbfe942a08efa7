"""Fixtures of the tests beside the package that tests of Ray use, too."""

from tests.data.conftest import files_of as files_of
from tests.experiment.conftest import definition as definition
from tests.experiment.conftest import experiment as experiment
from tests.tune.conftest import contents_of as contents_of
from tests.tune.conftest import make_rows as make_rows
from tests.tune.conftest import search as search
