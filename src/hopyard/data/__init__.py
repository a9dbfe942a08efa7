"""Data: prepared once into Parquet that is also flat arrays, read in an order that is a pure function."""

from hopyard.data.cache.listing import CacheListing, list_cache
from hopyard.data.cache.node import NodeCache
from hopyard.data.combining.mixing import Mix, mix
from hopyard.data.combining.windows import Windows
from hopyard.data.dataset import Dataset
from hopyard.data.loader import Loader
from hopyard.data.opening.opening import open_dataset
from hopyard.data.petastorm.convert import convert_petastorm, petastorm_source
from hopyard.data.preparing.prepare import prepare
from hopyard.data.preparing.prepared import Prepared
from hopyard.data.ragged import Ragged
from hopyard.data.recipe.decoding import image
from hopyard.data.reports.report import report
from hopyard.data.reports.summary import inspect
from hopyard.data.reports.throughput import Throughput, shuffle_quality, throughput
from hopyard.data.schema import Column, Schema
from hopyard.data.sources.sources import Source, as_source

__all__ = [
    "CacheListing",
    "Column",
    "Dataset",
    "Loader",
    "Mix",
    "NodeCache",
    "Prepared",
    "Ragged",
    "Schema",
    "Source",
    "Throughput",
    "Windows",
    "as_source",
    "convert_petastorm",
    "image",
    "inspect",
    "list_cache",
    "mix",
    "open_dataset",
    "petastorm_source",
    "prepare",
    "report",
    "shuffle_quality",
    "throughput",
]
