"""Objects in a dict, which count what is read and written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.objects import digest
from hopyard.stockroom.maps import SortedMap


class Pool:
    """What maps need of a repository: ``read`` and ``add_json``."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.read_digests: list[str] = []
        self.written: list[str] = []

    def begin(self) -> None:
        """Do nothing: nothing is ever deleted here."""

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        self.read_digests.append(name)
        return np.frombuffer(self.objects[name], np.uint8)

    def add_json(self, value: Any, kind: str) -> str:
        assert kind == "page"
        data = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        name = digest(data, "hopyard.page")
        self.objects[name] = data
        self.written.append(name)
        return name

    def forget_counts(self) -> None:
        self.read_digests, self.written = [], []


def built(pool: Pool, content: Mapping[bytes, Any]) -> SortedMap:
    """The map of ``content``, built at once."""
    return SortedMap(pool, None).update(pool, content)
