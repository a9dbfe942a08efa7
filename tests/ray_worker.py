"""Starts a worker of Ray in place of Ray's ``setup_worker.py``, forked off a process that has imported most of it.

Ray's own imports Ray, and starts Python anew then, which imports it again. It is still left the runtime environments
that are more than variables.
"""

import json
import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])

from tests import forked  # noqa: E402 - where it is now

_CONTEXT = "--serialized-runtime-env-context="
_OWN = (_CONTEXT, "--language=")


def main(arguments: list[str]) -> int:
    """Run a worker until its end; its exit status."""
    context = next((json.loads(each[len(_CONTEXT) :]) for each in arguments if each.startswith(_CONTEXT)), {})
    variables = context.pop("env_vars", {})
    if context.pop("py_executable", sys.executable) != sys.executable or any(context.values()):
        import ray._private.workers.setup_worker as of_ray

        os.execv(sys.executable, [sys.executable, str(of_ray.__file__), *arguments])
    os.environ.update({name: os.path.expandvars(value) for name, value in variables.items()})
    return forked.run([each for each in arguments if not each.startswith(_OWN)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
