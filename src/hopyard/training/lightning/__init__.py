"""PyTorch Lightning's modules; users import :mod:`hopyard.lightning`."""
