"""The digest of code: the same in every process, and different whenever what it computes could be."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.objects.identity import Identity, describe_value, identity

MAIN = """
import torch

import layers
from layers import head as make_head

WIDTHS = {"small": [16, 32]}
UNUSED = 1


class Block(torch.nn.Module):
    def __init__(self, width: int, scale=2):
        super().__init__()
        self.linear = torch.nn.Linear(width, width * scale)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Deep(Block):
    depth = 3


def gen(params: dict) -> object:
    from layers import tail
    import layers as again

    body = Deep(WIDTHS["small"][0])
    init = lambda module: torch.nn.init.zeros_(module.weight)
    return layers.trunk(params), make_head(), tail(), again.extra(), body, init


def bystander():
    return 1
"""

LAYERS = """
RATE = 0.5
TAILS = {"a", "b", "c"}

def trunk(params):
    # a comment
    return [params, RATE]

def head(width=10):
    return inner(width)

def inner(width):
    return width + 1

def tail():
    return sorted(TAILS)

def extra():
    return 7

def bystander():
    return RATE
"""


@pytest.fixture
def identity_of(tmp_path: Path) -> Callable[..., Identity]:
    """The identity of ``gen`` in a module of that source, beside a module ``layers`` of that source."""
    folders: list[str] = []

    def make(main: str = MAIN, layers: str = LAYERS, name: str = "script") -> Identity:
        folder = tmp_path / str(len(folders))
        folder.mkdir()
        folders.append(str(folder))
        (folder / f"{name}.py").write_text(main)
        (folder / "layers.py").write_text(layers)
        sys.path.insert(0, str(folder))
        try:
            importlib.invalidate_caches()
            return identity(importlib.import_module(name).gen)
        finally:
            sys.path.remove(str(folder))
            for module in (name, "layers"):
                sys.modules.pop(module, None)

    return make


def replaced(source: str, old: str, new: str) -> str:
    assert source.count(old) == 1, old
    return source.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def gen(params: dict) -> object:", "def gen(  # what the search calls\n    params,\n):"),
        ("def gen(params: dict) -> object:\n", 'def gen(params):\n    """Build it."""\n'),
        ("    body = Deep(", "    body: Deep = Deep("),
        ("    body = Deep(", "    width: int\n    body = Deep("),
        ('WIDTHS["small"][0])', "WIDTHS['small'][\n        0\n    ])"),
        ("class Deep(Block):\n", 'class Deep(Block):\n    """Deeper."""\n\n'),
        ("UNUSED = 1", "UNUSED = 2"),
        ("def bystander():\n    return 1", "def bystander():\n    return 2"),
        ("import torch\n", "import json\n\n\nimport torch\n"),
    ],
)
def test_edits_that_change_nothing_keep_the_digest(
    identity_of: Callable[..., Identity], old: str, new: str
) -> None:
    assert identity_of(replaced(MAIN, old, new)) == identity_of()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    # a comment\n", '    """A docstring."""\n\n    # another comment\n'),
        ("def bystander():\n    return RATE", "def bystander():\n    return inner"),
    ],
)
def test_edits_of_another_module_that_change_nothing_keep_the_digest(
    identity_of: Callable[..., Identity], old: str, new: str
) -> None:
    assert identity_of(layers=replaced(LAYERS, old, new)) == identity_of()


def test_the_name_of_the_file_does_not_count(identity_of: Callable[..., Identity]) -> None:
    assert identity_of(name="renamed") == identity_of()


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("return layers.trunk(params), make_head()", "return make_head(), layers.trunk(params)", {"gen"}),
        ("zeros_", "ones_", {"gen"}),
        ("torch.relu", "torch.tanh", {"Block.forward"}),
        ("scale=2", "scale=3", {"Block.__init__"}),
        ("depth = 3", "depth = 4", {"Deep"}),
        ("class Deep(Block):", "class Deep(torch.nn.Module):", {"Deep"}),
        ("[16, 32]", "[16, 64]", {"WIDTHS in gen"}),
    ],
)
def test_edits_that_change_the_result_change_the_digest_and_name_the_place(
    identity_of: Callable[..., Identity], old: str, new: str, changed: set[str]
) -> None:
    before, after = identity_of(), identity_of(replaced(MAIN, old, new))
    assert before.digest is not None
    assert after.digest is not None
    assert before.digest != after.digest
    assert {name for name, part in after.parts.items() if before.parts.get(name) != part} == changed


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("[params, RATE]", "[RATE, params]", {"trunk"}),
        ("RATE = 0.5", "RATE = 0.25", {"RATE in trunk"}),
        ("width=10", "width=11", {"head"}),
        ("width + 1", "width + 2", {"inner"}),
        ('"b", "c"', '"b", "d"', {"TAILS in tail"}),
        ("return 7", "return 8", {"extra"}),
    ],
)
def test_edits_of_a_helper_in_another_module_are_seen(
    identity_of: Callable[..., Identity], old: str, new: str, changed: set[str]
) -> None:
    before, after = identity_of(), identity_of(layers=replaced(LAYERS, old, new))
    assert before.digest != after.digest
    assert {name for name, part in after.parts.items() if before.parts.get(name) != part} == changed


def test_a_module_used_as_a_value_counts_as_a_whole(identity_of: Callable[..., Identity]) -> None:
    main = "import layers\n\ndef gen(params):\n    return getattr(layers, params['layer'])\n"
    edited = replaced(LAYERS, "def bystander():\n    return RATE", "def bystander():\n    return 2 * RATE")
    assert identity_of(main).digest != identity_of(main, edited).digest


def test_a_file_edited_after_it_was_imported_is_not_taken_for_what_runs(tmp_path: Path) -> None:
    path = tmp_path / "edited_module.py"
    path.write_text("def gen(params):\n    return 1\n")
    spec = importlib.util.spec_from_file_location("edited_module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    before = identity(module.gen)
    path.write_text("def gen(params):\n    return 22\n")
    assert "bytecode" in json.dumps(describe_value(module.gen))
    edited = identity(module.gen)
    spec.loader.exec_module(module)
    assert "bytecode" not in json.dumps(describe_value(module.gen))
    assert len({before.digest, edited.digest, identity(module.gen).digest}) == 3


def test_an_import_that_fails_is_a_reason_not_an_error(identity_of: Callable[..., Identity]) -> None:
    (reason,) = identity_of("def gen(params):\n    import no_such_module_at_all\n    return 1\n").undigestible
    assert reason.startswith("function -> import of no_such_module_at_all failed: ModuleNotFoundError")


# Lambdas, methods, callables


def test_lambdas_on_one_line_are_told_apart(same: Callable[[Any, Any], bool]) -> None:
    pair = (lambda params: params["a"], lambda params: params["b"])
    again = (
        lambda params: params["a"],
        lambda params: (params["b"]),
    )  # fmt: skip
    assert same(pair[0], again[0])
    assert same(pair[1], again[1])
    assert not same(*pair)


def test_nested_lambdas_on_one_line_are_told_apart(same: Callable[[Any, Any], bool]) -> None:
    outer = lambda a: lambda b: (a, b)  # noqa: E731
    assert not same(outer, outer(1))
    assert not same(outer(1), outer(2))
    assert "bytecode" not in json.dumps([describe_value(outer), describe_value(outer(1))])


def build(width: Any) -> Callable[[Any], Any]:
    def gen(params: Any) -> Any:
        return width, params

    return gen


def test_captured_values_count_by_content(same: Callable[[Any, Any], bool]) -> None:
    assert same(build(3), build(3))
    assert not same(build(3), build(4))
    assert not same(build(1), build(True))
    assert same(build(np.arange(3)), build(np.arange(3)))
    assert not same(build(np.arange(3)), build(np.arange(3.0)))


def test_a_function_that_reaches_itself_ends(same: Callable[[Any, Any], bool]) -> None:
    def odd(n: int) -> bool:
        return n > 0 and even(n - 1)

    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    assert same(odd, odd)
    assert not same(odd, even)


class Builder:
    see = 1  # a name that descriptions use too

    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self, params: Any) -> Any:
        return self.width, params

    def build(self, params: Any) -> Any:
        return params, self.width

    @functools.cached_property
    def area(self) -> int:
        return self.width**2

    @property
    def half(self) -> float:
        return self.width / 2

    @classmethod
    def default(cls) -> Builder:
        return cls(1)


def test_methods_partials_and_callable_instances_count_by_content(same: Callable[[Any, Any], bool]) -> None:
    assert same(Builder(1), Builder(1))
    assert not same(Builder(1), Builder(2))
    assert same(Builder(1).build, Builder(1).build)
    assert not same(Builder(1).build, Builder(2).build)
    assert not same(Builder(1).build, Builder(1).__call__)
    assert same(functools.partial(build, 1), functools.partial(build, 1))
    assert not same(functools.partial(build, 1), functools.partial(build, 2))
    assert same(Builder, Builder)
    assert not same(Builder, Builder.default)
