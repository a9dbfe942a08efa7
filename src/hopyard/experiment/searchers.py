"""Searchers of an experiment's YAML: their fields, and the searcher of ``hopyard.search`` that each stands for.

Names and defaults are those of ``hopyard.search.preview``, which takes the same fields as a dictionary.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from hopyard import search
from hopyard.experiment.hyperparameters import Fields, search_space
from hopyard.search.brackets import brackets, checked_divisor, rungs_in_visits
from hopyard.search.points import dimensions

Length: TypeAlias = Annotated[
    dict[Literal["batches", "records", "epochs"], Annotated[int, Field(ge=1)]],
    Field(min_length=1, max_length=1, examples=[{"epochs": 8}]),
]
"""A length in one unit: ``{"epochs": 8}``."""
Trials: TypeAlias = Annotated[
    int, Field(ge=1, description="Trials in all; with replicates, points in all.", examples=[16])
]
AtOnce: TypeAlias = Annotated[
    int,
    Field(ge=0, description="Trials that train at once, at most; 0: as many as there are.", examples=[16]),
]
Divisor: TypeAlias = Annotated[
    float, Field(ge=2, description="One in so many trials of a rung trains on.", examples=[4])
]
StopOnce: TypeAlias = Annotated[
    bool, Field(description="Stop trials at a rung at once, instead of letting them wait.", examples=[False])
]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1, examples=[0.25])]


class AnySearcher(Fields):
    """Fields of all searchers."""

    name: str = Field(examples=["random"])
    metric: str = Field(
        min_length=1, description="The metric of validation that ranks trials.", examples=["accuracy"]
    )
    smaller_is_better: bool | None = Field(
        default=None, description="Direction of the metric; known metrics know theirs.", examples=[True]
    )
    replicates: int = Field(
        default=1,
        ge=1,
        description="Trials of each point, with a seed each; their mean ranks it.",
        examples=[3],
    )

    @property
    def points_at_once(self) -> int:
        """Points whose trials may train at once; 0: as many as there are."""
        at_once: int = getattr(self, "max_concurrent_trials", 0)
        return at_once // self.replicates

    @model_validator(mode="after")
    def _check_replicates(self) -> Self:
        at_once = getattr(self, "max_concurrent_trials", 0)
        if 0 < at_once < self.replicates:
            raise ValueError(
                f"has max_concurrent_trials: {at_once} and replicates: {self.replicates}, but all replicates of a "
                f"point train at once. Write max_concurrent_trials: {self.replicates}, or a multiple of it, or fewer "
                "replicates."
            )
        return self


class Single(AnySearcher):
    """One trial, of constants."""

    name: Literal["single"] = Field(examples=["single"])
    max_length: Length | None = Field(default=None, examples=[{"epochs": 8}])


class Random(AnySearcher):
    """Points drawn at random, each trained for the full length."""

    name: Literal["random"] = Field(examples=["random"])
    max_trials: Trials
    max_length: Length | None = Field(default=None, examples=[{"epochs": 8}])
    max_concurrent_trials: AtOnce = 16


class Grid(AnySearcher):
    """Every point of the grid that counts and categories make."""

    name: Literal["grid"] = Field(examples=["grid"])
    max_length: Length | None = Field(default=None, examples=[{"epochs": 8}])
    max_concurrent_trials: AtOnce = 16


class AdaptiveAsha(AnySearcher):
    """Asynchronous successive halving in several brackets at once."""

    name: Literal["adaptive_asha"] = Field(examples=["adaptive_asha"])
    max_trials: Trials
    max_length: Length
    mode: Literal["aggressive", "standard", "conservative"] = Field(
        default="standard", description="How early bad trials are stopped.", examples=["standard"]
    )
    divisor: Divisor = 4.0
    max_rungs: int = Field(default=5, ge=1, description="Rungs of a bracket, at most.", examples=[5])
    bracket_rungs: list[Annotated[int, Field(ge=1)]] = Field(
        default=[], description="Rungs of each bracket, in place of mode and max_rungs.", examples=[[1, 2, 3]]
    )
    max_concurrent_trials: AtOnce = 16
    stop_once: StopOnce = False


class AsyncHalving(AnySearcher):
    """Asynchronous successive halving in one bracket."""

    name: Literal["async_halving"] = Field(examples=["async_halving"])
    max_trials: Trials
    num_rungs: int = Field(ge=1, description="Lengths at which trials are compared.", examples=[3])
    max_length: Length
    divisor: Divisor = 4.0
    max_concurrent_trials: AtOnce = 16
    stop_once: StopOnce = False


class Replace(Fields):
    """Choice of the trials that are replaced after a round."""

    truncate_fraction: float = Field(
        ge=0, le=0.5, description="Share of the population that is replaced.", examples=[0.25]
    )


class Explore(Fields):
    """Changes of the hyperparameters of a copy."""

    resample_probability: Share = Field(
        default=0.25, description="Probability that a hyperparameter is drawn anew."
    )
    perturb_factor: Share = Field(default=0.2, description="Share by which a number changes otherwise.")


class Pbt(AnySearcher):
    """Population-based training: after each round the worst trials become copies of the best."""

    name: Literal["pbt"] = Field(examples=["pbt"])
    population_size: int = Field(ge=2, description="Trials at once.", examples=[16])
    num_rounds: int = Field(ge=1, description="Rounds in all.", examples=[8])
    length_per_round: Length
    replace_function: Replace = Field(examples=[{"truncate_fraction": 0.25}])
    explore_function: Explore = Field(default=Explore(), examples=[{"resample_probability": 0.25}])


SEARCHERS: dict[str, type[AnySearcher]] = {
    "single": Single,
    "random": Random,
    "grid": Grid,
    "adaptive_asha": AdaptiveAsha,
    "async_halving": AsyncHalving,
    "pbt": Pbt,
}


def _tag(value: Any) -> str:
    """The tag of a searcher; without a known name, of the one that has most of the fields."""
    if isinstance(value, AnySearcher):
        return f"<{value.name}>"
    given = value if isinstance(value, dict) else {}
    if given.get("name") in tuple(SEARCHERS):
        return f"<{given['name']}>"
    fitting = max(SEARCHERS, key=lambda name: len(given.keys() & SEARCHERS[name].model_fields.keys()))
    return f"<{fitting}>"


SearcherConfig: TypeAlias = Annotated[
    Annotated[Single, Tag("<single>")]
    | Annotated[Random, Tag("<random>")]
    | Annotated[Grid, Tag("<grid>")]
    | Annotated[AdaptiveAsha, Tag("<adaptive_asha>")]
    | Annotated[AsyncHalving, Tag("<async_halving>")]
    | Annotated[Pbt, Tag("<pbt>")],
    Discriminator(_tag),
]


def length_of(config: SearcherConfig) -> dict[Any, int] | None:
    """How long a trial trains before its searcher is asked for the last time: ``max_length``, or of pbt
    ``length_per_round``. None: until the trial's own code ends."""
    return config.length_per_round if isinstance(config, Pbt) else config.max_length


