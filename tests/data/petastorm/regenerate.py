"""Write the Petastorm dataset beside this file, with Petastorm itself, and what it must be read as.

Petastorm needs an environment of its own (Python 3.11, Java 8 to 17)::

    python3.11 -m venv /tmp/petastorm && /tmp/petastorm/bin/pip install \\
        petastorm==0.13.1 pyspark==3.4.4 "pyarrow==12.0.1" "numpy<1.24" "pandas<2" \\
        "opencv-python-headless<4.9" "setuptools<81"
    /tmp/petastorm/bin/python tests/data/petastorm/regenerate.py

``dataset/`` is what ``materialize_dataset`` wrote. ``expected.npz`` holds, in the order of ``id``, the arrays
that were given to it, never those that were read; only ``photo_decoded``, a lossy JPEG, is what OpenCV decodes.
``unischemas.json`` holds the schema as versions of Petastorm pickle it with every protocol. For another version::

    /tmp/petastorm/bin/pip install --no-deps --target /tmp/petastorm-0.5.1 petastorm==0.5.1
    echo '__version__ = "0.5.1"' > /tmp/petastorm-0.5.1/petastorm/__init__.py  # it imports what pyarrow 12 lacks
    PYTHONPATH=/tmp/petastorm-0.5.1 /tmp/petastorm/bin/python tests/data/petastorm/regenerate.py pickles
"""

import base64
import datetime
import json
import os
import pickle
import shutil
import sys
from decimal import Decimal
from pathlib import Path

import cv2
import numpy as np
import petastorm
from petastorm.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row
from pyspark.sql import SparkSession, types

HERE = Path(__file__).parent
ROWS = 46
SCHEMA = Unischema(
    "Example",
    [
        UnischemaField("id", np.int64, (), ScalarCodec(types.LongType()), False),
        UnischemaField("small", np.uint8, (), ScalarCodec(types.ShortType()), False),
        UnischemaField("score", np.float32, (), ScalarCodec(types.FloatType()), False),
        UnischemaField("ratio", np.float64, (), None, False),
        UnischemaField("flag", np.bool_, (), ScalarCodec(types.BooleanType()), False),
        UnischemaField("title", np.str_, (), ScalarCodec(types.StringType()), False),
        UnischemaField("raw", np.bytes_, (), ScalarCodec(types.StringType()), False),
        UnischemaField("price", Decimal, (), ScalarCodec(types.DecimalType(10, 3)), False),
        UnischemaField("time", np.datetime64, (), ScalarCodec(types.TimestampType()), False),
        UnischemaField("day", np.datetime64, (), ScalarCodec(types.DateType()), False),
        UnischemaField("count", np.int32, (), ScalarCodec(types.IntegerType()), True),
        UnischemaField("matrix", np.float32, (3, 4), NdarrayCodec(), False),
        UnischemaField("half", np.float16, (2,), NdarrayCodec(), True),
        UnischemaField("packed", np.int16, (5, 2), CompressedNdarrayCodec(), False),
        UnischemaField("image", np.uint8, (6, 5, 3), CompressedImageCodec("png"), False),
        UnischemaField("deep", np.uint16, (4, 3), CompressedImageCodec("png"), False),
        UnischemaField("deep_rgb", np.uint16, (4, 3, 3), CompressedImageCodec("png"), False),
        UnischemaField("gray", np.uint8, (4, 7), CompressedImageCodec("png"), True),
        UnischemaField("photo", np.uint8, (16, 16, 3), CompressedImageCodec("jpeg", 90), False),
        UnischemaField("tokens", np.int32, (None,), NdarrayCodec(), False),
        UnischemaField("points", np.float32, (None, 3), CompressedNdarrayCodec(), False),
        UnischemaField("sizes", np.uint8, (None, None, 3), CompressedImageCodec("png"), False),
        UnischemaField("words", np.str_, (None,), NdarrayCodec(), False),
        UnischemaField("part", np.int32, (), ScalarCodec(types.IntegerType()), False),
    ],
)
TIMES = np.datetime64("2021-03-04T05:06:07.123456") + np.arange(ROWS) * np.timedelta64(987654321, "us")


