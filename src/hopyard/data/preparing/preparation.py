"""One preparation: rows from anywhere become the files of a dataset, and its manifests.

First all rows are read once, by this process or by an engine's workers, and kept. From the survey of them follow the
fingerprint, the policies, the split, and the number of files; then every file's rows are brought together and
written. The stored bytes are a function of the rows and the arguments: the order, the kind of source, the
partitions, the workers and the engine do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopyard.data.columns.policies import Nulls, Policies, plan_policies, refuse_nulls
from hopyard.data.dataset import Dataset
from hopyard.data.files.unfinished import written_sizes
from hopyard.data.manifest import Manifest
from hopyard.data.preparing.exchange import Exchange, FrameSource
from hopyard.data.preparing.files import SplitFiles, Writing, Written, of_split, rows_and_sum
from hopyard.data.preparing.here import HereExchange
from hopyard.data.preparing.packing import PackedLayout, Packing
from hopyard.data.preparing.plans import PlanIndex
from hopyard.data.preparing.prepared import Prepared, check_labels, find_prepared, publish, split_stores
from hopyard.data.preparing.request import Request, Watch
from hopyard.data.preparing.split import check_flags, check_split
from hopyard.data.preparing.statistics import Statistics
from hopyard.data.preparing.survey import Survey
from hopyard.data.schema import Column
from hopyard.errors import DataError, UsageError
from hopyard.storage.base import Store
from hopyard.storage.visible import wait_for_objects

Repeat = Callable[[Callable[[], Any]], Any]
"""Runs a write until the store takes it; see ``storage.waiting``."""


def known_fingerprint(request: Request, store: Store) -> str | None:
    """Fingerprint of the dataset that the same plans with the same arguments gave before; None if it is not known."""
    return _plans(request, store).fingerprint()


def _plans(request: Request, store: Store) -> PlanIndex:
    return PlanIndex(store, [source.frame for source in _frames(request)], _arguments(request))


def _arguments(request: Request) -> dict[str, object]:
    features, labels = request.columns
    return {"feature_columns": features, "label_columns": labels, **request.settings()}


class Preparation:
    """One preparation.

    Args:
        request: of ``prepare``.
        repeat: runs a write until there is space for it.
        progress: called with (rows written, rows in all).
        accept: called with the number of row groups of training data before anything is written.
        watch: called with the phase, rows done, and rows in all; while an engine reads them, with the share of its
            tasks that are done, as a float, and None.
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
        self._frames = _frames(request)
        self._store = store
        self._repeat = repeat
        self._progress = progress
        self._accept = accept
        self._watch = watch
        if self._frames and not store.shared:
            engine = self._frames[0].frame.engine
            raise UsageError(
                f"{store.url} is a store of this process alone, but the workers of {engine} write the files. Give a "
                "store that all of them reach, such as a shared folder or a bucket."
            )

    def run(self) -> Prepared:
        """The dataset, found or written."""
        request = self._request
        with request.watched(self._watch):
            if found := self._known():
                return found
            # Where rows are kept on their way there may be nothing but the data's own folders.
            spool = self._store.train_data.staging()
            exchange = self._engines(spool) if self._frames else self._here(spool)
        with closing(exchange):
            surveys = self._surveys(exchange)
            fingerprint = self._fingerprint(surveys)
            prepared = find_prepared(self._store, fingerprint, request.settings())
            if prepared is None:
                prepared = self._write(exchange, surveys, fingerprint)
            check_labels((prepared.train, prepared.val), request.labels)
        if self._frames:
            _plans(request, self._store).note(fingerprint)
        return prepared

    def _known(self) -> Prepared | None:
        """The dataset, if it can be found before the rows are kept."""
        request = self._request
        fingerprint = known_fingerprint(request, self._store) if self._frames else request.fingerprint()
        if fingerprint is None or not (found := find_prepared(self._store, fingerprint, request.settings())):
            return None
        check_labels((found.train, found.val), request.labels)
        return found

    @property
    def _parts(self) -> list[int | str | float]:
        """``part`` of each source, see ``Packing``: 0 for an explicit validation set, 1 for the data beside it."""
        validation = self._request.validation
        return [1, 0] if self._request.val is not None else [1 if validation is None else validation]

    def _here(self, spool: Path | None) -> Exchange:
        collected = [each for each in self._request.collect(spool) if each is not None]
        return HereExchange(collected, self._parts, self._request.seed)

    def _engines(self, folder: Path | None) -> Exchange:
        request, sparse = self._request, self._request.compress_sparse
        layouts = [_layout(source, request.split_column, sparse) for source in self._frames]
        if len(layouts) > 1:
            _check_alike(*layouts)
        layout = PackedLayout(layouts[0])  # of both: one may have its columns in another order
        packings = [
            (
                source.frame,
                source.types,
                Packing(replace(source.reading, sparse=sparse), layout, part, request.seed),
            )
            for source, part in zip(self._frames, self._parts, strict=True)
        ]
        return self._frames[0].frame.exchange(packings, folder)

    def _surveys(self, exchange: Exchange) -> list[Survey]:
        """Surveys of the sources, one each."""
        report = self._begin("reading", None) if self._frames else lambda share: None
        found: list[list[Survey]] = self._repeat(lambda: exchange.survey(report))
        return [self._merged(each).checked(self._request.split_column) for each in found]

    def _merged(self, surveys: Sequence[Survey]) -> Survey:
        whole = Survey(self._parts[0] if isinstance(self._parts[0], float) else None)
        for survey in surveys:
            whole.merge(survey)
        return whole

    def _fingerprint(self, surveys: list[Survey]) -> str:
        if not self._frames and (known := self._request.fingerprint()) is not None:
            return known
        prints = [survey.content.fingerprint() for survey in surveys]
        return self._request.fingerprint_of(prints[0], prints[1] if len(prints) > 1 else None)

    def _write(self, exchange: Exchange, surveys: list[Survey], fingerprint: str) -> Prepared:
        request = self._request
        names = [name for name in surveys[0].content.found if name != request.split_column]
        policies = self._policies(names, surveys)
        whole = self._merged(surveys)
        cut, val_rows = whole.split.cut(explicit=request.val is not None or request.split_column is not None)
        rows = whole.content.rows
        if request.validation is not None:
            check_split(request.validation, rows, val_rows)
        row_bytes = sum(
            whole.row_bytes(column.name) if column.stored_width is None else column.stored_width
            for column in policies.schema
        )
        files = SplitFiles.of(rows - val_rows, row_bytes), SplitFiles.of(val_rows, row_bytes)
        shapes = {name: data.column for name, data in whole.samples(names).items()}
        layout = PackedLayout(tuple(whole.content.found[name].column for name in names))
        stores = split_stores(self._store, fingerprint)
        writing = Writing(layout, shapes, policies, stores, files, cut)
        self._accept(files[0].count * files[0].groups)
        report = self._begin("writing", rows)
        written: list[Written] = self._repeat(lambda: exchange.write(writing, report))
        if rows_and_sum(written) != (rows, whole.order_sum):
            raise DataError(
                f"The frame gave other rows when it was computed a second time ({rows_and_sum(written)[0]} were "
                f"written, {rows} were read first), so that no dataset was made. A worker was lost, and what "
                "makes the rows is random or reads what changes: give it a seed, or write the frame to files first."
            )
        val = self._publish("val", written, policies, fingerprint) if val_rows else None
        return Prepared(self._publish("train", written, policies, fingerprint), val, fingerprint, False)

    def _policies(self, names: list[str], surveys: list[Survey]) -> Policies:
        request = self._request
        found = {name: [survey.content.found[name] for survey in surveys] for name in names}
        nulls = {
            name: Nulls(
                sum(each.missing for each in its), next((each.first for each in its if each.first), ())
            )
            for name, its in found.items()
            if any(each.missing for each in its)
        }
        refuse_nulls(nulls, request.nulls, request.labels, request.added)
        samples = [survey.samples(names) for survey in surveys]
        return plan_policies(samples, request.nulls, request.ragged, added=request.added)

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
            tuple(part.entry for part in parts),
            total.result(),
            {**_arguments(self._request), **policies.settings()},
            datetime.now(UTC).isoformat(),
        )
        if self._frames:
            wait_for_objects(
                store, written_sizes(store, manifest), f"Workers of {self._frames[0].frame.engine}"
            )
        return Dataset(store, self._repeat(lambda: publish(store, manifest)))

    def _begin(self, phase: str, rows: int | None) -> Callable[[float], None]:
        """Begin a phase, which may say nothing for long; returns a function that takes the share of it that is done."""

        def report(share: float) -> None:
            if self._watch is not None:
                self._watch(phase, float(share) if rows is None else round(rows * share), rows)
            if self._progress is not None and rows is not None:
                self._progress(round(rows * share), rows)

        report(0.0)
        return report


def _frames(request: Request) -> list[FrameSource]:
    """The sources, if they are frames of a cluster; none if they are read by this process."""
    sources = [source for source in (request.source, request.val) if source is not None]
    frames = [source for source in sources if isinstance(source, FrameSource)]
    kinds = [source.frame.engine if isinstance(source, FrameSource) else "this process" for source in sources]
    if len(set(kinds)) > 1 and isinstance(request.source, FrameSource):
        raise UsageError(
            f"The training data is a frame of {kinds[0]}, the validation data of {kinds[1]}; both must be frames of "
            "the same engine. Turn one into the other's kind."
        )
    return frames if isinstance(request.source, FrameSource) else []


def _layout(source: FrameSource, split: str | None, sparse: bool) -> tuple[Column, ...]:
    """The columns without the one that splits, after a look at that; vectors as sparse ones if they stay so."""
    columns = source.layout()
    for column in columns:
        if column.name == split:
            check_flags(column)
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
