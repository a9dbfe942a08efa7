"""Sources of data that enter a stockroom: formats of files, and datasets of other libraries.

An importer of your own is an :class:`Importer`; its rules stand in ``stockroom.importers.base``.
"""

from hopyard.stockroom.importers.base import ColumnSource, Importer, Option, Samples

__all__ = ["ColumnSource", "Importer", "Option", "Samples"]
