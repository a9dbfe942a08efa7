"""Build, train and validate one batch, and discard everything."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopyard.errors import Evidence
from hopyard.training.program import Program


def check_trial(
    program: Program, params: dict[str, Any], trial: int, batch: dict[str, np.ndarray]
) -> Evidence | None:
    """What goes wrong when this trial trains and validates ``batch``; None if nothing does."""
    raise NotImplementedError
