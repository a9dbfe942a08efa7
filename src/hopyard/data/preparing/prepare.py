"""``prepare``: rows from anywhere as a dataset in a store, shuffled once and split.

A dataset's fingerprint is the digest of the source's content and the arguments that shape the
files; it is also the name of the dataset's folder, so that the same data with the same arguments
is found again and reused. Files are named by content and the training manifest is written last:
a preparation that was killed left nothing that is believed, and is done again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.dataset import Dataset
from hopyard.data.frames.base import FrameSource
from hopyard.data.frames.packing import content_hashes
from hopyard.data.frames.preparing import FramePreparation, known_fingerprint
from hopyard.data.manifest import Manifest
from hopyard.data.order import permutation
from hopyard.data.preparing.policies import Policies, plan_policies
from hopyard.data.preparing.prepared import Prepared, check_labels, find_prepared, publish, split_stores
from hopyard.data.preparing.request import Request, Watch, request_of
from hopyard.data.preparing.split import Split, split_rows, warn_of_equal
from hopyard.data.preparing.write import Repeat, SplitWriter
from hopyard.data.ragged import Ragged
from hopyard.data.sources.collect import Collected
from hopyard.data.sources.columns import ColumnData, as_expected
from hopyard.storage import open_store
from hopyard.storage.base import Store
from hopyard.storage.full import wait_for_space

_log = logging.getLogger("hopyard")


def prepare(
    data: Any,
    store: Store | str | os.PathLike[str],
    validation: Any = 0.25,
    feature_columns: str | Sequence[str] | None = None,
    label_columns: str | Sequence[str] | None = None,
    seed: int = 0,
    nulls: str = "error",
    ragged: str = "error",
    val: Any = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    masked: Sequence[str] = (),
    compress_sparse: bool = False,
    wait: Callable[[float], bool] | None = None,
    announce: Callable[[str], None] = _log.warning,
    accept: Callable[[int], None] = lambda groups: None,
    watch: Watch | None = None,
) -> Prepared:
    """Write ``data`` into ``store`` as a training and a validation set, or find what was written before.

    Args:
        data: see :func:`hopyard.data.as_source`.
        store: or its path or URL.
        validation: a share of the rows in (0, 1), drawn by ``seed``; the name of a bool or int column (True
            or above 0: validation; the column itself is dropped); a second frame or the like; None: no set.
        feature_columns, label_columns: only these are kept, if either is given; else all columns are.
        seed: of the order in which rows are stored, and of the split by share.
        nulls: ``"error"``, ``"fill"`` or ``"mask"``; ragged: ``"error"``, ``"keep"`` or ``"pad"``;
            see :mod:`hopyard.data.preparing.policies`.
        val: an explicit validation set, of the same columns; ``validation`` is then ignored.
        progress: called with (rows written, rows in all) after each file.
        masked: columns whose nulls are filled and marked in a bool column ``<name>_mask``, whatever ``nulls`` says.
        compress_sparse: keep the vectors of Spark ML in a Spark DataFrame sparse in the files; batches are dense.
        wait: if given, a full store pauses the preparation; see :func:`hopyard.storage.full.wait_for_space`.
        announce: called with what to know about such a pause.
        accept: called with the number of row groups that training data will have, before anything is written;
            what it raises ends the preparation.
        watch: called with the phase (``"reading"``: the source's rows are digested; ``"writing"``: row groups),
            rows done, and rows in all (None while unknown), many times a file. Reading begins again with a
            validation source, and with a source that does not fit in memory and is now wanted as a whole. While a
            cluster reads its frame, a float stands for the rows: the share of its tasks that are done.

    Raises:
        DataError: the data breaks a rule, or validation leaves a set empty; ColumnError: unknown columns.
        SettingsError: the store's explicit train_path or val_path holds another dataset.
        CorruptError: a file of the source is damaged.
        StorageFullError: no space is left; what is written is found again by the next attempt.
    """
    request = request_of(
        data, validation, feature_columns, label_columns, seed, nulls, ragged, val, compress_sparse, masked
    )
    store = open_store(store)
    repeat = _repeat(wait, announce)
    if isinstance(request.source, FrameSource):
        return FramePreparation(request, store, repeat, progress, accept, watch).run()
    with request.watched(watch):
        fingerprint = request.fingerprint()
        if fingerprint is not None and (found := find_prepared(store, fingerprint, request.settings())):
            check_labels((found.train, found.val), request.labels)
            return found
        spool = store.train_data.staging()  # where there may be nothing but the data's own folders
        collected, collected_val = request.collect(spool)
        fingerprint = request.fingerprint()
    assert fingerprint is not None
    if found := find_prepared(store, fingerprint, request.settings()):
        check_labels((found.train, found.val), request.labels)
        return found
    return _Preparation(request, store, fingerprint, repeat, progress, accept, watch).run(
        collected, collected_val
    )


def dataset_fingerprint(
    data: Any,
    validation: Any = 0.25,
    feature_columns: str | Sequence[str] | None = None,
    label_columns: str | Sequence[str] | None = None,
    seed: int = 0,
    nulls: str = "error",
    ragged: str = "error",
    val: Any = None,
    store: Store | None = None,
    masked: Sequence[str] = (),
) -> str | None:
    """The fingerprint of the dataset that ``prepare`` would make, without making it; None for one-shot sources, and
    for frames of a cluster unless ``store`` knows what became of the same plan."""
    request = request_of(
        data, validation, feature_columns, label_columns, seed, nulls, ragged, val, masked=masked
    )
    if isinstance(request.source, FrameSource) and store is not None:
        return known_fingerprint(request, store)
    return request.fingerprint()


def peek(
    data: Any,
    rows: int,
    validation: Any = 0.25,
    feature_columns: str | Sequence[str] | None = None,
    label_columns: str | Sequence[str] | None = None,
    nulls: str = "error",
    ragged: str = "error",
    masked: Sequence[str] = (),
) -> dict[str, npt.NDArray[Any] | Ragged]:
    """The first rows as a batch of the dataset that ``prepare`` would make of them with these arguments.

    One-shot sources must be given as a ``Source``; these rows then go on into preparation.
    """
    request = request_of(
        data, validation, feature_columns, label_columns, 0, nulls, ragged, None, masked=masked
    )
    columns = dict(request.source.head_columns(rows))
    known = request.source.known_columns()
    whole = dict(known or columns)  # later rows may be longer, or null
    seen = len(next(iter(columns.values()), ()))
    among = f"of the first {seen}" if known is None and seen >= rows else ""
    if isinstance(request.validation, str):
        del columns[request.validation], whole[request.validation]
    numbered = request.source.numbered
    policies = plan_policies([whole], nulls, ragged, request.labels, request.added, numbered, among)
    values = policies.apply(columns)
    return {
        column.name: ColumnData(column.name, column.kind, values[column.name]).as_batch()
        for column in policies.schema
    }


def _repeat(wait: Callable[[float], bool] | None, announce: Callable[[str], None]) -> Repeat:
    if wait is None:
        return lambda action: action()
    return lambda action: wait_for_space(action, announce, wait)


def _each_as_other(
    train: Mapping[str, ColumnData], val: Mapping[str, ColumnData]
) -> tuple[dict[str, ColumnData], dict[str, ColumnData]]:
    """Both sets, where columns of one that hold no value are those of the other."""
    val = {
        name: as_expected(data, train[name].column) if name in train else data for name, data in val.items()
    }
    return {name: as_expected(data, val[name].column) for name, data in train.items()}, val


class _Preparation:
    """One preparation, after it is known to be needed."""

    def __init__(
        self,
        request: Request,
        store: Store,
        fingerprint: str,
        repeat: Repeat,
        progress: Callable[[int, int], None] | None,
        accept: Callable[[int], None],
        watch: Watch | None,
    ) -> None:
        self._accept = accept
        self._watch = watch
        self._request = request
        self._stores = split_stores(store, fingerprint)
        self._fingerprint = fingerprint
        self._repeat = repeat
        self._progress = progress
        self._done = 0
        self._total = 0

    def run(self, collected: Collected, collected_val: Collected | None) -> Prepared:
        request = self._request
        columns = dict(collected.columns or {})
        val_columns = None if collected_val is None else collected_val.columns
        if val_columns is None:
            split = split_rows(columns, request.validation, request.seed)
        else:
            columns, val_columns = _each_as_other(columns, val_columns)
            val_order = permutation(len(next(iter(val_columns.values()))), request.seed)
            split = Split(permutation(collected.rows, request.seed), val_order)
        if isinstance(request.validation, str):
            del columns[request.validation]
        policies = plan_policies(
            [columns] if val_columns is None else [columns, val_columns],
            request.nulls,
            request.ragged,
            request.labels,
            request.added,
        )
        if val_columns is not None:
            warn_of_equal(
                content_hashes(columns), content_hashes({name: val_columns[name] for name in columns})
            )
        self._total = len(split.train) + (0 if split.val is None else len(split.val))
        train_writer = self._writer("train", columns, split.train, policies)
        self._accept(train_writer.num_row_groups)
        val = None
        if split.val is not None:
            val = self._write(
                "val", self._writer("val", val_columns or columns, split.val, policies), policies
            )
        return Prepared(self._write("train", train_writer, policies), val, self._fingerprint, False)

    def _writer(
        self, split: str, columns: Mapping[str, ColumnData], rows: npt.NDArray[np.int64], policies: Policies
    ) -> SplitWriter:
        return SplitWriter(
            columns,
            rows,
            policies,
            self._stores[split == "val"],
            self._report,
            self._watched(split, len(rows)),
        )

    def _watched(self, split: str, rows: int) -> Callable[[int], None] | None:
        """Validation data is written first."""
        watch = self._watch
        before = 0 if split == "val" else self._total - rows
        return None if watch is None else lambda written: watch("writing", before + written, self._total)

    def _write(self, split: str, writer: SplitWriter, policies: Policies) -> Dataset:
        store = self._stores[split == "val"]
        files, statistics = writer.write(self._repeat)
        features, labels = self._request.columns
        manifest = Manifest(
            split,
            self._fingerprint,
            policies.schema,
            files,
            statistics,
            {
                **self._request.settings(),
                **policies.settings(),
                "feature_columns": features,
                "label_columns": labels,
                "source": self._request.source.fingerprint(),
            },
            datetime.now(UTC).isoformat(),
        )
        return Dataset(store, self._repeat(lambda: publish(store, manifest)))

    def _report(self, rows: int) -> None:
        self._done += rows
        if self._progress is not None:
            self._progress(self._done, self._total)
