"""Datasets made of datasets: windows over time, and mixtures."""
