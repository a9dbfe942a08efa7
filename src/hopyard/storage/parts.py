"""Stores of paths, of which users may move the parts that a search keeps elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.errors import UsageError
from hopyard.storage.base import Store


class PathStore(Store):
    """A store below a path, with the parts of a search's layout at paths of their own if asked.

    Args:
        root: the path of the store, as ``url`` gives it; None: only the parts are used.
        parts: the path of each part that is moved: ``train_data``, ``val_data``, ``runs``, ``logs``.

    Raises:
        UsageError: there is no path at all.
    """

    def __init__(self, root: str | None, parts: Mapping[str, str]) -> None:
        self._root, self._moved = root, dict(parts)
        if root is None and not parts:
            raise UsageError(
                f"{type(self).__name__}() was given no path. Give the directory, as "
                f"{type(self).__name__}({self._example!r})."
            )

    _example = "experiments"

    @property
    def url(self) -> str:
        return self._root or next(iter(self._moved.values()))

    @property
    def has_root(self) -> bool:
        return self._root is not None

    @property
    def train_data(self) -> Store:
        return self._part("train_data")

    @property
    def val_data(self) -> Store:
        return self._part("val_data")

    @property
    def single_train(self) -> bool:
        return "train_data" in self._moved

    @property
    def single_val(self) -> bool:
        return "val_data" in self._moved

    @property
    def runs(self) -> Store:
        return self._part("runs")

    @property
    def logs(self) -> Store:
        return self._part("logs")

    def _part(self, part: str) -> Store:
        return self._elsewhere(self._moved[part]) if part in self._moved else self.at(part)

    def _elsewhere(self, path: str) -> Store:
        """A store of the same kind at another path."""
        raise NotImplementedError

    def _directory(self) -> str:
        """The root.

        Raises:
            UsageError: there is none.
        """
        if self._root is None:
            raise UsageError(
                f"this {type(self).__name__} has only {', '.join(sorted(self._moved))}, but something else is to be "
                "kept in it. Give prefix_path= as well."
            )
        return self._root

    def __repr__(self) -> str:
        moved = "".join(f", {part.removesuffix('_data')}_path={path!r}" for part, path in self._moved.items())
        return f"{type(self).__name__}({self._root!r}{moved})"
