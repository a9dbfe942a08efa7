"""Predictions on a Spark DataFrame: ``model.transform`` beside pandas UDFs of the same model, in the same session.

One JSON object a line: name, value, unit, peer, ratio (value / the peer's value). A million rows of float32[16] in
Spark's memory, a 16-64-1 network, one process of Python per core; every way loads the model once per process. The
row-wise UDFs call the model with one row at a time; the last peer is the fastest that can be written by hand, with
the batches that Spark gives.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from hopyard.backend import InlineBackend
from hopyard.storage import MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Model, RandomSearch, hp_log

ROWS = 1_000_000
WIDTH = 16
CORES = 2


def estimator(params: dict[str, Any]) -> TorchEstimator:
    network = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    return TorchEstimator(
        network, torch.optim.Adam, torch.nn.MSELoss(), optimizer_params=params, batch_size=256
    )


def trained() -> Model:
    random = np.random.default_rng(0)
    rows = {"features": random.random((1024, WIDTH), np.float32), "label": random.random(1024, np.float32)}
    search = RandomSearch(
        InlineBackend(), MemoryStore(), estimator, {"lr": hp_log(1e-3, 1e-2)}, 1, 1, progress=False
    )
    return search.fit(rows)


def make_session() -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def make_frame(session: Any) -> Any:
    values = ", ".join(f"cast(rand({number}) as float)" for number in range(WIDTH))
    frame = session.range(0, ROWS, 1, 2 * CORES).selectExpr("id", f"array({values}) as features").persist()
    assert frame.count() == ROWS
    return frame


def pandas_udf_of(module: torch.nn.Module, predict: Callable[[torch.nn.Module, Any], Any]) -> Any:
    """A UDF that calls ``predict(module, series)`` for every batch of Spark's."""
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def udf(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        torch.set_num_threads(1)
        with torch.inference_mode():
            for batch in batches:
                yield pd.Series(predict(module, batch))

    udf.__annotations__ = {"batches": Iterator[pd.Series], "return": Iterator[pd.Series]}
    return pandas_udf("float")(udf)


def rows_one_by_one(module: torch.nn.Module, batch: Any) -> Any:
    return batch.apply(lambda row: float(module(torch.from_numpy(np.array(row, np.float32))[None])))


def rows_together(module: torch.nn.Module, batch: Any) -> Any:
    return module(torch.from_numpy(np.stack(batch.to_numpy())))[:, 0].numpy()


def rows_per_second(frame: Any) -> float:
    """Of summing the outputs, so that each is needed and none is sent to the driver."""
    start = time.perf_counter()
    total = frame.agg({"output": "sum"}).first()[0]
    assert np.isfinite(total)
    return ROWS / (time.perf_counter() - start)


def main() -> None:
    warnings.simplefilter("ignore")  # PySpark of pandas
    model = trained().set_output_columns(["output"])
    session = make_session()
    frame = make_frame(session)
    module = model.torch()
    plain = session.udf.register(
        "plain", lambda row: float(module(torch.tensor(row, dtype=torch.float32)[None])), "float"
    )
    peers = {
        "pandas UDF, rows together": frame.withColumn("output", pandas_udf_of(module, rows_together)("features")),
        "pandas UDF, row by row": frame.withColumn("output", pandas_udf_of(module, rows_one_by_one)("features")),
        "Python UDF": frame.withColumn("output", plain("features")),
    }  # fmt: skip
    transformed = model.transform(frame)
    rows_per_second(transformed)  # processes of Python, and their imports
    ours = rows_per_second(transformed)
    for name, way in peers.items():
        line = {"name": "transform of Spark rows", "value": round(ours), "unit": "rows/s", "peer": name}
        print(json.dumps(line | {"ratio": round(ours / rows_per_second(way), 3)}), flush=True)
    session.stop()


if __name__ == "__main__":
    main()
