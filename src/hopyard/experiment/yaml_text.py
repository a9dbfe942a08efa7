"""YAML of configurations, read by the rules of YAML 1.2 (the core schema) into plain values.

``1e-3`` is a number, and neither ``12:30`` nor ``2024-01-31`` becomes anything but a text. Readers of YAML understand
some texts differently, and JSON cannot hold all that YAML can. Hence these are refused: the words ``yes``, ``no``,
``on`` and ``off`` without quotes (true and false for some readers, texts for others), a key that appears twice, a key
that is no text, infinite numbers, and values that contain themselves. Anchors, aliases and ``<<`` work.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path as FilePath
from typing import Any

import yaml  # type: ignore[import-untyped]

from hopyard.errors import ConfigError
from hopyard.experiment.problems import Problem, no_mapping, problems_error
from hopyard.search.points import Path
from hopyard.search.spaces import name_of
from hopyard.storage.names import path_given
from hopyard.wording import brief, one_line, shortened, some_lines

LARGEST_CONFIG = 100_000
"""Values of a configuration at most, aliases counted as what they stand for."""

LARGEST_TEXT = 2**18
"""Bytes of a file, or characters of a text, at most; PyYAML takes seconds for so many."""

_TAG = "tag:yaml.org,2002:"
_NULL = re.compile(r"null|Null|NULL|~|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_LINE_BREAKS = re.compile("[\x85\u2028\u2029]")
_AMBIGUOUS = re.compile(r"yes|no|on|off", re.IGNORECASE)
_RULES = [("null", _NULL), ("bool", _BOOL), ("int", _INT), ("float", _FLOAT), ("merge", re.compile("<<"))]


class _Composer(yaml.SafeLoader):  # type: ignore[misc]
    """Makes nodes of a text, with the tags of YAML 1.2."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - PyYAML's way


class _Writer(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes texts that readers of YAML 1.1 or of 1.2 would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> Any:
        # PyYAML writes these line breaks as they are, and reads spaces.
        style = '"' if _LINE_BREAKS.search(data) else None
        return self.represent_scalar(f"{_TAG}str", data, style)


_Writer.add_representer(str, _Writer.represent_str)
for _name, _pattern in _RULES:
    _whole = re.compile(f"(?:{_pattern.pattern})\\Z")
    _Composer.add_implicit_resolver(_TAG + _name, _whole, None)
    _Writer.add_implicit_resolver(_TAG + _name, _whole, None)


def read_yaml(text: str | bytes, source: str) -> Any:
    """The plain value of a text: dicts with text keys, lists, texts, finite numbers, booleans and None.

    Args:
        text: YAML; bytes are UTF-8.
        source: names the text in messages, such as the path of its file.

    Raises:
        ConfigError: the text is no YAML, or breaks a rule above; with all places that do.
    """
    if len(text) > LARGEST_TEXT:
        raise _too_large(source)
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        node = yaml.compose(text, _Composer)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{source} is no text in UTF-8: byte {error.start} is {text[error.start]:#04x}. "
            "Save the file as UTF-8."
        ) from None
    except yaml.YAMLError as error:
        raise _no_yaml(str(text), source, error) from None
    except RecursionError:
        raise ConfigError(
            f"{source} is nested too deeply. Write lists and mappings in fewer levels."
        ) from None
    if node is None:
        return None
    reading = _Reading(source)
    value = reading.value(node, ())
    if reading.problems:
        raise problems_error(source, reading.problems)
    return value


def config_text(path: str | FilePath) -> bytes:
    """The content of a file of YAML.

    Raises:
        ConfigError: it cannot be read, or has more than ``LARGEST_TEXT`` bytes.
        UsageError: no file can be called so.
    """
    try:
        with path_given(path).expanduser().open("rb") as file:
            content = file.read(LARGEST_TEXT + 1)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}. Name the YAML file of a configuration."
        ) from None
    if len(content) > LARGEST_TEXT:
        raise _too_large(str(path))
    return content


def read_yaml_file(path: str | FilePath) -> dict[str, Any]:
    """The mapping that a file of YAML holds.

    Raises:
        ConfigError: the file cannot be read, is empty or holds no mapping; or as ``read_yaml`` does.
    """
    value = read_yaml(config_text(path), str(path))
    if value is None:
        raise ConfigError(
            f"{path} is empty, but a configuration is a mapping of fields to values. "
            "Write a line such as entrypoint: model_def:DigitsTrial."
        )
    if not isinstance(value, dict):
        raise no_mapping(str(path), value)
    return value


