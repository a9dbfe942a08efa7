"""No two trials may train the same variables; see ``training.torch.ownership``."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from hopyard.errors import EstimatorError

_claimed: WeakSet[Any] = WeakSet()


def claim(model: Any) -> None:
    """Note that a model belongs to a replica, as long as it lives.

    Raises:
        EstimatorError: it, or a layer of it that is trained, belongs, or belonged, to another.
    """
    parts = [layer for layer in model._flatten_layers() if layer is model or layer.trainable]
    for part in parts:
        if part in _claimed:
            raise EstimatorError(
                f"The estimator function returned a model whose {part.name!r} an earlier call returned too, so trials "
                "would train each other's weights; make the model inside the function, or use "
                "keras.models.clone_model(model) there."
            )
    _claimed.update(parts)
