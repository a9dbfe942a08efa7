"""Ignore rules, compared with those of git."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.experiment.ignoring import DEFAULT_IGNORES, IgnoreRules, parse

ENVIRONMENT = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

Needs = Callable[[object, str], None]


def entries(top: Path, directory: bytes = b"") -> Iterator[tuple[bytes, bool]]:
    """Path and whether it is a directory, for everything in a directory."""
    for entry in os.scandir(os.path.join(os.fsencode(top), directory)):  # noqa: PTH118
        if entry.name != b".git":
            yield os.path.join(directory, entry.name), entry.is_dir(follow_symlinks=False)  # noqa: PTH118


def ignored(top: Path, directory: bytes = b"", rules: IgnoreRules | None = None) -> set[bytes]:
    """All paths that are left out, and below them all, by the files ``.gitignore``."""
    rules = IgnoreRules() if rules is None else rules
    found = dict(entries(top, directory))
    file = os.path.join(directory, b".gitignore")  # noqa: PTH118
    if found.get(file) is False:
        rules = rules.with_file((top / os.fsdecode(file)).read_bytes(), directory)
    left_out: set[bytes] = set()
    for path, is_directory in found.items():
        if rules.ignore(path, is_directory):
            left_out |= {path} | (below(top, path) if is_directory else set())
        elif is_directory:
            left_out |= ignored(top, path, rules)
    return left_out


def below(top: Path, directory: bytes = b"") -> set[bytes]:
    found = dict(entries(top, directory))
    return set(found).union(*(below(top, path) for path, is_directory in found.items() if is_directory))


def ignored_by_git(top: Path) -> set[bytes]:
    paths = b"".join(path + b"\0" for path in below(top))
    command = ["git", "-C", str(top), "check-ignore", "-z", "--stdin"]
    answer = subprocess.run(command, input=paths, capture_output=True, check=False, env=ENVIRONMENT)
    assert answer.returncode in (0, 1), answer.stderr
    return set(answer.stdout.split(b"\0")) - {b""}


@pytest.fixture
def repository(tmp_path: Path, needs: Needs) -> Path:
    needs(shutil.which("git"), "git")
    subprocess.run(["git", "init", "-q", tmp_path], check=True, env=ENVIRONMENT)
    return tmp_path


Tree = Mapping[bytes, "Tree | None"]


def make(folder: bytes, tree: Tree) -> None:
    os.mkdir(folder)  # noqa: PTH102
    for name, children in tree.items():
        path = os.path.join(folder, name)  # noqa: PTH118
        if children is None:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        else:
            make(path, children)


NAMES = [
    b"a", b"b", b"dir", b"sub", b"A.py", b"b.txt", b"foo", b" x", b"y ", b"[z]", b"a-b", "é".encode(), b"\xff", b"a\\",
    b"]", b"!x", b"#y", b"\t", b"\v", b"^",
]  # fmt: skip
SEGMENTS = [
    b"a", b"b", b"dir", b"sub", b"*.py", b"*", b"**", b"?", b"??", b"foo", b"A.py", b"b.txt", b"d*", b"s?b", b"a**",
    b"**b", b"***", b"[ab]", b"[!a]", b"[^a]", b"[a-c]*", b"[]a]", b"[!]]", b"[]-a]", b"[a-]", b"[--a]", b"[z-a]",
    b"[\\]]", b"[a\\-c]", b"[\\a-\\c]", b"[a-", b"[!", b"[^", b"[]", b"[[:alpha:]]", b"[[:punct:]]", b"[[:space:]]*",
    b"[[:foo:]]", b"[a[:digit:]-c]", b"[[:", b"[[:x]", b"[\x80-\xff]", b"a[/]b", b"\\a", b"\\*", b"\\", b"**\\",
    b"y\\ ", b"\\!x", b"\\#y", b"!x", b"#y", "é".encode(), b"\xff",
]  # fmt: skip
ENDS = [b"", b" ", b"\t", b"\r", b"  ", b"\\", b"\\  ", b"\0a"]

trees = st.recursive(
    st.none(), lambda children: st.dictionaries(st.sampled_from(NAMES), children, max_size=6), max_leaves=40
).map(lambda tree: {b"a": None} if tree is None else tree)
segments = st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=2).map(b"".join)
lines = st.builds(
    lambda negation, start, path, slash, end: negation + start + b"/".join(path) + slash + end,
    st.sampled_from([b"", b"", b"!"]),
    st.sampled_from([b"", b"", b"/"]),
    st.lists(segments, min_size=1, max_size=3),
    st.sampled_from([b"", b"", b"/"]),
    st.sampled_from([b"", *ENDS]),
)
ignore_files = st.lists(lines, min_size=1, max_size=4).map(b"\n".join)


@given(cases=st.lists(st.tuples(trees, ignore_files, ignore_files), min_size=1, max_size=12))
def test_the_paths_left_out_are_those_of_git(
    cases: list[tuple[Tree, bytes, bytes]], needs: Needs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    needs(shutil.which("git"), "git")
    top = tmp_path_factory.mktemp("git")
    subprocess.run(["git", "init", "-q", top], check=True, env=ENVIRONMENT)
    for number, (tree, content, content_below) in enumerate(cases):
        case = top / str(number)
        make(os.fsencode(case), tree)
        (case / ".gitignore").write_bytes(content)
        for directory in sorted(path for path in case.iterdir() if path.is_dir())[:1]:
            (directory / ".gitignore").write_bytes(content_below)
    assert ignored(top) == ignored_by_git(top)
    shutil.rmtree(top)


def test_each_kind_of_pattern_alone_is_as_in_git(repository: Path) -> None:
    tree = {name: None for name in NAMES if name not in (b"dir", b"sub")}
    few: Tree = {b"a": None, b"b": None, b"ab": None}
    whole: Tree = {**tree, b"dir": {**few, b"sub": few}, b"sub": few}
    patterns = [*SEGMENTS, *(b"dir/" + segment for segment in SEGMENTS), *(b"a" + end for end in ENDS)]
    patterns += [b"**/sub/" + segment for segment in (b"a", b"*", b"**")]
    patterns += [b"dir/**/a", b"**\\/ab", b"/dir[!x]a", b"/**", b"**/", b"/", b"//"]
    for number, pattern in enumerate([*patterns, b"!", b"!/", b"", b"\xef\xbb\xbfa", b"a\r\nb\r\n"]):
        make(os.fsencode(repository / str(number)), whole)
        (repository / str(number) / ".gitignore").write_bytes(pattern)
    assert ignored(repository) == ignored_by_git(repository)


# Determined's cases of ``.detignore``, by their expected outcome.
CONTEXT: Tree = {
    b"A.py": None, b"B.py": None, b"subdir": {b"A.py": None},
    b"dir": {b"file.py": None, b"sub1": {b"x.py": None}, b"sub2": {b"y.py": None}},
}  # fmt: skip
ALL = {
    "A.py", "B.py", "subdir", "subdir/A.py", "dir", "dir/file.py", "dir/sub1", "dir/sub1/x.py", "dir/sub2",
    "dir/sub2/y.py",
}  # fmt: skip
SUBS = {"dir/sub1", "dir/sub1/x.py", "dir/sub2", "dir/sub2/y.py"}


@pytest.mark.parametrize(
    ("content", "left_out"),
    [
        ("A.py", {"A.py", "subdir/A.py"}),
        ("/A.py", {"A.py"}),
        ("*.py", {path for path in ALL if path.endswith(".py")}),
        ("subdir", {"subdir", "subdir/A.py"}),
        ("subdir/", {"subdir", "subdir/A.py"}),
        ("subdir/A.py", {"subdir/A.py"}),
        ("dir/sub*/", SUBS),
        ("dir/sub*", SUBS),
        ("dir/*/", SUBS),
        ("dir/*", {*SUBS, "dir/file.py"}),
        ("A.py/", set()),
        ("*\n!*/\n!A.py", ALL - {"A.py", "subdir", "subdir/A.py", "dir", "dir/sub1", "dir/sub2"}),
        ("dir\n!dir/file.py", {"dir", "dir/file.py", *SUBS}),  # its directory is left out
        ("dir/*\n!dir/file.py", SUBS),
        ("dir/**\n!dir/file.py", SUBS),
        ("A.py  \n\\B.py\n# x.py\n\n", {"A.py", "subdir/A.py", "B.py"}),
    ],
)
def test_patterns_of_the_reference(content: str, left_out: set[str], repository: Path) -> None:
    make(os.fsencode(repository / "top"), CONTEXT)
    (repository / "top" / ".gitignore").write_text(content)
    for found in (ignored(repository), ignored_by_git(repository)):
        assert {os.fsdecode(path).removeprefix("top/") for path in found} - {".gitignore"} == left_out


def left_by_defaults(paths: Iterable[str], content: str = "") -> list[str]:
    rules = IgnoreRules().with_file(DEFAULT_IGNORES.encode()).with_file(content.encode())
    return [path for path in paths if not rules.ignore(path.rstrip("/").encode(), path.endswith("/"))]


def test_default_rules_come_first_and_can_be_taken_back() -> None:
    paths = [
        ".git",
        ".git/",
        "a/__pycache__/",
        "a.pyc",
        ".venv/",
        ".env",
        ".DS_Store",
        "model.py",
        "a/.gitignore",
    ]
    assert left_by_defaults(paths) == ["model.py", "a/.gitignore"]
    assert left_by_defaults(paths, "!.env\n!*.pyc") == ["a.pyc", ".env", "model.py", "a/.gitignore"]
    assert len(parse(DEFAULT_IGNORES.encode())) == DEFAULT_IGNORES.count("\n")


def test_rules_of_a_deeper_ignore_file_decide_first_and_count_only_below_it() -> None:
    rules = IgnoreRules().with_file(b"*.csv\n")
    deeper = rules.with_file(b"!a.csv\n/b.txt\n", b"data")
    paths = [b"data/a.csv", b"data/b.csv", b"data/b.txt", b"data/more/b.txt"]
    assert [deeper.ignore(path, False) for path in paths] == [False, True, True, False]
    assert [rules.ignore(path, False) for path in paths] == [True, True, False, False]


@pytest.mark.parametrize("lines", [*itertools.permutations([b"*.csv", b"!a.csv", b"a.*"], 2)])
def test_the_last_rule_that_matches_decides(lines: tuple[bytes, bytes]) -> None:
    assert IgnoreRules().with_file(b"\n".join(lines)).ignore(b"a.csv", False) == (lines[-1][:1] != b"!")
