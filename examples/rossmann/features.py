"""From the seven CSV files to rows that a model takes: Spark DataFrames all the way.

It takes the files of Kaggle's competition with fast.ai's additions (rossmann.tgz), and those of generate.py. All is
read as text; each row of train.csv and test.csv is kept, which is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.ml.feature import StringIndexer
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

TABLES = ["train", "test", "store", "store_states", "state_names", "googletrend", "weather"]

CATEGORICAL = [
    "Store", "State", "DayOfWeek", "Year", "Month", "Day", "Week", "CompetitionMonthsOpen", "Promo2Weeks", "StoreType",
    "Assortment", "PromoInterval", "CompetitionOpenSinceYear", "Promo2SinceYear", "Events", "Promo", "StateHoliday",
    "SchoolHoliday",
]  # fmt: skip

CONTINUOUS = [
    "CompetitionDistance", "Max_TemperatureC", "Mean_TemperatureC", "Min_TemperatureC", "Max_Humidity",
    "Mean_Humidity", "Min_Humidity", "Max_Wind_SpeedKm_h", "Mean_Wind_SpeedKm_h", "CloudCover", "trend", "trend_de",
    "BeforePromo", "AfterPromo", "BeforeStateHoliday", "AfterStateHoliday", "BeforeSchoolHoliday",
    "AfterSchoolHoliday",
]  # fmt: skip

EVENTS = ["Promo", "StateHoliday", "SchoolHoliday"]


class LostRowsError(Exception):
    """Rows of train.csv or test.csv have no partner in another file, or several."""


@dataclass(frozen=True)
class Features:
    """What models are trained on, and what they are asked.

    Attributes:
        train: days with sales; ``CATEGORICAL`` as int, numbers in ``vocabularies``, ``CONTINUOUS`` as float, ``Sales``
            as float, its logarithm; ``Date``; ``Validation`` (bool): the test's dates, a year before.
        test: the same without Sales and Validation, and ``Id`` (int) and ``Open`` (bool), a row for each of test.csv.
        vocabularies: of each categorical column, the values that its numbers stand for.
        max_sales: the most that a store sold in a day.
        cached: what the tables are computed from, kept in memory; ``unpersist()`` it once they are written.
    """

    train: DataFrame
    test: DataFrame
    vocabularies: dict[str, list[str]]
    max_sales: int
    cached: DataFrame


def read_tables(spark: SparkSession, folder: str) -> dict[str, DataFrame]:
    """The seven files by name, all columns as text. ``folder``: a directory or a URL that Spark reads.

    Raises:
        FileNotFoundError: the directory lacks some.
    """
    if "://" not in folder:
        missing = [f"{name}.csv" for name in TABLES if not (Path(folder) / f"{name}.csv").is_file()]
        if missing:
            raise FileNotFoundError(
                f"{folder} lacks {', '.join(missing)}. Unpack rossmann.tgz there, or write files like those with: "
                f"python generate.py {folder}"
            )
        folder = Path(folder).resolve().as_uri()
    return {name: spark.read.csv(f"{folder}/{name}.csv", header=True) for name in TABLES}


def make_features(tables: dict[str, DataFrame], sample_rate: float = 1.0) -> Features:
    """All steps. ``sample_rate``: the share of stores that is kept, with all of their days.

    Raises:
        LostRowsError: a file lacks what belongs to rows of train.csv or test.csv.
    """
    days = sampled(daily_rows(tables["train"], tables["test"]), sample_rate)
    rows = with_distances(with_competition(with_promo2(joined(days, tables))))
    filled = rows.select(
        *(F.coalesce(F.col(name).cast("string"), F.lit("none")).alias(name) for name in CATEGORICAL),
        *(F.coalesce(F.col(name).cast("float"), F.lit(0.0).cast("float")).alias(name) for name in CONTINUOUS),
        *("Id", "Date", "Open", F.col("Sales").alias("sold")),
    ).persist()  # used for the vocabularies, and for both results
    numbered = [f"{name}_number" for name in CATEGORICAL]
    indexer = StringIndexer(inputCols=CATEGORICAL, outputCols=numbered, stringOrderType="alphabetAsc")
    vocabularies = indexer.fit(filled)
    numbers = [F.col(f"{name}_number").cast("int").alias(name) for name in CATEGORICAL]
    whole = vocabularies.transform(filled).select(*numbers, *CONTINUOUS, "Id", "Date", "Open", "sold")

    tested = F.when(F.col("Id").isNotNull(), F.col("Date"))
    facts = filled.agg(F.max("sold"), F.min(tested), F.max(tested)).first()
    assert facts is not None
    max_sales, first_tested, last_tested = facts
    if max_sales is None or first_tested is None:
        raise ValueError(
            f"sample_rate={sample_rate} leaves no rows to train on or none to predict; give a larger share."
        )
    a_year_before = F.col("Date").between(
        F.date_sub(F.lit(first_tested), 364), F.date_sub(F.lit(last_tested), 365)
    )
    sold = whole.where("Id IS NULL AND sold > 0").withColumn("Sales", F.log("sold").cast("float"))
    return Features(
        sold.withColumn("Validation", a_year_before).drop("Id", "Open", "sold"),
        whole.where("Id IS NOT NULL").drop("sold"),
        dict(zip(CATEGORICAL, map(list, vocabularies.labelsArray), strict=True)),
        max_sales,
        filled,
    )


def daily_rows(train: DataFrame, test: DataFrame) -> DataFrame:
    """Both with the same columns: what is asked has an Id and no Sales. Eleven rows of Kaggle's test.csv do not say
    whether the store is open; it counts as open."""

    def typed(table: DataFrame, own: Column, other: Column) -> DataFrame:
        date = F.to_date("Date")
        return table.select(
            F.col("Store").cast("int").alias("Store"),
            date.alias("Date"),
            F.col("DayOfWeek").cast("int").alias("DayOfWeek"),
            F.year(date).alias("Year"),
            F.month(date).alias("Month"),
            F.dayofmonth(date).alias("Day"),
            F.weekofyear(date).alias("Week"),
            F.coalesce(F.col("Open") != "0", F.lit(True)).alias("Open"),
            *((F.col(name) != "0").alias(name) for name in EVENTS),
            own, other,
        )  # fmt: skip

    nothing = F.lit(None).cast("int")
    sold = typed(train, F.col("Sales").cast("int").alias("Sales"), nothing.alias("Id"))
    asked = typed(test, nothing.alias("Sales"), F.col("Id").cast("int").alias("Id"))
    return sold.unionByName(asked)


def sampled(days: DataFrame, rate: float) -> DataFrame:
    """Whole stores, the same ones each time: without some of its days, a store's distances would be wrong."""
    return days if rate >= 1 else days.where(F.pmod(F.xxhash64("Store"), F.lit(10_000)) < rate * 10_000)


