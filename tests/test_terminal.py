"""Texts of others on a terminal."""

from __future__ import annotations

import io
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from hopyard.data.progress import RowProgress
from hopyard.terminal import Terminal
from hopyard.wording import one_line, visible

HOSTILE = "[/b]\x1b[31m\u202e:smile:\x07\udc80\u2028x[mean]"
SHOWN = r"[/b]\x1b[31m\u202e:smile:\x07\udc80\u2028x[mean]"


def _printed(*things: object, **settings: object) -> str:
    out = io.StringIO()
    Terminal(file=out, width=200, **settings).print(*things, highlight=False)
    return out.getvalue()


def test_control_characters_become_escapes_and_all_else_stays() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("a\tb\r\nc äöü 漢字 👩‍🚀") == "a\tb\nc äöü 漢字 👩‍🚀"
    assert one_line("a\tb\nc") == r"a\tb\nc"


@given(st.text(st.characters(exclude_categories=())))
def test_whatever_the_text_nothing_in_it_steers_a_terminal(text: str) -> None:
    shown = visible(text)
    assert not [
        each
        for each in shown
        if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") and each not in "\t\n"
    ]
    assert not [
        each for each in shown if unicodedata.bidirectional(each) in ("LRE", "RLE", "LRO", "RLO", "PDF")
    ]
    assert not [each for each in shown if unicodedata.bidirectional(each) in ("LRI", "RLI", "FSI", "PDI")]
    assert visible(shown) == shown
    assert one_line(text).count("\n") == 0


def test_strings_texts_and_tables_are_printed_as_they_are() -> None:
    table = Table(box=None)
    table.add_column(f"title {HOSTILE}")
    table.add_row(f"cell {HOSTILE}")
    table.add_row(Text(f"text {HOSTILE}".replace("\x07", "")))
    table.caption = f"caption {HOSTILE}"
    shown = _printed(HOSTILE, Text("text " + HOSTILE.replace("\x07", "")), table)
    assert f"title {SHOWN}" in shown
    assert f"cell {SHOWN}" in shown
    assert f"caption {SHOWN}" in shown
    assert shown.count("text " + SHOWN.replace(r"\x07", "")) == 2
    assert not set(shown) & set("\x1b\x07\u202e\udc80\u2028")


def test_on_a_terminal_only_styles_of_our_own_are_escape_sequences() -> None:
    shown = _printed(
        Text(HOSTILE.replace("\x07", ""), style="red"), force_terminal=True, color_system="standard"
    )
    assert shown == "\x1b[31m" + SHOWN.replace(r"\x07", "") + "\x1b[0m\n"


def test_bars_show_what_is_under_way_as_text() -> None:
    out = io.StringIO()
    with RowProgress(Terminal(file=out, width=200, force_terminal=True, color_system=None)) as progress:
        progress(HOSTILE, 1, 2)
    assert SHOWN in out.getvalue()
    assert "\x1b[31m" not in out.getvalue()
