"""A metric's points in the order in which they were logged: step, value, seconds since the run began.

Full parts of 65,536 points are stored once and leave memory; only the last, which still grows, is stored each time.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.errors import CorruptError
from hopyard.objects import Tensor
from hopyard.stockroom.packfiles import PackfileWriter
from hopyard.stockroom.records import parsing
from hopyard.stockroom.views.view import ObjectReader

PART = 1 << 16  # points


@dataclass
class Growing:
    """A series that is being logged."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    _stored: list[list[str]] = field(default_factory=list)
    _count: int = 0

    def write(self, writer: PackfileWriter) -> dict[str, Any]:
        """The JSON of all points so far; adds the objects that it names."""
        while len(self.steps) >= PART:
            self._stored.append(self._part(writer, PART))
            self._count += PART
            del self.steps[:PART], self.values[:PART], self.seconds[:PART]
        rest = [self._part(writer, len(self.steps))] if self.steps else []
        return {"count": self._count + len(self.steps), "parts": self._stored + rest}

    def _part(self, writer: PackfileWriter, count: int) -> list[str]:
        return [
            writer.add_tensor(Tensor.from_numpy(np.array(points[:count])))
            for points in (self.steps, self.values, self.seconds)
        ]


def read(objects: ObjectReader, series: dict[str, Any], column: int, dtype: str) -> npt.NDArray[Any]:
    """(count,) of one column: 0 for steps, 1 for values, 2 for seconds."""
    digests = [part[column] for part in series["parts"]]
    found = objects.tensors(dict.fromkeys(digests))
    points = np.concatenate([np.empty(0, dtype), *(found[digest].numpy() for digest in digests)])
    if points.dtype != dtype or len(points) != series["count"]:
        raise CorruptError(
            f"a series of {series['count']} points names tensors of {len(points)} {points.dtype}. Run `hopyard stock "
            "verify`, which says of which run; then bring that from a remote."
        )
    return points


def check(series: Any) -> None:
    """Raise ValueError, TypeError or KeyError if this is not the JSON of a series."""
    parsing.whole(series["count"])
    for part in series["parts"]:
        if len(list(map(parsing.digest, part))) != 3:
            raise ValueError("a part of a series is not steps, values and seconds")
