"""Models: trees of tensors and plain values, of which only what is new is stored.

Rules:

* **A model** is any nesting of dict, ``OrderedDict``, list and tuple with plain values, tensors and arrays; what was
  PyTorch's comes back PyTorch's, what was NumPy's NumPy's. Nothing is pickled.
* **Whole tensors are shared** by all models and all versions, by their digest.
* **Tied tensors** (the same elements of the same memory) are one when they come back. Other views of one memory
  become tensors of their own, and so do equal tensors.
* **Reading is lazy**: tensors are mapped copy-on-write, so they may be trained on, and change nothing that is stored.
* **What is handed out is what was saved**: tensors are compared with their digests when a process first reads them.
* **A write is all or nothing**: what cannot be stored is found before anything is.
"""

from hopyard.stockroom.models.content import reached
from hopyard.stockroom.models.content import read as read_model
from hopyard.stockroom.models.describe import TensorFacts, describe
from hopyard.stockroom.models.safetensors import export_safetensors, import_safetensors
from hopyard.stockroom.models.shelf import ModelShelf

__all__ = [
    "ModelShelf",
    "TensorFacts",
    "describe",
    "export_safetensors",
    "import_safetensors",
    "reached",
    "read_model",
]
