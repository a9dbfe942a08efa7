"""Fixtures of the tests beside the package that tests of tracking services use, too."""

from tests.tune.conftest import make_rows as make_rows
from tests.tune.conftest import run as run
from tests.tune.conftest import search as search
