"""Importance of hyperparameters, told by a process that ends: Optuna and what it imports would stay with the server, at
more memory than all else in it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool

from hopyard.errors import HopyardError
from hopyard.objects import digest
from hopyard.search.importance import METHOD, importances
from hopyard.web.shapes import ImportancesJson

Points = Sequence[tuple[dict[str, Any], float]]
"""Hyperparameters of trials, and their values."""

_MOST_KEPT = 256
"""Answers that a server keeps; one takes some kilobytes."""


class KeptImportances:
    """Importances that were told already, by the points that they follow from, so that pages that ask again, and pages
    of several users, cost no process. There is one process at a time. For the server's loop of events, which waits for
    it without holding one of the threads that answer all else."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, ImportancesJson] = OrderedDict()
        self._turn = asyncio.Lock()

    async def of(self, points_now: Callable[[], Awaitable[Points]]) -> ImportancesJson:
        """The importances that follow from the points of a run.

        Args:
            points_now: makes the points, once it is this request's turn.

        Raises:
            HopyardError: the process that tells them has failed; the next request tries again.
        """
        async with self._turn:
            key, sent = await run_in_threadpool(_sent, await points_now())
            if key not in self._kept:
                self._kept[key] = await run_in_threadpool(_asked, sent)
                if len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


def importance_json(points: Points) -> ImportancesJson:
    """The importance of each hyperparameter, most important first; or why it cannot be told."""
    try:
        return _asked(_sent(points)[1])
    except HopyardError as error:
        return _untold(error)


def _sent(points: Points) -> tuple[str, bytes]:
    """A digest of the points, and the points as the process takes them."""
    sent = json.dumps(points).encode()
    return digest(sent, "hopyard.importance"), sent


def _asked(sent: bytes) -> ImportancesJson:
    command = [sys.executable, "-m", "hopyard.web.importance"]
    done = subprocess.run(command, input=sent, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise HopyardError(
            f"the process that tells the importance of hyperparameters ended with {done.returncode} "
            f"({said or 'it printed nothing'}). Look whether this machine has memory for it (about 250 MB), and ask "
            "again."
        )
    document: ImportancesJson = json.loads(done.stdout)
    return document


def told(points: Points) -> ImportancesJson:
    """The document, in this process."""
    try:
        found = importances([params for params, _ in points], [value for _, value in points])
    except HopyardError as error:
        return _untold(error)
    return {
        "importances": [{"name": name, "importance": share} for name, share in found.shares.items()],
        "method": METHOD,
        "num_trials": found.trials,
        "num_results": found.results,
        "left_out": [{"name": name, "why": why} for name, why in found.left_out.items()],
        "error": None,
    }


def _untold(error: HopyardError) -> ImportancesJson:
    return {
        "importances": [], "method": METHOD, "num_trials": None, "num_results": None, "left_out": [],
        "error": str(error),
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(told(json.load(sys.stdin))))
