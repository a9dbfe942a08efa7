"""Markup for notebooks."""

from __future__ import annotations

from hopyard.markup import Html, tag


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", "<b>", Html("<i></i>"), title='"') == '<p title="&quot;">&lt;b&gt;<i></i></p>'
    assert tag("p", ["a", None, ("b",)]) == "<p>ab</p>"


def test_control_characters_are_shown_as_escapes() -> None:
    assert tag("img", alt="\x1b\u202e", hidden=True, width=None) == '<img alt="\\x1b\\u202e" hidden>'


def test_names_and_numbers_of_attributes() -> None:
    assert tag("rect", class_="bar", stroke_width=1.50) == '<rect class="bar" stroke-width="1.5"></rect>'
    assert tag("svg", viewBox="0 0 1 1") == '<svg viewBox="0 0 1 1"></svg>'
