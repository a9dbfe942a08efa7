"""Ignore rules: which paths below a directory are left out, as git decides it by files ``.gitignore``.

The rules are those of gitignore(5), and where that page is silent, the behaviour of git 2.39, byte by byte: ``?``
stands for one byte, and names need not be UTF-8. Libraries were compared with ``git check-ignore`` first: pathspec 1.1
decides otherwise for one in seven generated lists of patterns, also for plain ones such as ``*`` with ``!b``, and
fails at some that git reads.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

IGNORE_FILE = ".hopyardignore"
"""Name of the ignore file: read in every directory, as ``.gitignore`` is; a rule counts below its directory."""

DETERMINED_IGNORE_FILE = ".detignore"
"""Name of Determined's ignore file: read in the top directory only, as there, and where no ``IGNORE_FILE`` is there."""

DEFAULT_IGNORES = """\
.git
.hg/
.svn/
.hopyard/
__pycache__/
*.py[cod]
*$py.class
.venv/
venv/
.env
.direnv/
.tox/
.nox/
.mypy_cache/
.pytest_cache/
.ruff_cache/
.ipynb_checkpoints/
.idea/
.vscode/
node_modules/
.DS_Store
"""
"""Rules before those of all ignore files, so that a line such as ``!.env`` in one of them takes a rule back: version
control, caches, environments and settings of editors; ``.env`` holds secrets by custom."""

_SPECIAL = re.compile(rb"[*?\[\\]")
_WITHOUT_SPACES_AT_END = re.compile(rb"(?:[^\\ ]|\\.?| +(?! |\Z))*", re.DOTALL)
_NAMED_CLASS = re.compile(rb"\[:([^\]]*):\]")
_STARS = re.compile(rb"\*+")
_ASCII = frozenset(range(128))
_PRINTED = frozenset(range(32, 127))


def _bytes_of(characters: str) -> frozenset[int]:
    return frozenset(characters.encode())


_CLASSES = {
    b"alnum": _bytes_of(string.ascii_letters + string.digits),
    b"alpha": _bytes_of(string.ascii_letters),
    b"blank": _bytes_of(" \t"),
    b"cntrl": _ASCII - _PRINTED,
    b"digit": _bytes_of(string.digits),
    b"graph": _PRINTED - _bytes_of(" "),
    b"lower": _bytes_of(string.ascii_lowercase),
    b"print": _PRINTED,
    b"punct": _bytes_of(string.punctuation),
    b"space": _bytes_of(" \t\n\r"),  # git's, which lacks two characters of C's
    b"upper": _bytes_of(string.ascii_uppercase),
    b"xdigit": _bytes_of(string.hexdigits),
}


@dataclass(frozen=True)
class Rule:
    """One line of an ignore file.

    Attributes:
        pattern: matches a whole name, or a whole path below the directory of the ignore file.
        of_names: whether ``pattern`` is of a name, in any directory, and not of a path.
        of_directories: whether the rule is of directories only.
        ignored: whether what matches is left out; False: taken back.
    """

    pattern: re.Pattern[bytes]
    of_names: bool
    of_directories: bool
    ignored: bool


@dataclass(frozen=True)
class IgnoreRules:
    """The rules for entries of one directory.

    Attributes:
        ordered: (start of the path that a rule is of, rule) pairs; the first rule that matches decides.
    """

    ordered: tuple[tuple[int, Rule], ...] = ()

    def with_file(self, content: bytes, directory: bytes = b"") -> IgnoreRules:
        """These rules, and before them those of the ignore file of ``directory``: a path, empty for the top."""
        start = len(directory) + 1 if directory else 0
        return IgnoreRules((*((start, rule) for rule in reversed(parse(content))), *self.ordered))

    def ignore(self, path: bytes, is_directory: bool) -> bool:
        """Whether an entry is left out, whose directory is not. Nothing below a directory that is left out can be taken
        back, so that callers must not ask for it.

        Args:
            path: from the top directory, separated by ``/``.
            is_directory: False also for a link to a directory.
        """
        name = path[path.rfind(b"/") + 1 :]
        for start, rule in self.ordered:
            if rule.of_directories and not is_directory:
                continue
            if rule.pattern.fullmatch(name if rule.of_names else path[start:]):
                return rule.ignored
        return False


