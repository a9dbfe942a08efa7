"""Batches for frameworks; each is imported only in the file named after it."""
