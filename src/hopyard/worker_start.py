"""Start of a worker's process on this machine, also of a spare one: before it is known what it will run.

The command line starts a spare worker first of all, so that its imports go on beside those of the driver. The first
worker that is to be started alike is that one; if none is, it ends with the driver.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The driver's import path comes first of all, so that the worker imports what the driver would.
BOOTSTRAP = (
    "import sys; descriptor = int(sys.argv[1]); modules = sys.argv[2].split(); sys.path[:] = sys.argv[3:]; "
    "del sys.argv[1:]; from hopyard.backend._worker import main; main(descriptor, modules)"
)
GPUS = "CUDA_VISIBLE_DEVICES"  # each worker has its own
LEFT_TO_THE_DRIVER = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
"""Signals that a terminal, or a scheduler of jobs, sends to a driver and its workers at once. A worker is started with
these blocked, so that they cannot end it before it handles them."""


@dataclass(frozen=True)
class Spare:
    """A started worker that nobody has given a task.

    Attributes:
        sock: the driver's end of its channel.
        env: environment variables that it was started with.
        paths: its import path.
    """

    popen: subprocess.Popen[bytes]
    sock: socket.socket
    env: Mapping[str, str]
    paths: Sequence[str]

    def end(self) -> None:
        """End the process."""
        self.popen.kill()
        self.popen.communicate()
        self.sock.close()


_spare: Spare | None = None


def common_env(threads: int) -> dict[str, str]:
    """Environment variables of every worker's process, on any machine."""
    env = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    keras = sys.modules.get("keras")
    if keras is not None:  # which has one backend in a process, and models are of it
        env["KERAS_BACKEND"] = keras.backend.backend()
    elif "KERAS_BACKEND" in os.environ:
        env["KERAS_BACKEND"] = os.environ["KERAS_BACKEND"]
    # Sets of strings iterate alike, and cuBLAS sums alike, on every worker and in every run.
    return env | {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def import_path() -> list[str]:
    """Import path of this process, absolute: a process with another working directory finds the same modules."""
    return [os.path.abspath(path) for path in sys.path]  # noqa: PTH100 - entries may be anything


def start_worker(
    descriptor: int, env: Mapping[str, str], paths: Sequence[str], modules: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a worker's process, which serves the other end of the socket ``descriptor``.

    Args:
        env: all of its environment variables.
        paths: its import path.
        modules: names of modules that it imports before it serves; those that cannot be imported are left out.
    """
    return subprocess.Popen(
        [sys.executable, "-c", BOOTSTRAP, str(descriptor), " ".join(modules), *paths],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        pass_fds=[descriptor],
        env=env,
    )


def start_spare(modules: Sequence[str]) -> None:
    """Start a worker with one CPU thread, which imports ``modules``; ``end_spare`` ends it if no worker was like it.

    The main thread must call this: Linux ends the worker together with the thread that started it.
    """
    global _spare
    env, paths = {**os.environ, **common_env(1)}, import_path()
    ours, theirs = socket.socketpair()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_THE_DRIVER)
    try:
        with theirs:
            popen = start_worker(theirs.fileno(), env, paths, modules)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    _spare = Spare(popen, ours, env, paths)


def take_spare(env: Mapping[str, str], paths: Sequence[str]) -> Spare | None:
    """The spare worker if it was started with these, but for its GPUs, which it is yet to be told; None if there is
    none, and no other will be asked for."""
    spare = _take()
    if spare is None:
        return None
    if _without_gpus(spare.env) == _without_gpus(env) and spare.paths == paths and spare.popen.poll() is None:
        return spare
    spare.end()
    return None


def end_spare() -> None:
    """End the spare worker, if there still is one."""
    spare = _take()
    if spare is not None:
        spare.end()


def _take() -> Spare | None:
    global _spare
    spare, _spare = _spare, None
    return spare


def _without_gpus(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name != GPUS}
