"""Searches as Estimators of Spark ML, and models as its Transformers: stages of pipelines, saved with these."""

from __future__ import annotations

import inspect
import json
import pickle
import time
import warnings
from collections.abc import Iterator
from typing import Any

from hopyard.errors import CorruptError, NotFoundError, UsageError
from hopyard.objects.identity.usercode import user_code_by_value
from hopyard.objects.pickles import dumps
from hopyard.storage.format import check_format, format_header
from hopyard.tune.predicting.saved import unpack_model
from hopyard.tune.run import Model
from hopyard.tune.search import Search

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that PySpark imports
    from pyspark.ml.base import Estimator, Transformer
    from pyspark.ml.util import DefaultParamsReader, MLWritable, MLWriter

_KIND = "pipeline-stage"
_PART_BYTES = 16 << 20


class _Stage(MLWritable):
    """Saving and loading of a stage. Nothing of it is set through Spark's parameter maps."""

    uid: str

    def write(self) -> MLWriter:
        """Writer of the stage: ``save(path)``, on any file system that Spark knows; ``PipelineModel.save`` uses it."""
        return _Writer(self)

    def _packed(self) -> tuple[bytes, dict[str, Any]]:
        """The stage as bytes, and the fields of it that metadata show."""
        raise NotImplementedError

    @classmethod
    def _unpacked(cls, data: bytes, fields: dict[str, Any]) -> Any:
        raise NotImplementedError

    @classmethod
    def load(cls, path: str) -> Any:
        """The stage that was saved to ``path``. This runs code that is in it: load only what you trust."""
        from pyspark.sql import SparkSession

        session = SparkSession.active()
        metadata = DefaultParamsReader.loadMetadata(path, session)
        if "hopyard" not in metadata:
            raise NotFoundError(
                f"{path} holds a {metadata.get('class')}, no stage of Hopyard; load it with that class."
            )
        fields = metadata["hopyard"]
        check_format(fields["format"], _KIND, where=f"the stage in {path}")
        rows = session.read.parquet(f"{path}/data").orderBy("number").toLocalIterator()
        data = b"".join(bytes(row["data"]) for row in rows)
        if len(data) != fields["nbytes"]:
            raise CorruptError(
                f"{path}/data has {len(data)} bytes, but {fields['nbytes']} were written. Restore it from a copy, or "
                "save the pipeline again."
            )
        stage = cls._unpacked(data, fields)
        stage._resetUid(metadata["uid"])
        return stage


class ModelStage(Transformer, _Stage):
    """A model of Hopyard as a Transformer.

    Attributes:
        model: what its ``transform`` calls; ``stage.model.set_output_columns([...])`` names the columns it adds.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def _transform(self, dataset: Any) -> Any:
        return self.model.transform(dataset)

    def _packed(self) -> tuple[bytes, dict[str, Any]]:
        return self.model.packed().data, {"output_columns": self.model.output_columns}

    @classmethod
    def _unpacked(cls, data: bytes, fields: dict[str, Any]) -> ModelStage:
        return cls(Model(*unpack_model(data)).set_output_columns(fields["output_columns"]))


class SearchStage(Estimator[ModelStage], _Stage):
    """A search of Hopyard as an Estimator: ``fit`` gives the best model as a :class:`ModelStage`.

    Attributes:
        search: the search that it fits.
    """

    def __init__(self, search: Search) -> None:
        super().__init__()
        self.search = search

    def _fit(self, dataset: Any) -> ModelStage:
        return ModelStage(self.search.fit(dataset))

    def _packed(self) -> tuple[bytes, dict[str, Any]]:
        given = dict(self.search.given)
        backend = given.pop("backend")
        if given["init_from"] is not None:
            raise UsageError(
                "a search with init_from= cannot be saved: it would hold another model. Leave init_from out, and give "
                "it when the search is made again."
            )
        content = {
            "search": type(self.search),
            "backend": type(backend),
            "backend_arguments": {name: getattr(backend, name) for name in _arguments_of(backend)},
            "arguments": given,
        }
        try:
            with user_code_by_value():
                return dumps(content), {"kind": self.search.kind}
        except (
            TypeError,
            pickle.PicklingError,
            NotImplementedError,
            AttributeError,
            RecursionError,
        ) as error:
            raise UsageError(
                f"the search cannot be saved ({error}). Its functions, callbacks and the rest are pickled: make locks, "
                "threads, open files and connections inside functions."
            ) from error

    @classmethod
    def _unpacked(cls, data: bytes, fields: dict[str, Any]) -> SearchStage:
        content = pickle.loads(data)
        backend = content["backend"](**content["backend_arguments"])
        return cls(content["search"](backend=backend, **content["arguments"]))


def _arguments_of(backend: Any) -> Iterator[str]:
    """Arguments of a backend that it shows as attributes, as numbers, texts and the like."""
    for name in inspect.signature(type(backend)).parameters:
        if isinstance(getattr(backend, name, ...), bool | int | float | str | dict | None):
            yield name


class _Writer(MLWriter):
    def __init__(self, stage: _Stage) -> None:
        super().__init__()
        self._stage = stage

    def saveImpl(self, path: str) -> None:  # noqa: N802 - Spark's name
        stage, session = self._stage, self.sparkSession
        data, fields = stage._packed()
        metadata = {
            "class": f"hopyard.spark.{type(stage).__name__}",
            "timestamp": int(time.time() * 1000),
            "sparkVersion": session.version,
            "uid": stage.uid,
            "paramMap": {},
            "defaultParamMap": {},
            "hopyard": {"format": format_header(_KIND), "nbytes": len(data), **fields},
        }
        parts = [
            (number, bytearray(data[start : start + _PART_BYTES]))
            for number, start in enumerate(range(0, len(data), _PART_BYTES))
        ]
        session.createDataFrame(parts, "number int, data binary").write.parquet(f"{path}/data")
        text = session.createDataFrame([(json.dumps(metadata),)], "value string")
        text.coalesce(1).write.text(f"{path}/metadata")