def parse(content: bytes) -> list[Rule]:
    """The rules of an ignore file, in their order. A line that matches nothing in git, such as ``a\\``, is no rule."""
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rules = (_rule(line.removesuffix(b"\r")) for line in lines if line and not line.startswith(b"#"))
    return [rule for rule in rules if rule is not None]


def _rule(line: bytes) -> Rule | None:
    kept = _WITHOUT_SPACES_AT_END.match(line.partition(b"\0")[0])
    assert kept is not None
    glob = kept[0].removeprefix(b"!")
    is_of_directories = glob.endswith(b"/")
    glob = glob.removesuffix(b"/")
    of_names = b"/" not in glob
    glob = glob if of_names else glob.removeprefix(b"/")
    special = _SPECIAL.search(glob)
    start = special.start() if special else len(glob)
    # Apart, since git forgets the text before the first wildcard: "a**/b" is "a" and then "**/b".
    rest = _translate(glob[start:])
    if rest is None:
        return None
    pattern = re.compile(re.escape(glob[:start]) + rest, re.DOTALL)
    return Rule(pattern, of_names, is_of_directories, not kept[0].startswith(b"!"))


def _translate(glob: bytes) -> bytes | None:
    """The regular expression of a pattern; None if nothing matches it."""
    parts = []
    at = 0
    while at < len(glob):
        char = glob[at : at + 1]
        if char == b"*":
            stars = _STARS.match(glob, at)
            assert stars is not None
            part, at = _translate_stars(glob, at, stars.end())
        elif char == b"[":
            found = _bracket(glob, at + 1)
            if found is None:
                return None
            members, at = found
            part = b"[" + re.escape(bytes(sorted(members))) + b"]"
        elif char == b"\\" and at + 1 == len(glob):
            return None
        elif char == b"\\":
            part, at = re.escape(glob[at + 1 : at + 2]), at + 2
        else:
            part, at = b"[^/]" if char == b"?" else re.escape(char), at + 1
        parts.append(part)
    return b"".join(parts)


def _translate_stars(glob: bytes, start: int, end: int) -> tuple[bytes, int]:
    """The regular expression of ``glob[start:end]``, which are stars, and where the pattern goes on."""
    is_segment = start == 0 or glob[start - 1 : start] == b"/"
    if end - start == 1 or not is_segment:
        return b"[^/]*", end
    if glob[end : end + 1] == b"/":  # any number of directories, also none
        return b"(?:.*/)?", end + 1
    return (b".*" if end == len(glob) or glob.startswith(b"\\/", end) else b"[^/]*"), end


def _bracket(glob: bytes, at: int) -> tuple[frozenset[int], int] | None:
    """The bytes that an expression in brackets stands for, and where it ends; None if nothing matches it.

    Args:
        at: behind the opening bracket.
    """
    is_negated = glob[at : at + 1] in (b"!", b"^")
    at += is_negated
    members: set[int] = set()
    lowest = None  # of a range, if one follows
    is_first = True
    while is_first or glob[at : at + 1] != b"]":
        is_first = False
        named = _NAMED_CLASS.match(glob, at)
        if named:
            if named[1] not in _CLASSES:
                return None
            members |= _CLASSES[named[1]]
            lowest, at = None, named.end()
            continue
        is_range = glob[at : at + 1] == b"-" and glob[at + 1 : at + 2] not in (b"", b"]")
        at += is_range and lowest is not None
        at += glob[at : at + 1] == b"\\"
        if at >= len(glob):
            return None
        if is_range and lowest is not None:
            members |= set(range(lowest, glob[at] + 1))
            lowest = None
        else:
            members.add(glob[at])
            lowest = glob[at]
        at += 1
    chosen = (frozenset(range(256)) - members if is_negated else frozenset(members)) - {ord("/")}
    return (chosen, at + 1) if chosen else None
