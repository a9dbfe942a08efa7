"""The kernel's own server and client of NFS 4.2 do what the model says of them, and all is well there that is on it.

``HOPYARD_NFS_RUN`` is a program that boots a machine with a server, mounts its export twice, caches apart, runs a
command there with the mounts in ``NFS_A`` and ``NFS_B``, and ends as that does; or with 77 if it lacks something.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests import forked

_MISSING = 77
_MOUNTED = Path(__file__).with_name("mounted.py")
_SECONDS = 900


@pytest.mark.timeout(_SECONDS)
def test_on_two_mounts_of_a_server() -> None:
    program = os.environ.get("HOPYARD_NFS_RUN")
    if program is None:
        pytest.skip("this test needs a server of NFS (HOPYARD_NFS_RUN), which is not available here")
    # The machine has a memory for files of its own: the directories of the tests there lie on this one's disk.
    with tempfile.TemporaryDirectory() as folder:
        # Nothing there has more than one core, or outlives the command.
        inner = [
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            f"--basetemp={folder}/inner",
        ]
        done = subprocess.run(
            [program, sys.executable, *inner, str(_MOUNTED)],
            env={
                **{
                    name: value for name, value in os.environ.items() if name != forked.ADDRESS
                },  # of another kernel
                "SECONDS_MAX": str(_SECONDS),
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            cwd=_MOUNTED.parents[3],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode == _MISSING:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout
