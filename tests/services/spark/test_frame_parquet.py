"""Which DataFrames are read from their Parquet files by Arrow, and that the dataset is the one of Spark's rows."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import prepare
from hopyard.data.frames import spark_frame
from hopyard.data.frames.spark_frame import SparkFrame
from hopyard.data.frames.spark_parquet import parquet_scan
from hopyard.data.preparing import files
from hopyard.errors import DataError
from hopyard.storage import LocalStore

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def scan_of(frame):
    return parquet_scan(frame, list(SparkFrame(frame).types().values()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of several row groups: ids, numbers, nulls, ragged lists, lists in lists, texts, bytes; a time."""
    folder = tmp_path_factory.mktemp("plain files")
    for number, ids in enumerate(np.array_split(np.arange(1, 200), 3)):
        given = ids.tolist()
        table = pa.table(
            {
                "id": pa.array(given, pa.int64()),
                "tiny": pa.array([i % 100 for i in given], pa.int8()),
                "half": pa.array([None if i % 7 == 0 else i / 2 for i in given], pa.float32()),
                "flag": pa.array([i % 2 == 0 for i in given]),
                "words": pa.array([None if i % 11 == 0 else f"row {i} é" for i in given]),
                "raw": pa.array([bytes([i % 256]) * (i % 4) for i in given]),
                "lists": pa.array(
                    [None if i % 13 == 0 else [i] * (i % 5) for i in given], pa.list_(pa.int16())
                ),
                "image": pa.array(
                    [[[i, 1.0], [2.0, 3.0]] for i in given], pa.large_list(pa.list_(pa.float64()))
                ),
                "at": pa.array([i * 1_000_000 for i in given], pa.timestamp("us", "UTC")),
            }
        )
        codec = ("snappy", "zstd", "none")[number]
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=20, compression=codec)
    return folder


def test_files_read_by_arrow_give_the_dataset_that_sparks_rows_give(
    spark, folder, tmp_path, files_of, monkeypatch
):
    files = spark.read.parquet(str(folder))
    files.createOrReplaceTempView("plain_files")
    frame = spark.table("plain_files").selectExpr(
        "id as number", "lists", "half", "flag", "words", "raw", "tiny", "image as picture"
    )
    frame = frame.withColumnRenamed("half", "a.b").drop("flag")
    scan = scan_of(frame.toDF(*(f"c{place}" for place in range(7))))
    assert scan.columns == ("id", "lists", "half", "words", "raw", "tiny", "image")
    assert [len(part) for part in scan.parts] == [6, 6]
    how = {"nulls": "mask", "ragged": "keep"}
    mine = prepare(frame, LocalStore(tmp_path / "arrow"), 0.25, **how)
    with monkeypatch.context() as patch:
        patch.setattr(spark_frame, "parquet_scan", lambda *_: None)
        theirs = prepare(frame, LocalStore(tmp_path / "spark"), 0.25, **how)
        patch.setattr(LocalStore, "staging", lambda _: None)  # as stores that are no directory
        prepare(frame, LocalStore(tmp_path / "kept"), 0.25, **how)
    assert mine.fingerprint == theirs.fingerprint
    assert files_of(LocalStore(tmp_path / "arrow")) == files_of(LocalStore(tmp_path / "spark"))
    assert files_of(LocalStore(tmp_path / "arrow")) == files_of(LocalStore(tmp_path / "kept"))
    assert not list(tmp_path.rglob("*.arrow"))
    batch = mine.train[:]
    i = batch["number"]
    assert sorted([*i, *mine.val[:]["number"]]) == list(range(1, 200))
    assert batch["words"].tolist() == ["" if each % 11 == 0 else f"row {each} é" for each in i]
    assert np.array_equal(batch["picture"][:, 0, 0], i)
    assert [row.tolist() for row in batch["lists"]] == [[] if k % 13 == 0 else [k] * (k % 5) for k in i]


