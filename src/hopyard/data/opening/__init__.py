"""Opening of a dataset from a place that a user names, and with what is asked of it."""
