"""Checks README.md, CONTRIBUTING.md, AGENTS.md, llms.txt and docs/: code runs, commands exist, no command is missing.

Rules for a page:

- A fenced block names its language, one of `LANGUAGES`.
- All ``python`` blocks of a page run in order, as one script in an empty directory. A block is left out only
  by ``<!-- not run: the reason -->`` on the line before it.
- In ``console`` blocks a command follows ``$ `` and the rest is output; in ``bash`` blocks every line is a
  command. Each ``hopyard`` command, its options and each ``make`` target must exist, also in inline code.
- A relative link leads to a file.
- docs/cli.md names every command there is.
- ``python`` blocks, and scripts of examples/, import from Hopyard what docs/names.md calls public, and nothing else.
- Each row of docs/names.md is the ``__all__`` of its module, in the same order, and the module has each of them.

`python tools/pages.py` checks all but the running, which tests/services/pages does.
"""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from hopyard.missing import CALLED_ELSEWHERE

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = ("python", "console", "bash", "text", "yaml", "toml", "json")

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>.*?)[ \t]*$")
_NOT_RUN = re.compile(r"^\s*<!--\s*not run\b:?\s*(?P<reason>.*?)\s*-->\s*$")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<module>hopyard(?:\.\w+)*)[ \t]+import[ \t]*(?P<names>\([^)]*\)|[^\n]+)"
    r"|import[ \t]+(?P<whole>hopyard(?:\.\w+)*)\b)",
    re.MULTILINE,
)
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(?:#[^)\s]*)?\)")


class PageError(Exception):
    """A page breaks a rule; the text says where and which."""


@dataclass(frozen=True)
class Block:
    """A fenced block. ``line`` is that of its first line of code, counted from 1."""

    language: str
    code: str
    line: int
    not_run: str | None


@dataclass(frozen=True)
class Page:
    """One Markdown file: its fenced blocks, and its other lines with their numbers."""

    path: Path
    blocks: tuple[Block, ...]
    prose: tuple[tuple[int, str], ...]


def pages(root: Path = ROOT) -> list[Path]:
    """The pages that a user reads, or a program that works for one."""
    first = ("README.md", "CONTRIBUTING.md", "AGENTS.md", "llms.txt")
    return [*(root / name for name in first), *sorted((root / "docs").rglob("*.md"))]


def read_page(path: Path) -> Page:
    """Parse a file; PageError for an unknown language, an open fence or a misplaced opt-out."""
    lines = path.read_text().splitlines()
    blocks: list[Block] = []
    prose: list[tuple[int, str]] = []
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            prose.append((at + 1, lines[at]))
            at += 1
            continue
        end = at + 1
        while end < len(lines) and not _closes(lines[end], fence["fence"]):
            end += 1
        if end == len(lines):
            raise PageError(f"{path.name}:{at + 1}: the block is never closed; end it with {fence['fence']}")
        blocks.append(_block(path, fence, lines[at + 1 : end], at, lines))
        at = end + 1
    _refuse_stray_opt_outs(path, prose, blocks)
    return Page(path, tuple(blocks), tuple(prose))


def _closes(line: str, fence: str) -> bool:
    line = line.strip()
    return len(line) >= len(fence) and set(line) == {fence[0]}


def _block(path: Path, fence: re.Match[str], body: list[str], at: int, lines: list[str]) -> Block:
    if fence["info"] not in LANGUAGES:
        raise PageError(
            f"{path.name}:{at + 1}: the block's language is {fence['info']!r}; "
            f"it must be one of {', '.join(LANGUAGES)}"
        )
    indent = len(fence["indent"])
    code = "\n".join(line[indent:] if not line[:indent].strip() else line for line in body)
    opt_out = _NOT_RUN.match(lines[at - 1]) if at else None
    if opt_out and not opt_out["reason"]:
        raise PageError(f"{path.name}:{at}: an opt-out needs a reason: <!-- not run: the reason -->")
    return Block(fence["info"], code, at + 2, opt_out["reason"] if opt_out else None)


def _refuse_stray_opt_outs(path: Path, prose: list[tuple[int, str]], blocks: list[Block]) -> None:
    before_python = {block.line - 2 for block in blocks if block.language == "python"}
    for number, line in prose:
        if line.lstrip().startswith("<!-- not run") and number not in before_python:
            raise PageError(f"{path.name}:{number}: an opt-out stands on the line before a python block")


def script(page: Page) -> str:
    """The page's python blocks as one script, on the same lines as in the page. Empty if none runs."""
    text = ""
    for block in page.blocks:
        if block.language == "python" and block.not_run is None:
            text += "\n" * (block.line - 1 - text.count("\n")) + block.code + "\n"
    return text


def run_page(page: Page, folder: Path, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    """Run the page's blocks as a user would: a script file, in the empty directory ``folder``.

    Warnings that the page's own lines cause are errors. ``timeout`` is in seconds.
    """
    file = folder / f"{page.path.stem}_page.py"  # ray.py would hide the package ray
    file.write_text(script(page))
    command = [sys.executable, "-W", "error:::__main__", file.name]
    return subprocess.run(
        command, cwd=folder, timeout=timeout, text=True, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def command_lines(page: Page) -> Iterator[tuple[int, list[str]]]:
    """Every simple command of the page's shell blocks and inline code: its line and its words."""
    for block in page.blocks:
        if block.language in ("console", "bash"):
            yield from _shell_commands(page.path, block)
    for number, line in page.prose:
        for span in _INLINE.findall(line):
            if re.match(r"(hopyard|make) [a-z]", span):
                yield number, span.split()


def _shell_commands(path: Path, block: Block) -> Iterator[tuple[int, list[str]]]:
    lines = list(enumerate(block.code.splitlines(), block.line))
    prompt = "$ " if block.language == "console" else ""
    if not any(line.startswith(prompt) for _, line in lines):
        raise PageError(f"{path.name}:{block.line}: no line of this console block begins with '$ '")
    pending = ""
    for number, line in lines:
        if not pending and not line.startswith(prompt):
            continue
        pending += line if pending else line.removeprefix(prompt)
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        words = shlex.shlex(pending, posix=True, punctuation_chars=";|&()")
        words.whitespace_split = True
        pending = ""
        yield from ((number, command) for command in _split(list(words)))


def _split(words: list[str]) -> Iterator[list[str]]:
    """Cut at ``;``, ``|``, ``&&`` and brackets; drop assignments in front."""
    command: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set(";|&()"):
            if command:
                yield command
            command = []
        elif command or not re.match(r"\w+=", word):
            command.append(word)


def command_problems(page: Page, cli: Any, targets: set[str]) -> list[str]:
    """A sentence for every command of the page that does not exist."""
    found = []
    for number, words in command_lines(page):
        program, arguments = Path(words[0]).name, words[1:]
        problem = None
        if program.startswith("python") and arguments[:2] == ["-m", "hopyard"]:
            program, arguments = "hopyard", arguments[2:]
        if program == "hopyard":
            problem = _unknown_word(cli, arguments)
        elif program == "make":
            named = {word for word in arguments if "=" not in word and not word.startswith("-")}
            problem = f"make has no target {min(named - targets)!r}" if named - targets else None
        if problem:
            found.append(f"{page.path.name}:{number}: {problem}")
    return found


def _unknown_word(command: Any, words: list[str]) -> str | None:
    """Follow ``words`` down the tree of commands; the first that the tree does not know, in a sentence."""
    path, left = "hopyard", list(words)
    while left:
        word = left.pop(0)
        subcommands = getattr(command, "commands", None)
        if word.startswith("-") and word != "-":
            name, equals, _ = word.partition("=")
            options = {opt: param for param in command.params for opt in (*param.opts, *param.secondary_opts)}
            if name not in options and name != "--help":
                return f"`{path}` has no option {name!r}{_nearest(name, options)}"
            if name in options and not equals and not options[name].is_flag:
                left = left[1:]
        elif subcommands is not None:
            if word not in subcommands:
                return f"`{path}` has no command {word!r}{_nearest(word, subcommands)}"
            command, path = subcommands[word], f"{path} {word}"
    return None


def _nearest(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def command_paths(command: Any, path: str = "hopyard") -> list[str]:
    """Every command that `--help` shows and that runs something, as typed."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        return [path]
    visible = [(name, sub) for name, sub in sorted(subcommands.items()) if not sub.hidden]
    return [leaf for name, sub in visible for leaf in command_paths(sub, f"{path} {name}")]


def undocumented(cli: Any, text: str) -> list[str]:
    """The commands that ``text`` does not name."""
    return [path for path in command_paths(cli) if not re.search(rf"{re.escape(path)}(?![\w-])", text)]


def broken_links(page: Page) -> list[str]:
    """A sentence for every relative link that leads nowhere."""
    found = [(number, target) for number, line in page.prose for target in _LINK.findall(line)]
    return [
        f"{page.path.name}:{number}: the link leads to {target!r}, which does not exist"
        for number, target in found
        if not (page.path.parent / target).exists()
    ]


def public_names(root: Path = ROOT) -> dict[str, list[str]]:
    """The table of docs/names.md: names by public module, in its order."""
    rows = re.findall(
        r"^\| `(hopyard[\w.]*)` \| (.*) \|$", (root / "docs/names.md").read_text(), re.MULTILINE
    )
    return {module: _INLINE.findall(names) for module, names in rows}


def wrong_rows(public: dict[str, list[str]]) -> list[str]:
    """A sentence for every module whose names are not those of its row, or are not there."""
    found = []
    for module, names in public.items():
        try:
            imported = importlib.import_module(module)
        except ImportError as error:
            found.append(f"docs/names.md: `{module}` cannot be imported ({error})")
            continue
        actual = list(getattr(imported, "__all__", ()))
        absent = [name for name in actual if not hasattr(imported, name)]
        if differing := sorted(set(names) ^ set(actual)):
            found.append(f"docs/names.md: `{module}` and its __all__ differ in {', '.join(differing)}")
        elif names != actual:
            found.append(
                f"docs/names.md: `{module}` has the names of its __all__ in another order; sort both alike"
            )
        if absent:
            found.append(f"docs/names.md: `{module}` has no {', '.join(absent)}, which its __all__ names")
    return found


def internal_imports(code: str, public: dict[str, list[str]]) -> list[tuple[int, str]]:
    """Every import of ``code`` from a part of Hopyard that is not public: its line, and a sentence.

    Names of Cerebro may be imported: they say what they are called here. ``code`` need not be whole: blocks that do not
    run may have ``...`` in them.
    """
    code, found = re.sub("#.*", "", code), []
    for statement in _IMPORT.finditer(code):
        line, module = code.count("\n", 0, statement.start()) + 1, statement["module"] or statement["whole"]
        if module not in public:
            found.append((line, f"{module} is internal; import from a module of docs/names.md"))
            continue
        for name in re.findall(r"(\w+)(?: as \w+)?", statement["names"] or ""):
            known = {*public[module], *CALLED_ELSEWHERE}
            if name not in known and f"{module}.{name}" not in public:
                found.append((line, f"{module} has no public name {name!r}{_nearest(name, known)}"))
    return found


def load_cli() -> Any:
    """The tree of commands behind the script `hopyard`."""
    app = getattr(importlib.import_module("hopyard.cli"), "app", None)
    if app is None:
        raise PageError("pyproject.toml names the script `hopyard`, but hopyard.cli has no typer app `app`")
    return typer.main.get_command(app)


def make_targets(makefile: Path = ROOT / "Makefile") -> set[str]:
    """The targets that the Makefile declares."""
    return set(re.findall(r"^([a-z-]+):", makefile.read_text(), re.MULTILINE))


def problems(root: Path = ROOT) -> list[str]:
    """Everything that is wrong with the pages, short of running them."""
    cli, targets, public, found = load_cli(), make_targets(root / "Makefile"), public_names(root), []
    for path in pages(root):
        page = read_page(path)
        found += command_problems(page, cli, targets) + broken_links(page)
        for block in page.blocks:
            if block.language == "python":
                internal = internal_imports(block.code, public)
                found += [f"{path.name}:{block.line - 1 + line}: {text}" for line, text in internal]
    for path in sorted((root / "examples").rglob("*.py")):
        internal = internal_imports(path.read_text(), public)
        found += [f"{path.relative_to(root)}:{line}: {text}" for line, text in internal]
    reference = root / "docs/cli.md"
    found += wrong_rows(public)
    missing = undocumented(cli, reference.read_text() if reference.exists() else "")
    return found + [f"docs/cli.md: `{path}` is not documented" for path in missing]


def main() -> int:
    try:
        found = problems()
    except PageError as error:
        found = [str(error)]
    print(
        "\n".join(found)
        if found
        else "pages: every command exists and is documented; only public names are imported, and all are listed"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
