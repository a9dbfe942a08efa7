"""Data: prepared once into Parquet that is also flat arrays, read in an order that is a pure function."""

from hopyard.data.dataset import Dataset
from hopyard.data.loader import Loader
from hopyard.data.opening import open_dataset
from hopyard.data.prepare import prepare
from hopyard.data.prepared import Prepared
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column, Schema
from hopyard.data.sources import Source, as_source
from hopyard.data.summary import inspect

__all__ = [
    "Column",
    "Dataset",
    "Loader",
    "Prepared",
    "Ragged",
    "Schema",
    "Source",
    "as_source",
    "inspect",
    "open_dataset",
    "prepare",
]
