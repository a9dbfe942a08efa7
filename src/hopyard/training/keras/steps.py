"""One batch through a model: Keras' own ``train_step`` and ``test_step``, compiled once for batches of any size.

``fit`` and ``evaluate`` would do the same, but make iterators, threads and callbacks anew each time. Values that
steps return are those of Keras' metrics, which gather in the model's variables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import keras
import numpy as np

from hopyard.training import measuring
from hopyard.training.keras.state import assign

StepKind = Literal["train", "test", "predict"]
JaxState: TypeAlias = tuple[list[Any], ...]
"""Values of the trainable variables, the others, those of the optimizer (in training) and of metrics."""
_GROUP_BYTES = 8 << 20


class KerasSteps(ABC):
    """A model's steps on one of Keras' backends."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._functions: dict[Any, Callable[..., Any]] = {}

    @abstractmethod
    def run(self, kind: StepKind, batches: Iterable[tuple[Any, ...]]) -> Any:
        """Run all batches, a step each; returns the last result: of ``"predict"`` outputs, else values by name."""


class TensorFlowSteps(KerasSteps):
    """Traced once for each structure of a batch: its number of rows is left open, as ``tf.data`` does.

    Batches of one size go into a loop of TensorFlow's together: to call a function from Python takes several times
    as long as a step of a small model. XLA would compile such a loop for every number of batches, so it gets them one
    by one, as does what runs eagerly.
    """

    def run(self, kind: StepKind, batches: Iterable[tuple[Any, ...]]) -> Any:
        given = None
        if kind == "predict" or self.model.run_eagerly or self.model.jit_compile:
            for batch in batches:
                given = self._function(kind, batch, self._step)(batch)
            return given
        for group in groups(batches):
            together = keras.tree.map_structure(lambda *arrays: np.stack(arrays), *group)
            given = self._function(kind, group[0], self._loop)(together)
        return given

    def _function(
        self, kind: StepKind, batch: tuple[Any, ...], traced: Callable[..., Callable[..., Any]]
    ) -> Callable[..., Any]:
        leaves = keras.tree.flatten(batch)
        key = (kind, *((leaf.dtype, leaf.shape[1:]) for leaf in leaves))
        if key not in self._functions:
            self._functions[key] = traced(kind, batch)
        return self._functions[key]

    def _step(self, kind: StepKind, batch: tuple[Any, ...]) -> Callable[..., Any]:
        """A function of one batch like this one, with any number of rows."""
        import tensorflow as tf

        step: Any = getattr(self.model, f"{kind}_step")
        if self.model.run_eagerly:
            return lambda data: step(keras.tree.map_structure(tf.convert_to_tensor, data))
        traced = tf.function(
            step,
            input_signature=[_signature(batch, rank=1)],
            jit_compile=self.model.jit_compile,
            autograph=False,
        )
        return _quiet(traced)

    def _loop(self, kind: StepKind, batch: tuple[Any, ...]) -> Callable[..., Any]:
        """A function of any number of such batches, stacked: all steps, one after another."""
        import tensorflow as tf

        step = self._step(kind, batch)

        def loop(together: Any) -> Any:
            def at(number: Any) -> Any:
                return keras.tree.map_structure(lambda array: array[number], together)

            count = tf.shape(keras.tree.flatten(together)[0])[0]
            _, given = tf.while_loop(
                lambda number, _: number < count,
                lambda number, _: (number + 1, _without_none(step(at(number)))),
                (tf.constant(1), _without_none(step(at(0)))),
                parallel_iterations=1,
            )
            return given

        traced = tf.function(loop, input_signature=[_signature(batch, rank=2)], autograph=False)
        return _quiet(traced)


def _without_none(given: Any) -> Any:
    """The result of a user's step without its entries that are None: these cannot go through a loop."""
    if not isinstance(given, Mapping):
        return given
    return {name: _without_none(value) for name, value in given.items() if value is not None}


def _quiet(traced: Any) -> Callable[..., Any]:
    """Switch off TensorFlow's warning of frequent tracing, which takes the functions of all architectures for one."""
    traced._omit_frequent_tracing_warning = True
    quiet: Callable[..., Any] = traced
    return quiet


def _signature(batch: tuple[Any, ...], rank: int) -> Any:
    """Signature of batches like this one, with ``rank`` leading dimensions left open."""
    import tensorflow as tf

    return keras.tree.map_structure(
        lambda array: tf.TensorSpec((*[None] * rank, *array.shape[1:]), array.dtype), batch
    )


