"""Names of machines: a store and a worker may call one by its short or its full name."""

from __future__ import annotations

from collections.abc import Mapping


def bytes_at(host: str, held: Mapping[str, float]) -> float:
    """The bytes, or the share of them, that a machine has.

    Args:
        host: its name.
        held: the same by host name.
    """
    return max((size for name, size in held.items() if _is_same(name, host)), default=0)


def _is_same(left: str, right: str) -> bool:
    left, right = left.lower().rstrip("."), right.lower().rstrip(".")
    if "." in left and "." in right:
        return left == right
    return left.partition(".")[0] == right.partition(".")[0]
