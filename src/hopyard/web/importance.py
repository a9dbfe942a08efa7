"""Importance of hyperparameters, told by a process that ends: Optuna and what it imports would stay with the server, at
more memory than all else in it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from hopyard.errors import HopyardError
from hopyard.search.importance import importances
from hopyard.web.shapes import ImportancesJson

Points = Sequence[tuple[dict[str, Any], float]]
"""Hyperparameters of trials, and their values; the smaller, the better."""


def importance_json(points: Points) -> ImportancesJson:
    """The importance of each hyperparameter, most important first; or why it cannot be told."""
    done = subprocess.run(
        [sys.executable, "-m", "hopyard.web.importance"],
        input=json.dumps(points).encode(),
        capture_output=True,
        check=True,
    )
    document: ImportancesJson = json.loads(done.stdout)
    return document


def told(points: Points) -> ImportancesJson:
    """The document, in this process."""
    try:
        found = importances([params for params, _ in points], [value for _, value in points])
    except HopyardError as error:
        return {"importances": [], "error": str(error)}
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return {"importances": [{"name": name, "importance": share} for name, share in ordered], "error": None}


if __name__ == "__main__":
    print(json.dumps(told(json.load(sys.stdin))))
