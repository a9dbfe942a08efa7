"""``prepare``: rows from anywhere as a dataset in a store, shuffled once and split.

A dataset's fingerprint is the digest of the source's content and the arguments that shape the
files; it is also the name of the dataset's folder, so that the same data with the same arguments
is found again and reused. Files are named by content and the training manifest is written last:
a preparation that was killed left nothing that is believed, and is done again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from hopyard.data.columns.columns import ColumnData
from hopyard.data.columns.policies import plan_policies
from hopyard.data.preparing.exchange import FrameSource
from hopyard.data.preparing.preparation import Preparation, Repeat, known_fingerprint
from hopyard.data.preparing.prepared import Prepared
from hopyard.data.preparing.request import Watch, request_of
from hopyard.data.ragged import Ragged
from hopyard.storage import open_store
from hopyard.storage.base import Store
from hopyard.storage.waiting import wait_for_store

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
    """Write ``data`` into ``store`` as a training and a validation set, or find the dataset that was written before.

    Args:
        data: see :func:`hopyard.data.as_source`.
        store: or its path or URL.
        validation: a share of the rows in (0, 1), drawn by ``seed``; the name of a bool or int column (True
            or above 0: validation; the column itself is dropped); a second frame or the like; None: no set.
        feature_columns, label_columns: only these are kept, if either is given; else all columns are.
        seed: of the order in which rows are stored, and of the split by share.
        nulls: ``"error"``, ``"fill"`` or ``"mask"``; ragged: ``"error"``, ``"keep"`` or ``"pad"``;
            see :mod:`hopyard.data.columns.policies`.
        val: an explicit validation set, of the same columns; ``validation`` is then ignored.
        progress: called with (rows written, rows in all) as they are.
        masked: columns whose nulls are filled and marked in a bool column ``<name>_mask``, under any ``nulls``.
        compress_sparse: keep the vectors of Spark ML in a Spark DataFrame sparse in the files; batches are dense.
        wait: if given, a full store, or one that does not answer, pauses the preparation; see
            :func:`hopyard.storage.waiting.wait_for_store`.
        announce: called with a message about such a pause.
        accept: called with the number of row groups that training data will have, before anything is written;
            an error that it raises ends the preparation.
        watch: called with the phase (``"reading"``: the source's rows are digested; ``"writing"``: row groups),
            rows done, and rows in all (None while unknown), many times a file. Reading begins again with a
            validation source, and with a source that does not fit in memory and is now wanted as a whole. While a
            cluster reads its frame, a float stands for the rows: the share of its tasks that are done.

    Raises:
        DataError: the data breaks a rule, or validation leaves a set empty; ColumnError: unknown columns.
        SettingsError: the store's explicit train_path or val_path holds another dataset.
        CorruptError: a file of the source is damaged.
        StorageFullError: no space is left; files that are written are found again by the next attempt.
    """
    request = request_of(
        data, validation, feature_columns, label_columns, seed, nulls, ragged, val, compress_sparse, masked
    )
    preparation = Preparation(request, open_store(store), _repeat(wait, announce), progress, accept, watch)
    return preparation.run()


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
    return lambda action: wait_for_store(action, announce, wait)
