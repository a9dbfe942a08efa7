"""The searches of this package: which points are tried, and for how long each is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from hopyard.backend import Backend
from hopyard.checks import choice, flag, integer
from hopyard.errors import UsageError
from hopyard.objects.identity import identity
from hopyard.search import (
    Budget,
    FullLength,
    GridPoints,
    Proposer,
    QuasiRandomPoints,
    RandomPoints,
    Searcher,
    hyperband,
)
from hopyard.search.asha import AdaptiveAsha
from hopyard.search.brackets import MODES, brackets, checked_divisor, log_floor, rungs_in_visits
from hopyard.search.pbt import Pbt, share
from hopyard.storage import Store
from hopyard.tune.arguments import MOST_PARTITIONS
from hopyard.tune.search import Common, Search, named_as_called


class GridSearch(Search):
    """Every point of a space of choices; see :class:`Search` for the arguments."""

    kind = "grid"

    def _make_searcher(self, budget: Budget) -> Searcher:
        arguments = self.arguments
        points = GridPoints(arguments.search_space, arguments.initial_params)
        return FullLength(points, None, budget.visits, arguments.max_concurrent_points)


class _Drawn(Search):
    """Base of the searches whose points are drawn: ``num_models`` of them."""

    @named_as_called
    def __init__(
        self,
        backend: Backend,
        store: Store,
        estimator_gen_fn: Callable[[dict[str, Any]], Any],
        search_space: Mapping[str, Any],
        num_models: int,
        num_epochs: int,
        **common: Unpack[Common],
    ) -> None:
        self.num_models = num_models
        super().__init__(backend, store, estimator_gen_fn, search_space, num_epochs, **common)

    def _points(self) -> Proposer:
        arguments = self.arguments
        return RandomPoints(arguments.search_space, arguments.seed, arguments.initial_params)

    def _make_searcher(self, budget: Budget) -> Searcher:
        concurrent = self.arguments.max_concurrent_points
        return FullLength(self._points(), budget.num_models, budget.visits, concurrent)


class RandomSearch(_Drawn):
    """``num_models`` independent draws from the space; see :class:`Search` for the other arguments."""

    kind = "random"


class QuasiRandomSearch(_Drawn):
    """``num_models`` points that fill the space evenly (a scrambled Sobol sequence); see :class:`Search` for the other
    arguments. Needs SciPy."""

    kind = "quasi-random"

    def _points(self) -> Proposer:
        arguments = self.arguments
        return QuasiRandomPoints(arguments.search_space, arguments.seed, arguments.initial_params)


class _Sampled(_Drawn):
    """Base of the searches whose points a sampler of Optuna may choose."""

    sampler: Any = None

    def _points(self) -> Proposer:
        if self.sampler is None:
            return super()._points()
        return self._sampled()

    def _sampled(self) -> Proposer:
        from hopyard.search.optuna import OptunaPoints  # takes long to import

        arguments = self.arguments
        return OptunaPoints(
            arguments.search_space, self.sampler, arguments.seed, initial_params=arguments.initial_params
        )

    def _searcher_settings(self) -> dict[str, Any]:
        settings = super()._searcher_settings()
        if self.sampler is not None:
            from hopyard.search.optuna import quiet, seeded_sampler  # takes long to import

            with quiet():
                seeded = seeded_sampler(self.sampler, self.arguments.seed, self.arguments.search_space)
            settings["sampler"] = identity(seeded, "sampler").digest
        return settings


class HyperOpt(_Sampled):
    """``num_models`` trials whose points follow from the results of earlier ones: TPE, or another sampler of Optuna.

    Args:
        sampler: an object of ``optuna.samplers``, a class of it, or a function of a seed; None: TPE.
        parallelism: another name for ``max_concurrent_trials``: how many trials are under way at once. None: a
            quarter of ``num_models``, at most 16.

    See :class:`Search` for the other arguments. Needs Optuna.
    """

    kind = "tpe"

    @named_as_called
    def __init__(
        self,
        backend: Backend,
        store: Store,
        estimator_gen_fn: Callable[[dict[str, Any]], Any],
        search_space: Mapping[str, Any],
        num_models: int,
        num_epochs: int,
        *,
        sampler: Any = None,
        parallelism: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        self.sampler: Any = sampler
        self.parallelism: int | None = None
        if parallelism is not None:
            given = common.get("max_concurrent_trials")
            if given not in (None, parallelism):
                raise UsageError(
                    f"parallelism is {parallelism!r} and max_concurrent_trials is {given!r}, but these are two names "
                    "of one argument. Give max_concurrent_trials alone."
                )
            common["max_concurrent_trials"] = parallelism
        super().__init__(backend, store, estimator_gen_fn, search_space, num_models, num_epochs, **common)

    def _points(self) -> Proposer:
        return self._sampled()


class ASHA(_Sampled):
    """Asynchronous successive halving: ``num_models`` trials; the best at each rung train on.

    Rungs are at ``num_epochs``, ``num_epochs / divisor``, ``num_epochs / divisor ** 2``, ..., rounded up to whole
    visits of partitions: a rung may be less than an epoch. There are as many as the trials suffice for,
    ``divisor ** (rungs - 1) <= num_models``, and at most ``max_rungs``. (Li et al., MLSys 2020; brackets as in
    Determined's adaptive ASHA.)

    Args:
        divisor: about one in so many trials at a rung trains on.
        max_rungs: at most so many rungs.
        brackets: ``"aggressive"``: one bracket with all rungs, ASHA as published; ``"standard"`` and
            ``"conservative"``: also brackets with fewer rungs, which forgive trials that begin slowly.
        stop_once: trials are stopped at a rung or go on at once; else they wait there, and may be promoted later.
        sampler: see :class:`HyperOpt`; None: random draws. A sampler learns from trials that have reported, so give
            it ``max_concurrent_trials`` well below ``num_models``.

    See :class:`Search` for the other arguments; ``max_concurrent_trials`` is 16 if not given.
    """

    kind = "asha"

    @named_as_called
    def __init__(
        self,
        backend: Backend,
        store: Store,
        estimator_gen_fn: Callable[[dict[str, Any]], Any],
        search_space: Mapping[str, Any],
        num_models: int,
        num_epochs: int,
        *,
        divisor: float = 4,
        max_rungs: int = 5,
        brackets: str = "aggressive",
        stop_once: bool = False,
        sampler: Any = None,
        **common: Unpack[Common],
    ) -> None:
        choice("brackets", brackets, MODES)
        flag("stop_once", stop_once)
        self.divisor = divisor
        self.max_rungs = max_rungs
        self.brackets = brackets
        self.stop_once = stop_once
        self.sampler: Any = sampler
        super().__init__(backend, store, estimator_gen_fn, search_space, num_models, num_epochs, **common)

    def _partitions_wanted(self) -> int:
        divisor = checked_divisor(self.divisor)
        rungs = min(self.max_rungs, log_floor(integer("num_models", self.num_models, 1), divisor) + 1)
        return _partitions_for(int(divisor ** (rungs - 1)), self.arguments.num_epochs)

    def _stops_nobody(self, visits: int) -> bool:
        return visits < checked_divisor(self.divisor)

    def _make_searcher(self, budget: Budget) -> Searcher:
        num_models = integer("num_models", budget.num_models, 1)
        visits, divisor = budget.visits, checked_divisor(self.divisor)
        concurrent = self.arguments.max_concurrent_points or 16
        shares = brackets(
            num_models,
            visits,
            divisor,
            mode=self.brackets,
            max_rungs=self.max_rungs,
            max_concurrent=concurrent,
        )
        rungs = [rungs_in_visits(share.num_rungs, divisor, visits) for share in shares]
        return AdaptiveAsha(
            self._points(), list(zip(shares, rungs, strict=True)), divisor, concurrent, self.stop_once
        )


class Hyperband(_Sampled):
    """Brackets of successive halving, from many short trials to few long ones. (Li et al., JMLR 18, 2018.)

    Args:
        num_models: trials in all; None: as many as published for a length of ``num_epochs`` in visits, which may be
            many: 49 for 9 epochs of 8 partitions. There are 8 then, unless ``num_partitions`` says otherwise or the
            data has fewer row groups.
        divisor: eta: one in so many trials of a rung trains on.
        sampler: see :class:`HyperOpt`; None: random draws.

    See :class:`Search` for the other arguments.
    """

    kind = "hyperband"

    @named_as_called
    def __init__(
        self,
        backend: Backend,
        store: Store,
        estimator_gen_fn: Callable[[dict[str, Any]], Any],
        search_space: Mapping[str, Any],
        num_models: int | None = None,
        num_epochs: int = 1,
        *,
        divisor: float = 3,
        sampler: Any = None,
        **common: Unpack[Common],
    ) -> None:
        self.divisor = divisor
        self.sampler: Any = sampler
        super().__init__(backend, store, estimator_gen_fn, search_space, num_models, num_epochs, **common)  # type: ignore[arg-type]

    def _partitions_wanted(self) -> int:
        num_models = self._budget().num_models
        if num_models is None:
            return MOST_PARTITIONS
        divisor = checked_divisor(self.divisor)
        rungs = log_floor(integer("num_models", num_models, 1), divisor)
        return _partitions_for(int(divisor**rungs), self.arguments.num_epochs)

    def _stops_nobody(self, visits: int) -> bool:
        return visits < checked_divisor(self.divisor)

    def _make_searcher(self, budget: Budget) -> Searcher:
        concurrent = self.arguments.max_concurrent_points
        return hyperband.Hyperband(self._points(), budget.visits, self.divisor, budget.num_models, concurrent)


class PBT(_Drawn):
    """A population of ``num_models`` trials; after each round the worst become copies of the best, with perturbed
    parameters. (Jaderberg et al., 2017.) A copy is a new trial that goes on from its donor's state: the space may hold
    what an optimizer takes and the batch size, not sizes of layers, with which a copy fails.

    Args:
        epochs_per_round: epochs that all trials train between two exchanges.
        truncate_fraction: the share of the population that is replaced after a round, at most 0.5.
        resample_probability: of drawing a parameter anew instead of perturbing it.
        perturb_factor: by which share a number changes, up or down.

    See :class:`Search` for the other arguments.
    """

    kind = "pbt"

    @named_as_called
    def __init__(
        self,
        backend: Backend,
        store: Store,
        estimator_gen_fn: Callable[[dict[str, Any]], Any],
        search_space: Mapping[str, Any],
        num_models: int,
        num_epochs: int,
        *,
        epochs_per_round: int = 1,
        truncate_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturb_factor: float = 0.2,
        **common: Unpack[Common],
    ) -> None:
        self.epochs_per_round = epochs_per_round
        self.truncate_fraction = truncate_fraction
        self.resample_probability = resample_probability
        self.perturb_factor = perturb_factor
        super().__init__(backend, store, estimator_gen_fn, search_space, num_models, num_epochs, **common)

    def _make_searcher(self, budget: Budget) -> Searcher:
        num_models = integer("num_models", budget.num_models, 1)
        rounds, left = divmod(budget.num_epochs, integer("epochs_per_round", self.epochs_per_round, 1))
        if left:
            raise UsageError(
                f"num_epochs is {budget.num_epochs} and epochs_per_round is {self.epochs_per_round}, but a search has "
                f"whole rounds. Write num_epochs={max(rounds, 1) * self.epochs_per_round}, or epochs_per_round=1."
            )
        if 0 < share("truncate_fraction", self.truncate_fraction, 0.5) * num_models < 1:
            raise UsageError(
                f"num_models is {num_models} and truncate_fraction is {self.truncate_fraction}, which is less than "
                "one trial: nothing would ever be replaced. Write "
                f"num_models={math.ceil(1 / self.truncate_fraction)}, or a truncate_fraction of up to 0.5."
            )
        arguments = self.arguments
        return Pbt(
            self._points(),
            arguments.search_space,
            num_models,
            rounds,
            self.epochs_per_round * budget.partitions,
            truncate_fraction=self.truncate_fraction,
            resample_probability=self.resample_probability,
            perturb_factor=self.perturb_factor,
            seed=arguments.seed,
            max_concurrent=arguments.max_concurrent_points,
        )


def _partitions_for(visits: int, num_epochs: int) -> int:
    """Least number of partitions with which ``num_epochs`` are ``visits`` or more; at most 8."""
    return min(MOST_PARTITIONS, -(-visits // num_epochs))
