"""Names that a piece of code uses from its surroundings: globals, captured variables, imports of its own."""

from __future__ import annotations

import dis
import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

Chain = tuple[str, ...]
"""The attributes read right after a name: ``nn.init.zeros_`` uses ``nn`` with ``("init", "zeros_")``."""

GLOBAL_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
LOCAL_LOADS = {
    "LOAD_CLASSDEREF",
    "LOAD_DEREF",
    "LOAD_FAST",
    "LOAD_FAST_BORROW",
    "LOAD_FAST_CHECK",
    "LOAD_FROM_DICT_OR_DEREF",
}
ATTRIBUTE_LOADS = {"LOAD_ATTR", "LOAD_METHOD"}
STORES = {"STORE_DEREF", "STORE_FAST", "STORE_GLOBAL", "STORE_NAME"}


@dataclass(frozen=True)
class Import:
    """An import inside the code: ``attribute`` of ``module``, or the module itself; ``level`` counts its dots."""

    module: str
    level: int
    attribute: str | None


@dataclass
class Uses:
    """Names with the attribute chains they are used with; nested functions and classes are included."""

    globals: dict[str, set[Chain]] = field(default_factory=lambda: defaultdict(set))
    locals: dict[str, set[Chain]] = field(default_factory=lambda: defaultdict(set))
    imports: dict[str, set[Import]] = field(default_factory=lambda: defaultdict(set))


class Instruction(NamedTuple):
    """One bytecode instruction: its name and what it is about."""

    name: str
    value: Any


def names_used(code: CodeType) -> Uses:
    """Names that ``code`` loads from its surroundings, found in its bytecode."""
    uses = Uses()
    _scan(code, uses)
    return uses


def _scan(code: CodeType, uses: Uses) -> None:
    steps = [step for instruction in dis.get_instructions(code) for step in _steps(instruction)]
    for index, step in enumerate(steps):
        if step.name in GLOBAL_LOADS:
            uses.globals[step.value].add(_chain(steps, index))
        elif step.name in LOCAL_LOADS:
            uses.locals[step.value].add(_chain(steps, index))
        elif step.name == "IMPORT_NAME":
            _note_import(steps, index, uses)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _scan(constant, uses)


def _steps(instruction: dis.Instruction) -> list[Instruction]:
    """An instruction, or the two that newer Python versions join in one, as ``STORE_FAST_LOAD_FAST``."""
    name, value = instruction.opname, instruction.argval
    if "_FAST_" in name and isinstance(value, tuple):
        first = "STORE_FAST" if name.startswith("STORE_FAST_") else "LOAD_FAST"
        second = "STORE_FAST" if name.endswith("_STORE_FAST") else "LOAD_FAST"
        return [Instruction(first, value[0]), Instruction(second, value[1])]
    return [] if name == "EXTENDED_ARG" else [Instruction(name, value)]


def _chain(steps: list[Instruction], index: int) -> Chain:
    following = itertools.takewhile(
        lambda step: step.name in ATTRIBUTE_LOADS, itertools.islice(steps, index + 1, None)
    )
    return tuple(step.value for step in following)


def _note_import(steps: list[Instruction], index: int, uses: Uses) -> None:
    """``import a.b`` binds a; ``import a.b as c`` binds a.b; ``from a import x, y`` binds attributes of a."""
    module: str = steps[index].value
    level, names = steps[index - 2].value, steps[index - 1].value
    following = steps[index + 1 :]
    if not names:
        renamed = following[0].name == "IMPORT_FROM"
        store = next(step for step in following if step.name in STORES)
        uses.imports[store.value].add(Import(module if renamed else module.partition(".")[0], level, None))
        return
    for name in names:
        position = following.index(Instruction("IMPORT_FROM", name))
        uses.imports[following[position + 1].value].add(Import(module, level, name))
