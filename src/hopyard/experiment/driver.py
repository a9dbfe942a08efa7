"""Driver of an experiment: this process, or one of its own, which goes on when the one that started it has ended.

A driver of its own gets what it is to do as JSON on standard input, and tells through a pipe when its experiment has
begun, or why it could not begin. What it prints goes to a file; what its trials print is in the store.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hopyard import errors
from hopyard.backend import Backend, LocalBackend, RayBackend, SparkBackend
from hopyard.data.cache.node import cache_directory
from hopyard.errors import HopyardError, RunError, UsageError
from hopyard.experiment.config import ExperimentConfig, complete
from hopyard.experiment.launching import WarmStart, launch
from hopyard.experiment.needed import left_if_needed, objects
from hopyard.hopper.hopper import Observer
from hopyard.hopper.journal import JournalFollower
from hopyard.hopper.state import ENDED, JournalRecord, RunState
from hopyard.missing import missing_extra
from hopyard.storage import Store, files, open_store
from hopyard.storage.oserrors import write_errors
from hopyard.tune import Run
from hopyard.tune.asking import WAIT
from hopyard.wording import listed, nearest

BACKENDS = ("local", "ray", "spark")
_LAST_LINES = 20
_LOOKS, _LOOK_EVERY = 1000, 0.01


@dataclass(frozen=True)
class Driving:
    """All that a driver must know.

    Attributes:
        backend: a name of ``BACKENDS``, or a backend, with which only this process can drive.
        workers: units that run at once; None: as the configuration or the backend says.
        The others are those of ``hopyard.experiment.launching.launch``.
    """

    config: ExperimentConfig
    definition: str
    store: Store
    backend: str | Backend | None = None
    workers: int | None = None
    fresh: bool = False
    run_id: str | None = None
    take_over: bool = False
    warm_start: WarmStart | None = None

    def here(
        self,
        *,
        progress: bool = True,
        observers: Sequence[Observer] = (),
        test: bool = False,
        output: str | None = None,
    ) -> Run | None:
        """Drive the experiment in this process, to its end. ``output``: file that gets what the process says."""
        backend = self.backend
        if backend is None or isinstance(backend, str):
            backend = backend_named(backend or "local", self.workers or self.config.resources.workers)
        with left_if_needed(self.store, self._objects, also_after_success=test):
            return launch(
                self.config, self.definition, self.store, backend, test=test, fresh=self.fresh, progress=progress,
                run_id=self.run_id, take_over=self.take_over, warm_start=self.warm_start, observers=observers,
                output=output,
            )  # fmt: skip

    def detached(self) -> Started:
        """Drive it in a process of its own; returns once the experiment has begun, or is known to be finished.

        Raises:
            UsageError: the store or the backend is of this process alone.
            HopyardError: what keeps it from beginning, as ``launch`` raises it.
            RunError: the process ended without a word.
        """
        if not self.store.shared:
            raise UsageError(
                f"the store {self.store.url} is in the memory of this process, so that no other can drive its "
                "experiments. Use a directory or a URL, or do without detach."
            )
        if isinstance(self.backend, Backend):
            raise UsageError(
                f"detach was asked for with {self.backend!r}, which is of this process. Give the name of a backend: "
                f"{listed(BACKENDS)}."
            )
        folder = Path(f"{cache_directory()}-drivers")
        log = folder / f"{time.strftime('%Y-%m-%d-%H-%M-%S')}-{secrets.token_hex(4)}.log"
        with left_if_needed(self.store, self._objects), write_errors(log):
            files.make_directory(folder)
            with log.open("xb") as output:
                return self._start(log, output)

    @property
    def _objects(self) -> set[str]:
        return objects(self.definition, self.warm_start)

    def _start(self, log: Path, output: IO[bytes]) -> Started:
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "hopyard.experiment.driver", str(writing)],
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, pass_fds=[writing],
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(writing)
        try:
            with open(reading, encoding="utf-8") as told:  # noqa: PTH123 - a pipe
                assert process.stdin is not None
                process.stdin.write(json.dumps({**self._to_json(), "output": str(log)}).encode())
                process.stdin.close()
                line = told.readline()
        except BaseException:  # Ctrl-C: nobody has been told of it yet
            process.terminate()
            raise
        said = json.loads(line) if line else {}
        if "experiment" in said:
            atexit.register(process.poll)  # whoever starts a process should hear of its end
            return Started(said["experiment"], said["length"], process.pid, log)
        raise _why(said, process.wait(), log)

    def _to_json(self) -> dict[str, Any]:
        warm_start = None if self.warm_start is None else self.warm_start.to_json()
        kept = ("definition", "backend", "workers", "fresh", "run_id", "take_over")
        named = {name: getattr(self, name) for name in kept}
        return {**named, "config": self.config.written(), "store": self.store.url, "warm_start": warm_start}

    @classmethod
    def _from_json(cls, fields: dict[str, Any]) -> Driving:
        warm_start = fields["warm_start"]
        made = {
            "config": complete(fields["config"]),
            "store": open_store(fields["store"]),
            "warm_start": None if warm_start is None else WarmStart.from_json(warm_start),
        }
        return cls(**{**fields, **made})


@dataclass(frozen=True)
class Started:
    """An experiment that a process of its own drives.

    Attributes:
        experiment: its id.
        length: how long its trials train, in words.
        pid: of the process; it may have ended by now.
        output: file of what the process says.
    """

    experiment: str
    length: str
    pid: int
    output: Path


def backend_named(name: str, workers: int | None) -> Backend:
    """The backend of this name, as the command line has it.

    Raises:
        UsageError: there is none, or its cluster cannot be reached.
        MissingExtraError: its package is not installed.
    """
    if name == "local":
        return LocalBackend(workers)
    if name == "ray":
        return RayBackend(num_workers=workers)
    if name == "spark":
        try:
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise missing_extra("pyspark", "spark", "backend spark") from error
        SparkSession.builder.appName("hopyard").getOrCreate()
        return SparkBackend(num_workers=workers)
    raise UsageError(
        f"the backend is {name!r}, but it must be one of {listed(BACKENDS)}{nearest(name, BACKENDS, '.')}"
    )


def check_result(run: Run) -> None:
    """Raise TrialError if a run has ended, and no trial has a result; says why."""
    if run.status in ENDED and run.state.best is None:
        _ = run.best


def _why(said: dict[str, Any], status: int, log: Path) -> HopyardError:
    """The error that a driver told of, or one with the last that it printed."""
    if "error" in said:
        kind, message = said["error"]
        found: type[HopyardError] = getattr(errors, kind, RunError)
        return found(message)
    last = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
    return RunError(
        f"the driver's process ended with status {status} before the experiment began. What it said is in {log}:\n"
        + "\n".join(last)
    )


@dataclass
class _Teller:
    """Tells, once, that the experiment has begun, and can be found in its store, or why it did not."""

    runs: Store
    write: Callable[[dict[str, Any]], None] | None

    def __call__(self, state: RunState, record: JournalRecord) -> None:
        if record["r"] == "session":
            tail = JournalFollower(self.runs.at(state.header["run_id"]))
            for _ in range(
                _LOOKS if state.sessions == 1 else 0
            ):  # the journal is written on a thread of its own
                if any(each["r"] == "session" for each in tail.new()):
                    break
                WAIT(_LOOK_EVERY)
            self.begun(state.header)

    def begun(self, header: JournalRecord) -> None:
        self.tell({"experiment": header["run_id"], "length": header["experiment"]["length"]})

    def tell(self, said: dict[str, Any]) -> None:
        write, self.write = self.write, None
        if write is not None:
            write(said)


def main() -> None:
    """Drive what standard input says; the only argument is the descriptor through which to tell of it."""
    pipe = open(int(sys.argv[1]), "w", encoding="utf-8")  # noqa: PTH123, SIM115 - closed when all is told

    def write(said: dict[str, Any]) -> None:
        with pipe:
            pipe.write(json.dumps(said) + "\n")

    fields = json.load(sys.stdin)
    output = fields.pop("output")
    driving = Driving._from_json(fields)
    teller = _Teller(driving.store.runs, write)
    try:
        run = driving.here(progress=False, observers=[teller], output=output)
        assert run is not None
        teller.begun(run.state.header)
        check_result(run)
        print(f"{run.run_id}: {run.status}", flush=True)
    except HopyardError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        teller.tell({"error": [type(error).__name__, str(error)]})
        sys.exit(1)


if __name__ == "__main__":
    main()
