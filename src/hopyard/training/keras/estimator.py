"""KerasEstimator, which a user's function returns for a Keras 3 model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hopyard.checks import integer
from hopyard.errors import EstimatorError
from hopyard.training.estimator import ClassWeight, Context, Estimator, Inputs, Replica
from hopyard.training.keras.callbacks import check_callbacks
from hopyard.training.keras.weights import class_table
from hopyard.training.transforms import BatchTransform
from hopyard.wording import brief, unstyled

if TYPE_CHECKING:
    import keras


_OF_KERAS = {
    "f1": "keras.metrics.F1Score(average='macro', threshold=0.5), for labels of one number or one-hot ones,",
    "r2": "keras.metrics.R2Score()",
    "rmse": "keras.metrics.RootMeanSquaredError()",
}
"""Metrics by the names that they have with PyTorch, whose names with Keras are other ones."""


class KerasEstimator(Estimator):
    """A Keras 3 model with all that training it takes, on the backend that Keras runs on (``KERAS_BACKEND``).

    Columns are bound to the model's inputs by name if all inputs are called like columns, else in order; label
    columns to its outputs likewise. Numbers come as arrays (n, ...): floating ones as float32, others as stored;
    Keras casts them to each input's dtype.

    Args:
        model: a keras.Model (Functional, Sequential or a class of your own), made inside the function.
        optimizer: of keras.optimizers, or its name; None: the one that the model was compiled with.
        loss: as in ``model.compile``; None: the one that the model was compiled with.
        metrics: as in ``model.compile``: names, functions, objects of keras.metrics, or by output. Their variables
            must add up over parts of the data, as those of keras.metrics do.
        batch_size: rows of a batch.
        custom_objects: functions and classes by the names that loss, metrics or optimizer call them.
        loss_weights: as in ``model.compile``.
        weighted_metrics: as in ``model.compile``.
        callbacks: of keras.callbacks, which see whole epochs: ``on_train_begin``, ``on_epoch_begin`` and, when the
            next epoch begins, ``on_epoch_end`` with the values of the whole epoch. What they keep in attributes hops
            with the trial.
        model_update_fn: ``fn(model, epoch, params)``, called when an epoch begins, may change which layers are
            trainable (not on JAX), rates and the like; epochs count from 0.
        inputs: None: by name or in order; a list of columns, in order; or a dict from the names of inputs to a
            column, or a list of scalar columns, stacked to (n, columns).
        sample_weight_column: column of the rows' weights in the loss and in weighted_metrics. A search keeps it if it
            is among feature_columns or label_columns; the model gets it only if ``inputs`` names it.
        class_weight: weight per class in the loss of training, a dict (others weigh 1) or a sequence.
        transform: ``fn(batch, rng)`` on every training batch before all else: a dict of arrays, which may be changed
            in place, and a NumPy generator; returns the dict to use.
        val_transform: the same for validation and prediction. ``transform`` is not used there.
        jit_compile: as in ``model.compile``. ``"auto"``: XLA with JAX; with TensorFlow not, since it compiles for
            every number of rows anew.
        run_eagerly: as in ``model.compile``.

    Raises:
        EstimatorError: an argument is not usable.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        batch_size: int = 32,
        custom_objects: Mapping[str, Any] | None = None,
        loss_weights: Any = None,
        weighted_metrics: Any = None,
        callbacks: Sequence[Any] = (),
        model_update_fn: Callable[[Any, int, dict[str, Any]], Any] | None = None,
        inputs: Inputs = None,
        sample_weight_column: str | None = None,
        class_weight: ClassWeight | None = None,
        transform: BatchTransform | None = None,
        val_transform: BatchTransform | None = None,
        jit_compile: bool | str = "auto",
        run_eagerly: bool = False,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.loss = loss
        self.metrics = metrics
        self.batch_size: int = batch_size
        self.custom_objects: dict[str, Any] = dict(custom_objects or {})
        self.loss_weights = loss_weights
        self.weighted_metrics = weighted_metrics
        self.callbacks: list[Any] = check_callbacks(callbacks)
        self.model_update_fn = model_update_fn
        self.inputs = inputs
        self.sample_weight_column = sample_weight_column
        self.class_weight = class_weight
        self.transform = transform
        self.val_transform = val_transform
        self.jit_compile = jit_compile
        self.run_eagerly = run_eagerly
        self._check()

    def replica(self, context: Context) -> Replica:
        from hopyard.training.keras.replica import KerasReplica

        return KerasReplica(self, context)

    @property
    def compiled_with(self) -> list[Any]:
        """Arguments that the model is compiled with besides its optimizer."""
        model = self.model
        if self.optimizer is None:
            config = dict(model._compile_config.config)
            del config["optimizer"]
            return [config, model.jit_compile, model.run_eagerly, self.custom_objects]
        return [
            self.loss,
            self.metrics,
            self.loss_weights,
            self.weighted_metrics,
            model.jit_compile,
            model.run_eagerly,
            self.custom_objects,
        ]

    def compiled_model(self) -> Any:
        """The model, compiled with the arguments given; one that is compiled already, and without such, as it is.

        Raises:
            EstimatorError: Keras refuses an argument.
        """
        import keras

        if self.optimizer is None:
            return self.model
        jit = self.jit_compile
        if jit == "auto" and keras.backend.backend() == "tensorflow":
            jit = False
        with keras.saving.custom_object_scope(self.custom_objects):
            try:
                self.model.compile(
                    optimizer=self.optimizer,
                    loss=self.loss,
                    metrics=None if self.metrics is None else _copied(self.metrics),
                    loss_weights=self.loss_weights,
                    weighted_metrics=_copied(self.weighted_metrics),
                    jit_compile=jit,
                    run_eagerly=self.run_eagerly,
                )
            except (ValueError, TypeError) as error:
                raise EstimatorError(f"Keras cannot compile the model: {unstyled(str(error))}") from error
        return self.model

    def _check(self) -> None:
        import keras

        if not isinstance(self.model, keras.Model):
            raise EstimatorError(f"model={brief(self.model)}, but it must be a keras.Model.")
        self._check_compiled()
        self._check_metrics()
        self.batch_size = integer("batch_size", self.batch_size, 1, error=EstimatorError)
        functions = {
            "transform": "batch, rng",
            "val_transform": "batch, rng",
            "model_update_fn": "model, epoch, params",
        }
        for name, arguments in functions.items():
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise EstimatorError(f"{name}={brief(given)}, but it must be a function fn({arguments}).")
        if self.class_weight is not None:
            class_table(self.class_weight)

    def _check_metrics(self) -> None:
        import keras

        for name in keras.tree.flatten([self.metrics, self.weighted_metrics]):
            if not isinstance(name, str) or name not in _OF_KERAS or name in (self.custom_objects or ()):
                continue
            try:
                keras.metrics.get(name)
            except ValueError:
                raise EstimatorError(
                    f"metrics={name!r} was given, but Keras knows no metric of that name. Give "
                    f"{_OF_KERAS[name]} instead."
                ) from None

    def _check_compiled(self) -> None:
        """Optimizer and loss are the estimator's, or else the model's own: not some of each."""
        compiled = bool(self.model.compiled)
        if self.optimizer is None or self.loss is None:
            lacks = "optimizer" if self.optimizer is None else "loss"
            if not compiled:
                raise EstimatorError(
                    f"{lacks}= was not given, and the model is not compiled. Give KerasEstimator(model=..., "
                    "optimizer=..., loss=...), or compile the model in the function."
                )
            if (self.optimizer, self.loss, self.metrics, self.weighted_metrics) != (None, None, None, None):
                raise EstimatorError(
                    f"{lacks}= was not given, so that the model's own would count, but other arguments of compile "
                    "were. Give both optimizer= and loss=, or none and compile the model with all of them."
                )
        elif compiled and _differs(self.model.loss, self.loss):
            raise EstimatorError(
                f"The model was compiled with loss={brief(self.model.loss)}, but loss={brief(self.loss)} was given. "
                "Take one of them out: models need not be compiled here."
            )


def _copied(metrics: Any) -> Any:
    """A copy of the containers of metrics: Keras changes containers that it is given."""
    import keras

    with contextlib.suppress(TypeError, ValueError):
        return keras.tree.map_structure(lambda metric: metric, metrics)
    return metrics


def _differs(own: Any, given: Any) -> bool:
    import keras

    try:
        return bool(
            keras.losses.serialize(keras.losses.get(own)) != keras.losses.serialize(keras.losses.get(given))
        )
    except (TypeError, ValueError):  # several losses, or functions
        return bool(own != given)
