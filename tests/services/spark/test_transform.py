"""Predictions on frames of Spark: in its workers, batch by batch, with all else as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from tests.forked import FRESH
from tests.tune import missing

from hopyard.backend import InlineBackend
from hopyard.errors import ColumnError, UnsupportedTypeError, UsageError
from hopyard.storage import MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Model, RandomSearch, hp_log

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(missing)

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

MakeRows = Callable[..., dict[str, np.ndarray[Any, Any]]]


def searched(data: Any, make: Callable[[dict[str, Any]], TorchEstimator], **arguments: Any) -> Model:
    return RandomSearch(
        backend=InlineBackend(),
        store=MemoryStore(),
        estimator_gen_fn=make,
        search_space={"lr": hp_log(1e-3, 1e-1)},
        num_models=1,
        num_epochs=1,
        num_partitions=2,
        progress=False,
        **arguments,
    ).fit(data)


def classifier(params: dict[str, Any], predict: Any = None) -> TorchEstimator:
    return TorchEstimator(
        torch.nn.Linear(4, 2), torch.optim.SGD, torch.nn.CrossEntropyLoss(), optimizer_params=params, predict=predict
    )  # fmt: skip


class Several(torch.nn.Module):
    """Outputs of shapes (n, 1) and (n, 2, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 7)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.linear(torch.stack([a, b], dim=1))
        return out[:, :1], out[:, 1:].reshape(-1, 2, 3)


def several(params: dict[str, Any]) -> TorchEstimator:
    def loss(outputs: Any, labels: Any) -> torch.Tensor:
        return (outputs[0] - labels[:, :1]).square().mean()

    return TorchEstimator(Several(), torch.optim.SGD, loss, optimizer_params=params)


@pytest.fixture(scope="module")
def model(make_rows: MakeRows) -> Model:
    return searched(make_rows(), classifier)


def frame_of(spark: Any, rows: dict[str, Any], schema: str, partitions: int = 3) -> Any:
    listed = [tuple(row) for row in zip(*(list(column) for column in rows.values()), strict=True)]
    return spark.createDataFrame(listed, schema).repartition(partitions)


def test_outputs_come_beside_columns_that_stay_as_they_are(
    spark: Any, model: Model, make_rows: MakeRows
) -> None:
    rows = make_rows(5)
    frame = frame_of(
        spark,
        {"features": rows["features"].tolist(), "number": range(5), "word": ["a", None, "c", "d", "e"]},
        "features array<float>, number int not null, word string",
        8,  # more than there are rows
    ).selectExpr(
        "*",
        "map(coalesce(word, ''), 1.5d) as counts",
        "struct(number, word) as both",
        "timestamp'2024-02-29' as t",
        "number as `a.b`",
    )
    found = model.set_output_columns(["score"]).transform(frame)
    assert found.schema.fields[:-1] == frame.schema.fields
    assert found.schema["score"].dataType.simpleString() == "array<float>"
    collected = sorted(found.collect(), key=lambda row: row["number"])
    assert [row.asDict() | {"score": 0} for row in collected] == [
        row.asDict() | {"score": 0} for row in sorted(frame.collect(), key=lambda row: row["number"])
    ]
    scores = np.array([row["score"] for row in collected], np.float32)
    assert np.array_equal(scores, model.predict(rows["features"]))


