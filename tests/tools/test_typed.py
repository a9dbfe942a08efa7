"""Names whose types are not known are found, in a package of a few lines."""

from __future__ import annotations

from pathlib import Path

import typed

KNOWN = """
class Reader:
    def __init__(self, path: str) -> None:
        self.path = path
        self._lines = open(path).readlines()
"""
INFERRED = """
class Writer:
    def __init__(self, path: str) -> None:
        self.size = len(path.encode())

def written(by: Writer, times) -> int:
    return by.size
"""


def test_names_that_checkers_would_have_to_infer_are_found(tmp_path: Path) -> None:
    package = tmp_path / "small"
    package.mkdir()
    (package / "py.typed").touch()
    (package / "__init__.py").write_text(KNOWN)
    (package / "inner.py").write_text(INFERRED)
    found = typed.problems(typed.verified("small", tmp_path))
    assert {problem.partition(": ")[0] for problem in found} == {
        "small.inner.Writer.size",
        "small.inner.written",
    }
    assert "inner.py:4: Type is missing type annotation and could be inferred differently" in found[0]
    assert 'Type annotation for parameter "times" is missing' in " ".join(found)


def test_a_package_that_cannot_be_looked_at_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    assert typed.problems(typed.verified("small", tmp_path)) == ["No py.typed file found"]
