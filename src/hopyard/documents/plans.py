"""JSON of plans: a preview of a searcher, and estimates of a search; docs/cli.md documents the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hopyard.hopper.plan import Estimate
from hopyard.search.preview import length_unit, preview_table


@dataclass(frozen=True)
class Preview:
    """What a searcher would do: groups of trials and the units of each, and what the units are."""

    unit: str
    groups: list[tuple[int, int]]

    @property
    def trials(self) -> int:
        return sum(number for number, _ in self.groups)

    @property
    def units(self) -> int:
        return sum(number * units for number, units in self.groups)


def preview_of(config: dict[str, Any]) -> Preview:
    """What the searcher of a config would do."""
    return Preview(length_unit(config) or "units", preview_table(config))


def plan_json(preview: Preview | None, estimates: list[Estimate] | None) -> dict[str, Any]:
    """A preview and estimates; null where there is none."""
    return {"searcher": _preview_json(preview), "estimates": _estimates_json(estimates)}


def _preview_json(preview: Preview | None) -> dict[str, Any] | None:
    if preview is None:
        return None
    groups = [{"num_trials": trials, "units_each": units} for trials, units in preview.groups]
    return {"unit": preview.unit, "num_trials": preview.trials, "units": preview.units, "groups": groups}


def _estimates_json(estimates: list[Estimate] | None) -> list[dict[str, Any]] | None:
    if estimates is None:
        return None
    return [
        {
            "way": each.way,
            "total_seconds": each.seconds,
            "worker_hours": each.worker_hours,
            "moved_bytes": round(each.bytes_moved),
            "stored_bytes": round(each.bytes_stored),
            "bucket_read_bytes": round(each.bytes_read),
            "bucket_requests": round(each.requests),
        }
        for each in estimates
    ]
