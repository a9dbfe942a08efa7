"""Which names of its surroundings a piece of code uses: globals, captured variables, imports of its own."""

from __future__ import annotations

import dis
from collections import defaultdict
from dataclasses import dataclass, field
from types import CodeType

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


def names_used(code: CodeType) -> Uses:
    """What ``code`` loads from its surroundings, found in its bytecode."""
    uses = Uses()
    _scan(code, uses)
    return uses


def _scan(code: CodeType, uses: Uses) -> None:
    instructions = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
    for index, instruction in enumerate(instructions):
        if instruction.opname in GLOBAL_LOADS:
            uses.globals[instruction.argval].add(_chain(instructions, index))
        elif instruction.opname in LOCAL_LOADS:
            uses.locals[instruction.argval].add(_chain(instructions, index))
        elif instruction.opname.startswith("LOAD_FAST_") and isinstance(instruction.argval, tuple):
            for name in instruction.argval:  # two loads in one instruction; attributes follow the last
                uses.locals[name].add(_chain(instructions, index) if name == instruction.argval[-1] else ())
        elif instruction.opname == "IMPORT_NAME":
            _note_import(instructions, index, uses)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _scan(constant, uses)


def _chain(instructions: list[dis.Instruction], index: int) -> Chain:
    chain = []
    for instruction in instructions[index + 1 :]:
        if instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        chain.append(instruction.argval)
    return tuple(chain)


def _note_import(instructions: list[dis.Instruction], index: int, uses: Uses) -> None:
    """``import a.b`` binds a; ``import a.b as c`` binds a.b; ``from a import x, y`` binds attributes of a."""
    module: str = instructions[index].argval
    level, names = instructions[index - 2].argval, instructions[index - 1].argval
    following = instructions[index + 1 :]
    if not names:
        renamed = following[0].opname == "IMPORT_FROM"
        store = next(each for each in following if each.opname in STORES)
        uses.imports[store.argval].add(Import(module if renamed else module.partition(".")[0], level, None))
        return
    for name in names:
        position = next(
            i for i, each in enumerate(following) if each.opname == "IMPORT_FROM" and each.argval == name
        )
        uses.imports[following[position + 1].argval].add(Import(module, level, name))
