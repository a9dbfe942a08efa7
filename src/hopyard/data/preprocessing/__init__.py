"""Preprocessing that is fitted on training rows only and travels with the model."""
