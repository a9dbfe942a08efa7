"""Hopyard: train many deep-learning models over one dataset, pick the best, keep every version."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hopyard.missing import name_of_elsewhere

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

    def __getattr__(name: str) -> Any:
        """Names whose modules are heavy, or need an extra, are imported when first asked for."""
        if name not in _ELSEWHERE:
            return name_of_elsewhere(__name__, name, __all__)
        return getattr(import_module(_ELSEWHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_ELSEWHERE])
