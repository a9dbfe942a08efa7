"""Fixtures of the tests beside the package that long tests use, too."""

from tests.cli.conftest import finished as finished
from tests.cli.conftest import hopyard as hopyard
from tests.cli.conftest import killed as killed
from tests.cli.conftest import python as python
from tests.cli.conftest import script as script
from tests.data.conftest import files_of as files_of
from tests.hopper.conftest import game as game
from tests.hopper.conftest import result_of as result_of
from tests.tune.conftest import contents_of as contents_of
from tests.tune.conftest import local as local
from tests.tune.conftest import local_of_three as local_of_three
from tests.tune.conftest import make_rows as make_rows
from tests.tune.conftest import search as search
