"""Predict the sales of drugstores: from CSV files, over a search of networks on Spark, to a file to hand in.

python generate.py rossmann-data && python train.py --data-dir rossmann-data
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from baseline import predict_baseline, rmspe
from features import CATEGORICAL, CONTINUOUS, Features, make_features, read_tables
from model import make_estimator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from hopyard.backend import SparkBackend
from hopyard.storage import LocalStore
from hopyard.tune import HyperOpt, Model, hp_choice, hp_loguniform, hp_quniform

FEATURES = [*CATEGORICAL, *CONTINUOUS]


@dataclass(frozen=True)
class Outcome:
    """What a run of the example came to.

    Attributes:
        model: the best one.
        val: the validation rows, with ``network`` and ``trees``: logarithms of sales as these predict them.
        network, trees: RMSPE on these rows.
    """

    model: Model
    val: pd.DataFrame
    network: float
    trees: float


def run(spark: SparkSession, options: argparse.Namespace) -> Outcome:
    """All of it; says how long each part took."""
    say = stopwatch()
    features = make_features(read_tables(spark, options.data_dir), options.sample_rate)
    train, test = kept(features, options.work_dir)
    fitted = train.where("NOT Validation").drop("Validation").toArrow().to_pandas()
    sizes = {name: len(values) for name, values in features.vocabularies.items()}
    say(f"{len(fitted)} rows to train on, {len(FEATURES)} features")

    model = search(options, sizes, features.max_sales, len(fitted)).fit(train)
    say(f"{options.num_models} networks; RMSPE on the validation rows, best first:")
    for other in model.get_all_models():
        params = ", ".join(f"{name}={value:.3g}" for name, value in other.params.items())
        print(f"  {other.info.value:.4f}  network {other.trial}: {params}")

    val = model.set_output_columns(["network"]).transform(train.where("Validation")).toArrow().to_pandas()
    val["trees"] = predict_baseline(fitted, val, FEATURES, sizes)
    say("trees, and predictions of both")
    sales = np.exp(val["Sales"])
    outcome = Outcome(model, val, rmspe(sales, np.exp(val["network"])), rmspe(sales, np.exp(val["trees"])))
    print(compared(outcome))

    model.keras().save(options.checkpoint)
    submission = submitted(model, test)
    submission.to_csv(options.submission, index=False)
    say(f"{options.checkpoint}, and {options.submission} with {len(submission)} rows")
    if options.plot:
        plot(outcome, features.vocabularies["Store"], options.plot)
    return outcome


def kept(features: Features, work_dir: str) -> tuple[DataFrame, DataFrame]:
    """Both tables, written as Parquet and read back: so they are computed once."""
    frames = []
    for name, frame in (("train", features.train), ("test", features.test)):
        path = (Path(work_dir) / "features" / name).resolve().as_uri()
        frame.write.mode("overwrite").parquet(path)
        frames.append(frame.sparkSession.read.parquet(path))
    features.cached.unpersist()
    return frames[0], frames[1]


def search(options: argparse.Namespace, sizes: dict[str, int], max_sales: int, rows: int) -> HyperOpt:
    """TPE over what the network and its training leave open."""
    return HyperOpt(
        backend=SparkBackend(num_workers=options.num_workers),
        store=LocalStore(Path(options.work_dir) / "store"),
        estimator_gen_fn=make_estimator(
            sizes, CONTINUOUS, max_sales, rows, options.epochs, options.hidden, options.dropout
        ),
        search_space={
            "lr": hp_loguniform(-3, -2.3),
            "l2": hp_loguniform(-7, -5),
            "num_layers": hp_choice([1, 2, 3]),
            "batch_size": hp_quniform(64, 256, 64),
        },
        num_models=options.num_models,
        num_epochs=options.epochs,
        parallelism=options.parallelism,
        evaluation_metric="exp_rmspe",
        mode="min",
        feature_columns=FEATURES,
        label_columns=["Sales"],
        validation="Validation",
        num_partitions=options.num_partitions,
        progress=options.progress,
    )


def compared(outcome: Outcome) -> str:
    network, trees = outcome.network, outcome.trees
    better = "network" if network < trees else "trees"
    share = abs(network - trees) / max(network, trees)
    return (
        f"RMSPE on {len(outcome.val)} validation rows: network {network:.4f}, boosted trees {trees:.4f}; the error of "
        f"the {better} is {share:.1%} smaller"
    )


def submitted(model: Model, test: DataFrame) -> pd.DataFrame:
    """``Id`` and ``Sales``, in the order of the Ids; 0 where closed."""
    predicted = model.set_output_columns(["Sales"]).transform(test)
    sales = F.when(F.col("Open"), F.exp("Sales")).otherwise(0.0).alias("Sales")
    table: pd.DataFrame = predicted.select("Id", sales).toArrow().to_pandas().sort_values("Id")
    return table


def plot(outcome: Outcome, stores: list[str], path: str) -> None:
    """The validation days of a store: that for which the network's error is the median of all stores."""
    from matplotlib.figure import Figure

    val = outcome.val.assign(
        sold=np.exp(outcome.val["Sales"]),
        by_network=np.exp(outcome.val["network"]),
        by_trees=np.exp(outcome.val["trees"]),
    )
    errors = ((val["by_network"] / val["sold"] - 1) ** 2).groupby(val["Store"]).mean().sort_values()
    store = errors.index[len(errors) // 2]
    rows = val[val["Store"] == store].sort_values("Date")
    days = pd.to_datetime(rows["Date"])
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes: Any = figure.subplots()
    axes.plot(days, rows["sold"], "o-", color="black", label="sold")
    axes.plot(days, rows["by_network"], "s--", color="tab:blue", markersize=4, label="network")
    axes.plot(days, rows["by_trees"], "^:", color="tab:orange", markersize=4, label="boosted trees")
    axes.set(
        title=f"Store {stores[store]}: rows that no model was trained on", ylabel="sales", ylim=(0, None)
    )
    axes.legend(ncols=3, loc="lower right")
    figure.savefig(path, dpi=80)


def stopwatch() -> Callable[[str], None]:
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {what}", flush=True)

    return say


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Search networks that predict sales.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data-dir", default="rossmann-data", help="where the seven CSV files are")
    add(
        "--work-dir",
        default="rossmann-work",
        help="features, models and the run are kept here; all workers must see it",
    )
    add("--submission", default="submission.csv", help="file to write")
    add("--checkpoint", default="rossmann.keras", help="file of the best network to write")
    add("--plot", default="", help="file of a picture to write; none if not given")
    add("--master", default="local[2]", help="of Spark")
    add("--num-workers", type=int, default=2, help="places where networks train at once")
    add("--num-models", type=int, default=4, help="points of the search space")
    add("--parallelism", type=int, default=4, help="networks under way at once; TPE learns from the others")
    add("--epochs", type=int, default=8, help="of each network")
    add("--num-partitions", type=int, default=4, help="of the rows; networks hop from one to the next")
    add("--sample-rate", type=float, default=1.0, help="share of stores to take")
    add("--hidden", type=int, default=256, help="width of the dense layers")
    add("--dropout", type=float, default=0.1, help="before the output")
    parser.set_defaults(progress=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(options.master)
        .appName("rossmann")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "8")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        run(spark, options)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
