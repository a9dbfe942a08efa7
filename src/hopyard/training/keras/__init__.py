"""Training with Keras 3, on its TensorFlow, JAX and PyTorch backends. Everything that imports it is in this folder."""
