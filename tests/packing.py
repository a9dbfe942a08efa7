"""Packs in tests, which are trained whatever they gain."""

from __future__ import annotations

import pytest

from hopyard.training import fallback, measuring
from hopyard.training.torch import bf16, pack, taped


def pack_whatever_it_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models of any size train together at once, as if this process had met none before, on a CPU of no kind."""
    monkeypatch.setattr(pack, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(pack, "_MOST_PROBE_SECONDS", 1e9)
    monkeypatch.setattr(measuring, "_SHORT_SECONDS", 0.0)
    monkeypatch.setattr(pack, "_widths", {})
    monkeypatch.setattr(pack, "_BATCHES_FIRST", 0)
    monkeypatch.setattr(taped, "_met", {})
    monkeypatch.setattr(taped, "_plans", {})
    monkeypatch.setattr(taped, "_OFTEN", 0)
    monkeypatch.setattr(fallback, "_said", set())
    monkeypatch.setattr(bf16, "has_bf16_units", lambda: False)
