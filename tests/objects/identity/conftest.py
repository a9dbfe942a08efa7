"""What the tests of identities share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hopyard.objects.identity import identity


@pytest.fixture
def same() -> Callable[[Any, Any], bool]:
    """Whether two values, which can be digested, have the same digest."""

    def compare(first: Any, second: Any) -> bool:
        one, two = identity(first), identity(second)
        assert one.digest is not None, one.undigestible
        assert two.digest is not None, two.undigestible
        return one.digest == two.digest

    return compare
