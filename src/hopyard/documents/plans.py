"""Plans from numbers that a user gives, and their JSON; docs/cli.md documents the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopyard.documents import shapes
from hopyard.hopper.packs import NO_MODEL, PackingPlan, plan_packs
from hopyard.hopper.plan import Estimate, plan
from hopyard.search.preview import length_unit, preview_table

_MOST_TRIALS = 10_000


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


def lacking(searcher: dict[str, Any] | None, numbers: Mapping[str, float | None]) -> list[str]:
    """Names of the numbers without which nothing can be estimated, as options of ``hopyard plan`` without dashes."""
    needed = {name: numbers.get(name) for name in ("workers", "rows", "data_gb")}
    speed = numbers.get("rows_per_second") or numbers.get("seconds_per_unit")
    needed["rows_per_second or seconds_per_unit"] = speed
    if searcher is None:
        needed |= {name: numbers.get(name) for name in ("models", "epochs")}
    return [name for name, value in needed.items() if value is None]


def estimates_of(searcher: dict[str, Any] | None, numbers: Mapping[str, float | None]) -> list[Estimate]:
    """The estimates of a search; nothing of ``numbers`` is ``lacking``.

    Raises:
        UsageError: a number is impossible.
    """
    known = {name: value for name, value in numbers.items() if value is not None}
    whole = {name: int(known[name]) for name in ("workers", "rows", "partitions", "batch_size")}
    return plan(
        **whole,
        state_bytes=known["state_mb"] * 1e6,
        dataset_bytes=known["data_gb"] * 1e9,
        num_models=int(known["models"]) if "models" in known else None,
        num_epochs=int(known["epochs"]) if "epochs" in known else None,
        searcher=searcher,
        rows_per_second=known.get("rows_per_second"),
        seconds_per_unit=known.get("seconds_per_unit"),
        network_bytes_per_second=known["gbit"] * 1e9 / 8,
    )


def packing_of(
    searcher: dict[str, Any] | None, preview: Preview | None, numbers: Mapping[str, float | None]
) -> PackingPlan:
    """The packs that trials are expected to train in, if they are alike; nothing of ``numbers`` is ``lacking``."""
    known = {name: value for name, value in numbers.items() if value is not None}
    trials = int(known["models"]) if preview is None else preview.trials
    at_once = [(searcher or {}).get(name) for name in ("max_concurrent_trials", "population_size")]
    begin = min(
        [trials, _MOST_TRIALS, *(number for number in at_once if isinstance(number, int) and number > 0)]
    )
    unknown = NO_MODEL if begin < _MOST_TRIALS else f"only the first {begin:,} trials are shown; {NO_MODEL}"
    return plan_packs(begin, int(known["workers"]), int(known["partitions"]), unknown=unknown)


def plan_json(
    preview: Preview | None, estimates: list[Estimate] | None, packing: PackingPlan | None
) -> shapes.PlanJson:
    """A preview, estimates and the expected packing; null where there is none."""
    return {
        "searcher": _preview_json(preview),
        "estimates": _estimates_json(estimates),
        "packing": None if packing is None else packing_json(packing),
    }


def packing_json(packing: PackingPlan) -> shapes.PackingJson:
    """An expected packing; ``gain`` is null where it is unknown, ``unknown`` where all is known."""
    return {
        "packs": [{"trials": list(pack.trials), "gain": pack.gain} for pack in packing.packs],
        "alone": [{"why": why, "trials": list(trials)} for why, trials in packing.alone.items()],
        "unknown": packing.unknown or None,
        "begin_alone": list(packing.begin_alone),
        "bf16_gain": packing.bf16_gain,
    }


def _preview_json(preview: Preview | None) -> shapes.PreviewJson | None:
    if preview is None:
        return None
    groups: list[shapes.TrialGroupJson] = [
        {"num_trials": trials, "units_each": units} for trials, units in preview.groups
    ]
    return {"unit": preview.unit, "num_trials": preview.trials, "units": preview.units, "groups": groups}


def _estimates_json(estimates: list[Estimate] | None) -> list[shapes.EstimateJson] | None:
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
