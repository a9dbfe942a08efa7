"""The user's transforms of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from hopyard.errors import EstimatorError
from hopyard.training.estimator import Visit

BatchTransform: TypeAlias = Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]


def transformed(
    batches: Iterable[Mapping[str, Any]], transform: Callable[..., Any], visit: Visit, kind: str
) -> Iterable[dict[str, Any]]:
    """Every batch through the user's ``transform(batch, rng)``, each with a generator of its own.

    Raises:
        EstimatorError: it returns something else than a dict.
    """
    for number, batch in enumerate(batches):
        result = transform(batch, visit.transform_rng(kind, number))
        if not isinstance(result, dict):
            raise EstimatorError(
                f"{kind}=fn(batch, rng) returned {type(result).__name__}, but must return the dict of columns to use; "
                "end it with `return batch`."
            )
        yield result
