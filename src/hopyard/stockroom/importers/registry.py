"""Importers by name, as the entry points of installed packages give them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import entry_points

from hopyard.errors import UsageError
from hopyard.stockroom.importers.base import GROUP, Importer
from hopyard.wording import nearest


def importer_names() -> list[str]:
    """Names of the installed importers, sorted: ``torchvision.cifar10``, ``numpy``, ..."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def find_importer(name: str) -> type[Importer]:
    """The class of that name.

    Raises:
        UsageError: there is none, naming the nearest and all there are; or its package cannot be imported, or is
            no importer.
    """
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        names = importer_names()
        raise UsageError(
            f"There is no importer {name!r}{nearest(name, names, '.')} The importers are: {', '.join(names)}. "
            f"Packages add others by the entry point group {GROUP}."
        )
    entry = found[0]
    try:
        importer = entry.load()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"The importer {name!r} is {entry.value}, which cannot be imported ({error}). Install or mend the package "
            "that it comes from."
        ) from error
    if not (isinstance(importer, type) and issubclass(importer, Importer)):
        raise UsageError(
            f"The importer {name!r} is {entry.value}, which is no subclass of "
            f"{Importer.__module__}.{Importer.__qualname__}. Mend the package that it comes from."
        )
    return importer


def open_importer(
    name: str,
    source: str | os.PathLike[str] | None = None,
    options: Mapping[str, str | bool | int] | None = None,
) -> Importer:
    """The importer with options as texts of a command line, or as values of their types.

    Raises:
        UsageError: unknown names, or values that an option does not take.
        NotFoundError: the source is not there.
    """
    importer = find_importer(name)
    known = {option.name: option for option in importer.options()}
    given = {key: known[key].parse(text) if key in known else text for key, text in (options or {}).items()}
    return importer(source, **given)
