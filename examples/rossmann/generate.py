"""Seven CSV files with the columns of Kaggle's Rossmann Store Sales and of what fast.ai added to it, drawn from a seed.

    python generate.py rossmann-data --stores 200

Sales are products of effects: the store, the weekday, promotions, the season, holidays, competitors, weather, what
people search for, and chance. Several of them differ from store to store, by traits that no column holds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from dateutil.easter import easter

Array = npt.NDArray[Any]

LAST_TRAINING_DAY = date(2015, 7, 31)

STATES = {
    "BE": "Berlin",
    "BW": "BadenWuerttemberg",
    "BY": "Bayern",
    "HB,NI": "Niedersachsen",
    "HE": "Hessen",
    "HH": "Hamburg",
    "NW": "NordrheinWestfalen",
    "RP": "RheinlandPfalz",
    "SH": "SchleswigHolstein",
    "SN": "Sachsen",
    "ST": "SachsenAnhalt",
    "TH": "Thueringen",
}
STATE_SHARES = np.array([8, 9, 14, 3, 10, 3, 25, 4, 10, 7, 5, 3]) / 101

INTERVALS = ["Jan,Apr,Jul,Oct", "Feb,May,Aug,Nov", "Mar,Jun,Sept,Dec"]

# Of Monday to Sunday: the effect on all stores, what commuters add to it, and how well a promotion works.
WEEKDAY = np.array([0.12, 0.02, -0.02, 0.0, 0.06, -0.02, -0.1])
COMMUTERS = np.array([0.06, 0.05, 0.04, 0.04, 0.02, -0.12, -0.2])
PROMOTION = np.array([1.3, 1.05, 0.95, 0.9, 0.9, 0.0, 0.0])


@dataclass(frozen=True)
class Calendar:
    """The days of training and test together.

    Attributes:
        days: datetime64[D], (days,), without gaps.
        state_holiday: (states, days): ``"0"`` (none), ``"a"`` (public), ``"b"`` (Easter), ``"c"`` (Christmas).
        school_holiday: bool, (states, days).
        promo: bool, (days,): every other week, Monday to Friday.
    """

    days: Array
    state_holiday: Array
    school_holiday: Array
    promo: Array

    @property
    def weekday(self) -> Array:
        """0 is Monday."""
        return (self.days.astype(np.int64) + 3) % 7

    @property
    def day_of_year(self) -> Array:
        return (self.days - self.days.astype("datetime64[Y]")).astype(np.int64) + 1

    @property
    def month(self) -> Array:
        return self.days.astype("datetime64[M]").astype(np.int64) % 12 + 1

    @property
    def day(self) -> Array:
        return (self.days - self.days.astype("datetime64[M]")).astype(np.int64) + 1


@dataclass(frozen=True)
class Weather:
    """Daily, (states, days)."""

    temperature: Array
    rain: Array
    wind: Array
    cloud: Array


@dataclass(frozen=True)
class Stores:
    """The stores: what ``store.csv`` says of them, and traits of which it says nothing.

    Attributes:
        table: as in ``store.csv``.
        state: number of the state, (stores,).
        level: logarithm of sales on a usual day, (stores,).
        growth: of that in a year, (stores,).
        commuters, tourists, families, bargains: about how much of each a store has, around 0, (stores,).
    """

    table: pd.DataFrame
    state: Array
    level: Array
    growth: Array
    commuters: Array
    tourists: Array
    families: Array
    bargains: Array


def generate(folder: Path, stores: int = 200, days: int = 942, test_days: int = 48, seed: int = 0) -> None:
    """Write the seven files into ``folder``.

    Args:
        stores: how many.
        days: of training, the last one is 2015-07-31.
        test_days: those after it, whose sales are to be predicted.
        seed: the same files for the same arguments.

    Raises:
        ValueError: a number is too small for a validation set a year before the test.
    """
    if stores < 1 or test_days < 1 or days <= 365:
        raise ValueError(
            f"stores={stores}, days={days}, test_days={test_days} were given, but the validation rows are those of the "
            "test's dates a year before. Give at least 366 days, one store and one day of test."
        )
    random = np.random.default_rng(seed)
    calendar = make_calendar(days, test_days)
    weather = make_weather(random, calendar)
    trend = make_trend(random, calendar)
    chain = make_stores(random, stores)
    is_open = opening(chain, calendar)
    sales = draw_sales(random, chain, calendar, weather, weekly(trend, calendar), is_open)

    folder.mkdir(parents=True, exist_ok=True)
    write = {"index": False, "lineterminator": "\n"}
    train, test = daily_tables(random, chain, calendar, is_open, sales, days)
    train.to_csv(folder / "train.csv", **write)
    test.to_csv(folder / "test.csv", **write)
    chain.table.to_csv(folder / "store.csv", **write)
    codes = np.array(list(STATES))
    pd.DataFrame({"Store": chain.table["Store"], "State": codes[chain.state]}).to_csv(
        folder / "store_states.csv", **write
    )
    pd.DataFrame({"StateName": list(STATES.values()), "State": codes}).to_csv(
        folder / "state_names.csv", **write
    )
    trend_table(trend, calendar).to_csv(folder / "googletrend.csv", **write)
    weather_table(random, weather, calendar).to_csv(folder / "weather.csv", **write)


# Days ---------------------------------------------------------------------------------------


def make_calendar(days: int, test_days: int) -> Calendar:
    last = np.datetime64(LAST_TRAINING_DAY)
    all_days = np.arange(last - (days - 1), last + test_days + 1)
    place = {day: number for number, day in enumerate(all_days.tolist())}
    years = range(all_days[0].item().year, all_days[-1].item().year + 1)
    state_holiday = np.full((len(STATES), len(all_days)), "0")
    school_holiday = np.zeros(state_holiday.shape, bool)
    for number, code in enumerate(STATES):
        for year in years:
            for day, kind in state_holidays(year, code):
                if day in place:
                    state_holiday[number, place[day]] = kind
            for first, length in school_holidays(year, number):
                for day in (first + timedelta(offset) for offset in range(length)):
                    if day in place:
                        school_holiday[number, place[day]] = True
    ordinal = all_days.astype(np.int64) + 3  # day 0 was a Thursday
    promo = (ordinal // 7 % 2 == 0) & (ordinal % 7 < 5)
    return Calendar(all_days, state_holiday, school_holiday, promo)


def state_holidays(year: int, code: str) -> list[tuple[date, str]]:
    sunday = easter(year)
    found = [
        (date(year, 1, 1), "a"),
        (sunday - timedelta(2), "b"),
        (sunday + timedelta(1), "b"),
        (date(year, 5, 1), "a"),
        (sunday + timedelta(39), "a"),
        (sunday + timedelta(50), "a"),
        (date(year, 10, 3), "a"),
        (date(year, 12, 25), "c"),
        (date(year, 12, 26), "c"),
    ]
    if code in ("BW", "BY", "HE", "NW", "RP"):
        found.append((sunday + timedelta(60), "a"))
    if code in ("BW", "BY", "NW", "RP"):
        found.append((date(year, 11, 1), "a"))
    if code in ("BW", "BY", "ST"):
        found.append((date(year, 1, 6), "a"))
    if code in ("SN", "ST", "TH"):
        found.append((date(year, 10, 31), "a"))
    return found


def school_holidays(year: int, state: int) -> list[tuple[date, int]]:
    """First days and lengths in days; summers begin at other times in other states."""
    return [
        (date(year, 1, 1), 5),
        (easter(year) - timedelta(6), 14),
        (date(year, 6, 24) + timedelta(3 * state), 42),
        (date(year, 10, 4) + timedelta(2 * state), 10),
        (date(year, 12, 22), 10),
    ]


def make_weather(random: np.random.Generator, calendar: Calendar) -> Weather:
    shape = len(STATES), len(calendar.days)
    season = 9.5 - 9.5 * np.cos(2 * np.pi * (calendar.day_of_year - 20) / 365.25)
    place = random.normal(0, 0.8, (len(STATES), 1))
    temperature = season + place + wandering(random, shape, 3.5, 0.8, common=0.8)
    wet = wandering(random, shape, 1.0, 0.5, common=0.7)
    rain = np.maximum(0, wet - 0.3) * 4
    wind = np.maximum(2, 12 + 3 * np.cos(2 * np.pi * calendar.day_of_year / 365.25) + 4 * wet)
    cloud = np.clip(np.round(4 + 2 * wet), 0, 8)
    return Weather(temperature, rain, wind, cloud)


def make_trend(random: np.random.Generator, calendar: Calendar) -> Array:
    """What people search for, 0 to 100, (states, weeks); weeks begin on Sundays."""
    weeks = weeks_of(calendar)
    month = weeks.astype("datetime64[M]").astype(np.int64) % 12 + 1
    season = 62 + 12 * (month == 12) + 3 * (month == 11) - 4 * (month == 8)
    return np.clip(
        np.round(season + wandering(random, (len(STATES), len(weeks)), 7, 0.6, common=0.6)), 0, 100
    )


def weeks_of(calendar: Calendar) -> Array:
    first = calendar.days[0] - (calendar.weekday[0] + 1) % 7
    return np.arange(first, calendar.days[-1] + 1, 7)


def weekly(values: Array, calendar: Calendar) -> Array:
    """Of weeks, for each day: (states, days)."""
    of_day = (calendar.days - weeks_of(calendar)[0]).astype(np.int64) // 7
    return values[:, of_day]


def wandering(
    random: np.random.Generator, shape: tuple[int, int], spread: float, memory: float, common: float
) -> Array:
    """Series that come back to 0, as rows; ``common`` is the share of their variance that they have together."""
    steps = np.sqrt(1 - common) * random.standard_normal(shape) + np.sqrt(common) * random.standard_normal(
        shape[1]
    )
    found = np.empty(shape)
    found[:, 0] = steps[:, 0]
    for number in range(1, shape[1]):
        found[:, number] = memory * found[:, number - 1] + np.sqrt(1 - memory**2) * steps[:, number]
    return spread * found


# Stores -------------------------------------------------------------------------------------


def make_stores(random: np.random.Generator, count: int) -> Stores:
    kind = random.choice(4, count, p=[0.54, 0.06, 0.13, 0.27])
    assortment = random.choice(3, count, p=[0.53, 0.03, 0.44])
    state = random.choice(len(STATES), count, p=STATE_SHARES)
    coast_or_alps = np.isin(np.array(list(STATES))[state], ["BY", "SH", "HB,NI"])
    level = (
        8.6
        + np.array([0.0, 0.45, 0.03, -0.02])[kind]
        + np.array([-0.05, 0.1, 0.07])[assortment]
        + random.normal(0, 0.28, count)
    )
    return Stores(
        store_table(random, kind, assortment),
        state,
        level,
        growth=random.normal(0.02, 0.03, count),
        commuters=random.normal(np.array([0.2, 1.2, -0.2, -0.4])[kind], 0.8),
        tourists=random.normal(0.8 * coast_or_alps, 0.8),
        families=random.normal(np.array([0.0, -0.5, 0.3, 0.3])[kind], 0.8),
        bargains=random.normal(np.array([0.2, 0.0, -0.3])[assortment], 0.8),
    )


def store_table(random: np.random.Generator, kind: Array, assortment: Array) -> pd.DataFrame:
    count = len(kind)
    distance = np.maximum(20, np.round(random.lognormal(7.8, 1.2, count), -1))
    known = random.random(count) < 0.68
    promo2 = random.random(count) < 0.5
    table = pd.DataFrame(
        {
            "Store": np.arange(1, count + 1),
            "StoreType": np.array(list("abcd"))[kind],
            "Assortment": np.array(list("abc"))[assortment],
            "CompetitionDistance": distance,
            "CompetitionOpenSinceMonth": random.integers(1, 13, count),
            "CompetitionOpenSinceYear": 2015 - np.minimum(random.geometric(0.22, count) - 1, 20),
            "Promo2": promo2.astype(int),
            "Promo2SinceWeek": random.integers(1, 51, count),
            "Promo2SinceYear": random.integers(2009, 2016, count),
            "PromoInterval": np.array(INTERVALS)[random.choice(3, count, p=[0.58, 0.23, 0.19])],
        }
    )
    whole = ["CompetitionOpenSinceMonth", "CompetitionOpenSinceYear", "Promo2SinceWeek", "Promo2SinceYear"]
    table[whole] = table[whole].astype("Int64")
    table.loc[random.random(count) < 0.003, "CompetitionDistance"] = np.nan
    table.loc[~known, whole[:2]] = pd.NA
    table.loc[~promo2, [*whole[2:], "PromoInterval"]] = pd.NA
    return table


def opening(stores: Stores, calendar: Calendar) -> Array:
    """Whether a store is open, (stores, days): on Sundays and holidays only those of type b are."""
    always = (stores.table["StoreType"] == "b").to_numpy()
    holiday = calendar.state_holiday[stores.state] != "0"
    return always[:, None] | ((calendar.weekday < 6)[None, :] & ~holiday)


# Sales --------------------------------------------------------------------------------------


def draw_sales(
    random: np.random.Generator,
    stores: Stores,
    calendar: Calendar,
    weather: Weather,
    trend: Array,
    is_open: Array,
) -> Array:
    """Whole numbers, (stores, days); 0 where closed."""
    years = (calendar.days - calendar.days[0]).astype(np.int64) / 365.25
    logarithm = (
        stores.level[:, None]
        + stores.growth[:, None] * years
        + WEEKDAY[calendar.weekday]
        + stores.commuters[:, None] * COMMUTERS[calendar.weekday]
        + promotions(stores, calendar)
        + seasons(stores, calendar)
        + holidays(stores, calendar)
        + competition(stores, calendar)
        + outdoors(stores, weather)
        + 0.004 * (trend[stores.state] - 62)
        + wandering(random, is_open.shape, 0.04, 0.97, common=0.2)
        + random.normal(0, 0.085, is_open.shape)
    )
    return np.where(is_open, np.maximum(1, np.round(np.exp(logarithm))), 0).astype(np.int64)


def promotions(stores: Stores, calendar: Calendar) -> Array:
    """The usual ones, which draw fewer people before Christmas, and those that go on, with coupons by mail."""
    works = PROMOTION[calendar.weekday] * calendar.promo * np.where(calendar.month == 12, 0.7, 1.0)
    usual = np.maximum(0.05, 0.27 + 0.09 * stores.bargains)[:, None] * works
    table = stores.table
    year = table["Promo2SinceYear"].fillna(9999).to_numpy(np.int64)
    week = table["Promo2SinceWeek"].fillna(1).to_numpy(np.int64)
    begun = (year - 1970).astype("datetime64[Y]").astype("datetime64[D]") + 7 * (week - 1)
    weeks = np.clip((calendar.days - begun[:, None]).astype(np.int64) / 7, 0, 25)
    months = [set(map(month_number, str(text).split(","))) for text in table["PromoInterval"]]
    mailed = np.array([[month in chosen for month in range(1, 13)] for chosen in months])
    in_month = mailed[:, calendar.month - 1] & (calendar.day <= 14)
    return usual + (weeks / 25) * (0.03 + np.maximum(0, 0.07 + 0.04 * stores.bargains)[:, None] * in_month)


def month_number(name: str) -> int:
    """0: none of them, where a store takes no part."""
    names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sept", "Oct", "Nov", "Dec"]
    return names.index(name) + 1 if name in names else 0


def seasons(stores: Stores, calendar: Calendar) -> Array:
    """Summer where there are tourists, December everywhere, and the days on which wages come."""
    summer = np.exp(-(((calendar.day_of_year - 205) / 35) ** 2))
    advent = np.where(calendar.month == 12, np.clip(calendar.day / 23, 0, 1) * (calendar.day < 25), 0.0)
    wages = np.where((calendar.day >= 29) | (calendar.day <= 3), 0.06, 0.0)
    return (
        np.outer(0.16 * stores.tourists - 0.05 * stores.commuters, summer)
        + np.outer(0.3 + 0.08 * stores.families, advent)
        + wages
    )


def holidays(stores: Stores, calendar: Calendar) -> Array:
    """People buy before stores close, and after."""
    holiday = calendar.state_holiday != "0"
    following, second, before = (np.zeros(holiday.shape, bool) for _ in range(3))
    following[:, :-1] = holiday[:, 1:]
    second[:, :-2] = holiday[:, 2:]
    before[:, 1:] = holiday[:, :-1]
    around = 0.2 * following + 0.09 * (second & ~following) + 0.12 * before
    school = np.outer(0.02 + 0.05 * stores.families - 0.05 * stores.commuters, np.ones(len(calendar.days)))
    found: Array = around[stores.state] + school * calendar.school_holiday[stores.state]
    return found


def competition(stores: Stores, calendar: Calendar) -> Array:
    """The nearer, the worse; worst when new."""
    table = stores.table
    near = np.exp(-table["CompetitionDistance"].fillna(75_000).to_numpy() / 2500)
    year = table["CompetitionOpenSinceYear"].fillna(1990).to_numpy(np.int64)
    month = table["CompetitionOpenSinceMonth"].fillna(1).to_numpy(np.int64)
    opened = ((year - 1970) * 12 + month - 1).astype("datetime64[M]").astype("datetime64[D]") + 14
    months = (calendar.days - opened[:, None]).astype(np.int64) / 30
    pressure = np.where(months < 0, 0.0, 0.5 + 0.5 * np.exp(-np.maximum(months, 0) / 8))
    return -0.3 * near[:, None] * pressure


def outdoors(stores: Stores, weather: Weather) -> Array:
    """Rain keeps people at home, warmth brings tourists."""
    rain = -0.008 * (1 + 0.5 * stores.commuters)[:, None] * np.minimum(weather.rain[stores.state], 10)
    warm = 0.004 * stores.tourists[:, None] * (weather.temperature[stores.state] - 10)
    frost = -0.05 * (weather.temperature[stores.state] < -3)
    return rain + warm + frost


# Tables -------------------------------------------------------------------------------------


def daily_tables(
    random: np.random.Generator, stores: Stores, calendar: Calendar, is_open: Array, sales: Array, days: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """``train.csv`` and ``test.csv``: newest days first, as there."""
    count, total = sales.shape
    basket = random.normal(9.5, 1.2, (count, 1)).clip(5) * np.exp(random.normal(0, 0.04, sales.shape))
    newest_first = slice(None, None, -1)

    def column(values: Array) -> Array:
        return np.broadcast_to(values, sales.shape).T[newest_first].reshape(-1)

    whole = pd.DataFrame(
        {
            "Store": column(stores.table["Store"].to_numpy()[:, None]),
            "DayOfWeek": column(calendar.weekday + 1),
            "Date": column(calendar.days.astype(str)),
            "Sales": column(sales),
            "Customers": column(np.round(sales / basket).astype(np.int64)),
            "Open": column(is_open.astype(np.int64)),
            "Promo": column(calendar.promo.astype(np.int64)),
            "StateHoliday": column(calendar.state_holiday[stores.state]),
            "SchoolHoliday": column(calendar.school_holiday[stores.state].astype(np.int64)),
        }
    )
    tested = (total - days) * count
    test = whole[:tested].drop(columns=["Sales", "Customers"])
    test.insert(0, "Id", np.arange(1, tested + 1))
    return whole[tested:], test


def trend_table(trend: Array, calendar: Calendar) -> pd.DataFrame:
    """``googletrend.csv``: each state, and the whole country as ``Rossmann_DE``."""
    weeks = weeks_of(calendar)
    spans = [f"{week} - {week + 6}" for week in weeks]
    files = {"Rossmann_DE": np.round(trend.mean(axis=0))}
    for code, values in zip(STATES, trend, strict=True):
        files[f"Rossmann_DE_{code.removeprefix('HB,')}"] = values
    parts = [
        pd.DataFrame({"file": name, "week": spans, "trend": values.astype(np.int64)})
        for name, values in files.items()
    ]
    return pd.concat(parts)


def weather_table(random: np.random.Generator, weather: Weather, calendar: Calendar) -> pd.DataFrame:
    """``weather.csv``: each state by its name."""
    shape = weather.temperature.shape
    mean = np.round(weather.temperature)
    spread = random.uniform(2, 6, shape)
    humidity = np.clip(np.round(75 + 3 * weather.cloud - 0.6 * mean + random.normal(0, 5, shape)), 20, 100)
    pressure = np.round(1016 - 2 * (weather.cloud - 4) + random.normal(0, 4, shape))
    sight = np.clip(np.round(14 - weather.rain + random.normal(0, 2, shape)), 1, 31)
    wind = np.round(weather.wind)
    events = np.where(weather.rain > 0, np.where(mean < 0, "Snow", "Rain"), "")
    events = np.where((weather.rain > 4) & (mean > 16), "Rain-Thunderstorm", events)
    events = np.where((weather.rain == 0) & (humidity > 92), "Fog", events)
    dew = np.round(mean - (100 - humidity) / 5)
    values = {
        "file": np.repeat(list(STATES.values()), shape[1]),
        "Date": np.tile(calendar.days.astype(str), shape[0]),
        "Max_TemperatureC": np.round(mean + spread),
        "Mean_TemperatureC": mean,
        "Min_TemperatureC": np.round(mean - spread),
        "Dew_PointC": dew + 2,
        "MeanDew_PointC": dew,
        "Min_DewpointC": dew - 2,
        "Max_Humidity": np.minimum(100, humidity + 12),
        "Mean_Humidity": humidity,
        "Min_Humidity": np.maximum(10, humidity - 18),
        "Max_Sea_Level_PressurehPa": pressure + 3,
        "Mean_Sea_Level_PressurehPa": pressure,
        "Min_Sea_Level_PressurehPa": pressure - 3,
        "Max_VisibilityKm": np.minimum(31, sight + 6),
        "Mean_VisibilityKm": sight,
        "Min_VisibilitykM": np.maximum(0, sight - 6),
        "Max_Wind_SpeedKm_h": np.round(1.7 * wind),
        "Mean_Wind_SpeedKm_h": wind,
        "Max_Gust_SpeedKm_h": np.round(2.4 * wind),
        "Precipitationmm": np.round(weather.rain, 2),
        "CloudCover": weather.cloud,
        "Events": events,
        "WindDirDegrees": random.integers(0, 360, shape),
    }
    table = pd.DataFrame({name: column.reshape(-1) for name, column in values.items()})
    numbers = [name for name in table if name not in ("file", "Date", "Precipitationmm", "Events")]
    return table.astype(dict.fromkeys(numbers, np.int64))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write seven CSV files like those of Rossmann Store Sales.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stores", type=int, default=200)
    parser.add_argument(
        "--days", type=int, default=942, help="of training, to 2015-07-31 (default: %(default)s)"
    )
    parser.add_argument("--test-days", type=int, default=48, help="after it (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    try:
        generate(options.folder, options.stores, options.days, options.test_days, options.seed)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