def groups(batches: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Neighbours whose arrays have equal shapes and dtypes, up to some megabytes together."""
    group: list[tuple[Any, ...]] = []
    kind_of_group, nbytes = None, 0
    for batch in batches:
        leaves = keras.tree.flatten(batch)
        kind = [(leaf.shape, leaf.dtype) for leaf in leaves]
        if group and (kind != kind_of_group or nbytes >= _GROUP_BYTES):
            yield group
            group, nbytes = [], 0
        group.append(batch)
        kind_of_group, nbytes = kind, nbytes + sum(leaf.nbytes for leaf in leaves)
    if group:
        yield group


class TorchSteps(KerasSteps):
    """PyTorch runs each operation as it comes."""

    def run(self, kind: StepKind, batches: Iterable[tuple[Any, ...]]) -> Any:
        self.model.train(kind == "train")  # for layers that are modules of PyTorch
        step = self._function(kind)
        given = None
        try:
            for batch in batches:
                given = step([keras.tree.map_structure(keras.ops.convert_to_tensor, batch)])
        finally:
            self.model.eval()
        return given

    def _function(self, kind: StepKind) -> Callable[..., Any]:
        getattr(self.model, f"make_{kind}_function")()
        function: Callable[..., Any] = getattr(self.model, f"{kind}_function")
        return function


class JaxSteps(KerasSteps):
    """State goes through compiled functions, and comes back to the model's variables at the end.

    Attributes:
        seconds_to_compile: CPU time of the first training step; 0: there was none.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.seconds_to_compile: float = 0.0

    def run(self, kind: StepKind, batches: Iterable[tuple[Any, ...]]) -> Any:
        state, given = self.state(kind), None
        for batch in batches:
            check_width(batch)
            given, state = self.step(kind, state, batch)
        self.put(kind, state)
        return given

    def state(self, kind: StepKind) -> JaxState:
        """The values that the variables have, for a step."""
        return tuple([variable.value for variable in group] for group in self.variables(kind))

    def put(self, kind: StepKind, state: JaxState) -> None:
        """Give the variables the values that a step came to."""
        for group, values in zip(self.variables(kind), state, strict=True):
            assign(group, values)

    def step(self, kind: StepKind, state: JaxState, batch: tuple[Any, ...]) -> tuple[Any, JaxState]:
        """Result and state of a step on one batch. The memory of ``state`` goes to the new one."""
        step = self._function(kind)
        if kind != "train" or self.seconds_to_compile:
            done: tuple[Any, JaxState] = step(state, iter([batch]))
            return done
        begun = measuring.clock()
        done = step(state, iter([batch]))
        self.seconds_to_compile = measuring.clock() - begun
        return done

    def program(self, result: Any) -> Callable[[JaxState, tuple[Any, ...]], tuple[Any, JaxState]]:
        """A training step of several models on one batch, as one program: with their states stacked, as are results.

        A branch is a border that XLA fuses nothing across, so what it makes of a step is what it makes of one alone.

        Args:
            result: of a step of one model.
        """
        import jax

        step = self.model.train_step
        nothing = jax.tree.map(jax.numpy.zeros_like, result)

        def steps(states: JaxState, batch: tuple[Any, ...], goes: Any) -> Any:
            def of_one(state: JaxState) -> Any:
                return jax.lax.cond(goes, step, lambda state, _: (nothing, state), state, batch)

            return jax.lax.map(of_one, states)

        compiled, goes = jax.jit(steps, donate_argnums=0), jax.numpy.asarray(True)
        return lambda states, batch: compiled(states, batch, goes)

    def _function(self, kind: StepKind) -> Callable[..., Any]:
        """Keras' own function; the model that users get makes another, whose losses are not noted."""
        if kind not in self._functions:
            getattr(self.model, f"make_{kind}_function")(force=True)
            self._functions[kind] = getattr(self.model, f"{kind}_function")
            setattr(self.model, f"{kind}_function", None)
        return self._functions[kind]

    def variables(self, kind: StepKind) -> list[list[Any]]:
        """The variables of a state."""
        model = self.model
        groups = [model.trainable_variables, model.non_trainable_variables]
        if kind == "train":
            groups.append(model.optimizer.variables)
        return groups if kind == "predict" else [*groups, model.metrics_variables]


def check_width(batch: tuple[Any, ...]) -> None:
    """
    Raises:
        DataError: a number needs more bits than JAX has.
    """
    from hopyard.data.outputs.jax_output import check_narrow

    for path, values in keras.tree.flatten_with_path(batch):
        check_narrow(_name_of(path), values)


def _name_of(path: tuple[Any, ...]) -> str:
    """The column, or the part of a batch, that Keras finds at this path."""
    names = [str(part) for part in path if isinstance(part, str)]
    return ".".join(names) or ("features", "label", "weight")[path[0] if path else 0]


def steps_of(model: Any) -> KerasSteps:
    """The steps on the backend that Keras runs on."""
    kinds: dict[str, type[KerasSteps]] = {"tensorflow": TensorFlowSteps, "torch": TorchSteps, "jax": JaxSteps}
    return kinds[keras.backend.backend()](model)