# Joins --------------------------------------------------------------------------------------


def joined(days: DataFrame, tables: dict[str, DataFrame]) -> DataFrame:
    """What the other files say of each store and day.

    Raises:
        LostRowsError: they do not say it, or twice.
    """
    found, partners = days.withColumn("sunday", sunday_of(F.col("Date"))), partners_of(tables)
    marks = [f"in_{number}" for number in range(len(partners))]
    for mark, (_, partner, keys) in zip(marks, partners, strict=True):
        found = found.join(partner.withColumn(mark, F.lit(True)), keys, "left")
    without = [F.count(F.when(F.col(mark).isNull(), 1)) for mark in marks]
    counts = found.agg(F.count("*"), *without).first()
    assert counts is not None
    total, *lost = counts
    rows = days.count()
    missing = [f"{count} in {name}" for (name, _, _), count in zip(partners, lost, strict=True) if count]
    if missing:
        raise LostRowsError(
            f"Of {rows} rows of train.csv and test.csv some have no partner: {', '.join(missing)}. Every store needs a "
            "line in store.csv and store_states.csv, every state a name in state_names.csv, a line for "
            "each day in weather.csv and for each week in googletrend.csv. Complete these files."
        )
    if total != rows:
        raise LostRowsError(
            f"The {rows} rows of train.csv and test.csv became {total} by joining: a store, a state's day or a state's "
            "week is there twice in another file. Remove the doubles."
        )
    return found.drop("sunday", *marks)


