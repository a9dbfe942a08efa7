"""Preprocessing of frames of Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.tune.test_preprocessing import people, search

from hopyard.storage import LocalStore


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_frames_of_spark_train_and_are_predicted_on(spark: Any, tmp_path: Any) -> None:
    frame = people()
    rows = [
        tuple(None if value != value else value for value in row)
        for row in frame.itertuples(index=False, name=None)
    ]
    given = spark.createDataFrame(rows, "age double, fare long, city string, label float").repartition(3)
    model = search(LocalStore(tmp_path)).fit(given)
    assert model.preprocessing.categories("city") == ["Lima", "Oslo", "Rome"]  # type: ignore[union-attr]
    added = model.set_output_columns(["p"]).transform(given.drop("label"))
    names = ["age", "fare", "city", "p"]
    found = pd.DataFrame(list(map(tuple, added.select(*names).collect())), columns=names)
    np.testing.assert_allclose(found["p"], model.predict(found.drop(columns="p"))[:, 0], rtol=1e-5)
    assert found["age"].isna().sum() == frame["age"].isna().sum()
