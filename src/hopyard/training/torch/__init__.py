"""Training with PyTorch. Everything that imports it is in this folder."""
