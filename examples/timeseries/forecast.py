"""The visitors of the next 24 hours, forecast for many stores by networks on windows of time. See README.md.

python examples/timeseries/forecast.py
"""

import argparse
import os
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from series import make_series

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.data import open_dataset
from hopyard.keras import KerasEstimator
from hopyard.storage import LocalStore
from hopyard.tune import RandomSearch, hp_choice, hp_loguniform

HISTORY, HORIZON = 7 * 24, 24  # hours that a forecast sees, and those that it is about
HOUR = 3600 * 10**9  # nanoseconds, as timestamps are counted

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # here and in the workers


def windows(path, first, last, step):
    """Windows whose forecasts lie in [first, last); one begins every ``step`` hours."""
    hours = open_dataset(
        path, filters=[("time", ">=", first - timedelta(hours=HISTORY)), ("time", "<", last)]
    )
    return hours.windows(
        HISTORY + HORIZON, step=step, time="time", max_gap=HOUR, series="store",
        columns={
            "past": ("visitors", slice(0, HISTORY)),
            "promotion": "promotion",  # the future ones are known, too
            "next": ("visitors", slice(HISTORY, None)),
            "time": ("time", slice(HISTORY, None)),
            "store": ("store", 0),
        },
    )  # fmt: skip


def network(params):
    """Learns in how far the next day will differ from the same hours of last week."""
    import keras
    from keras import layers, ops

    past = keras.Input((HISTORY,), name="past")
    promotion = keras.Input((HISTORY + HORIZON,), name="promotion")
    level = ops.mean(past, axis=1, keepdims=True) + 1  # stores are of very different sizes
    scaled = past / level
    if params["kind"] == "dense":
        seen = layers.Concatenate()([scaled, promotion])
    else:
        week = ops.stack([scaled, promotion[:, :HISTORY]], axis=2)  # (n, 168, 2)
        days = layers.Conv1D(params["width"], 24, strides=12, activation="relu")(week)
        seen = layers.Concatenate()([layers.Flatten()(days), promotion[:, HISTORY:]])
    hidden = layers.Dense(params["width"], activation="relu")(seen)
    hidden = layers.Dense(params["width"], activation="relu")(hidden)
    change = layers.Dense(HORIZON, kernel_initializer="zeros")(hidden)
    forecast = (scaled[:, :HORIZON] + change) * level
    return KerasEstimator(
        keras.Model([past, promotion], forecast),
        keras.optimizers.Adam(params["lr"]),
        loss="mae",
        batch_size=64,
    )


def last_week(batch):
    """(n, 24) the baseline: what was counted in the same hours a week before."""
    return batch["past"][:, :HORIZON]


def error(forecast, batch):
    """Mean absolute error, in visitors an hour."""
    return float(np.abs(forecast - batch["next"]).mean())


def draw(model, test, stores, path):
    """A week of two stores: what was forecast each midnight, what came, and what last week would have said."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.8 * len(stores)), layout="constrained")
    for axes, store in zip(figure.subplots(len(stores), squeeze=False)[:, 0], stores, strict=True):
        week = np.flatnonzero(test["store"] == store)[:7]
        batch = {name: values[week] for name, values in test.items()}
        time = batch["time"].reshape(-1).astype("datetime64[ns]")
        axes.plot(time, batch["next"].reshape(-1), color="#333333", linewidth=1.6, label="counted")
        axes.plot(time, model.predict(batch).reshape(-1), color="#d1600c", linewidth=1.6, label="forecast")
        axes.plot(
            time, last_week(batch).reshape(-1), color="#7aa6cf", linewidth=1, label="last week", zorder=1
        )
        axes.set_title(f"store {store}: visitors an hour", loc="left")
        axes.legend(frameon=False, ncols=3, loc="upper right", bbox_to_anchor=(1, 1.14))
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("experiments/timeseries"), help="for data and runs"
    )
    parser.add_argument("--stores", type=int, default=24)
    parser.add_argument("--weeks", type=int, default=60, help="of data; the last four are for the test")
    parser.add_argument("--step", type=int, default=7, help="hours between two windows of the training data")
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2, help="processes; 0: in this one")
    given = parser.parse_args(arguments)

    path = make_series(given.folder / "visitors.parquet", given.stores, given.weeks)
    begin = datetime(2024, 1, 1)
    end = begin + timedelta(weeks=given.weeks)
    val_from, test_from = end - timedelta(weeks=8), end - timedelta(weeks=4)
    train = windows(path, begin + timedelta(hours=HISTORY), val_from, given.step)
    val = windows(path, val_from, test_from, 24)
    test = windows(path, test_from, end, 24)[:]
    print(
        f"{len(train):,} windows to train on, {len(val):,} to choose by, {len(test['next']):,} to test with"
    )

    model = RandomSearch(
        backend=LocalBackend(num_workers=given.workers) if given.workers else InlineBackend(),
        store=LocalStore(given.folder / "store"),
        estimator_gen_fn=network,
        search_space={
            "kind": hp_choice(["dense", "convolution"]),
            "width": hp_choice([32, 64, 128]),
            "lr": hp_loguniform(-4, -2),
        },
        num_models=given.models,
        num_epochs=given.epochs,
        feature_columns=["past", "promotion"],
        label_columns=["next"],
        evaluation_metric="loss",
    ).fit(train, val)

    print(model)
    ours, naive = error(model.predict(test), test), error(last_week(test), test)
    print(
        f"in the last four weeks: {ours:.2f} visitors an hour beside those that came; last week's: {naive:.2f}"
    )
    picture = given.folder / "forecast.png"
    draw(model, test, np.unique(test["store"])[:2].tolist(), picture)
    print(f"a week of two stores: {picture}")
    return model, ours, naive


if __name__ == "__main__":
    main()
