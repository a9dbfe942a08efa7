"""One batch through a model: Keras' own ``train_step`` and ``test_step``, compiled once for batches of any size.

``fit`` and ``evaluate`` would do the same, but make iterators, threads and callbacks anew each time. Values that
steps return are those of Keras' metrics, which gather in the model's variables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Literal

import keras

from hopyard.training.keras.state import assign

Kind = Literal["train", "test", "predict"]


class Steps(ABC):
    """A model's steps on one of Keras' backends."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._functions: dict[Any, Callable[..., Any]] = {}

    @abstractmethod
    def run(self, kind: Kind, batches: Iterable[tuple[Any, ...]]) -> Any:
        """All batches, one step each. What the last step gave: of ``"predict"`` the outputs, else values by name."""


class TensorFlowSteps(Steps):
    """Traced once for each structure of a batch: its number of rows is left open, as ``tf.data`` does."""

    def run(self, kind: Kind, batches: Iterable[tuple[Any, ...]]) -> Any:
        given = None
        for batch in batches:
            given = self._function(kind, batch)(batch)
        return given

    def _function(self, kind: Kind, batch: tuple[Any, ...]) -> Callable[..., Any]:
        leaves = keras.tree.flatten(batch)
        key = (kind, *((leaf.dtype, leaf.shape[1:]) for leaf in leaves))
        if key not in self._functions:
            self._functions[key] = self._traced(kind, batch)
        return self._functions[key]

    def _traced(self, kind: Kind, batch: tuple[Any, ...]) -> Callable[..., Any]:
        import tensorflow as tf

        step: Any = getattr(self.model, f"{kind}_step")
        if self.model.run_eagerly:
            return lambda data: step(keras.tree.map_structure(tf.convert_to_tensor, data))
        spec = keras.tree.map_structure(lambda a: tf.TensorSpec((None, *a.shape[1:]), a.dtype), batch)
        traced: Callable[..., Any] = tf.function(
            step, input_signature=[spec], jit_compile=self.model.jit_compile, autograph=False
        )
        return traced


class TorchSteps(Steps):
    """PyTorch runs each operation as it comes."""

    def run(self, kind: Kind, batches: Iterable[tuple[Any, ...]]) -> Any:
        self.model.train(kind == "train")  # for layers that are modules of PyTorch
        step = self._function(kind)
        given = None
        try:
            for batch in batches:
                given = step([keras.tree.map_structure(keras.ops.convert_to_tensor, batch)])
        finally:
            self.model.eval()
        return given

    def _function(self, kind: Kind) -> Callable[..., Any]:
        getattr(self.model, f"make_{kind}_function")()
        function: Callable[..., Any] = getattr(self.model, f"{kind}_function")
        return function


class JaxSteps(Steps):
    """State goes through compiled functions, and comes back to the model's variables at the end."""

    def run(self, kind: Kind, batches: Iterable[tuple[Any, ...]]) -> Any:
        getattr(self.model, f"make_{kind}_function")()
        step = getattr(self.model, f"{kind}_function")
        groups = self._variables(kind)
        state = tuple([variable.value for variable in group] for group in groups)
        given = None
        for batch in batches:
            given, state = step(state, iter([batch]))
        for group, values in zip(groups, state, strict=True):
            assign(group, values)
        return given

    def _variables(self, kind: Kind) -> list[list[Any]]:
        model = self.model
        groups = [model.trainable_variables, model.non_trainable_variables]
        if kind == "train":
            groups.append(model.optimizer.variables)
        return groups if kind == "predict" else [*groups, model.metrics_variables]


def steps_of(model: Any) -> Steps:
    """The steps on the backend that Keras runs on."""
    kinds: dict[str, type[Steps]] = {"tensorflow": TensorFlowSteps, "torch": TorchSteps, "jax": JaxSteps}
    return kinds[keras.backend.backend()](model)
