"""StockRoom: versions of data, models and experiments beside git."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopyard.stockroom.stock import StockRoom as StockRoom

__all__ = ["StockRoom"]


if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake

    def __getattr__(name: str) -> Any:
        """``StockRoom`` is imported when it is first asked for: parts of the rooms are used without it."""
        if name != "StockRoom":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from hopyard.stockroom.stock import StockRoom

        return StockRoom
