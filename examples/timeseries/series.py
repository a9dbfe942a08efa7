"""Made-up visitors of stores, hour by hour, as Parquet: days, weeks, trends, promotions, weather, noise and gaps."""

from pathlib import Path

import numpy as np
import pandas as pd

WEEKDAYS = np.array([0.90, 0.88, 0.95, 1.00, 1.20, 1.40, 0.75])


def make_series(path, stores=24, weeks=60, seed=0):
    """Write one file, sorted by store and time. Columns: store (int32), time (timestamp), visitors (float32) of the
    hour that begins then, promotion (int8, 1: there is one; known in advance). Returns the path."""
    random = np.random.default_rng(seed)
    weather = wandering(random, weeks * 7, 0.85, 0.10)  # the same for all stores
    frames = [store_frame(number, weeks, weather, random) for number in range(stores)]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.concat(frames, ignore_index=True).to_parquet(path, row_group_size=16_384)
    return path


def store_frame(number, weeks, weather, random):
    days = weeks * 7
    hour, day = np.arange(24), np.arange(days)
    lunch, evening = random.normal(12.5, 0.6), random.normal(17.5, 0.6)
    profile = np.exp(-(((hour - lunch) / 2.2) ** 2)) + random.uniform(0.6, 1.4) * np.exp(
        -(((hour - evening) / 1.8) ** 2)
    )
    year = 1 + 0.15 * np.sin(2 * np.pi * (day / 365 + random.random())) + random.normal(0, 0.3) * day / 365
    own = wandering(random, days, 0.9, 0.06)
    promotion = promotions(random, days)
    lift = 1 + random.uniform(0.25, 0.6) * promotion
    of_day = random.lognormal(5, 0.5) * WEEKDAYS[day % 7] * year * np.exp(weather + own) * lift
    expected = np.outer(of_day, profile).reshape(-1)
    frame = pd.DataFrame(
        {
            "store": np.int32(number),
            "time": pd.date_range("2024-01-01", periods=days * 24, freq="h"),  # a Monday
            "visitors": random.poisson(expected).astype("float32"),
            "promotion": np.repeat(promotion, 24).astype("int8"),
        }
    )
    return frame[~gaps(random, len(frame))]


def wandering(random, days, keeps, spread):
    """(days,) a disturbance that lasts: each day keeps a part of the one before."""
    values = np.zeros(days)
    for day in range(1, days):
        values[day] = keeps * values[day - 1] + random.normal(0, spread)
    return values


def promotions(random, days):
    """(days,) 1 on the days of promotions, of one to four days each."""
    there_is = np.zeros(days, int)
    for first in np.flatnonzero(random.random(days) < 0.06):
        there_is[first : first + random.integers(1, 5)] = 1
    return there_is


def gaps(random, hours):
    """(hours,) True where the counter was broken: a few hours to two days, every two months or so."""
    broken = np.zeros(hours, bool)
    for first in np.flatnonzero(random.random(hours) < 1 / (60 * 24)):
        broken[first : first + random.integers(2, 48)] = True
    return broken