def test_missing_values_follow_the_rule_of_one_process(spark: Any, tmp_path: Path) -> None:
    def of(frame: pd.DataFrame) -> Any:
        rows = spark.createDataFrame(pa.Table.from_pandas(frame, preserve_index=False))
        return rows.repartition(max(len(frame) // 12, 2))

    missing.check_fit(of, tmp_path)
    missing.check_predictions(of, lambda found: found.toArrow().to_pandas(), tmp_path)


def test_a_model_with_a_trunk_has_it_also_where_its_file_is_not(
    spark: Any, make_rows: MakeRows, tmp_path: Path
) -> None:
    path = tmp_path / "pretrained.pt"
    torch.save(torch.nn.Linear(4, 8).state_dict(), path)

    def make(params: dict[str, Any]) -> TorchEstimator:
        trunk = torch.nn.Linear(4, 8)
        trunk.load_state_dict(torch.load(path))
        return TorchEstimator(
            torch.nn.Linear(8, 2), torch.optim.SGD, torch.nn.CrossEntropyLoss(), optimizer_params=params, trunk=trunk
        )  # fmt: skip

    rows = make_rows(70)
    model = searched(rows, make).set_output_columns(["scores"])
    frame = frame_of(
        spark,
        {"number": range(70), "features": rows["features"].tolist()},
        "number int, features array<float>",
    )
    found = model.transform(frame)
    path.unlink()
    collected = sorted(found.collect(), key=lambda row: row["number"])
    scores = np.array([row["scores"] for row in collected], np.float32)
    np.testing.assert_allclose(scores, model.predict(rows["features"]), rtol=1e-5, atol=1e-6)


def test_without_names_an_output_is_called_after_its_label(spark: Any, make_rows: MakeRows) -> None:
    rows = make_rows(40)
    found = searched(rows, classifier).transform(
        frame_of(spark, {"features": rows["features"].tolist()}, "features array<float>")
    )
    assert found.dtypes == [("features", "array<float>"), ("label__output", "array<float>")]


def test_vectors_are_features_and_ints_stay_ints(spark: Any, make_rows: MakeRows) -> None:
    from pyspark.ml.linalg import Vectors

    rows = make_rows(40)
    rows["features"][::2, 1:] = 0
    best = searched(rows, lambda params: classifier(params, lambda outputs: outputs.argmax(dim=1)))
    vectors = [
        Vectors.dense(row) if number % 2 else Vectors.sparse(4, [0], row[:1])
        for number, row in enumerate(rows["features"].astype(float))
    ]
    frame = spark.createDataFrame(
        list(zip(vectors, rows["label"].tolist(), strict=True)), ["features", "label"]
    )
    found = best.set_output_columns(["label_predicted"]).transform(frame)
    assert found.dtypes == [("features", "vector"), ("label", "bigint"), ("label_predicted", "bigint")]
    assert [row["features"] for row in found.collect()] == vectors
    assert [row["label_predicted"] for row in found.collect()] == best.predict(rows["features"]).tolist()


def test_several_features_and_outputs_have_columns_of_their_own(spark: Any) -> None:
    random = np.random.default_rng(0)
    data = {name: random.random(32).astype(np.float32) for name in ("a", "b", "y", "z")}
    best = searched(data, several, feature_columns=["a", "b"], label_columns=["y", "z"])
    best.set_output_columns(["one", "grid"])
    frame = frame_of(spark, {"b": data["b"].tolist(), "a": data["a"].tolist()}, "b float, a float", 1)
    found = best.transform(frame)
    assert found.dtypes[2:] == [("one", "float"), ("grid", "array<array<float>>")]
    ordered = sorted(found.collect(), key=lambda row: data["a"].tolist().index(row["a"]))
    one, grid = best.predict((data["a"], data["b"]))
    assert np.array_equal(np.array([row["one"] for row in ordered], np.float32), one[:, 0])
    assert np.array_equal(np.array([row["grid"] for row in ordered], np.float32), grid)


def test_a_frame_without_rows_gets_the_columns(spark: Any, model: Model) -> None:
    frame = spark.createDataFrame([], "features array<float>")
    found = model.set_output_columns(["score"]).transform(frame)
    assert found.columns == ["features", "score"]
    assert found.collect() == []


def test_what_cannot_be_transformed_is_said_before_anything_runs(spark: Any, model: Model) -> None:
    model.set_output_columns(["score"])
    frame = spark.sql("select array(1f, 2f, 3f, 4f) as features, 1 as score")
    with pytest.raises(
        UsageError, match="the data has a column 'score' already, where the model's output would go"
    ):
        model.transform(frame)
    with pytest.raises(
        ColumnError, match=r"the data lacks the columns \['features'\]; did you mean 'feature'\?"
    ):
        model.transform(frame.withColumnRenamed("features", "feature"))
    odd = spark.sql("select array(1f, 2f, 3f, 4f) as features, interval 1 month as m, make_interval(1) as i")
    with pytest.raises(
        UnsupportedTypeError, match=r"cannot do with 'm' \(.*\), 'i' \(interval\). Cast or drop these"
    ):
        model.transform(odd)
    with pytest.raises(UsageError, match="the model gives 1 outputs for the output columns"):
        model.set_output_columns(["a", "b"]).transform(frame)


def test_modules_beside_the_users_script_go_along(
    spark: Any, make_rows: MakeRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_models.py").write_text(
        "import torch\n\ndef network():\n    return torch.nn.Linear(4, 2)\n\n"
        "def bounded(outputs):\n    return outputs.sigmoid()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import my_models  # type: ignore[import-not-found]

    def make(params: dict[str, Any]) -> TorchEstimator:
        loss = torch.nn.CrossEntropyLoss()
        return TorchEstimator(
            my_models.network(), torch.optim.SGD, loss, optimizer_params=params, predict=my_models.bounded
        )

    rows = make_rows(40)
    model = searched(rows, make)
    lists = [(row.tolist(),) for row in rows["features"]]
    found = model.transform(spark.createDataFrame(lists, "features array<float>")).collect()
    assert np.allclose([row["label__output"] for row in found], model.predict(rows["features"]), atol=1e-6)


def test_an_executor_with_another_version_of_ours_says_so_when_rows_are_asked_for(
    spark: Any, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hopyard").mkdir()
    (tmp_path / "hopyard" / "__init__.py").write_text('__version__ = "0.0.7"\n')
    python = tmp_path / "python"
    paths = f'PYTHONPATH="{tmp_path}:$PYTHONPATH" {FRESH}=1'
    python.write_text(f'#!/bin/sh\n{paths} exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    found = model.set_output_columns(["score"]).transform(
        spark.sql("select array(1f, 2f, 3f, 4f) as features")
    )
    with pytest.raises(
        Exception, match=r"has hopyard 0.0.7, and the driver has hopyard .*spark.archives; .* docs/spark.md"
    ):
        found.collect()
