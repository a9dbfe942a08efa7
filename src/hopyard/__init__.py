"""Hopyard: train many deep-learning models over one dataset, pick the best, keep every version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.missing import imported_later

if TYPE_CHECKING:
    from hopyard.stockroom import StockRoom as StockRoom
    from hopyard.stockroom.data.torch_output import make_torch_dataset as make_torch_dataset
    from hopyard.tune import load_model as load_model
    from hopyard.tune import open_run as open_run

__all__ = ["StockRoom", "load_model", "make_torch_dataset", "open_run"]

__version__ = "0.1.0"

_ELSEWHERE = {
    "StockRoom": "hopyard.stockroom",
    "load_model": "hopyard.tune",
    "make_torch_dataset": "hopyard.stockroom.data.torch_output",
    "open_run": "hopyard.tune",
}

if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake
    # Names whose modules are heavy, or need an extra, are imported when first asked for.
    __getattr__, __dir__ = imported_later(__name__, _ELSEWHERE, __all__)
