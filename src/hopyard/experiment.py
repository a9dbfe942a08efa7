"""What users will import for experiments that a YAML file describes; so far, an error that says so."""

from __future__ import annotations

from hopyard.errors import comes_later

raise comes_later("hopyard.experiment", "Searches in Python are in hopyard.tune.")
