"""The page of a report: one HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from hopyard.data.reports.charts import draw, draw_frequent, number, percent, shown
from hopyard.data.reports.columns import Bins, Values
from hopyard.data.reports.facts import ColumnFacts, ColumnReport, shorten
from hopyard.data.reports.images import THUMBNAIL, Picture, Pictures
from hopyard.data.reports.markup import Child, Html, join, tag
from hopyard.data.reports.summary import DatasetSummary, size

MOST_CARDS = 400
"""Columns with a chart; of more, the table alone says what they are."""

_LONGEST_CELL = 80
_SMALL_PICTURE = 64  # pixels; smaller ones are shown larger, pixel by pixel


@dataclass(frozen=True)
class Report:
    """Everything that a page shows.

    Attributes:
        title, where: of the dataset.
        splits: their summaries, the first one first.
        columns: in order; their facts, shares and charts have the splits in this order.
        preview: the first rows of the first split, a list of cells each.
        sampled: in words, which rows were looked at.
    """

    title: str
    where: str
    splits: tuple[DatasetSummary, ...]
    columns: tuple[ColumnReport, ...]
    preview: list[list[Any]]
    sampled: str
    version: str

    @property
    def names(self) -> list[str]:
        return [split.split for split in self.splits]

    def html(self) -> str:
        """The whole page."""
        style = files("hopyard.data.reports").joinpath("report.css").read_text("utf-8")
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag(
                "meta", http_equiv="Content-Security-Policy",
                content="default-src 'none'; img-src data:; style-src 'unsafe-inline'",
            ),
            tag("meta", name="generator", content=f"Hopyard {self.version}"),
            tag("title", f"{self.title}: data report"),
            tag("style", Html(style)),
        )  # fmt: skip
        body = tag(
            "body",
            tag(
                "main", self._header(), self._notices(), self._schema(), self._cards(), self._preview(),
                self._footer(), class_="sheet",
            ),
        )  # fmt: skip
        return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"

    def _header(self) -> Html:
        first = self.splits[0]
        facts: list[tuple[str, str]] = [
            (f"rows in {split.split}" if len(self.splits) > 1 else "rows", f"{split.rows:,}")
            for split in self.splits
        ]
        facts += [
            ("columns", f"{len(self.columns):,}"),
            ("row groups", f"{sum(split.row_groups for split in self.splits):,}"),
            ("files", f"{sum(split.files for split in self.splits):,}"),
            ("on disk", size(sum(split.nbytes for split in self.splits))),
        ]
        origin: list[Child] = ["Parquet files as they are, without a manifest."]
        if first.prepared:
            settings = ", ".join(
                f"{key}={value!r}"
                for key, value in first.settings.items()
                if key != "source" and value is not None
            )
            when = first.created[:16].replace("T", " ")
            origin = [f"Prepared {when} UTC", f" with {settings}." if settings else "."]
        prints = dict.fromkeys(split.fingerprint for split in self.splits)
        return tag(
            "header",
            tag("h1", self.title),
            tag("p", self.where, class_="where"),
            tag(
                "dl",
                [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts],
                class_="facts",
            ),
            tag("p", origin, class_="origin"),
            tag(
                "p", "Fingerprint ", [[tag("code", each), " "] for each in prints], class_="origin"
            ),
        )  # fmt: skip

    def _notices(self) -> Html | None:
        notices = [
            tag("li", self._linked(place, column), ": ", text)
            for place, column in enumerate(self.columns)
            for text in self._noticed(column)
        ]
        if not notices:
            return None
        more = len(notices) - MOST_CARDS
        if more > 0:
            notices = [*notices[:MOST_CARDS], tag("li", f"and {more:,} more")]
        return tag("section", tag("h2", "Worth a look"), tag("ul", notices, class_="notices"))

    def _noticed(self, column: ColumnReport) -> list[str]:
        found = [
            f"{self.names[0]} and {self.names[1]} differ strongly in {text}." for text in column.differences
        ]
        found += self._not_numbers(column)
        missing = [
            f"{facts.missing:,} of {facts.of:,} rows of {split} ({percent(facts.missing / facts.of)})"
            for facts, split in zip(column.splits, self.names, strict=False)
            if facts.missing
        ]
        if missing:
            held = "left out of" if column.masked else "counted as fill values in"
            found.append(f"missing in {' and '.join(missing)}; {held} charts and numbers.")
        first = column.splits[0]
        if first.of > 1 and _is_constant(column):
            found.append("all values are the same.")
        if column.pictures is not None and column.pictures.note:
            found.append(column.pictures.note)
        return found

    def _not_numbers(self, column: ColumnReport) -> list[str]:
        among = "" if all(facts.complete for facts in column.splits) else ", among the rows looked at"
        found = []
        for name in ("NaN", "infinite"):
            counts = [facts.nan if name == "NaN" else facts.infinite for facts in column.splits]
            if any(counts):
                said = [
                    f"{count:,} in {split}" for count, split in zip(counts, self.names, strict=False) if count
                ]
                found.append(f"{name} values: {' and '.join(said)}{among}.")
        return found

    def _linked(self, place: int, column: ColumnReport) -> Html:
        if place >= MOST_CARDS:
            return shown(column.column.name)
        return tag("a", shown(column.column.name), href=f"#column-{place}")

    def _schema(self) -> Html:
        titles = ("column", "type", "min", "max", "mean", "std", "missing", "distinct", "read")
        numeric = {"min", "max", "mean", "std", "missing", "distinct"}
        head = [
            tag("th", title, scope="col", class_="number" if title in numeric else None) for title in titles
        ]
        rows = []
        for place, column in enumerate(self.columns):
            facts = column.splits[0]
            cells: list[Child] = [
                *(_about(value, facts) for value in (facts.min, facts.max, facts.mean, facts.std)),
                f"{facts.missing:,}" if facts.missing else _none("0"),
                _distinct(facts),
            ]
            rows.append(
                tag(
                    "tr",
                    tag("th", self._linked(place, column), scope="row", class_="text"),
                    tag("td", column.type, class_="type"),
                    [tag("td", cell, class_="number") for cell in cells],
                    tag("td", "mapped" if column.mapped else "decoded", class_="soft"),
                )
            )
        of = f"Numbers are of {self.names[0]}. " if len(self.splits) > 1 else ""
        return tag(
            "section",
            tag("h2", "Columns"),
            tag(
                "p", of, "Mapped columns are read straight from the files, the others are decoded first.",
                class_="under",
            ),
            _wide("Columns", tag("table", tag("thead", tag("tr", head)), tag("tbody", rows))),
        )  # fmt: skip

    def _cards(self) -> Html:
        cards = [self._card(place, column) for place, column in enumerate(self.columns[:MOST_CARDS])]
        legend = None
        if len(self.splits) > 1:
            legend = tag(
                "p",
                tag("span", self.names[0]),
                tag("span", self.names[1], class_="other"),
                class_="legend",
            )
        left_out = len(self.columns) - MOST_CARDS
        more = (
            f" Only the first {MOST_CARDS} columns are drawn; {left_out:,} more are in the table."
            if left_out > 0
            else ""
        )
        return tag(
            "section",
            tag("h2", "Distributions"),
            tag("p", self.sampled, more, class_="under"),
            legend,
            tag("div", cards, class_="cards", style="margin-top:.9rem"),
        )  # fmt: skip

    def _card(self, place: int, column: ColumnReport) -> Html:
        names = self.names[: len(column.splits)]
        differs = [
            tag("p", f"{names[0]} and {names[1]} differ strongly in {text}", class_="differs")
            for text in column.differences
        ]
        gallery = None if column.pictures is None else self._pictures(column, column.pictures)
        pictured = column.pictures is not None and bool(column.pictures.shown)
        charts = self._charts(column, names)
        return tag(
            "article",
            tag("header", tag("h3", shown(column.column.name)), tag("span", column.type, class_="type")),
            differs,
            None if gallery is None else tag("div", gallery, class_="gallery"),
            tag("div", charts, class_="figures") if charts else None,
            class_="card pictured" if pictured else "card",
            id=f"column-{place}",
        )

    def _charts(self, column: ColumnReport, names: Sequence[str]) -> Html:
        parts: list[Child] = []
        if column.frequent is not None:
            parts.append(draw_frequent(column.frequent, names))
        for title, chart in column.charts:
            name = f"{column.column.name}{f', {title.lower()}' if title else ''}"
            outside = _outside(chart, names)
            parts += [
                tag("p", title, class_="said") if title else None,
                draw(chart, names, name),
                tag("p", outside, class_="said") if outside else None,
            ]
        if column.times is not None:
            parts.append(
                tag("p", "As nanoseconds since 1970: {} to {}.".format(*column.times), class_="said")
            )
        looked = column.splits[0]
        if not looked.complete and looked.rows < max(each.splits[0].rows for each in self.columns):
            parts.append(tag("p", f"Of {looked.rows:,} rows.", class_="said"))
        return join([parts, _numbers_of(column, names)])

    def _pictures(self, column: ColumnReport, pictures: Pictures) -> Html:
        drawn = []
        for each in pictures.shown:
            factor = 1
            while max(each.width, each.height) * (factor + 1) <= _SMALL_PICTURE:
                factor += 1
            scale = min(factor, 128 / max(each.width, each.height))
            drawn.append(
                tag(
                    "figure",
                    tag(
                        "img",
                        src=each.uri,
                        alt=f"{column.column.name}, row {each.row:,}",
                        width=max(round(each.width * scale), 1),
                        height=max(round(each.height * scale), 1),
                        class_="pixels" if factor > 1 else None,
                    ),
                    tag("figcaption", f"row {each.row:,}"),
                )
            )
        note = tag("p", pictures.note, class_="said") if pictures.note else None
        sizes = {(each.width, each.height) for each in pictures.shown}
        if len(sizes) > 1:
            widths, heights = [w for w, _ in sizes], [h for _, h in sizes]
            said = f"{min(widths)} × {min(heights)} to {max(widths)} × {max(heights)} pixels"
        else:
            said = "".join(f"{w} × {h} pixels" for w, h in sizes)
        return join([tag("div", drawn, class_="pictures"), tag("p", said, class_="said"), note])

    def _preview(self) -> Html:
        columns = self.columns
        head = [tag("th", "row", scope="col", class_="number")] + [
            tag("th", shown(column.column.name, 32), scope="col", class_=_aligned(column))
            for column in columns
        ]
        body = [
            tag(
                "tr",
                tag("th", str(row), scope="row", class_="number"),
                [
                    tag("td", _cell(column, value, row), class_=_aligned(column))
                    for column, value in zip(columns, values, strict=True)
                ],
            )
            for row, values in enumerate(self.preview)
        ]
        return tag(
            "section",
            tag("h2", "First rows"),
            tag("p", f"Of {self.names[0]}, as they are stored.", class_="under"),
            _wide("First rows", tag("table", tag("thead", tag("tr", head)), tag("tbody", body)), "wide rows"),
        )

    def _footer(self) -> Html:
        return tag(
            "footer",
            tag(
                "p",
                f"Made by hopyard data report, version {self.version}. ",
                "Splits are said to differ strongly where the distance of their distributions is above 0.1 and beyond "
                "chance: for numbers and lengths the largest distance of the cumulative distributions "
                "(Kolmogorov-Smirnov), for strings half the sum of the distances of shares (total variation). "
                if len(self.splits) > 1
                else None,
                "The page loads nothing from elsewhere.",
            ),
        )


def _numbers_of(column: ColumnReport, names: Sequence[str]) -> Html:
    """What each split is, beside the other."""
    rows: list[tuple[str, list[Child]]] = [
        ("min", [_about(facts.min, facts) for facts in column.splits]),
        ("mean", [_about(facts.mean, facts) for facts in column.splits]),
        ("max", [_about(facts.max, facts) for facts in column.splits]),
        ("std", [_about(facts.std, facts) for facts in column.splits]),
        ("distinct", [_distinct(facts) for facts in column.splits]),
        ("missing", [f"{facts.missing:,}" if facts.missing else "" for facts in column.splits]),
        ("NaN", [f"{facts.nan:,}" if facts.nan else "" for facts in column.splits]),
        ("infinite", [f"{facts.infinite:,}" if facts.infinite else "" for facts in column.splits]),
    ]
    shown_rows = [(title, cells) for title, cells in rows if any(cells)]
    if not shown_rows:
        return Html("")
    head = tag(
        "thead",
        tag("tr", tag("td"), [tag("th", name, scope="col", class_="number") for name in names]),
    ) if len(names) > 1 else None  # fmt: skip
    body = [
        tag("tr", tag("th", title, scope="row"), [tag("td", cell or _none("0"), class_="number") for cell in cells])
        for title, cells in shown_rows
    ]  # fmt: skip
    return tag("table", head, tag("tbody", body), class_="numbers")


def _outside(chart: Bins | Values, names: Sequence[str]) -> str:
    if isinstance(chart, Values) or not any(chart.outside):
        return ""
    said = ", ".join(
        f"{percent(share)} of {name}" for share, name in zip(chart.outside, names, strict=True) if share
    )
    return f"Beyond the ends: {said}."


def _is_constant(column: ColumnReport) -> bool:
    facts = column.splits[0]
    if column.column.kind == "string":
        return facts.distinct == 1 and not facts.at_least
    return facts.min is not None and facts.min == facts.max and not facts.nan and not facts.infinite


def _about(value: float | int | None, facts: ColumnFacts) -> str:
    """A statistic; of a sample it is about that of all rows."""
    return number(value) if facts.exact or value is None else f"≈ {number(value)}"


def _distinct(facts: ColumnFacts) -> str:
    if facts.distinct is None:
        return ""
    return f"{'≥ ' if facts.at_least else ''}{facts.distinct:,}"


def _none(text: str) -> Html:
    return tag("span", text, class_="none")


def _aligned(column: ColumnReport) -> str:
    return "number" if column.column.kind == "tensor" and not column.column.shape else "text"


def _cell(column: ColumnReport, value: Any, row: int) -> Html:
    if value is None:
        return _none("missing")
    if isinstance(value, Picture):
        scale = min(THUMBNAIL / max(value.width, value.height), 4)
        return tag(
            "img",
            src=value.uri,
            alt=f"{column.column.name}, row {row}",
            width=max(round(value.width * scale), 1),
            height=max(round(value.height * scale), 1),
            class_="pixels" if scale > 1 else None,
        )
    return shown(value, _LONGEST_CELL) if isinstance(value, str) else join(shorten(value))


def _wide(name: str, table: Html, class_: str = "wide") -> Html:
    """A table that scrolls by itself where the screen is narrow, also by the keyboard."""
    return tag("div", table, class_=class_, role="region", aria_label=name, tabindex=0)