def make_searcher(
    config: SearcherConfig, hyperparameters: dict[str, Any], visits: int, seed: int
) -> search.Searcher:
    """The searcher that a configuration describes, of points: of each there are ``replicates`` trials.

    Args:
        config, hyperparameters: the configuration's fields of these names.
        visits: ``length_of(config)`` in visits of a partition.
        seed: of what the searcher draws.

    Raises:
        SpaceError: the hyperparameters have fewer different points than there are trials.
    """
    space = search_space(hyperparameters, grid=isinstance(config, Grid))
    constant = next(dimensions(space), None) is None
    points = search.ListPoints([space]) if constant else search.RandomPoints(space, seed)
    match config:
        case Single():
            return search.FullLength(points, 1, visits)
        case Grid():
            points = points if constant else search.GridPoints(space)
            return search.FullLength(points, None, visits, config.points_at_once or None)
        case Random():
            return search.FullLength(points, config.max_trials, visits, config.points_at_once or None)
        case Pbt():
            return search.Pbt(
                points, space, config.population_size, config.num_rounds, visits, seed=seed,
                **dict(config.replace_function), **dict(config.explore_function),
            )  # fmt: skip
        case AsyncHalving():
            divisor = checked_divisor(config.divisor)
            rungs = rungs_in_visits(config.num_rungs, divisor, visits)
            return search.Asha(
                points, config.max_trials, rungs, divisor, config.points_at_once, config.stop_once
            )
    divisor = checked_divisor(config.divisor)
    shares = brackets(
        config.max_trials, visits, divisor, mode=config.mode, max_rungs=config.max_rungs,
        bracket_rungs=config.bracket_rungs, max_concurrent=config.points_at_once,
    )  # fmt: skip
    with_rungs = [(share, rungs_in_visits(share.num_rungs, divisor, visits)) for share in shares]
    return search.AdaptiveAsha(points, with_rungs, divisor, config.points_at_once, config.stop_once)
