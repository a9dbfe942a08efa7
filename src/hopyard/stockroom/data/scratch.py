"""Fragments and pages in memory only, on top of a writer: what a draft looks like before it is written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.stockroom.data.cutting import Writer


class Scratch:
    """A writer that keeps what is written in memory and names it by number."""

    def __init__(self, below: Writer) -> None:
        self._below = below
        self._own: dict[str, bytes] = {}

    @property
    def stored(self) -> object:
        """The stored objects below."""
        return getattr(self._below, "stored", None)

    def begin(self) -> None:
        """Do nothing: nothing is stored."""

    def add(self, kind: str, data: bytes, width: int = 0, body: int = 0) -> str:
        name = f"{len(self._own):064x}"
        self._own[name] = data
        return name

    def add_json(self, value: Any, /, kind: str) -> str:
        return self.add(kind, json.dumps(value).encode())

    def read(self, digest: str, /) -> npt.NDArray[np.uint8]:
        return self.read_many((digest,))[digest]

    def read_many(self, digests: Iterable[str], /) -> dict[str, npt.NDArray[np.uint8]]:
        names = list(digests)
        below = [name for name in names if name not in self._own]
        own = {name: np.frombuffer(self._own[name], np.uint8) for name in names if name in self._own}
        return own | (self._below.read_many(below) if below else {})
