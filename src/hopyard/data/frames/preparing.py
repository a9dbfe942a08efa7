"""``prepare`` of a cluster's frame: the engine's workers read, pack and write; the driver decides and publishes.

First all rows are read and packed once, and kept by the engine. From what was found follow the fingerprint,
the policies, the split, and the number of files; then every file's rows are brought together and written. What
is stored is a function of the rows and the arguments, whatever the partitions, the workers or the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from hopyard.data.dataset import Dataset
from hopyard.data.frames.base import Exchange, FrameSource
from hopyard.data.frames.packing import Layout, Packing
from hopyard.data.frames.plans import PlanIndex
from hopyard.data.frames.survey import PARTS, Survey
from hopyard.data.frames.writing import Files, Writing, Written, of_split, rows_and_sum
from hopyard.data.manifest import Manifest
from hopyard.data.preparing.policies import Nulls, Policies, plan_policies, refuse_nulls
from hopyard.data.preparing.prepared import Prepared, check_labels, find_prepared, publish, split_stores
from hopyard.data.preparing.request import Request, Watch
from hopyard.data.preparing.split import check_split
from hopyard.data.preparing.statistics import Statistics
from hopyard.data.preparing.unfinished import written_sizes
from hopyard.data.preparing.write import Repeat
from hopyard.data.schema import Column
from hopyard.errors import DataError, UsageError
from hopyard.storage.base import Store
from hopyard.storage.visible import wait_for_objects

_log = logging.getLogger("hopyard")


def known_fingerprint(request: Request, store: Store) -> str | None:
    """Of the dataset that the same plans with the same arguments gave before; None if that is not known."""
    return _plans(request, _sources(request), store).fingerprint()


def _plans(request: Request, sources: list[FrameSource], store: Store) -> PlanIndex:
    return PlanIndex(store, [source.frame for source in sources], _arguments(request))


def _arguments(request: Request) -> dict[str, object]:
    features, labels = request.columns
    return {"feature_columns": features, "label_columns": labels, **request.settings()}


class FramePreparation:
    """One preparation of a frame, or of two.

    Args:
        request: of ``prepare``; its sources are frames of one engine.
        repeat: runs a write until there is space for it.
        progress: called with (rows written, rows in all).
        accept: called with the number of row groups of training data before anything is written.
        watch: called with the phase, rows done, and rows in all; while they are read, with the share of the tasks
            that are done, as a float, and None.
    """

    def __init__(
        self,
        request: Request,
        store: Store,
        repeat: Repeat,
        progress: Callable[[int, int], None] | None,
        accept: Callable[[int], None],
        watch: Watch | None,
    ) -> None:
        self._request = request
        self._sources = _sources(request)
        self._store = store
        self._repeat = repeat
        self._progress = progress
        self._accept = accept
        self._watch = watch
        if not store.shared:
            raise UsageError(
                f"{store.url} is a store of this process alone, but the workers of {self._engine} write the files. "
                "Give a store that all of them reach, such as a shared folder or a bucket."
            )

    @property
    def _engine(self) -> str:
        return self._sources[0].frame.engine

    def run(self) -> Prepared:
        """The dataset, found or written."""
        split = self._request.validation if isinstance(self._request.validation, str) else None
        sparse = self._request.compress_sparse
        layouts = [_layout(source, split, sparse) for source in self._sources]
        if len(layouts) > 1:
            _check_alike(*layouts)
        plans = _plans(self._request, self._sources, self._store)
        if found := plans.find(self._request.settings()):
            check_labels((found.train, found.val), self._request.labels)
            return found
        frame = self._sources[0].frame
        layout = Layout(layouts[0])  # of both: one may have its columns in another order
        packings = [
            (
                source.frame,
                source.types,
                Packing(replace(source.reading, sparse=sparse), layout, part, self._request.seed),
            )
            for source, part in zip(self._sources, self._parts(), strict=True)
        ]
        with closing(frame.exchange(packings, self._store.train_data.staging())) as exchange:
            report = self._begin("reading", None)
            surveyed: list[list[Survey]] = self._repeat(lambda: exchange.survey(report))
            surveys = [_merged(found, layout.columns) for found in surveyed]
            for survey in surveys:
                survey.checked(split)
            fingerprint = self._fingerprint(surveys, layout.columns)
            prepared = find_prepared(self._store, fingerprint, self._request.settings())
            if prepared is None:
                prepared = self._write(exchange, layout, surveys, fingerprint)
            check_labels((prepared.train, prepared.val), self._request.labels)
        plans.note(fingerprint)
        return prepared

    def _parts(self) -> list[int | str | None]:
        """The part of the rows of each source: those of an explicit validation set have 0, the others 1."""
        if len(self._sources) > 1:
            return [1, 0]
        validation = self._request.validation
        return [validation if isinstance(validation, str) else 1 if validation is None else None]

    def _fingerprint(self, surveys: list[Survey], layout: tuple[Column, ...]) -> str:
        prints = [survey.fingerprint(layout) for survey in surveys]
        return self._request.fingerprint_of(prints[0], prints[1] if len(prints) > 1 else None)

    def _write(self, exchange: Exchange, layout: Layout, surveys: list[Survey], fingerprint: str) -> Prepared:
        policies = self._policies(layout, surveys)
        whole = _merged(surveys, layout.columns)
        cut = _cut(whole, self._request.validation, len(self._sources) > 1)
        val_rows = int(whole.parts[:cut].sum())
        self._check_split(whole.rows, val_rows)
        row_bytes = sum(
            whole.row_bytes(column.name) if column.stored_width is None else column.stored_width
            for column in policies.schema
        )
        files = Files.of(whole.rows - val_rows, row_bytes), Files.of(val_rows, row_bytes)
        shapes = {column.name: whole.sample(column).column for column in layout.columns}
        stores = split_stores(self._store, fingerprint)
        writing = Writing(layout, shapes, policies, stores, files, cut)
        self._accept(files[0].count * files[0].groups)
        report = self._begin("writing", whole.rows)
        written: list[Written] = self._repeat(lambda: exchange.write(writing, report))
        if rows_and_sum(written) != (whole.rows, whole.order_sum):
            raise DataError(
                f"The frame gave other rows when it was computed a second time ({rows_and_sum(written)[0]} were "
                f"written, {whole.rows} were read first), so that no dataset was made. A worker was lost, and what "
                "makes the rows is random or reads what changes: give it a seed, or write the frame to files first."
            )
        val = self._publish("val", written, policies, fingerprint) if val_rows else None
        return Prepared(self._publish("train", written, policies, fingerprint), val, fingerprint, False)

    def _policies(self, layout: Layout, surveys: list[Survey]) -> Policies:
        request = self._request
        found = _merged(surveys, layout.columns).missing()
        refuse_nulls(
            {name: Nulls(count) for name, count in found.items()},
            request.nulls,
            request.labels,
            request.added,
        )
        samples = [{column.name: survey.sample(column) for column in layout.columns} for survey in surveys]
        return plan_policies(samples, request.nulls, request.ragged, added=request.added)

    def _check_split(self, rows: int, val_rows: int) -> None:
        if self._request.validation is not None:
            check_split(self._request.validation, rows, val_rows)

    def _publish(self, split: str, written: list[Written], policies: Policies, fingerprint: str) -> Dataset:
        store = split_stores(self._store, fingerprint)[split == "val"]
        parts = of_split(written, int(split == "val"))
        total = Statistics(policies.schema)
        for part in parts:
            total.merge(part.statistics)
        manifest = Manifest(
            split,
            fingerprint,
            policies.schema,
            tuple(entry for part in parts for entry in part.entries),
            total.result(),
            {**_arguments(self._request), **policies.settings(), "source": self._engine},
            datetime.now(UTC).isoformat(),
        )
        wait_for_objects(store, written_sizes(store, manifest), f"Workers of {self._engine}")
        return Dataset(store, self._repeat(lambda: publish(store, manifest)))

    def _begin(self, phase: str, rows: int | None) -> Callable[[float], None]:
        """A phase begins, which may say nothing for long; what is returned is told the share of it that is done."""

        def report(share: float) -> None:
            if self._watch is not None:
                self._watch(phase, float(share) if rows is None else round(rows * share), rows)
            if self._progress is not None and rows is not None:
                self._progress(round(rows * share), rows)

        report(0.0)
        return report


def _sources(request: Request) -> list[FrameSource]:
    sources = [source for source in (request.source, request.val) if source is not None]
    frames = [source for source in sources if isinstance(source, FrameSource)]
    if len(frames) < len(sources) or len({source.frame.engine for source in frames}) > 1:
        kinds = [
            source.frame.engine if isinstance(source, FrameSource) else "this process" for source in sources
        ]
        raise UsageError(
            f"The training data is a frame of {kinds[0]}, the validation data of {kinds[1]}; both must be frames of "
            "the same engine. Turn one into the other's kind."
        )
    return frames


def _layout(source: FrameSource, split: str | None, sparse: bool) -> tuple[Column, ...]:
    """The columns without the one that splits, after a look at that; vectors as sparse ones if they stay so."""
    columns = source.layout()
    for column in columns:
        if column.name == split and (column.kind != "tensor" or np.dtype(column.dtype).kind not in "biu"):
            raise DataError(
                f"Column {split!r} cannot split the data: it is {column}, but must hold bools or ints, True or above 0 "
                "for rows of the validation set."
            )
    vectors = source.reading.vectors if sparse else frozenset()
    return tuple(replace(column, sparse=column.name in vectors) for column in columns if column.name != split)


def _check_alike(train: tuple[Column, ...], val: tuple[Column, ...]) -> None:
    theirs: Mapping[str, Column] = {column.name: column for column in val}
    for column in train:
        if theirs[column.name] != column:
            raise DataError(
                f"Column {column.name!r} is {column} in the training data but {theirs[column.name]} in the validation "
                "data. Give both the same dtype and shape."
            )


def _merged(surveys: list[Survey], columns: tuple[Column, ...]) -> Survey:
    whole = Survey(columns)
    for survey in surveys:
        whole.merge(survey)
    return whole


def _cut(whole: Survey, validation: float | str | None, explicit: bool) -> int:
    """Parts below are for validation; of a share, as many as come nearest to it."""
    if explicit or isinstance(validation, str):
        return 1
    if validation is None:
        return 0
    before = np.concatenate([[0], np.cumsum(whole.parts)])
    return int(np.argmin(np.abs(before[:PARTS] - whole.rows * validation)))
