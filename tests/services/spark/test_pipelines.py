"""Searches and models as stages of Spark ML pipelines: fitted, saved, and loaded again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.errors import NotFoundError, UsageError
from hopyard.spark import ModelStage, SearchStage
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Model, RandomSearch, hp_log

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        torch.nn.Linear(2, 1), torch.optim.SGD, torch.nn.BCEWithLogitsLoss(), optimizer_params=params,
        metrics=["accuracy"], predict=lambda outputs: (outputs[:, 0] > 0).int(),
    )  # fmt: skip


def searcher(folder: Path, backend: Any = None, **changes: Any) -> RandomSearch:
    arguments: dict[str, Any] = {
        "backend": backend or InlineBackend(),
        "store": LocalStore(folder),
        "estimator_gen_fn": estimator,
        "search_space": {"lr": hp_log(1e-2, 1)},
        "num_models": 2,
        "num_epochs": 2,
        "num_partitions": 2,
        "label_columns": ["index"],
        "progress": False,
    }
    return RandomSearch(**(arguments | changes))


@pytest.fixture(scope="module")
def make_frame() -> Callable[[Any], Any]:
    def make(spark: Any) -> Any:
        random = np.random.default_rng(0)
        a, b = random.standard_normal((2, 96))
        names = np.where(a > b, "above", "below")
        rows = [(float(x), float(y), str(name)) for x, y, name in zip(a, b, names, strict=True)]
        return spark.createDataFrame(rows, "a double, b double, side string")

    return make


def stages(search: Any) -> list[Any]:
    from pyspark.ml.feature import StringIndexer, VectorAssembler

    index = StringIndexer(inputCol="side", outputCol="index")
    return [index, VectorAssembler(inputCols=["a", "b"], outputCol="features"), SearchStage(search)]


def test_a_pipeline_with_a_search_is_fitted_saved_and_loaded(
    spark: Any, make_frame: Callable[[Any], Any], tmp_path: Path
) -> None:
    from pyspark.ml import Pipeline, PipelineModel

    search = searcher(tmp_path / "store")
    frame = make_frame(spark)
    pipeline = Pipeline(stages=stages(search))
    fitted = pipeline.fit(frame)
    best = fitted.stages[-1]
    assert isinstance(best.model, Model)
    best.model.set_output_columns(["predicted"])
    expected = [row["predicted"] for row in fitted.transform(frame).collect()]
    assert sum(expected) not in (0, 96)

    fitted.write().overwrite().save(str(tmp_path / "fitted"))
    loaded = PipelineModel.load(str(tmp_path / "fitted"))
    assert [row["predicted"] for row in loaded.transform(frame).collect()] == expected
    again = loaded.stages[-1]
    assert (again.uid, again.model.info) == (best.uid, best.model.info)

    pipeline.save(str(tmp_path / "pipeline"))
    repeated = Pipeline.load(str(tmp_path / "pipeline")).getStages()[-1]
    stage = pipeline.getStages()[-1]
    assert (repeated.uid, type(repeated.search), repeated.search.num_models) == (stage.uid, RandomSearch, 2)
    assert repeated.search.arguments.store.url == search.arguments.store.url
    found = Pipeline.load(str(tmp_path / "pipeline")).fit(frame).stages[-1]
    assert found.model.run_id == best.model.run_id  # found, not trained


def test_stages_are_copied_with_their_pipelines(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline

    stage = SearchStage(searcher(tmp_path))
    assert stage.uid.startswith("SearchStage_")
    copied = Pipeline(stages=[stage]).copy().getStages()[0]
    assert copied is not stage
    assert (copied.uid, copied.search) == (stage.uid, stage.search)


def test_a_search_comes_back_with_its_backend_but_not_with_another_model(spark: Any, tmp_path: Path) -> None:
    backend = LocalBackend(num_workers=1, device="cpu", gpus_per_worker=3, threads_per_worker=2)
    search = SearchStage(searcher(tmp_path / "store", backend, patience=3))
    search.save(str(tmp_path / "search"))
    loaded = SearchStage.load(str(tmp_path / "search")).search
    found = loaded.arguments.backend
    assert (type(found), found.num_workers, found.threads_per_worker) == (LocalBackend, 1, 2)
    assert found.gpus_per_worker == 3
    assert loaded.arguments.patience == 3
    rows = {
        "features": np.eye(2, dtype=np.float32).repeat(24, axis=0),
        "index": np.float32(np.arange(48) % 2),
    }
    start = searcher(tmp_path / "store", num_models=1, num_epochs=1).fit(rows)
    search = SearchStage(searcher(tmp_path / "store", init_from=start))
    with pytest.raises(
        UsageError, match="a search with init_from= cannot be saved: it would hold another model"
    ):
        search.save(str(tmp_path / "other"))


def test_what_is_no_stage_of_ours_is_not_loaded(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.feature import SQLTransformer

    SQLTransformer(statement="select 1 from __THIS__").save(str(tmp_path / "sql"))
    with pytest.raises(
        NotFoundError, match=r"holds a org\.apache\.spark\.ml\.feature\.SQLTransformer, no stage of Hopyard"
    ):
        ModelStage.load(str(tmp_path / "sql"))
