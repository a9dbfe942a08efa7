"""Sources: everything that holds rows, under one contract."""
