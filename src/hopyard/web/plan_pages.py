"""Address of plans: what a search would cost before it runs."""

from __future__ import annotations

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from hopyard.documents import shapes
from hopyard.documents.plans import estimates_of, lacking, packing_of, plan_json, preview_of
from hopyard.errors import UsageError
from hopyard.web.answers import answer
from hopyard.web.requests import body

_NUMBERS = {
    "workers": None, "rows": None, "rows_per_second": None, "seconds_per_unit": None, "state_mb": 100, "data_gb": None,
    "models": None, "epochs": None, "partitions": 8, "batch_size": 256, "gbit": 10,
}  # fmt: skip
"""The numbers of a plan, and their values where none is given: those of ``hopyard plan``."""
_MOST = {"workers": 1e5, "models": 1e6, "partitions": 1e4}
"""Larger plans take long, or much memory; of what is not named here, ``_LARGEST``."""
_LARGEST = 1e15


async def plan_answer(request: Request) -> Response:
    """Estimates and preview, as ``hopyard plan --json`` prints them."""
    given = dict(await body(request))
    searcher = given.pop("searcher", None)
    if searcher is not None and not isinstance(searcher, dict):
        raise UsageError(
            f"searcher is {searcher!r}, which is no mapping with a name. Send its configuration, or null."
        )
    unknown = sorted(set(given) - set(_NUMBERS))
    if unknown:
        raise UsageError(f"a plan has no {', '.join(unknown)}. It has: {', '.join(_NUMBERS)}.")
    numbers = {
        name: given.get(name) if given.get(name) is not None else value for name, value in _NUMBERS.items()
    }
    for name, value in numbers.items():
        most = _MOST.get(name, _LARGEST)
        right = value is None or (
            isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most
        )
        if not right:
            raise UsageError(
                f"{name} is {value!r}; it must be a number greater than 0, and at most {most:,.0f}. Change it."
            )
    return answer(await run_in_threadpool(_planned, searcher, numbers))


def _planned(searcher: dict[str, Any] | None, numbers: dict[str, float | None]) -> shapes.PlanJson:
    preview = None if searcher is None else preview_of(searcher)
    if preview is not None and numbers["workers"] is None:
        return plan_json(preview, None, None)
    if missing := lacking(searcher, numbers):
        raise UsageError(
            f"a plan lacks {', '.join(missing)} to estimate a search; a searcher without workers shows what it would "
            "do. Add them."
        )
    estimates = estimates_of(searcher, numbers)
    return plan_json(preview, estimates, packing_of(searcher, preview, numbers))
