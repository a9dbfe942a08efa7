"""SparkBackend keeps the rules of a backend, on two executor processes."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.backend import SparkBackend
from hopyard.backend.testing import BackendSuite

SETUP = """
import os, sys, warnings
warnings.simplefilter("ignore")
os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"] = sys.executable, "127.0.0.1"
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
from hopyard.backend import SparkBackend
backend = SparkBackend(num_workers=1)
"""


class TestSparkBackend(BackendSuite):
    setup = SETUP

    @pytest.fixture(autouse=True)
    def session(self, spark: Any) -> None:
        """Two executor processes with one slot each."""

    def make_backend(self, unit_timeout: float | None = None) -> SparkBackend:
        return SparkBackend(num_workers=2, unit_timeout=unit_timeout)
