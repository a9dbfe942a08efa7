"""Records: JSON that says what lies on the shelves, and how names, texts and JSON of others are checked.

``records`` has the record of each kind of thing; ``parsing`` reads JSON that others may have made; ``quoting`` has
texts that can be stored; ``frozen`` the dicts and lists that are handed out.
"""

from hopyard.stockroom.records.records import (
    SHELVES,
    ColumnRecord,
    DatasetRecord,
    Json,
    ModelRecord,
    Record,
    RunRecord,
    Shelf,
    ValueRecord,
    check_name,
    parse,
    thing_of,
)

__all__ = [
    "SHELVES", "ColumnRecord", "DatasetRecord", "Json", "ModelRecord", "Record", "RunRecord", "Shelf", "ValueRecord",
    "check_name", "parse", "thing_of",
]  # fmt: skip
