"""Benchmarks that run themselves again as scripts, so that starting and importing counts."""

from __future__ import annotations

import os
import subprocess
import sys


def run_again(file: str, *arguments: str, backend: str = "tensorflow") -> str:
    """What ``file`` prints, run by a new interpreter with Keras on that backend.

    Raises:
        RuntimeError: it failed; with the end of its standard error.
    """
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, file, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout
