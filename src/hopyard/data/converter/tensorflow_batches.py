"""Batches as TensorFlow gets them from a converter: namedtuples, over epochs."""

from __future__ import annotations

import collections
import keyword
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import tensorflow as tf

from hopyard.data.loader import Loader
from hopyard.data.outputs.tensorflow_output import tf_dataset
from hopyard.errors import UsageError

_log = logging.getLogger("hopyard")
_said = False


def tf_batches(loader: Loader, num_epochs: int | None, prefetch: int | None) -> Any:
    """A ``tf.data.Dataset`` of namedtuples of tensors.

    Args:
        loader: with ``output="numpy"``.
        num_epochs: of an iteration. None: one, but as many as it takes where Keras counts ``steps_per_epoch``
            itself and draws all its epochs from one iteration.
        prefetch: batches made ahead; None: TensorFlow chooses.

    Raises:
        UsageError: names of columns cannot be told apart as names of fields.
        UnsupportedTypeError: TensorFlow has no type for a column.
    """
    one = tf_dataset(loader)
    columns = list(one.element_spec)  # what a transform returns may be others than those read
    batch_of = collections.namedtuple("Batch", field_names(columns))  # type: ignore[misc]
    if num_epochs is not None:
        batches = one.repeat(num_epochs)
    else:
        signature = tf.TensorSpec((), tf.int64)
        batches = tf.data.Dataset.from_generator(_epochs, output_signature=signature).flat_map(lambda _: one)
    batches = batches.map(lambda batch: batch_of(*(batch[name] for name in columns)))
    return batches if prefetch == 0 else batches.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)


def field_names(columns: Sequence[str]) -> list[str]:
    """The columns' names as names of fields: characters that are neither letters nor digits become ``_``."""
    fields = [re.sub(r"\W", "_", name) for name in columns]
    bad = [
        name
        for name, field in zip(columns, fields, strict=True)
        if not field.isidentifier()
        or keyword.iskeyword(field)
        or field.startswith("_")
        or fields.count(field) > 1
    ]
    if bad:
        raise UsageError(
            f"make_tf_dataset gives namedtuples, and the columns {', '.join(map(repr, bad))} cannot all be names of "
            "fields: these are words of letters, digits and _, and begin with a letter. Rename the columns, or leave "
            "them out with columns=[...]."
        )
    return fields


def _epochs() -> Iterator[int]:
    # Asked at once: the caller waits for the first batch now. Later, TensorFlow may read ahead of it.
    endless = _keras_counts_steps()
    yield 0
    while endless:
        _say_that_it_repeats()
        yield 0


def _say_that_it_repeats() -> None:
    global _said
    if not _said:
        _log.warning(
            "Keras was given steps_per_epoch and the converter no num_epochs, so that an epoch of Keras may begin in "
            "one epoch of the data and end in the next: the data repeats, in a new order. Without steps_per_epoch, "
            "both have the same epochs."
        )
        _said = True


def _keras_counts_steps() -> bool:
    """Whether Keras with ``steps_per_epoch`` waits for a batch now.

    Keras tells the dataset nothing, so it is read from the stacks: the innermost call of Keras on a stack that
    holds an iterator over epochs is the one that waits.
    """
    module = sys.modules.get("keras.src.trainers.epoch_iterator")
    if module is None:
        return False
    for frame in sys._current_frames().values():
        found = _iterator_in(frame, module.EpochIterator)
        if found is not None and found.steps_per_epoch:
            return True
    return False


def _iterator_in(frame: FrameType | None, kind: type) -> Any:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("keras."):
            for value in list(frame.f_locals.values()):
                if isinstance(value, kind):
                    return value
        frame = frame.f_back
    return None
