"""The processes that a worker of Spark or Ray comes from, also where it was forked; workers get this file pickled."""

import os
from pathlib import Path


def keeper() -> int:
    """The process that started this one, in which tasks run, and hears from it."""
    return int(os.environ.get("HOPYARD_TESTS_PARENT", os.getppid()))


def executor() -> int:
    """The executor of Spark whose Python this process is, or comes from."""
    pid = int(os.environ.get("HOPYARD_TESTS_EXECUTOR", os.getppid()))
    while Path(f"/proc/{pid}/comm").read_text() != "java\n":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid
