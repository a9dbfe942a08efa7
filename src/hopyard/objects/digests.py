"""Digests: BLAKE3-256, in its key-derivation mode with the domain tag as context.

The mode is the one BLAKE3 has for keeping kinds of content apart: equal bytes of two kinds have
different digests. ``b3sum --derive-key TAG file`` gives the same digest on the command line.
Source: O'Connor, Aumasson, Neves, Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere", 2020.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import numpy as np
from blake3 import blake3

ContiguousBytes: TypeAlias = bytes | bytearray | memoryview | np.ndarray[Any, np.dtype[np.uint8]]
"""Contiguous bytes."""


class Hasher:
    """A digest of bytes that come in pieces. Only the bytes count, not where the pieces end.

    Args:
        threads: that work on a piece at once; None: as many as there are cores, good for large pieces.
    """

    def __init__(self, domain: str, threads: int | None = 1) -> None:
        self._hash = blake3(
            derive_key_context=domain, max_threads=blake3.AUTO if threads is None else threads
        )

    def update(self, data: ContiguousBytes) -> None:
        self._hash.update(_bytes(data))

    def hexdigest(self) -> str:
        """64 hex digits, of all bytes so far."""
        return str(self._hash.hexdigest())


def digest(data: ContiguousBytes, domain: str) -> str:
    """64 hex digits for ``data`` of the kind that ``domain`` names."""
    return str(blake3(_bytes(data), derive_key_context=domain).hexdigest())


def _bytes(data: ContiguousBytes) -> bytes | bytearray | memoryview:
    return data.data if isinstance(data, np.ndarray) else data


def digest_json(value: Any, domain: str) -> str:
    """The digest of a JSON value: of its text with sorted keys, no spaces and ASCII only.

    Keys must be strings. Floats count by their shortest text, so 1.0 differs from 1.
    """
    return digest(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), domain)


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) that depends on every part, its type and its place, and on nothing else."""
    for part in parts:
        if type(part) is not int and type(part) is not str:
            raise TypeError(f"seeds derive from int and str parts, not from {part!r}; convert it first")
    return int(digest_json(parts, "hopyard.seed")[:16], 16) >> 1
