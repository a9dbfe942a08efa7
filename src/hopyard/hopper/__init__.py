"""The run loop and what it decides with: searcher, scheduler, backend, journal."""

from hopyard.hopper.simulator import Plan, simulate

__all__ = ["Plan", "simulate"]
