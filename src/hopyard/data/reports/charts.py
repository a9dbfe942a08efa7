"""Charts of a report as inline SVG: the first split as bars, the second as a line over them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hopyard.data.reports.columns import Bins, Floats, Frequent, Values
from hopyard.data.reports.markup import Html, join, tag

_WIDTH, _TOP, _BASE, _HEIGHT = 320.0, 16.0, 108.0, 126.0
_GAP = 1.0
_LABELLED = 12  # bars that all have a label
_LETTERS = 5.6  # units a letter of a label is wide


def draw(chart: Bins | Values, splits: Sequence[str], name: str) -> Html:
    """The chart as an SVG that says in words what it shows."""
    bars, labels, said = _binned(chart) if isinstance(chart, Bins) else _valued(chart)
    most = max((float(share.max(initial=0)) for share in chart.shares), default=0.0) or 1.0
    description = f"{name}: {said}; the highest bar is {percent(most)} of {splits[0]}."
    drawn = [
        _bar(place, [float(share[number]) for share in chart.shares], most, splits, label)
        for number, (place, label) in enumerate(bars)
    ]
    lines = [_line([place for place, _ in bars], share, most) for share in chart.shares[1:]]
    return tag(
        "svg",
        tag("title", description),
        tag("text", percent(most), x=0, y=10, class_="scale"),
        tag("line", x1=0, x2=_WIDTH, y1=_TOP, y2=_TOP, class_="top"),
        drawn, lines,
        tag("line", x1=0, x2=_WIDTH, y1=_BASE, y2=_BASE, class_="base"),
        labels,
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}", role="img", class_="chart", aria_label=description,
    )  # fmt: skip


Place = tuple[float, float]


def _binned(chart: Bins) -> tuple[list[tuple[Place, str]], Html, str]:
    edges = chart.edges
    low, high = float(edges[0]), float(edges[-1])
    scale = _WIDTH / (high - low)
    bars = []
    for first, last in itertools.pairwise(edges.tolist()):
        if not chart.whole:
            label = f"{number(first)} to {number(last)}"
        else:
            first_whole, last_whole = round(first + 0.5), round(last - 0.5)
            label = f"{first_whole:,}" + (f" to {last_whole:,}" if last_whole > first_whole else "")
        bars.append((((first - low) * scale, (last - low) * scale), label))
    ends = (round(low + 0.5), round(high - 0.5)) if chart.whole else (low, high)
    middle = (ends[0] + ends[1]) / 2
    labels = join(
        [
            _label(number(ends[0]), 0, "start"),
            _label(number(round(middle) if chart.whole else middle), _WIDTH / 2, "middle"),
            _label(number(ends[1]), _WIDTH, "end"),
        ]
    )
    return bars, labels, f"histogram of {len(bars)} bins from {number(ends[0])} to {number(ends[1])}"


def _valued(chart: Values) -> tuple[list[tuple[Place, str]], Html, str]:
    count = len(chart.labels)
    each = min(_WIDTH / count, 64.0)
    left = (_WIDTH - each * count) / 2
    places = [(left + each * place, left + each * (place + 1)) for place in range(count)]
    longest = max(map(len, chart.labels))
    every = 1
    while every < count and (longest + 1) * _LETTERS > each * every:
        every += 1
    labels = [
        _label(label, (first + last) / 2, "middle")
        for place, (label, (first, last)) in enumerate(zip(chart.labels, places, strict=True))
        if place % every == 0
    ]
    said = f"a bar for each of {count} values, {chart.labels[0]} to {chart.labels[-1]}"
    return list(zip(places, chart.labels, strict=True)), join(labels), said if count > 1 else "one value"


def _label(text: str, x: float, anchor: str) -> Html:
    return tag("text", text, x=x, y=_HEIGHT - 5, text_anchor=anchor)


def _bar(place: Place, shares: Sequence[float], most: float, splits: Sequence[str], label: str) -> Html:
    """A bar, as high as the first split's share; what it says is there where nothing is seen, too."""
    first, last = place
    said = ", ".join(f"{percent(share)} of {split}" for share, split in zip(shares, splits, strict=True))
    height = (_BASE - _TOP) * shares[0] / most
    gap = _GAP if last - first > 4 * _GAP else 0.0
    return tag(
        "g",
        tag("title", f"{label}: {said}"),
        tag("rect", x=first, y=_TOP, width=last - first, height=_BASE - _TOP, class_="hit"),
        tag("rect", x=first + gap / 2, y=_BASE - height, width=last - first - gap, height=height, class_="bar")
        if height
        else None,
    )  # fmt: skip


def _line(places: Sequence[Place], shares: Floats, most: float) -> Html:
    """Steps over the bars."""
    steps: list[str] = []
    at: float | None = None
    for (first, last), share in zip(places, shares.tolist(), strict=True):
        y = _BASE - (_BASE - _TOP) * share / most
        if at != y:
            steps.append(f"{'M' if not steps else 'L'}{first:.1f} {y:.1f}")
        steps.append(f"H{last:.1f}")
        at = y
    return tag("path", d="".join(steps), class_="line")


def draw_frequent(frequent: Frequent, splits: Sequence[str]) -> Html:
    """The most frequent strings as a table with bars."""
    most = max(float(share.max(initial=0)) for share in frequent.shares) or 1.0
    head = tag(
        "tr",
        tag("th", "for example" if frequent.unique else "most frequent", scope="col"),
        [tag("th", split, scope="col", class_="number") for split in splits],
    )
    rows = [
        tag(
            "tr",
            tag(
                "th",
                tag("span", class_="level", style=f"width:{float(frequent.shares[0][place]) / most:.1%}"),
                tag("span", shown(value), class_="value"),
                scope="row",
            ),
            [tag("td", percent(float(share[place])), class_="number") for share in frequent.shares],
        )
        for place, value in enumerate(frequent.values)
    ]
    if frequent.others:
        named = f"{frequent.others:,} {'more' if frequent.unique else 'others'}"
        rest = [percent(max(1 - float(share.sum()), 0.0)) for share in frequent.shares]
        cells = [tag("td", each, class_="number") for each in rest]
        rows.append(tag("tr", tag("th", tag("span", named, class_="value soft"), scope="row"), cells))
    return tag("table", tag("thead", head), tag("tbody", rows), class_="frequent")


def shown(text: str, most: int = 48) -> Html:
    """A string of the data, shortened; an empty one, and spaces at its ends, can be seen."""
    if not text:
        return tag("i", "empty")
    short = text if len(text) <= most else f"{text[: most - 1]}…"
    return join(short if short == short.strip() else f"“{short}”")


def number(value: float | int | None) -> str:
    """As people read it: thousands apart, or four digits."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**12 else f"{value:.4g}"
    if value == round(value) and abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


def percent(share: float) -> str:
    """A share, with as many digits as say something."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if share < 0.001:
        return "<0.1%"
    return f"{min(share, 0.999):.1%}" if share < 0.0995 or share > 0.99 else f"{share:.0%}"
