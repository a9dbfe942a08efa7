"""Fixtures of the tests beside the package that tests of Lightning use, too."""

from tests.data.conftest import make_dataset as make_dataset
from tests.training.conftest import _nothing_resident as _nothing_resident
from tests.training.conftest import chain as chain
from tests.training.conftest import data as data
from tests.training.conftest import visits as visits
