"""Keras' callbacks in a search: they see epochs as a whole, wherever the parts of these were trained.

What a callback keeps in attributes hops with the trial, pickled: ``ReduceLROnPlateau`` counts on.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hopyard.errors import EstimatorError
from hopyard.objects import Tensor
from hopyard.objects.pickles import dumps

_INSTEAD = {
    "EarlyStopping": "give the search patience=",
    "ModelCheckpoint": "the search keeps weights, see keep=",
    "BackupAndRestore": "a search resumes by itself",
    "TensorBoard": "give the search logdir=",
    "CSVLogger": "run.export(...) writes histories",
    "SwapEMAWeights": "averages that the optimizer keeps are validated and given out",
    "TerminateOnNaN": "a trial whose loss is not finite fails by itself",
}
_OF_BATCHES = tuple(
    f"on_{phase}batch_{when}" for phase in ("", "train_", "test_", "predict_") for when in ("begin", "end")
)
_OF_KERAS = {"_model", "model", "params", "validation_data"}


def check_callbacks(callbacks: Any) -> list[Any]:
    """
    Raises:
        EstimatorError: one of them is no callback, or needs what a search has no place for.
    """
    import keras

    found = list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
    for callback in found:
        kind = type(callback)
        if not isinstance(callback, keras.callbacks.Callback):
            raise EstimatorError(
                f"callbacks holds {callback!r}, but must be a list of keras.callbacks.Callback."
            )
        for cls in kind.__mro__:
            if cls.__name__ in _INSTEAD and cls.__module__.startswith("keras."):
                raise EstimatorError(
                    f"callbacks holds {kind.__name__}, which has no place in a search: {_INSTEAD[cls.__name__]}. Take "
                    "it out."
                )
        of_batches = [name for name in _OF_BATCHES if not hasattr(getattr(callback, name), "_is_default")]
        if of_batches:
            raise EstimatorError(
                f"The callback {kind.__name__} has {of_batches[0]}, but callbacks see whole epochs: on_train_begin, "
                "on_epoch_begin and on_epoch_end. Do what belongs to a batch in the model's train_step."
            )
    return found


class _Params(dict[str, Any]):
    """Parameters that Keras gives to a callback; notes whether the callback asks for the number of epochs."""

    asked = False

    def __getitem__(self, name: str) -> Any:
        self.asked |= name == "epochs"
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked |= name == "epochs"
        return super().get(name, default)


class Callbacks:
    """The callbacks of one trial."""

    def __init__(self, callbacks: Sequence[Any], model: Any, num_epochs: int) -> None:
        self._callbacks = list(callbacks)
        for callback in self._callbacks:
            callback.set_params(_Params(verbose=0, epochs=num_epochs, steps=None))
            callback.set_model(model)
            callback.on_train_begin({})

    def begin_epoch(self, model: Any, epoch: int, logs: Mapping[str, float]) -> None:
        """Tell of the epoch that has ended, and of the one that begins.

        Args:
            logs: of the last epoch, as Keras names them; empty if there was none.

        Raises:
            EstimatorError: one of them stops the training.
        """
        for callback in self._callbacks:
            callback.set_model(model)
            if logs:
                callback.on_epoch_end(epoch - 1, dict(logs))
            if getattr(model, "stop_training", False):
                raise EstimatorError(
                    f"The callback {type(callback).__name__} set stop_training, but whether a trial goes on is decided "
                    "by the search: give it patience=, or use ASHA."
                )
            callback.on_epoch_begin(epoch, {})

    def asks_epochs(self) -> str:
        """A callback that asked for the number of epochs so far, in words; empty: none."""
        asking = [type(callback).__name__ for callback in self._callbacks if callback.params.asked]
        return f"the callback {asking[0]} uses params['epochs']" if asking else ""

    def state(self) -> list[Tensor]:
        """Attributes of each callback, as a pickle; without values that cannot be pickled."""
        return [
            Tensor.from_numpy(np.frombuffer(_pickled(callback), np.uint8)) for callback in self._callbacks
        ]

    def load(self, state: Sequence[Tensor]) -> None:
        """Take over the attributes that ``state`` gave."""
        for callback, kept in zip(self._callbacks, state, strict=False):
            vars(callback).update(pickle.loads(kept.numpy().tobytes()))


def _pickled(callback: Any) -> bytes:
    kept = {name: value for name, value in vars(callback).items() if name not in _OF_KERAS}
    try:
        return dumps(kept)
    except Exception:  # what an attribute raises is its own affair
        return dumps({name: value for name, value in kept.items() if _can_be_pickled(value)})


def _can_be_pickled(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


def logs_of(history: Mapping[str, float]) -> dict[str, float]:
    """Values of an epoch by the names that Keras has for them: ``loss``, ``acc``, ``val_loss``, ..."""
    return {name.removeprefix("train_"): value for name, value in history.items()}
