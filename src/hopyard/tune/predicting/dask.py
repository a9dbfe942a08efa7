"""Predictions on the partitions of Dask frames, by ``map_partitions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from hopyard.tune.predicting.frames import with_columns
from hopyard.tune.predicting.predictor import Packed, Predictor


def transform(frame: Any, packed: Packed, columns: Sequence[str], fields: Sequence[pa.Field]) -> Any:
    """A Dask DataFrame with a model's outputs."""
    import dask

    added = {field.name: pd.Series(dtype=_pandas_type(field.type)) for field in fields}
    data = dask.delayed(packed.data, pure=True)  # type: ignore[attr-defined]
    return frame.map_partitions(
        _predict, data, packed.digest, list(columns), list(fields), meta=frame._meta.assign(**added)
    )


def _predict(
    part: pd.DataFrame, data: bytes, digest: str, columns: list[str], fields: list[pa.Field]
) -> pd.DataFrame:
    if part.empty:
        return part.assign(**{field.name: pd.Series(dtype=_pandas_type(field.type)) for field in fields})
    predictor = Predictor(digest, lambda: data, columns, fields, lambda: "auto")
    names = [field.name for field in fields]
    found: pd.DataFrame = with_columns(part, dict(zip(names, predictor.outputs(part), strict=True)))
    return found


def _pandas_type(type_: pa.DataType) -> Any:
    return object if pa.types.is_nested(type_) else type_.to_pandas_dtype()
