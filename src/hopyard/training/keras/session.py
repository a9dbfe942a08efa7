"""Keras' part in a session: its names, its settings, its generator, and those of TensorFlow.

PyTorch's part is its own; JAX has no global generators.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import keras
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

_NAMES = "object_name_uids"  # how often each name was given to a layer, by which new ones are numbered


_INSTEAD = {"lr": "learning_rate=", "decay": "learning_rate=keras.optimizers.schedules.InverseTimeDecay(...)"}
_OF_KERAS_2 = re.compile(r"(?:not recognized: \{.*|unexpected keyword argument )'(lr|decay)'")


class KerasSession:
    """Every trial's layers are named, and every trial's settings begin, as in a fresh process."""

    def __init__(self, threads: int) -> None:
        self._names = global_state.get_global_attribute(_NAMES)
        self._settings = _settings()
        self._unseeded = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
        self._tensorflow = _TensorFlow(threads) if keras.backend.backend() == "tensorflow" else None
        self.reset()

    def reset(self) -> None:
        global_state.set_global_attribute(_NAMES, None)
        _set("float32", "float32", 1e-7, "channels_last")

    def seed(self, value: int) -> None:
        if self._tensorflow is not None:
            self._tensorflow.seed(value)
        _unseeded.seed(value)
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, _unseeded)

    def hint(self, error: Exception) -> str:
        match = _OF_KERAS_2.search(str(error))
        return "" if match is None else f"In Keras 3 write {_INSTEAD[match[1]]} instead of {match[1]}=."

    def close(self) -> None:
        global_state.set_global_attribute(_NAMES, self._names)
        _set(*self._settings)
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, self._unseeded)
        if self._tensorflow is not None:
            self._tensorflow.close()


def _settings() -> tuple[Any, str, float, str]:
    config = keras.config
    return config.dtype_policy(), config.floatx(), config.epsilon(), config.image_data_format()


def _set(policy: Any, floatx: str, epsilon: float, image_data_format: str) -> None:
    config = keras.config
    config.set_floatx(floatx)
    config.set_dtype_policy(policy)
    config.set_epsilon(epsilon)
    config.set_image_data_format(image_data_format)


class _Unseeded:
    """Generator of ``keras.random`` for draws without a seed; one for all sessions: traced functions keep its state."""

    def __init__(self) -> None:
        self._begin = 0
        self._generator: Any = None  # until it is used: a variable would start the devices

    def seed(self, value: int) -> None:
        self._begin = value % 933_199  # as Keras itself goes on with such a generator
        if self._generator is not None:
            state = self._generator.state
            state.assign(keras.ops.cast([self._begin, 0], state.dtype))

    def next(self, ordered: bool = True) -> Any:
        """Next seed, as of ``keras.random.SeedGenerator``."""
        if self._generator is None:
            self._generator = keras.random.SeedGenerator(self._begin, name="unseeded")
        return self._generator.next(ordered)


_unseeded = _Unseeded()


class _TensorFlow:
    """TensorFlow's generators; its threads, as long as it has not started them; and deterministic operations."""

    drawn: ClassVar[bool] = False
    """Whether an operation that runs by itself has drawn random numbers in a session since TensorFlow forgot its
    kernels, in which such operations count what they have drawn for a seed."""

    def __init__(self, threads: int) -> None:
        import tensorflow as tf
        from tensorflow.python.eager import context
        from tensorflow.python.framework import config

        self._tf, self._config = tf, config
        self._context: Any = context.context()
        if self._context._context_handle is None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        self._deterministic = config.is_op_determinism_enabled()
        self._generator = self._context._seed, getattr(self._context, "_rng", None)
        if not self._deterministic:
            config.enable_op_determinism()
        self._given: tuple[random.Random, Any] | None = (
            None  # the generator of the last seed, and how it began
        )

    def seed(self, value: int) -> None:
        self._look_whether_drawn()
        if _TensorFlow.drawn:
            self._tf.random.set_seed(value % 2**63)
            _TensorFlow.drawn = False
        else:  # the same, but functions that were traced stay ready: to forget them costs 50 to 200 ms a unit
            self._context._seed, self._context._rng = value % 2**63, random.Random(value % 2**63)
        self._given = self._context._rng, self._context._rng.getstate()

    def _look_whether_drawn(self) -> None:
        if self._given is not None:
            generator, begun = self._given
            _TensorFlow.drawn |= generator is not self._context._rng or generator.getstate() != begun

    def close(self) -> None:
        self._look_whether_drawn()
        if not self._deterministic:
            self._config.disable_op_determinism()
        self._context._seed, self._context._rng = self._generator


@contextmanager
def graphs_seeded(value: int) -> Iterator[None]:
    """Let what is random in graphs of TensorFlow that are made meanwhile, as those of ``tf.data``, follow from
    ``value``; afterwards seeds are given out as if none had been made."""
    from tensorflow.python.eager import context

    its: Any = context.context()
    before = its._seed, getattr(its, "_rng", None)
    its._seed, its._rng = value % 2**63, random.Random(value % 2**63)
    try:
        yield
    finally:
        its._seed, its._rng = before


def open_session(threads: int) -> KerasSession:
    """Open Keras's part of the session of a unit."""
    return KerasSession(threads)
