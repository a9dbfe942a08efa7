"""LightningEstimator: what a user's function returns for a LightningModule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopyard.errors import EstimatorError, nearest
from hopyard.training.estimator import Context, Replica
from hopyard.training.lightning.hooks import check_module
from hopyard.training.lightning.replica import LightningReplica
from hopyard.training.torch.binding import Batch
from hopyard.training.torch.estimator import TorchEstimator, Transform

_BATCHES = ("tuple", "dict")


class LightningEstimator(TorchEstimator):
    """A LightningModule, of ``lightning`` or ``pytorch_lightning``, with all that training it takes.

    Its ``training_step``, ``validation_step`` and ``configure_optimizers``, and its hooks of batches and epochs, are
    called as the Trainer calls them. What it logs are the metrics: ``training.lightning.logged`` has the rules.

    Args:
        module: a LightningModule with all its sizes.
        batch_size: rows of a batch.
        batch: what steps are given. ``"tuple"``: the feature columns in their order, then the label columns, as
            tensors (a single column is given as it is); ``"dict"``: a dict of columns; or ``fn(columns)`` -> anything.
            Dtypes are those of TorchEstimator. ``predict_step`` and ``forward`` are given no labels.
        transform: ``fn(batch, rng)`` on every training batch before all else: a dict of CPU tensors, which
            may be changed in place, and a NumPy generator; returns the dict to use.
        val_transform: the same for validation and prediction. ``transform`` is not used there.
        gradient_clip: largest norm of the gradient, the Trainer's ``gradient_clip_val``.
        accumulate: batches per step; their gradients are averaged by rows. Groups end with the partition.
        precision: ``"fp32"``; ``"bf16"`` or ``"fp16"``, the Trainer's ``"bf16-mixed"`` and ``"16-mixed"``.
        predict: ``fn(outputs)`` -> what ``predict`` and ``transform`` of the trained model give, of what
            ``predict_step``, or else ``forward``, returned.

    Raises:
        EstimatorError: an argument is not usable, or the module has a hook that a search has no place for.
    """

    def __init__(
        self,
        module: Any,
        batch_size: int = 32,
        batch: str | Callable[[Batch], Any] = "tuple",
        transform: Transform | None = None,
        val_transform: Transform | None = None,
        gradient_clip: float | None = None,
        accumulate: int = 1,
        precision: str = "fp32",
        predict: Callable[[Any], Any] | None = None,
    ) -> None:
        check_module(module)
        self.batch = batch
        if batch not in _BATCHES and not callable(batch):
            raise EstimatorError(
                f"batch={batch!r}, but it must be 'tuple', 'dict' or a function fn(columns)"
                f"{nearest(str(batch), _BATCHES, '.')}"
            )
        module.configure_model()  # layers that it makes there
        super().__init__(
            module,
            optimizer=type(module).configure_optimizers,
            step=type(module).training_step,
            batch_size=batch_size,
            transform=transform,
            val_transform=val_transform,
            gradient_clip=gradient_clip,
            accumulate=accumulate,
            precision=precision,
            predict=predict,
        )
        if not module.automatic_optimization and (self.gradient_clip is not None or self.accumulate > 1):
            raise EstimatorError(
                f"gradient_clip={gradient_clip!r} and accumulate={accumulate!r} were given, but "
                f"{type(module).__name__} optimizes manually; call self.clip_gradients, and step every so "
                "many batches, in its training_step."
            )

    def replica(self, context: Context) -> Replica:
        if self.batch == "dict":
            self.inputs = {name: name for name in context.feature_columns}
        return LightningReplica(self, context)