def read_hidden(path: str | FilePath) -> dict[str, str]:
    """The mapping of names to texts that a file of YAML holds, whose errors have nothing of what the file holds: a
    secret without quotes may be the name of a tag or an alias, or a key.

    Raises:
        ConfigError: the file cannot be read, or holds something else; with the lines that do.
    """
    content = config_text(path)
    try:
        node = yaml.compose(content.decode("utf-8-sig"), _Composer)
    except UnicodeDecodeError as error:
        raise _not_hidden(path, [content.count(b"\n", 0, error.start) + 1]) from None
    except yaml.reader.ReaderError as error:  # a character that no YAML may hold
        text = content.decode("utf-8-sig")
        raise _not_hidden(path, [text.count("\n", 0, error.position) + 1]) from None
    except yaml.MarkedYAMLError as error:
        raise _not_hidden(path, [mark.line + 1 if (mark := error.problem_mark) else 1]) from None
    except RecursionError:
        raise _not_hidden(path, [1]) from None
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode) or node.tag != f"{_TAG}map":
        raise _not_hidden(path, [node.start_mark.line + 1])
    read: dict[str, str] = {}
    wrong = []
    for key, value in node.value:
        if _is_text(key) and _is_text(value) and key.value not in read:
            read[key.value] = value.value
        else:
            wrong.append(key.start_mark.line + 1)
    if wrong:
        raise _not_hidden(path, wrong)
    return read


def write_yaml(value: Any) -> str:
    """The YAML text of a plain value, which ``read_yaml`` and readers of YAML 1.1 read as that value."""
    return str(yaml.dump(value, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=100))


def inline_yaml(value: Any) -> str:
    """A plain value as YAML within a line, as a message shows it."""
    text = yaml.dump(value, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=math.inf,
                     default_flow_style=True)  # fmt: skip
    return str(text).removesuffix("...\n").strip()


def shown_yaml(value: Any) -> str:
    """The value of a user, as a message shows it: texts in quotes, others as YAML."""
    return brief(value) if isinstance(value, str) else shortened(one_line(inline_yaml(value)))


def _is_text(node: yaml.Node) -> bool:
    """Whether all readers of YAML take it for a text."""
    return (
        isinstance(node, yaml.ScalarNode)
        and node.tag == f"{_TAG}str"
        and not (node.style is None and _AMBIGUOUS.fullmatch(node.value))
    )


def _is_without_space(node: yaml.MappingNode, key: yaml.ScalarNode, value: yaml.Node) -> bool:
    """Whether a key between { } is like ``batches:8``, which was hardly meant for a key."""
    nothing_follows = isinstance(value, yaml.ScalarNode) and value.value == "" and value.style is None
    return (
        nothing_follows
        and bool(node.flow_style)
        and key.style is None
        and re.fullmatch(r"[^\s:]+:(?!//)\S+", key.value) is not None
    )


def _not_hidden(path: str | FilePath, lines: list[int]) -> ConfigError:
    shown = ", ".join(some_lines([str(line) for line in lines], 10))
    return ConfigError(
        f"{path} holds something else than names and texts in line{'s' if len(lines) > 1 else ''} {shown}, and what is "
        "there is not shown, as it may be secret. Write each name once, and put its value in quotes: NAME: 'value'."
    )


def _too_large(source: str) -> ConfigError:
    return ConfigError(
        f"{source} has more than {LARGEST_TEXT:,} bytes (2^18), the most that are read as a configuration. Keep data "
        "in files of their own, and name their paths in the configuration."
    )


def _no_yaml(text: str, source: str, error: yaml.YAMLError) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    if mark is None:  # a character that no YAML may hold
        return ConfigError(f"{source} is not YAML: {one_line(str(error))}. Remove that character.")
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "another document" in error.problem:
        advice = "A configuration is one document: remove the line ---, or what does not belong to it."
    elif "\t" in line:
        advice = "Indent by spaces; YAML allows no tabs there."
    elif "${secret:" in line:
        advice = "Between { } or [ ], write the reference in quotes: '${secret:NAME}'."
    else:
        advice = (
            "Correct the line; a text that holds ': ' or begins with a sign such as @, % or * needs quotes."
        )
    place = f"line {mark.line + 1}, column {mark.column + 1}"
    return ConfigError(f"{source} is not YAML: {place}: {one_line(str(error.problem))}. {advice}")


