"""Bytes of a worker become the lines that a terminal would show, with their tags."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.backend import output
from hopyard.backend.output import LONGEST_LINE, LineSplitter, Outlet, tag_marker

words = st.text(st.characters(exclude_characters="\0\r\n", exclude_categories=["Cs"]), max_size=10)
pieces = st.one_of(words.map(lambda w: ("line", w)), words.map(lambda w: ("tag", w)))


def split(data: bytes, cuts: list[int]) -> list[tuple[str, str]]:
    splitter = LineSplitter()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found = [pair for start, end in pairwise(edges) for pair in splitter.feed(data[start:end])]
    return [*found, *splitter.finish()]


@given(st.lists(pieces, max_size=10), st.lists(st.integers(0, 10_000), max_size=6))
def test_lines_and_tags_do_not_depend_on_how_the_pipe_cuts_them(
    script: list[tuple[str, str]], cuts: list[int]
) -> None:
    data, expected, tag = b"", [], ""
    for kind, word in script:
        if kind == "tag":
            data, tag = data + tag_marker(word), word
        else:
            data += word.encode() + b"\n"
            expected.append((tag, word))
    assert split(data, cuts) == expected


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"no newline", ["no newline"]),
        (b"windows\r\n", ["windows"]),
        (b"10%\r50%\r100%\n", ["100%"]),
        (b"\n", [""]),
        (b"\xff\n", ["\ufffd"]),
        (b"left" + tag_marker("t") + b"right\n", ["left", "right"]),
    ],
)
def test_what_is_shown(data: bytes, lines: list[str]) -> None:
    assert [line for _, line in split(data, [])] == lines


def test_an_endless_line_is_cut() -> None:
    splitter = LineSplitter()
    shown = [line for _ in range(5) for _, line in splitter.feed(b"x" * 40_000)]
    assert len(shown) == 2
    assert all(len(line) > LONGEST_LINE for line in shown)


def test_a_tag_cannot_break_its_frame() -> None:
    assert split(tag_marker("a\0b\nc") + b"text\n", []) == [("a b c", "text")]


def test_outside_of_a_worker_tags_and_lines_do_nothing() -> None:
    output.set_tag("trial 1")
    assert output.last_lines() == []


def test_lines_go_to_the_listener_or_to_the_streams_of_the_driver(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outlet, heard = Outlet(), []
    outlet.emit(1, "stderr", "trial 3", "text")
    assert capsys.readouterr() == ("", "[trial 3 · worker 1] text\n")
    outlet.listener = lambda *args: heard.append(args)
    outlet.emit(1, "stdout", "", "text")
    assert heard == [(1, "stdout", "[worker 1] text")]
    assert capsys.readouterr() == ("", "")


def test_what_tensorflow_tells_of_itself_is_not_shown() -> None:
    shown: list[str] = []
    outlet = Outlet()
    outlet.listener = lambda worker, stream, line: shown.append(line)
    for line in (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795401279.0  21539 port.cc:153] oneDNN custom operations are on. You may see slightly ...",
        "I0000 00:00:1795401279.1  21539 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use ...",
        "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the ...",
        "W0000 00:00:1795401279.2  21539 local_rendezvous.cc:412] Local rendezvous is aborting",
    ):
        outlet.emit(0, "stderr", "", line)
    assert [line.split()[2] for line in shown] == ["W0000"]
