"""Where units run: N workers, each runs a function and returns a future."""

from hopyard.backend.base import Backend
from hopyard.backend.inline import InlineBackend
from hopyard.backend.local import LocalBackend

__all__ = ["Backend", "InlineBackend", "LocalBackend"]
