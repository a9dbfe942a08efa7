"""Grid search: every point of a discrete space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.search.fixed import FixedLength, checked_points
from hopyard.search.points import distinct, grid
from hopyard.search.spaces import checked_space


class GridSearcher(FixedLength):
    """One trial for each point of ``grid(space)``, those of ``initial_params`` first.

    Raises:
        SpaceError: the space is not discrete, or a point of ``initial_params`` is not in it.
    """

    def __init__(
        self, space: Mapping[str, Any], num_epochs: int, initial_params: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        space = checked_space(space)
        first = checked_points(space, initial_params)
        super().__init__(distinct([*first, *grid(space)]), num_epochs)
