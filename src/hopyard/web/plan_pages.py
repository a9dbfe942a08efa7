"""Address of plans: what a search would cost before it runs."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from hopyard.documents.plans import plan_json, preview_of
from hopyard.errors import UsageError
from hopyard.hopper.plan import plan
from hopyard.web.answers import answer
from hopyard.web.requests import body

_NUMBERS = {
    "workers": 1, "rows": 1, "rows_per_second": None, "seconds_per_unit": None, "state_mb": 100, "data_gb": None,
    "models": None, "epochs": None, "partitions": 8, "batch_size": 256, "gbit": 10,
}  # fmt: skip
"""The numbers of a plan, and their values where none is given."""
_MOST = 1e15


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
        right = value is None or (
            isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MOST
        )
        if not right:
            raise UsageError(f"{name} is {value!r}; it must be a number greater than 0. Change it.")
    return answer(await run_in_threadpool(_planned, searcher, numbers))


def _planned(searcher: dict[str, object] | None, numbers: dict[str, float | None]) -> dict[str, object]:
    preview = None if searcher is None else preview_of(searcher)
    if numbers["data_gb"] is None:
        return plan_json(preview, None)
    known = {name: value for name, value in numbers.items() if value is not None}
    whole = {
        name: None if (value := known.get(name)) is None else int(value)
        for name in ("workers", "rows", "models", "epochs", "partitions", "batch_size")
    }
    estimates = plan(
        workers=whole["workers"] or 1,
        rows=whole["rows"] or 1,
        state_bytes=known["state_mb"] * 1e6,
        dataset_bytes=known["data_gb"] * 1e9,
        num_models=whole["models"],
        num_epochs=whole["epochs"],
        searcher=searcher,
        partitions=whole["partitions"] or 1,
        rows_per_second=known.get("rows_per_second"),
        seconds_per_unit=known.get("seconds_per_unit"),
        batch_size=whole["batch_size"] or 1,
        network_bytes_per_second=known["gbit"] * 1e9 / 8,
    )
    return plan_json(preview, estimates)
