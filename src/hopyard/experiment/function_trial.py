"""A bare function as a trial: it runs in a thread of its own, and is let go on from report to report."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hopyard.errors import EstimatorError, NotFoundError, UsageError
from hopyard.experiment.context import TrialContext
from hopyard.experiment.lengths import Facts
from hopyard.experiment.saving import as_tree, from_tree
from hopyard.experiment.surrounded import TRAINS_ALONE, TrialEstimator, TrialSurroundings, why_no_metric
from hopyard.objects import flatten, load_state
from hopyard.training.estimator import Context, OneBatch, Replica, Visit
from hopyard.training.metric import MetricSet
from hopyard.tune.run import Model
from hopyard.wording import brief, nearest


class TrialStopped(BaseException):
    """Raised in a trial's function by ``context.report`` when nothing more is wanted of the trial. ``finally`` blocks
    run; ``except Exception`` does not catch it."""


class FunctionEstimator(TrialEstimator):
    """Estimator of a function ``main(context)``.

    Args:
        metric: name of the metric that ranks trials.
    """

    batch_size = 1

    def __init__(
        self,
        function: Callable[[TrialContext], Any],
        context: TrialContext,
        surroundings: TrialSurroundings,
        metric: str,
    ) -> None:
        self.function: Callable[[TrialContext], Any] = function
        self.context: TrialContext = context
        self.surroundings: TrialSurroundings = surroundings
        self.metric: str = metric

    def replica(self, context: Context) -> Replica:
        return FunctionReplica(self)

    def facts(self) -> Facts:
        return Facts("function")


class FunctionReplica(Replica):
    """A function, as far as its last report.

    Its state is what it saved. A new process starts the function again, which gets that from ``context.restored()``;
    the reports that it makes again, of those before the last one, are passed over.
    """

    framework = "function"
    module = None
    batch_size = 1

    def __init__(self, estimator: FunctionEstimator) -> None:
        self._given = estimator
        self._reports = 0
        self._saved: dict[str, Any] | None = None
        self._saved_after = 0
        self._values: dict[str, float] = {}
        self._running: _Running | None = None
        self._end_running: Callable[[], Any] = lambda: None

    @property
    def trains_alone(self) -> str:
        return TRAINS_ALONE

    def check_labels(self, visit: Visit) -> None:
        """Nothing: there are no labels."""

    def train(self, visit: Visit) -> dict[str, list[float]]:
        """Let the function go on to its next report, or to its end."""
        if isinstance(visit.rows, OneBatch):  # it would run whole
            return {}
        if self._running is None:
            self._running = _Running(self._given, self._saved)
            self._end_running = weakref.finalize(self, self._running.stop)
            for number in range(self._saved_after, self._reports):  # made before, by a process that is gone
                self._advance(self._running, number + 1)
        if not self.has_ended:
            self._values = {}
            self._advance(self._running, self._reports + 1)
        if not self._reports and not self._values:
            metric = self._given.metric
            raise EstimatorError(
                f"{self._name}(context) returned without a report, so nothing is known of the trial. Call "
                f"context.report({{{metric!r}: value}}) after each epoch, or once at the end."
            )
        if self.has_ended:
            return {}
        self._check_metric()
        self._reports += 1
        return {
            name.removeprefix("train_"): [value, 1.0]
            for name, value in self._values.items()
            if name.startswith("train_")
        }

    def _advance(self, running: _Running, number: int) -> None:
        """Let the function go on to the report of this number, counted from 1."""
        with self._given.surroundings.entered():
            values = running.go_on()
        saved = running.context.take_saved()
        if values is None:
            self.has_ended: bool = True
        else:
            self._values = values
        if saved is not None:
            self._saved, self._saved_after = saved, self._reports if values is None else number

    def _check_metric(self) -> None:
        """Raise EstimatorError if a report lacks the metric that ranks trials."""
        wanted = self._given.metric.removeprefix("val_")
        there = [name.removeprefix("val_") for name in self._values]
        if wanted not in there:
            raise EstimatorError(
                f"searcher.metric is {wanted!r}, but {self._name}(context) reported {', '.join(self._values)}"
                f"{nearest(wanted, there, '.')} Report it each time, or name one of these in the configuration."
            )

    @property
    def _name(self) -> str:
        return getattr(self._given.function, "__name__", "main")

    def validate(self, visit: Visit) -> MetricSet:
        """The values of the last report."""
        found = MetricSet({}, loss=False)
        values = self._values
        if isinstance(visit.rows, OneBatch):
            values = {self._given.metric: math.nan}
        for name, value in values.items():
            if not name.startswith("train_"):
                found.mean(name.removeprefix("val_"), value, 1.0)
        return found

    def state(self) -> dict[str, Any]:
        return {
            "model": {} if self._saved is None else {"saved": self._saved},
            "function": {
                "reports": self._reports,
                "saved_after": self._saved_after,
                "values": dict(self._values),
            },
        }

    def load(self, tree: Mapping[str, Any]) -> None:
        self._end_running()
        self._running = None
        self.has_ended = False
        self._saved = tree["model"].get("saved")
        function = tree.get("function", {"reports": 0, "saved_after": 0, "values": {}})
        self._reports, self._saved_after = int(function["reports"]), int(function["saved_after"])
        self._values = {name: float(value) for name, value in function["values"].items()}

    def adopt(self, tree: Mapping[str, Any]) -> None:
        if self._reports == 0 and "saved" not in tree["model"]:
            raise EstimatorError(
                f"{self._name}(context) goes on from another trial's state, but that trial has saved none. Call "
                "context.save(state) before context.report, and begin with context.restored(): pbt, and clones with "
                "weights, need both."
            )
        self.load(tree)
        self._saved_after = self._reports

    def hidden_state(self) -> list[str]:
        return []

    def nbytes(self) -> int:
        return (
            0 if self._saved is None else sum(part.data.nbytes for part in flatten(self._saved)[0].values())
        )

    @property
    def prediction_columns(self) -> list[str]:
        raise self._no_model()

    def predict(self, batch: Mapping[str, Any]) -> Any:
        raise self._no_model()

    def export_onnx(self, path: Path, example: Mapping[str, Any]) -> None:
        raise self._no_model()

    def evaluate(self, batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        raise self._no_model()

    def _no_model(self) -> EstimatorError:
        return EstimatorError(
            f"a function such as {self._name}(context) has no model that could predict. Load what it saved: "
            "hopyard experiment checkpoints download."
        )


class FunctionContext(TrialContext):
    """Context of a bare function: it reports, saves, and finds what was saved."""

    def __init__(
        self, context: TrialContext, saved: dict[str, Any] | None, reported: Callable[[Any], None]
    ) -> None:
        vars(self).update(vars(context))
        self._restored, self._reported = saved, reported
        self._saved: dict[str, Any] | None = None

    def report(self, metrics: Mapping[str, float] | None = None, **named: float) -> None:
        """Say how good the trial is now, for example after each epoch; the searcher decides here who goes on.

        Args:
            metrics, named: numbers by name. Names that begin with ``train_`` are of training, all others of validation.

        Raises:
            UsageError: there are none, a value is no number, or two names are of one metric.
        """
        if metrics is not None and not isinstance(metrics, Mapping):
            raise UsageError(
                f"report() was given {brief(metrics)}, but takes metrics by name: report(accuracy=...) or "
                "report({'accuracy': ...})."
            )
        values = {**(metrics or {}), **named}
        if not values:
            raise UsageError("report() was called without metrics. Write context.report({'loss': loss}).")
        bare: dict[str, str] = {}
        for name, value in values.items():
            if why := why_no_metric(name):
                raise UsageError(f"report() was given a metric of the name {name!r}, {why}")
            other = bare.setdefault(name.removeprefix("val_"), name)
            if other != name:
                raise UsageError(
                    f"report() was given both {other!r} and {name!r}, which are one metric: those of validation need "
                    "no 'val_' before their names. Report one of them, or rename it."
                )
            try:
                values[name] = float(value)
            except (TypeError, ValueError, OverflowError):
                raise UsageError(
                    f"report() was given {name}={brief(value)}, but a metric is one number. Reduce it first."
                ) from None
        self._reported(values)

    def save(self, state: Mapping[str, Any]) -> None:
        """Keep a state with the report that follows: numbers, texts, bytes, arrays and tensors, in dicts and lists of
        any depth, such as ``model.state_dict()``; of other objects, such as an estimator of scikit-learn,
        ``pickle.dumps(estimator)``. A trial that is interrupted after that report begins again with it, in
        ``restored()``, and its next report is the one after.

        Raises:
            UsageError: it is no mapping, or something in it is none of these; says where.
        """
        if not isinstance(state, Mapping):
            raise UsageError(
                f"save() was given {type(state).__name__}, but takes a dict: save({{'model': state}})."
            )
        self._saved = as_tree(state)

    def restored(self) -> dict[str, Any] | None:
        """The state that this trial saved before it was interrupted; None at its begin. Tensors are those of PyTorch if
        it is imported, else arrays."""
        return None if self._restored is None else dict(from_tree(self._restored))

    def take_saved(self) -> dict[str, Any] | None:
        """What was saved since the last call."""
        saved, self._saved = self._saved, None
        return saved


def saved_state(model: Model) -> dict[str, Any]:
    """The state that a function saved for the report by which this model of an experiment was chosen.

    Raises:
        NotFoundError: it saved none, or its state was not kept.
    """
    store, ref = model.weights()
    saved = load_state(store, ref, verify=True).get("saved")
    if saved is None:
        raise NotFoundError(
            f"trial {model.trial} saved no state. Call context.save({{...}}) before context.report in its function."
        )
    return dict(from_tree(saved))


class _Running:
    """A function in its thread, which waits at each report until it is to go on."""

    def __init__(self, given: FunctionEstimator, saved: dict[str, Any] | None) -> None:
        self.context = FunctionContext(given.context, saved, self._reported)
        self._function = given.function
        self._go, self._told = threading.Semaphore(0), threading.Semaphore(0)
        self._values: dict[str, float] | None = None
        self._error: BaseException | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="trial", daemon=True)
        self._thread.start()

    def go_on(self) -> dict[str, float] | None:
        """The values of the next report; None: the function has returned.

        Raises: what the function raises.
        """
        self._values = None
        self._go.release()
        self._told.acquire()
        if self._error is not None:
            raise self._error
        return self._values

    def stop(self) -> None:
        """Let the function's next, or present, report raise ``TrialStopped``."""
        self._stopped = True
        self._go.release()

    def _run(self) -> None:
        self._go.acquire()
        if not self._stopped:
            try:
                self._function(self.context)
            except TrialStopped:
                pass
            except (
                BaseException
            ) as error:  # it is raised where the unit is; to exit with status 0 is to return
                if not isinstance(error, SystemExit) or error.code:
                    self._error = error
        self._told.release()

    def _reported(self, values: dict[str, float]) -> None:
        if threading.current_thread() is not self._thread:
            raise UsageError(
                "report() was called from a thread of the function's own. Call it from the thread that runs the "
                "function."
            )
        if self._stopped:
            raise TrialStopped
        self._values = values
        self._told.release()
        self._go.acquire()
        if self._stopped:
            raise TrialStopped
