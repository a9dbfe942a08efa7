"""The searches, which a user constructs and fits."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack, cast

from hopyard.backend import Backend
from hopyard.data import Dataset, open_dataset
from hopyard.errors import DataError, UsageError
from hopyard.hopper.hopper import Observer
from hopyard.hopper.notice import Notice
from hopyard.hopper.packs import PackingPlan
from hopyard.hopper.work import Options
from hopyard.search import Budget, InVirtualTime, MedianStopping, Patience, Replicated, Searcher
from hopyard.storage import Store
from hopyard.tune.arguments import DEFAULTS, MOST_PARTITIONS, Arguments, check_arguments, metric_of
from hopyard.tune.callbacks import Callback
from hopyard.tune.inputs import Ready, SearchData, Splits, inputs_of
from hopyard.tune.launch import Launch
from hopyard.tune.progress import ProgressDisplay
from hopyard.tune.recipe import pickle_search
from hopyard.tune.run import Model
from hopyard.wording import nearest


class Common(TypedDict, total=False):
    """Keyword arguments that all searches take, for type checkers; see :class:`Search`."""

    evaluation_metric: str
    mode: str | None
    feature_columns: Sequence[str]
    label_columns: Sequence[str]
    validation: Any
    num_partitions: int | None
    order_groups: int | None
    seed: int | None
    logdir: Any
    stock: Any
    run_id: str | None
    fresh: bool
    take_over: bool
    reproducible: bool
    packing: str
    keep: str
    keep_n: int
    checkpoint_every: str | float
    time_budget: float | None
    grace: float
    patience: int | None
    median_stopping: int | None
    pruner: Any
    max_concurrent_trials: int | None
    replicates: int
    initial_params: Sequence[Mapping[str, Any]]
    init_from: Any
    callbacks: Sequence[Callback]
    progress: bool
    nulls: str
    ragged: str
    preprocess: Any
    frozen_at: Any


CALLED_ELSEWHERE = {
    "num_models": ("num_samples", "n_trials", "max_trials"),
    "replicates": ("executions_per_trial", "num_seeds", "n_seeds", "repeat"),
    "num_epochs": ("epochs", "max_epochs", "max_t"),
    "max_concurrent_trials": ("max_concurrent", "n_jobs", "parallelism"),
    "evaluation_metric": ("metric", "objective"),
    "divisor": ("eta", "reduction_factor"),
    "search_space": ("param_space", "config", "hyperparameters", "space"),
    "initial_params": ("points_to_evaluate",),
    "time_budget": ("time_budget_s", "timeout"),
    "epochs_per_round": ("perturbation_interval",),
    "truncate_fraction": ("quantile_fraction",),
    "progress": ("verbose", "show_progress_bar"),
}
"""What Cerebro, Ray Tune, Optuna, Determined and Keras Tuner call our arguments."""

Init = TypeVar("Init", bound=Callable[..., None])


def named_as_called(init: Init) -> Init:
    """``__init__`` of a search whose arguments are checked first, so that errors name the class that the user called,
    whichever class defines it, and the arguments as they are called here."""
    signature = inspect.signature(init)
    taken = (signature.parameters.keys() | DEFAULTS.keys()) - {"common"}

    @functools.wraps(init)
    def checked(self: Search, *given: Any, **named: Any) -> None:
        called = type(self).__name__
        own = inspect.signature(type(self)).parameters
        known = [*(name for name in own if name != "common"), *DEFAULTS]
        arguments = f"Its arguments are {', '.join(known)}."
        for name in named:
            if name not in taken:
                ours = [our for our, theirs in CALLED_ELSEWHERE.items() if name in theirs and our in known]
                meant = f"; it is called {ours[0]!r} here." if ours else nearest(name, known, ".")
                raise UsageError(f"{called} has no argument {name!r}{meant} {arguments}")
        try:
            signature.bind(self, *given, **named)
        except TypeError as error:
            raise UsageError(f"{called} cannot be made: {error}. {arguments}") from None
        init(self, *given, **named)

    return cast("Init", checked)


class Search(ABC):
    """Trains many models over one dataset and returns the best.

    Args:
        backend: where units run.
        store: where data, runs and logs are kept.
        estimator_gen_fn: a function from a dict of parameters to an estimator; also a lambda or a closure.
        search_space: a dict of ``hp_*`` dimensions and constants, possibly nested.
        num_epochs: epochs of a trial that is not stopped early.
        evaluation_metric: ranks epochs and trials; always that of validation. The best epoch counts.
        mode: ``"min"`` or ``"max"``; None: known metrics know theirs.
        feature_columns: columns that the model sees.
        label_columns: columns that its outputs are compared with; ``[]`` where ``step=`` finds all in the features.
        validation: a share in (0, 1), the name of a bool or int column, or a second frame. None: no
            validation; trials are ranked by training.
        num_partitions: partitions that the models visit; None: by the data, never by workers: 1 for small data, at
            most 8, each of 4,000 rows at least, but as many as a search needs that stops trials within an epoch.
        order_groups: trials ``n`` and ``n + order_groups`` visit partitions in the same order; None: as
            many as partitions.
        seed: everything random follows from it. None: a random one, recorded; always a new run.
        logdir: TensorBoard files go there instead of ``<prefix>/logs``.
        stock: a ``StockRoom``, or the path of one: the outcome is committed to it when the run is completed.
        run_id: a name for the run; None: a digest of all settings, so that the same script resumes.
        fresh: train again, beside a run with the same settings.
        take_over: go on with a run that another driver seems to hold, for one that hangs or cannot be reached;
            it stops at its next write. (The death of a driver needs no such help.)
        reproducible: the result depends on nothing but these arguments and the data: a run is continued only where
            it gives the same bits (versions, threads, processor), and a search that looks at results takes them in
            virtual time. False: results are taken as they come.
        packing: ``"auto"``: trials whose models are alike train together where that takes less time, to the same bits;
            ``"fused"``: the same, and an error if models cannot be trained so; ``"graph"`` or ``"streams"``: on NVIDIA
            GPUs, steps are captured in CUDA graphs, which run one after another, or four beside each other;
            ``"serial"`` or ``"off"``: never.
        keep, keep_n: which trials' weights are kept: ``"completed"``, ``"best"`` (of ``keep_n``), ``"all"``.
        checkpoint_every: ``"unit"``, ``"epoch"`` or seconds.
        time_budget: seconds after which no new unit is started.
        grace: seconds that units under way have to end, once SIGTERM or SIGUSR1 has told the process to end; then
            ``fit`` raises ``Preempted``, which ends it with status 75. No more units are begun from the signal on.
        patience: epochs without improvement after which a trial is stopped.
        median_stopping: after that many epochs, a trial is stopped whose best value so far is worse than the
            median of what the others had on average by then.
        pruner: an ``optuna.pruners`` object that stops trials.
        max_concurrent_trials: trials under way at once, for any number of workers; None: as many as
            suits the search, all for grid and random.
        replicates: trains each point with so many seeds; ``num_models`` counts points. Each replicate is a trial of its
            own, with the number ``point * replicates + replicate``, from which its initial weights and dropout follow
            and, with several partitions, the order in which it visits them. Searches see the mean of a point's
            replicates, points are ranked by it, and the best replicate of the best point is returned; one that fails
            is left out.
        initial_params: points of the space that are tried first.
        init_from: a model whose weights every trial starts from.
        callbacks: see :class:`hopyard.tune.Callback`.
        progress: show what is going on. Without it only what the call found is printed: that the run goes on, is
            extended or is finished, why it waits; and failures.
        nulls, ragged: policies for missing values and rows of different lengths; see ``hopyard.data.prepare``.
        preprocess: steps, such as ``[StandardScale("age"), Category("city")]``, that are fitted on the training rows
            and applied in their order to all rows that a model sees, later by ``predict``, ``evaluate`` and
            ``transform`` too; or what ``hopyard.data.fit_steps`` returned. ``feature_columns`` names what they give.
        frozen_at: where frozen tensors, such as the weights of a base, lie already in safetensors files: a folder, a
            URL, a store or a stockroom that every worker reads. Those that are found there, by content, are not stored
            with the runs, which need them there as long as they are kept.

    Raises:
        UsageError: an argument breaks its rule; nothing has been started.
    """

    kind: str

    @named_as_called
    def __init__(
        self,
        backend: Backend,
        store: Store,
        estimator_gen_fn: Callable[[dict[str, Any]], Any],
        search_space: Mapping[str, Any],
        num_epochs: int,
        **common: Unpack[Common],
    ) -> None:
        fields: dict[str, Any] = {
            **DEFAULTS,
            **common,
            "backend": backend,
            "store": store,
            "estimator_gen_fn": estimator_gen_fn,
            "search_space": search_space,
            "num_epochs": num_epochs,
        }
        self._given = dict(fields)
        self.arguments: Arguments = check_arguments(fields)
        self._searcher(self._budget())  # impossible spaces and budgets are said now

    @abstractmethod
    def _make_searcher(self, budget: Budget) -> Searcher:
        """A fresh searcher for a run with this budget."""

    def _budget(self) -> Budget:
        """Budget that the arguments ask for, as far as it is known before the data."""
        partitions = self.arguments.num_partitions or MOST_PARTITIONS
        return Budget(self._own_arguments().get("num_models"), self.arguments.num_epochs, partitions)

    def _partitions_wanted(self) -> int:
        """Partitions that the search needs to compare trials at all the lengths that its trials suffice for."""
        return 1

    def _stops_nobody(self, visits: int) -> bool:
        """Whether the search can stop no trial early if the longest have so many visits: asked where there are fewer
        partitions than :meth:`_partitions_wanted`."""
        return False

    @property
    def given(self) -> dict[str, Any]:
        """All arguments that the search was made with."""
        return {**self._given, **self._own_arguments()}

    def _own_arguments(self) -> dict[str, Any]:
        """The arguments that this kind of search has beside those of all; each is an attribute of that name."""
        own = inspect.signature(type(self)).parameters.keys() - inspect.signature(Search).parameters.keys()
        return {name: getattr(self, name) for name in sorted(own)}

    def _searcher_settings(self) -> dict[str, Any]:
        """Settings that this kind of search adds to a run's, as JSON."""
        own = self._own_arguments().items()
        return {name: str(value) if isinstance(value, Fraction) else value for name, value in own}

    def fit(self, data: Any, val: Any = None) -> Model:
        """Search on ``data``: a dict of arrays, a frame of pandas, polars, pyarrow, Spark, Ray Data or Dask, paths
        of Parquet or CSV files, a torch Dataset, an iterable of rows, a prepared dataset, a Spark converter, or a
        source: ``hopyard.data.as_source("rows.csv", types={"id": "text"})`` says types of columns of CSV.

        The same call again continues an unfinished run, and returns a finished run's result at once.

        Args:
            data: rows to train on; without ``val`` the validation set is split off it.
            val: rows to validate on.

        Returns: the best model.

        Raises:
            UsageError: arguments and data do not fit; said before any work starts.
            TrialError: all trials fail.
            RunHeldError: another process drives this run.
            Preempted: SIGTERM or SIGUSR1 told the process to end, and this is its main thread: see ``grace``.
        """
        return self._fit(lambda: inputs_of(data, val, self.arguments))

    def check(self, data: Any, val: Any = None) -> PackingPlan:
        """Build, train and validate a trial on one batch, on a worker, and discard it. ``fit`` does it first.

        Returns: which trials are expected to train together, and what that gains: other trials are built for a second
            at most, and those that may train together are measured on the batch for two, as a run does.

        Raises:
            TrialError: the first three trials fail alike; carries the evidence.
        """
        return self._launch(inputs_of(data, val, self.arguments)).check()

    def fit_on_prepared_data(self) -> Model:
        """Search on the newest dataset that ``prepare`` or ``backend.prepare_data`` left in the store."""
        return self._fit(self._prepared_sets)

    def _prepared_sets(self) -> SearchData:
        train_set, val_set = self._stored_sets()
        for split, dataset in (("training", train_set), ("validation", val_set)):
            if dataset is not None and not dataset.prepared:
                raise DataError(
                    f"The {split} data in {self.arguments.store.url} is Parquet without a manifest, which prepare() "
                    "did not write. Prepare it with prepare(data, store), or call fit_on_parquet() to train on the "
                    "files as they are."
                )
        return self._sets(train_set, val_set)

    def fit_on_parquet(self, train: Any = None, val: Any = None) -> Model:
        """Search on Parquet as it is, without preparing it.

        Args:
            train: a path, a list of paths or a URL; None: the store's training data, prepared, or Parquet of others in
                its ``train_path``.
            val: the same for validation; None: the store's validation data, if any.
        """
        if train is None and val is None:
            return self._fit(lambda: self._sets(*self._stored_sets()))
        if train is not None and val is None and self.arguments.validation is not None:
            raise UsageError(
                "fit_on_parquet was given training data without validation data; Parquet is trained on as it is, so "
                "none is split off. Give val=... too, or validation=None to rank trials by training."
            )
        return self._fit(
            lambda: self._sets(
                open_dataset(self.arguments.store if train is None else train, "train"),
                None if val is None else open_dataset(val, "val"),
            )
        )

    def _stored_sets(self) -> tuple[Dataset, Dataset | None]:
        """The store's training data, and its validation data if trials are ranked by it."""
        store, validation = self.arguments.store, self.arguments.validation
        return open_dataset(store, "train"), None if validation is None else open_dataset(store, "val")

    def _sets(self, train: Dataset, val: Dataset | None) -> SearchData:
        return Ready(Splits.of(train, val), self.arguments, (train, val))

    def _fit(self, inputs: Callable[[], SearchData]) -> Model:
        """Search on what ``inputs`` makes, listening for the notice that the process is to end from there on."""
        with Notice(self.arguments.grace, ProgressDisplay(enabled=False).say) as notice:
            notice.check()
            return self._launch(inputs(), notice).fit()

    def _launch(self, inputs: SearchData, notice: Notice | None = None) -> Launch:
        return Launch(
            self.kind, self.arguments, self._searcher, self._searcher_settings(), self._partitions_wanted(),
            self._stops_nobody, inputs, partial(pickle_search, type(self), self.arguments, self._own_arguments()),
            notice or Notice(), self._options(), self._of_header(), self._observers(),
        )  # fmt: skip

    def _options(self) -> Options:
        """Options of driving a run."""
        return self.arguments.options

    def _observers(self) -> Sequence[Observer]:
        """Observers that this kind of search adds to a run's."""
        return ()

    def _of_header(self) -> dict[str, Any]:
        """Fields that this kind of search adds to the record that begins a run, as JSON; none decides a result."""
        return {}

    def _searcher(self, budget: Budget, reproducible: bool | None = None) -> Searcher:
        """A fresh searcher, with the early stopping of points around it, replicated, in virtual time if that matters.
        ``reproducible``: as the run was begun; None: as it would be now."""
        arguments, epoch = self.arguments, budget.partitions
        searcher = self._make_searcher(budget)
        if arguments.pruner is not None:
            from hopyard.search.optuna import OptunaPruning

            metric = metric_of(arguments.evaluation_metric, arguments.mode, arguments.validation is not None)
            searcher = OptunaPruning(
                searcher, arguments.pruner, epoch, arguments.seed, maximize=metric.mode == "max"
            )
        if arguments.median_stopping is not None:
            searcher = MedianStopping(searcher, epoch, grace_epochs=arguments.median_stopping)
        if arguments.patience is not None:
            searcher = Patience(searcher, arguments.patience, epoch)
        if arguments.replicates > 1:
            searcher = Replicated(searcher, arguments.replicates)
        reproducible = arguments.reproducible if reproducible is None else reproducible
        return InVirtualTime(searcher) if reproducible and not searcher.independent else searcher
