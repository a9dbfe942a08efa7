"""Warnings that a command gives its user."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def said_warnings() -> Iterator[None]:
    """Warnings for users as lines on standard error, when the command has ended."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            if caught:
                from hopyard.cli.terminal import (
                    complain,
                )  # most commands warn of nothing, and Rich takes long

                for warning in caught:
                    complain(str(warning.message))
