"""The catalog of a revision: its shelves, listed, compared with those of another, and exported as files."""
