"""The run loop and its parts: searcher, scheduler, backend, journal."""

from hopyard.hopper.packs import PackingPlan, PlannedPack, plan_packs
from hopyard.hopper.plan import Estimate, plan
from hopyard.hopper.scheduler import Layout
from hopyard.hopper.searches import SearchPlan, simulate_search
from hopyard.hopper.simulator import Plan, SimulatedUnit, simulate

__all__ = [
    "Estimate",
    "Layout",
    "PackingPlan",
    "Plan",
    "PlannedPack",
    "SearchPlan",
    "SimulatedUnit",
    "plan",
    "plan_packs",
    "simulate",
    "simulate_search",
]
