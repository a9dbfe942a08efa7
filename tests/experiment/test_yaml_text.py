"""What YAML of configurations means, and what is refused in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from tests.experiment.case_files import cases, pairs

from hopyard.errors import ConfigError, UsageError
from hopyard.experiment.yaml_text import LARGEST_TEXT, inline_yaml, read_yaml, read_yaml_file, write_yaml

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(
        [
            "yes",
            "Off",
            "1e-3",
            "0o17",
            "010",
            "1:30",
            "2024-01-31",
            "~",
            "",
            "<<",
            "=",
            "1_000",
            "- a: b",
            "a\x85\u2028b",
        ]
    ),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
    max_leaves=12,
)


@cases("yaml.yaml")
def test_what_a_text_means(case: dict[str, Any]) -> None:
    if "value" in case:
        found = read_yaml(case["text"], "conf")
        assert (found, repr(found)) == (case["value"], repr(case["value"]))
        return
    with pytest.raises(ConfigError) as caught:
        read_yaml(case["text"], "conf")
    if "error" in case:
        assert str(caught.value) == case["error"]
    else:
        assert list(caught.value.problems) == pairs(case["problems"])


@given(PLAIN)
def test_what_is_written_is_read_again(value: Any) -> None:
    text = write_yaml(value)
    assert repr(read_yaml(text, "conf")) == repr(value)
    assert repr(yaml.safe_load(text)) == repr(value)  # by the rules of YAML 1.1


def test_examples_in_messages_are_yaml_in_one_line() -> None:
    assert (
        inline_yaml({"name": "random", "max_length": {"epochs": 8}})
        == "{name: random, max_length: {epochs: 8}}"
    )
    assert [inline_yaml(value) for value in (16, "1", True, None, [])] == ["16", "'1'", "true", "null", "[]"]


def test_the_error_of_one_problem_is_a_sentence_and_of_several_a_list() -> None:
    with pytest.raises(ConfigError) as caught:
        read_yaml("a: 1\na: 2", "const.yaml")
    assert str(caught.value) == (
        "const.yaml: a (line 2) is written twice, and only one can be meant. Remove one of them."
    )
    with pytest.raises(ConfigError) as caught:
        read_yaml("a: 1\na: 2\nb: .inf", "const.yaml")
    assert str(caught.value) == (
        "const.yaml has 2 problems:\n"
        "  a (line 2) is written twice, and only one can be meant. Remove one of them.\n"
        "  b (line 3) is .inf, but numbers are finite. Write a finite number, or '.inf' for the text."
    )


def test_values_of_aliases_are_apart() -> None:
    value = read_yaml("a: &a {x: []}\nb: *a", "conf")
    value["a"]["x"].append(1)
    assert value["b"] == {"x": []}


def test_aliases_cannot_make_a_small_text_large() -> None:
    text = "\n".join(
        ["a0: &a0 [1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10))]
    )
    with pytest.raises(
        ConfigError, match=r"conf holds more than 100,000 values, with aliases counted as what they st"
    ):
        read_yaml(text, "conf")


@pytest.mark.usefixtures("nothing_collected")
def test_a_text_that_is_nested_too_deeply() -> None:
    with pytest.raises(
        ConfigError, match=r"conf is nested too deeply\. Write lists and mappings in fewer levels\."
    ):
        read_yaml("[" * 5000, "conf")


def test_a_number_of_thousands_of_digits_is_shown_in_part() -> None:
    with pytest.raises(ConfigError, match=r"a \(line 1\) is 9{57}\.\.\., but numbers are finite"):
        read_yaml(f"a: {'9' * 5000}", "conf")


@pytest.mark.parametrize("text", ["9" * 400, "-" + "9" * 900, "0x" + "f" * 900, "0o" + "7" * 900])
def test_a_whole_number_that_no_float_can_hold(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^conf: seed \(line 1\) is .{57}\.\.\., but numbers are finite"):
        read_yaml(f"seed: {text}", "conf")
    assert read_yaml(f"seed: {'9' * 300}", "conf") == {"seed": int("9" * 300)}


def test_more_text_than_is_read_is_refused_before_it_is_read(tmp_path: Path) -> None:
    assert read_yaml("x: " + "y" * (LARGEST_TEXT - 3), "conf") == {"x": "y" * (LARGEST_TEXT - 3)}
    message = (
        "conf has more than 262,144 bytes (2^18), the most that are read as a configuration. Keep data in files of "
        "their own, and name their paths in the configuration."
    )
    # No YAML, which would be said first if it were composed.
    for text in ("]" * (LARGEST_TEXT + 1), b"]" * (LARGEST_TEXT + 1)):
        with pytest.raises(ConfigError) as caught:
            read_yaml(text, "conf")
        assert str(caught.value) == message
    with pytest.raises(ConfigError, match=r"^/dev/zero has more than 262,144 bytes"):
        read_yaml_file("/dev/zero")


def test_a_path_that_no_file_can_have() -> None:
    with pytest.raises(UsageError, match=r"is no path: it holds a null character"):
        read_yaml_file("\0")


def test_bytes_are_utf_8() -> None:
    assert read_yaml("a: größer".encode(), "conf") == {"a": "größer"}
    with pytest.raises(
        ConfigError, match=r"conf is no text in UTF-8: byte 5 is 0xf6\. Save the file as UTF-8\."
    ):
        read_yaml("a: größer".encode("latin-1"), "conf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"",
            r"conf\.yaml is empty, but a configuration is a mapping of fields to values\. Write a line such as ",
        ),
        (b"# only a comment\n", r"conf\.yaml is empty, but"),
        (
            b"- a\n- b\n",
            r"conf\.yaml holds a list, but a configuration is a mapping of fields to values\. Write lines ",
        ),
        (b"entrypoint", r"conf\.yaml holds a text, but a configuration is a mapping"),
        (
            None,
            r"conf\.yaml cannot be read: No such file or directory\. Name the YAML file of a configuration\.",
        ),
    ],
)
def test_files_that_hold_no_configuration(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "conf.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_yaml_file(file)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"cannot be read: Is a directory\. Name the YAML file of a configuration\."
    ):
        read_yaml_file(tmp_path)
