"""The syntax tree of a function that is running, in a form that formatting does not change.

The source is found by compiling its file again and looking for the function's own code in it. So a file that was
edited after it was imported is never taken for what runs, and of several lambdas on a line the right one is found.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

IGNORED_FIELDS = {"annotation", "ctx", "kind", "returns", "type_comment", "type_ignores", "type_params"}


def syntax_of(code: CodeType, module_globals: Mapping[str, Any]) -> Any | None:
    """The syntax tree of the function that has ``code``, as a JSON value without positions, docstrings,
    annotations and comments; None if its source is not to be found."""
    linecache.checkcache(code.co_filename)
    source = "".join(linecache.getlines(code.co_filename, dict(module_globals)))
    found = [known for known in _codes_in(source, code.co_filename) if _content(known) == _content(code)]
    if not found:
        return None
    # Equal code elsewhere in the file is equal syntax for all that matters; still, the nearest is the likeliest.
    nearest = min(
        found, key=lambda known: (known.co_firstlineno != code.co_firstlineno, not _alike(known, code))
    )
    node = _node_of(nearest, source)
    return None if node is None else _normal(node, in_class=False)


@functools.lru_cache(maxsize=64)
def _codes_in(source: str, filename: str) -> tuple[CodeType, ...]:
    try:
        module = compile(source, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # a notebook's cell with magics, null bytes
        return ()
    return tuple(_nested(module))


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


@functools.lru_cache(maxsize=4096)
def _content(code: CodeType) -> tuple[Any, ...]:
    """All of a code object but where it stands in its file."""
    constants = tuple(
        _content(each) if isinstance(each, CodeType) else _constant(each) for each in code.co_consts
    )
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    variables = (code.co_varnames, code.co_freevars, code.co_cellvars)
    return code.co_qualname, code.co_code, code.co_names, variables, arguments, constants


def _constant(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    if isinstance(value, frozenset):
        return frozenset, tuple(sorted(map(str, map(_constant, value))))
    return type(value), repr(value)


def _alike(known: CodeType, code: CodeType) -> bool:
    return list(known.co_positions()) == list(code.co_positions())


@functools.lru_cache(maxsize=64)
def _functions_in(source: str) -> tuple[Function, ...]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return tuple(node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))


def _node_of(code: CodeType, source: str) -> Function | None:
    nodes = [node for node in _functions_in(source) if _first_line(node) == code.co_firstlineno]
    if code.co_name != "<lambda>":
        return next((node for node in nodes if getattr(node, "name", None) == code.co_name), None)
    lambdas = [node for node in nodes if isinstance(node, ast.Lambda)]
    if len(lambdas) <= 1:
        return lambdas[0] if lambdas else None
    # Positions of the outer of two nested lambdas reach beyond the inner one's body: the smallest that fits is it.
    fitting = [node for node in lambdas if _holds(node.body, code)]
    return min(fitting, key=_extent, default=None)


def _first_line(node: Function) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _holds(body: ast.expr, code: CodeType) -> bool:
    start, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    spans = [
        ((line, column), (last_line, last_column))
        for line, last_line, column, last_column in code.co_positions()
        if line is not None and last_line is not None and column is not None and last_column is not None
    ]
    spans = [(first, last) for first, last in spans if first != last]
    return bool(spans) and all(start <= first and last <= end for first, last in spans)


def _extent(node: ast.Lambda) -> tuple[int, int]:
    body = node.body
    lines = (body.end_lineno or body.lineno) - body.lineno
    return lines, (body.end_col_offset or 0) - (0 if lines else body.col_offset)


def _normal(node: Any, *, in_class: bool) -> Any:
    """A node as JSON. Annotations stay in class bodies, where dataclasses read them."""
    if isinstance(node, list):
        return [_normal(each, in_class=in_class) for each in node if not _is_bare_annotation(each, in_class)]
    if isinstance(node, ast.Constant):
        return ["Constant", type(node.value).__name__, repr(node.value)]
    if not isinstance(node, ast.AST):
        return node
    if isinstance(node, ast.AnnAssign) and not in_class and node.value is not None:
        node = ast.Assign(targets=[node.target], value=node.value)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        in_class = isinstance(node, ast.ClassDef)
    elif isinstance(node, ast.Lambda):
        in_class = False
    fields: dict[str, Any] = {}
    for name, value in ast.iter_fields(node):
        keep = name not in IGNORED_FIELDS or (isinstance(node, ast.AnnAssign) and name == "annotation")
        if keep and value is not None and value != []:
            fields[name] = _normal(_without_docstring(node, name, value), in_class=in_class)
    return [type(node).__name__, fields]


def _is_bare_annotation(node: Any, in_class: bool) -> bool:
    return isinstance(node, ast.AnnAssign) and node.value is None and not in_class


def _without_docstring(node: ast.AST, name: str, value: Any) -> Any:
    documented = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    if name == "body" and documented and ast.get_docstring(node, clean=False) is not None:  # type: ignore[arg-type]
        return value[1:]
    return value
