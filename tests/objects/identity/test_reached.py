"""Which names a function uses, and how it imports what it uses."""

from __future__ import annotations

import json
import os.path
from typing import Any

from hopyard.objects.identity.reached import Import, _steps, names_used


def test_attribute_chains_end_where_something_else_is_done_with_the_value() -> None:
    def function(x: Any) -> Any:
        return os.path.supports_unicode_filenames, json.dumps(x), str(os).upper(), (lambda: os.sep)()

    uses = names_used(function.__code__)
    assert uses.globals["os"] == {("path", "supports_unicode_filenames"), (), ("sep",)}
    assert uses.globals["json"] == {("dumps",)}
    assert uses.globals["str"] == {()}


def test_captured_variables_are_followed_into_nested_functions() -> None:
    outer = json

    def function() -> Any:
        return lambda: [outer.dumps(1) for _ in range(2)]

    assert names_used(function.__code__).locals["outer"] >= {("dumps",)}


def test_every_form_of_import_is_seen() -> None:
    code = compile(
        "def f():\n"
        "    import a.b\n"
        "    import a.b.c as d\n"
        "    from e import f, g as h\n"
        "    from .. import i\n"
        "    from .j import k\n"
        "    return a.b.x, d.y, f, h, i.z, k\n",
        "module",
        "exec",
    ).co_consts[0]
    uses = names_used(code)
    assert uses.imports == {
        "a": {Import("a", 0, None)},
        "d": {Import("a.b.c", 0, None)},
        "f": {Import("e", 0, "f")},
        "h": {Import("e", 0, "g")},
        "i": {Import("", 2, "i")},
        "k": {Import("j", 1, "k")},
    }
    assert [uses.locals[name] for name in "adi"] == [{("b", "x")}, {("y",)}, {("z",)}]


def test_instructions_that_newer_versions_join_are_taken_apart() -> None:
    class Joined:
        def __init__(self, opname: str, argval: Any) -> None:
            self.opname, self.argval = opname, argval

    def steps(name: str) -> list[str]:
        return [step.name for step in _steps(Joined(name, ("a", "b")))]  # type: ignore[arg-type]

    assert steps("STORE_FAST_LOAD_FAST") == ["STORE_FAST", "LOAD_FAST"]
    assert steps("STORE_FAST_STORE_FAST") == ["STORE_FAST", "STORE_FAST"]
    assert steps("LOAD_FAST_BORROW_LOAD_FAST_BORROW") == ["LOAD_FAST", "LOAD_FAST"]
