"""Commits and how they follow one another."""
