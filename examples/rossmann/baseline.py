"""What the network has to beat: gradient-boosted trees of scikit-learn, on the same features and rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import TargetEncoder

MOST_VALUES = 255  # that trees take of a categorical column


def make_baseline(sizes: Mapping[str, int]) -> Pipeline:
    """X    are encoded by the mean of the target."""
    wide = [name for name, size in sizes.items() if size > MOST_VALUES]
    encoder = make_column_transformer(
        (TargetEncoder(target_type="continuous", random_state=0), wide),
        remainder="passthrough",
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    trees = HistGradientBoostingRegressor(
        max_iter=1000,
        early_stopping=True,
        n_iter_no_change=20,
        categorical_features=[name for name in sizes if name not in wide],
        random_state=0,
    )
    return make_pipeline(encoder, trees)


def rmspe(sales: Any, predicted: Any) -> float:
    """Root mean square percentage error, the competition's measure."""
    errors: npt.NDArray[np.float64] = 1 - np.asarray(predicted, np.float64) / np.asarray(sales, np.float64)
    return float(np.sqrt(np.mean(errors**2)))


def predict_baseline(
    train: pd.DataFrame, val: pd.DataFrame, features: list[str], sizes: Mapping[str, int]
) -> npt.NDArray[np.float64]:
    """Logarithms of sales for ``val``, of trees that were trained on those of ``train``."""
    fitted = make_baseline(sizes).fit(train[features], train["Sales"])
    found: npt.NDArray[np.float64] = fitted.predict(val[features])
    return found
