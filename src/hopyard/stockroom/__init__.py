"""StockRoom: versions of data, models and experiments beside git."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.missing import imported_later

if TYPE_CHECKING:
    from hopyard.stockroom.stock import StockRoom as StockRoom

__all__ = ["StockRoom"]


if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake
    # ``StockRoom`` is imported when it is first asked for: parts of the rooms are used without it.
    __getattr__, __dir__ = imported_later(__name__, {"StockRoom": ".stock"}, __all__)
