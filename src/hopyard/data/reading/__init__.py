"""Rows out of files: mapped where they lie, else decoded into flat files, gathered by position."""
