"""Data: prepared once into Parquet that is also flat arrays, read in an order that is a pure function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.missing import imported_later

if TYPE_CHECKING:
    from hopyard.data.cache.listing import CacheListing, list_cache
    from hopyard.data.cache.node import NodeCache
    from hopyard.data.combining.mixing import Mix, mix
    from hopyard.data.combining.windows import Windows
    from hopyard.data.dataset import Dataset
    from hopyard.data.loader import Loader
    from hopyard.data.opening.opening import open_dataset
    from hopyard.data.opening.verifying import VerifiedData, verify
    from hopyard.data.petastorm.convert import convert_petastorm, petastorm_source
    from hopyard.data.preparing.prepare import prepare
    from hopyard.data.preparing.prepared import Prepared
    from hopyard.data.preprocessing.apply import Apply
    from hopyard.data.preprocessing.category import Category
    from hopyard.data.preprocessing.fitting import FittedSteps, fit_steps
    from hopyard.data.preprocessing.impute import Impute
    from hopyard.data.preprocessing.scaling import StandardScale
    from hopyard.data.ragged import Ragged
    from hopyard.data.recipe.decoding import image
    from hopyard.data.reports.summary import inspect
    from hopyard.data.reports.throughput import Throughput, shuffle_quality, throughput
    from hopyard.data.schema import Column, Schema
    from hopyard.data.sources.sources import Source, as_source
    from hopyard.data.tokens.prepare import prepare_tokens

__all__ = [
    "Apply",
    "CacheListing",
    "Category",
    "Column",
    "Dataset",
    "FittedSteps",
    "Impute",
    "Loader",
    "Mix",
    "NodeCache",
    "Prepared",
    "Ragged",
    "Schema",
    "Source",
    "StandardScale",
    "Throughput",
    "VerifiedData",
    "Windows",
    "as_source",
    "convert_petastorm",
    "fit_steps",
    "image",
    "inspect",
    "list_cache",
    "mix",
    "open_dataset",
    "petastorm_source",
    "prepare",
    "prepare_tokens",
    "shuffle_quality",
    "throughput",
    "verify",
]

_ELSEWHERE = {
    "Apply": ".preprocessing.apply",
    "Category": ".preprocessing.category",
    "FittedSteps": ".preprocessing.fitting",
    "Impute": ".preprocessing.impute",
    "StandardScale": ".preprocessing.scaling",
    "fit_steps": ".preprocessing.fitting",
    "CacheListing": ".cache.listing",
    "Column": ".schema",
    "Dataset": ".dataset",
    "Loader": ".loader",
    "Mix": ".combining.mixing",
    "NodeCache": ".cache.node",
    "Prepared": ".preparing.prepared",
    "Ragged": ".ragged",
    "Schema": ".schema",
    "Source": ".sources.sources",
    "Throughput": ".reports.throughput",
    "VerifiedData": ".opening.verifying",
    "Windows": ".combining.windows",
    "as_source": ".sources.sources",
    "convert_petastorm": ".petastorm.convert",
    "image": ".recipe.decoding",
    "inspect": ".reports.summary",
    "list_cache": ".cache.listing",
    "mix": ".combining.mixing",
    "open_dataset": ".opening.opening",
    "petastorm_source": ".petastorm.convert",
    "prepare": ".preparing.prepare",
    "prepare_tokens": ".tokens.prepare",
    "shuffle_quality": ".reports.throughput",
    "throughput": ".reports.throughput",
    "verify": ".opening.verifying",
}

if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake
    # Names are imported when first asked for: who reads a stockroom does not pay for reports and sources.
    __getattr__, __dir__ = imported_later(__name__, _ELSEWHERE, __all__)