def partners_of(tables: dict[str, DataFrame]) -> list[tuple[str, DataFrame, list[str]]]:
    """Files, what is taken of them, and by which columns: in this order, since states come from stores."""
    trend = tables["googletrend"].select(
        F.regexp_extract("file", "Rossmann_DE_(.*)", 1).alias("code"),
        F.to_date(F.regexp_extract("week", "(.*?) -", 1)).alias("sunday"),
        F.col("trend").cast("int").alias("trend"),
    )
    state = F.when(F.col("code") == "NI", "HB,NI").otherwise(F.col("code"))
    by_state = trend.where("code != ''").select(state.alias("State"), "sunday", "trend")
    whole_country = trend.where("code = ''").select("sunday", F.col("trend").alias("trend_de"))
    weather = (
        tables["weather"]
        .join(tables["state_names"].withColumnRenamed("StateName", "file"), "file")
        .select(
            "State",
            F.to_date("Date").alias("Date"),
            "Events",
            *(name for name in CONTINUOUS if name in tables["weather"].columns),
        )
    )
    store = tables["store"].withColumn("Store", F.col("Store").cast("int"))
    store_states = tables["store_states"].withColumn("Store", F.col("Store").cast("int"))
    return [
        ("store.csv", store, ["Store"]),
        ("store_states.csv", store_states, ["Store"]),
        ("googletrend.csv", by_state, ["State", "sunday"]),
        ("googletrend.csv (Rossmann_DE)", whole_country, ["sunday"]),
        ("weather.csv", weather, ["State", "Date"]),
    ]


def sunday_of(date: Column) -> Column:
    """With which its week begins in googletrend.csv."""
    return F.date_sub(date, F.dayofweek(date) - 1)


# Columns ------------------------------------------------------------------------------------


def with_competition(rows: DataFrame) -> DataFrame:
    """``CompetitionMonthsOpen``: of 30 days, 0 to 24; 0 where it is not known since when."""
    year = F.coalesce(F.col("CompetitionOpenSinceYear").cast("int"), F.lit(1900))
    month = F.coalesce(F.col("CompetitionOpenSinceMonth").cast("int"), F.lit(1))
    since = F.make_date(year, month, F.lit(15))
    days = F.when(year > 1900, between(F.datediff("Date", since), 720)).otherwise(0)
    return rows.withColumns(
        {"CompetitionOpenSinceYear": year, "CompetitionMonthsOpen": (days / 30).cast("int")}
    )


def with_promo2(rows: DataFrame) -> DataFrame:
    """``Promo2Weeks``: since when the store takes part, 0 to 25; 0 where it does not."""
    year = F.coalesce(F.col("Promo2SinceYear").cast("int"), F.lit(1900))
    week = F.coalesce(F.col("Promo2SinceWeek").cast("int"), F.lit(1))
    since = F.date_add(F.make_date(year, F.lit(1), F.lit(1)), (week - 1) * 7)
    days = F.when(year > 1900, between(F.datediff("Date", since), 175)).otherwise(0)
    return rows.withColumns({"Promo2SinceYear": year, "Promo2Weeks": (days / 7).cast("int")})


def between(days: Column, most: int) -> Column:
    return F.least(F.greatest(days, F.lit(0)), F.lit(most))


def with_distances(rows: DataFrame) -> DataFrame:
    """``AfterPromo``: days since the last promotion, ``BeforePromo``: until the next, both 0 during one; and so for
    holidays. Before the first one it is days since the store's first row, after the last one days to its last row."""
    by_store = Window.partitionBy("Store")
    by_date = by_store.orderBy("Date")
    past = by_date.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    future = by_date.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    columns: dict[str, Any] = {}
    for name in EVENTS:
        happened = F.when(F.col(name), F.col("Date"))
        last = F.coalesce(F.max(happened).over(past), F.min("Date").over(by_store))
        following = F.coalesce(F.min(happened).over(future), F.max("Date").over(by_store))
        columns[f"After{name}"] = F.datediff("Date", last)
        columns[f"Before{name}"] = F.datediff(following, "Date")
    return rows.withColumns(columns)