def make_rows():
    rng = np.random.default_rng(5)
    smooth = np.add.outer(np.arange(16), np.arange(16)) * 8
    for i in range(ROWS):
        yield {
            "id": np.int64(i),
            "small": np.uint8(rng.integers(256)),
            "score": np.float32(rng.normal()),
            "ratio": np.float64(rng.normal()),
            "flag": np.bool_(i % 3 == 0),
            "title": ["", "plain", "Größe", "日本"][i % 4] + str(i),
            "raw": f"r{i}",
            "price": Decimal(int(rng.integers(-(10**6), 10**6))) / 1000,
            "time": TIMES[i].astype(datetime.datetime),
            "day": TIMES[i].astype("datetime64[D]").astype(datetime.date),
            "count": None if i % 5 == 2 else np.int32(i * 7),
            "matrix": rng.normal(size=(3, 4)).astype(np.float32),
            "half": None if i % 7 == 0 else rng.normal(size=2).astype(np.float16),
            "packed": rng.integers(-300, 300, (5, 2)).astype(np.int16),
            "image": rng.integers(0, 256, (6, 5, 3)).astype(np.uint8),
            "deep": rng.integers(0, 65536, (4, 3)).astype(np.uint16),
            "deep_rgb": rng.integers(0, 65536, (4, 3, 3)).astype(np.uint16),
            "gray": None if i % 4 == 1 else rng.integers(0, 256, (4, 7)).astype(np.uint8),
            "photo": np.clip(smooth[:, :, None] + [0, i, 2 * i] + rng.integers(0, 4), 0, 255).astype(
                np.uint8
            ),
            "tokens": rng.integers(-9, 10**6, i % 4).astype(np.int32),
            "points": rng.normal(size=(1 + i % 3, 3)).astype(np.float32),
            "sizes": rng.integers(0, 256, (2 + i % 2, 3, 3)).astype(np.uint8),
            "words": np.array(["a", "bc"][: i % 3], np.str_),
            "part": np.int32([7, 3, 12][i * 3 // ROWS]),
        }


def expected(rows):
    arrays = {}
    for name, field in SCHEMA.fields.items():
        values = [row[name] for row in rows]
        missing = np.array([value is None for value in values])
        if missing.any():
            arrays[f"{name}_mask"] = missing
            zeros = np.zeros(field.shape, field.numpy_dtype)
            values = [zeros if value is None else value for value in values]
        if name in ("tokens", "points"):
            arrays[f"{name}_lengths"] = np.array([len(value) for value in values])
            arrays[name] = np.concatenate(values)
        elif name in ("time", "day"):
            arrays[name] = np.array(values, "datetime64[us]").astype("datetime64[ns]").astype(np.int64)
        elif name == "price":
            arrays[name] = np.array([str(value) for value in values])
        elif name not in ("sizes", "words"):
            dtype = field.numpy_dtype if field.numpy_dtype not in (np.str_, np.bytes_) else np.str_
            arrays[name] = np.array(values, dtype)
    codec = SCHEMA.photo.codec
    arrays["photo_decoded"] = np.array(
        [
            cv2.imdecode(np.frombuffer(codec.encode(SCHEMA.photo, row["photo"]), np.uint8), cv2.IMREAD_COLOR)
            for row in rows
        ]
    )[..., ::-1]
    return arrays


def write(spark, rows, where):
    from petastorm.etl.dataset_metadata import materialize_dataset  # what it needs differs between versions

    url = f"file://{where}"
    spark_rows = [dict_to_spark_row(SCHEMA, row) for row in rows]
    with materialize_dataset(spark, url, SCHEMA):
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        hadoop.setInt("parquet.block.size", 24000)  # bytes; several row groups a file, the last one smaller
        hadoop.setInt("parquet.page.size.row.check.min", 2)  # rows between looks at the size
        frame = spark.createDataFrame(spark.sparkContext.parallelize(spark_rows, 3), SCHEMA.as_spark_schema())
        frame.write.partitionBy("part").parquet(url)


def main():
    rows = list(make_rows())
    where = HERE / "dataset"
    shutil.rmtree(where, ignore_errors=True)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.parquet.outputTimestampType", "INT96")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    write(spark, rows, where)
    spark.stop()
    for file in [*where.rglob(".*.crc"), *where.rglob("_SUCCESS")]:
        file.unlink()
    np.savez_compressed(HERE / "expected.npz", **expected(rows))


def add_pickles():
    """The schema as this version of Petastorm pickles it, beside those of other versions."""
    file = HERE / "unischemas.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    for protocol in range(6):
        pickled = base64.b64encode(pickle.dumps(SCHEMA, protocol)).decode()
        known[f"{petastorm.__version__}, protocol {protocol}"] = pickled
    file.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["pickles"]:
        main()
    add_pickles()
