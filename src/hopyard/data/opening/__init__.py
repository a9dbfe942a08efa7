"""From what a user names, and asks of it, to a dataset."""
