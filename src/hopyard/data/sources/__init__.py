"""Whatever holds rows, as one kind of source."""