def test_spark_reads_whatever_is_more_than_columns_of_plain_files(spark, folder, tmp_path):
    files = spark.read.parquet(str(folder))
    plain = files.select("id", "half")
    assert scan_of(plain).columns == ("id", "half")
    spark.range(5).selectExpr("id", "id % 2 as part").write.partitionBy("part").parquet(f"{tmp_path}/parts")
    pq.write_table(pa.table({"a.b": [1], "id": [1]}), tmp_path / "dot.parquet")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "lz4.parquet", compression="lz4")
    (tmp_path / "rows.csv").write_text("1\n2\n")
    read = spark.read
    others = [
        files, files.select("at"), files.where("id > 3"), files.selectExpr("id + 1 as id"), plain.limit(3),
        plain.union(plain), plain.orderBy("id"), plain.sample(0.5, seed=1), plain.dropDuplicates(),
        plain.selectExpr("id", "rand(1) as x"), files.select("id", "_metadata"), files.select("_metadata.file_path"),
        files.selectExpr("image[0] as row"), plain.selectExpr("cast(id as int)"),
        plain.mapInArrow(lambda rows: rows, "id long"),
        read.schema("id int").parquet(str(folder)), read.schema("ID long").parquet(str(folder)),
        read.schema("id long, none float").parquet(str(folder)), read.schema("id long").csv(f"{tmp_path}/rows.csv"),
        read.option("ignoreMissingFiles", "true").parquet(str(folder)).select("id"),
        read.parquet(f"{tmp_path}/parts"), read.parquet(f"{tmp_path}/parts").select("id"),
        read.parquet(f"{tmp_path}/dot.parquet"), read.parquet(f"{tmp_path}/lz4.parquet"), spark.range(3),
        spark.createDataFrame([(1,)], "id long"),
    ]  # fmt: skip
    assert [scan_of(frame) for frame in others] == [None] * len(others)
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    assert scan_of(plain) is None
    spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    kept = files.select("id").cache()
    assert scan_of(kept.select("id")) is None
    kept.unpersist()
    assert scan_of(files.select("id")) is not None
    times = prepare(files.select("id", "at"), LocalStore(tmp_path / "times"), None).train[:]
    assert np.array_equal(times["at"], times["id"] * 10**9)


RULE = """
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;

public class NobodySeesRows extends org.apache.spark.sql.catalyst.rules.Rule {
    public TreeNode apply(TreeNode plan) {
        if (plan instanceof Filter) return plan;
        return new Filter(org.apache.spark.sql.catalyst.expressions.Literal.FalseLiteral(), (LogicalPlan) plan);
    }
}
"""


def test_rules_of_extensions_hold(spark, folder, tmp_path):
    """As those that say who sees which rows."""
    plain = spark.read.parquet(str(folder)).select("id", "half")
    assert scan_of(plain.where("1 = 1")).columns == ("id", "half")
    java = spark.sparkContext._jvm
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(RULE)
    rule = compiler.getClassLoader().loadClass("NobodySeesRows").newInstance()
    rules = java.java.util.ArrayList()
    rules.add(rule)
    experimental = spark._jsparkSession.experimental()
    before = experimental.extraOptimizations()
    set_rules = getattr(experimental, "extraOptimizations_$eq")
    set_rules(java.scala.jdk.javaapi.CollectionConverters.asScala(rules).toSeq())
    try:
        assert scan_of(spark.read.parquet(str(folder)).select("id", "half")) is None
        with pytest.raises(DataError, match="no rows"):
            prepare(spark.read.parquet(str(folder)).select("id"), LocalStore(tmp_path))
    finally:
        set_rules(before)


def test_a_column_that_some_files_lack_is_null_there(spark, folder, tmp_path):
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": pa.array([3], pa.int64()), "x": [5]}), tmp_path / "b.parquet")
    frame = spark.read.option("mergeSchema", "true").parquet(str(tmp_path)).select("x", "id")
    assert scan_of(frame) is None
    with pytest.raises(DataError, match="There are null values: column 'x' in 2 rows"):
        prepare(frame, LocalStore(tmp_path / "store"))


def test_a_file_that_gets_no_rows_is_none(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FILE_BYTES", 16)
    dataset = prepare(spark.range(20), LocalStore(tmp_path), validation=None).train
    assert sorted(dataset[:]["id"].tolist()) == list(range(20))
