"""Columns: keyed samples in fragments, read and written without touching what has not changed.

Rules:

* **A column** holds samples of one kind (tensors of one dtype and rank, strings, or bytes) under keys, in the order
  of the keys. Its record names the root of a map from each fragment's first key to the fragment.
* **Where fragments end** depends on keys and on the sizes of samples only (``cutting``). So the same samples give the
  same pages, in whatever order and in however many steps they were written.
* **A nested column** has pairs as keys, ``(sample, part)``; everything counts its parts. ``column[sample]`` is the
  mapping of a sample's parts.
* **A dataset** is stored by reference: its prepared files are objects, named in a map from number to file. It opens as
  the ``Dataset`` it was, with its fingerprint; versions share files, and differ and merge file by file.
* **Samples** are columns joined by their keys, as rows of a dataset: for loaders, searches and frameworks.
* **Nothing is half written**: samples are looked at before any is taken, and what fails on the way is undone.
* A ``SampleColumn`` is immutable and picklable, and threads may share it. A ``ColumnDraft`` is for one thread.
"""

from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.conflicts import diff_columns, merge_columns
from hopyard.stockroom.data.dataset_changes import DatasetDiff, diff_datasets, merge_datasets
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.data.joined import JoinedSamples
from hopyard.stockroom.data.shelf import DataShelf

__all__ = [
    "ColumnDraft",
    "DataShelf",
    "DatasetDiff",
    "JoinedSamples",
    "SampleColumn",
    "diff_columns",
    "diff_datasets",
    "merge_columns",
    "merge_datasets",
]