class _Reading:
    """Turns the nodes of one text into values, and collects the problems."""

    def __init__(self, source: str) -> None:
        self.problems: list[Problem] = []
        self._source = source
        self._values = 0
        self._open: list[yaml.Node] = []

    def value(self, node: yaml.Node, path: Path) -> Any:
        self._values += 1
        if self._values > LARGEST_CONFIG:
            raise ConfigError(
                f"{self._source} holds more than {LARGEST_CONFIG:,} values, with aliases counted as what they stand "
                "for. Keep data in files of their own, and name their paths in the configuration."
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if any(node is above for above in self._open):
            self._problem(node, path, "contains itself, by an alias. Write the value out.")
            return None
        expected = _TAG + ("map" if isinstance(node, yaml.MappingNode) else "seq")
        if node.tag != expected:
            self._refuse_tag(node, path)
            return None
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            return [self.value(each, (*path, index)) for index, each in enumerate(node.value)]
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                merged = self._merged(value_node, path) | merged
                continue
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TAG + "str":
                written = key_node.value if isinstance(key_node, yaml.ScalarNode) else "of a list or mapping"
                self._problem(key_node, path, f"has the key {written}, but keys are texts. Put it in quotes.")
                continue
            if _is_without_space(node, key_node, value_node):
                name, _, text = key_node.value.partition(":")
                rule = f"has the key {key_node.value} and no value for it: a space belongs behind the colon. Write "
                self._problem(key_node, path, f"{rule}{{{name}: {text}}}, or put the key in quotes.")
                continue
            key = self._scalar(key_node, (*path, key_node.value))
            if key in own:
                self._problem(
                    key_node, (*path, key), "is written twice, and only one can be meant. Remove one of them."
                )
            own[key] = self.value(value_node, (*path, key))
        return {**{key: value for key, value in merged.items() if key not in own}, **own}

    def _merged(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        """The fields that ``<<`` brings; of several mappings the first has precedence."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        found: dict[str, Any] = {}
        for each in nodes:
            value = self.value(each, path)
            if isinstance(value, dict):
                found = value | found
            elif value is not None:
                self._problem(each, path, "has << with what is no mapping. Give << an alias of a mapping.")
        return found

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        tag, text = node.tag.removeprefix(_TAG), str(node.value)
        if tag == "str":
            if node.style is None and _AMBIGUOUS.fullmatch(text):
                meaning = "true" if text.lower() in ("yes", "on") else "false"
                self._problem(
                    node, path,
                    f"is {text} without quotes, which some readers of YAML take for {meaning} and others for a text. "
                    f"Write {meaning}, or '{text}' for the text.",
                )  # fmt: skip
            return text
        if tag == "null" and _NULL.fullmatch(text):
            return None
        if tag == "bool" and _BOOL.fullmatch(text):
            return text.lower() == "true"
        if tag in ("int", "float") and (number := _number(tag, text)) is not None:
            if math.isfinite(number):
                return number
            shown = shortened(text)
            rule = f"is {shown}, but numbers are finite. Write a finite number, or '{shown}' for the text."
            self._problem(node, path, rule)
            return None
        self._refuse_tag(node, path)
        return None

    def _refuse_tag(self, node: yaml.Node, path: Path) -> None:
        tag = node.tag.replace(_TAG, "!!")
        self._problem(node, path, f"has the tag {tag}, but holds plain values only. Remove the tag.")

    def _problem(self, node: yaml.Node, path: Path, text: str) -> None:
        self.problems.append((name_of(path), f"(line {node.start_mark.line + 1}) {one_line(text)}"))


def _number(tag: str, text: str) -> int | float | None:
    """The number that a text stands for; infinite if it is too large to be read, None if it stands for none."""
    if tag == "int":
        if not _INT.fullmatch(text):
            return None
        digits = text.lstrip("+-")
        base = {"0o": 8, "0x": 16}.get(digits[:2], 10)
        number = math.inf if len(digits) > 1000 else int(text, base)
        # What no float can hold cannot be compared with, or converted to, other numbers everywhere.
        return number if abs(number) <= sys.float_info.max else math.inf
    if not _FLOAT.fullmatch(text):
        return None
    lowered = text.lower()
    return math.inf if lowered.endswith((".inf", ".nan")) else float(text)
