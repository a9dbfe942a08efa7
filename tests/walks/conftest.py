"""Fixtures of other tests that the walks use, too."""

from tests.tune.conftest import contents_of as contents_of
from tests.tune.conftest import make_rows as make_rows
from tests.tune.conftest import search as search
