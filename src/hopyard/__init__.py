"""Hopyard: train many deep-learning models over one dataset, pick the best, keep every version."""

__version__ = "0.1.0"
