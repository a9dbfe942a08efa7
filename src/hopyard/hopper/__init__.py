"""The run loop and its parts: searcher, scheduler, backend, journal."""

from hopyard.hopper.plan import Estimate, plan
from hopyard.hopper.scheduler import Layout
from hopyard.hopper.searches import SearchPlan, simulate_search
from hopyard.hopper.simulator import Plan, SimulatedUnit, simulate

__all__ = ["Estimate", "Layout", "Plan", "SearchPlan", "SimulatedUnit", "plan", "simulate", "simulate_search"]
