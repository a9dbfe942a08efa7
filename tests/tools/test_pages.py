"""The checks of the documentation find what they are there for."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
import typer

import pages


@pytest.fixture
def cli() -> Any:
    app, run = typer.Typer(), typer.Typer()

    @run.command("list")
    def list_runs(store: Annotated[str, typer.Option()] = "experiments", full: bool = False) -> None: ...

    @run.command(hidden=True)
    def repair() -> None: ...

    @app.command()
    def demo(kill: bool = False, number: Annotated[int, typer.Option("-n", "--number")] = 1) -> None: ...

    @app.command("list-all")
    def list_all(path: str) -> None: ...

    app.add_typer(run, name="run")
    return typer.main.get_command(app)


@pytest.fixture
def page(tmp_path: Path) -> Any:
    def write(text: str) -> pages.Page:
        path = tmp_path / "page.md"
        path.write_text(text)
        return pages.read_page(path)

    return write


def test_blocks_of_a_page_share_names_and_run_in_an_empty_directory(page: Any, tmp_path: Path) -> None:
    first, second = (
        "```python\nx = 1\n```\n",
        "   ```python\n   import os\n   print(x + 1, os.listdir())\n   ```\n",
    )
    text = f"# Title\n\n{first}words\n\n1. a list\n\n{second}"
    folder = tmp_path / "empty"
    folder.mkdir()
    done = pages.run_page(page(text), folder)
    assert (done.returncode, done.stdout) == (0, "2 ['page_page.py']\n")


def test_a_failing_block_is_reported_with_its_line_in_the_page(page: Any, tmp_path: Path) -> None:
    done = pages.run_page(page("# T\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n"), tmp_path)
    assert done.returncode == 1
    assert 'page.py", line 8' in done.stdout


def test_a_warning_that_the_page_causes_is_an_error(page: Any, tmp_path: Path) -> None:
    done = pages.run_page(page("```python\nimport warnings\nwarnings.warn('old')\n```\n"), tmp_path)
    assert done.returncode == 1
    assert "UserWarning: old" in done.stdout


def test_a_block_is_left_out_for_a_reason_only(page: Any, tmp_path: Path) -> None:
    left_out = page("<!-- not run: needs a cluster -->\n```python\n1 / 0\n```\n")
    assert left_out.blocks[0].not_run == "needs a cluster"
    assert pages.run_page(left_out, tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- not run -->\n```python\n```\n", "page.md:1: an opt-out needs a reason"),
        ("<!-- not run: -->\n```python\n```\n", "page.md:1: an opt-out needs a reason"),
        (
            "<!-- not run: later -->\n\n```python\n```\n",
            "page.md:1: an opt-out stands on the line before a python",
        ),
        (
            "<!-- not run: later -->\n```yaml\n```\n",
            "page.md:1: an opt-out stands on the line before a python",
        ),
        ("a\n```py\n1\n```\n", "page.md:2: the block's language is 'py'; it must be one of python, console"),
        ("```\n1\n```\n", "page.md:1: the block's language is ''; it must be one of python, console"),
        ("```python\n1\n", "page.md:1: the block is never closed; end it with ```"),
    ],
)
def test_nothing_is_left_out_silently(page: Any, text: str, message: str) -> None:
    with pytest.raises(pages.PageError, match=re.escape(message)):
        page(text)


def test_a_console_block_without_a_command_is_refused(page: Any, cli: Any) -> None:
    with pytest.raises(pages.PageError, match=r"page.md:2: no line of this console block begins with '\$ '"):
        pages.command_problems(page("```console\nhopyard demo\n```\n"), cli, set())


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ hopyard demo --kill -n 3\nhopyard nonsense is output here\n```\n",
        "```bash\nA=1 .venv/bin/hopyard run list --store list --full | sort # hopyard nonsense\n```\n",
        "```bash\nhopyard run \\\n  list --store=x\npython -m hopyard demo --no-kill\n```\n",
        "```console\n$ ls && make demo KILL=1\n```\n",
        "Type `hopyard list-all PATH` or `make -s test`; `hopyard.tune` is no command.",
        "`hopyard run --help` names them.",
    ],
)
def test_commands_that_exist_pass(page: Any, cli: Any, text: str) -> None:
    assert pages.command_problems(page(text), cli, {"demo", "test"}) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "```console\n$ hopyard dmo\n```\n",
            "page.md:2: `hopyard` has no command 'dmo'; did you mean 'demo'?",
        ),
        ("```bash\nls\ntrue && hopyard run lst\n```\n", "page.md:3: `hopyard run` has no command 'lst'"),
        (
            "```bash\nX=1 hopyard demo --kil\n```\n",
            "page.md:2: `hopyard demo` has no option '--kil'; did you",
        ),
        ("```bash\npython -m hopyard nope\n```\n", "page.md:2: `hopyard` has no command 'nope'"),
        ("```bash\nhopyard run \\\n  lst\n```\n", "page.md:3: `hopyard run` has no command 'lst'"),
        ("a\n\nType `hopyard stop it`.", "page.md:3: `hopyard` has no command 'stop'"),
        ("```console\n$ make dem KILL=1\n```\n", "page.md:2: make has no target 'dem'"),
    ],
)
def test_commands_that_do_not_exist_are_found(page: Any, cli: Any, text: str, problem: str) -> None:
    (found,) = pages.command_problems(page(text), cli, {"demo"})
    assert found.startswith(problem)


def test_every_visible_command_must_be_documented(cli: Any) -> None:
    assert pages.command_paths(cli) == ["hopyard demo", "hopyard list-all", "hopyard run list"]
    assert pages.undocumented(cli, "`hopyard demo`, `hopyard list-all PATH`, `hopyard run list`") == []
    assert pages.undocumented(cli, "`hopyard demonstrate`, `hopyard run list-all`") == [
        "hopyard demo",
        "hopyard list-all",
        "hopyard run list",
    ]


def test_links_that_lead_nowhere_are_found(page: Any, tmp_path: Path) -> None:
    (tmp_path / "there.md").touch()
    text = "[a](there.md#part) [b](https://example.org/x) [c](#here)\n[d](gone.md#part)\n"
    assert pages.broken_links(page(text)) == ["page.md:2: the link leads to 'gone.md', which does not exist"]


def test_targets_are_those_of_the_makefile() -> None:
    assert {"demo", "test", "check", "bench", "clean"} <= pages.make_targets()


def test_the_table_of_public_names_is_read(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    rows = "| module | names |\n|---|---|\n| `hopyard.a` | `B`, `c` |\n| `hopyard.d` | none yet |\n"
    (tmp_path / "docs/names.md").write_text(f"# Public names\n\n`hopyard.x` is none.\n\n{rows}")
    assert pages.public_names(tmp_path) == {"hopyard.a": ["B", "c"], "hopyard.d": []}


@pytest.mark.parametrize(
    ("code", "problems"),
    [
        ("from hopyard.tune import Model, TPESearch\nimport hopyard\nimport numpy as np", []),
        ("from hopyard import tune\nfrom hopyard_extra import x\nsearch = Search(a=1, ...)", []),
        (
            "x = 1\nif x:\n    from hopyard.tune import model",
            [(3, "hopyard.tune has no public name 'model'; did you mean 'Model'?")],
        ),
        (
            "from hopyard.tune import (\n    Model,  # (n, 3)\n    Moodel as M,\n)",
            [(1, "hopyard.tune has no public name 'Moodel'; did you mean 'Model'?")],
        ),
        (
            "\nfrom hopyard.hopper.plan import Plan",
            [(2, "hopyard.hopper.plan is internal; import from a module of docs/names.md")],
        ),
        (
            "import hopyard.objects as objects",
            [(1, "hopyard.objects is internal; import from a module of docs/names.md")],
        ),
    ],
)
def test_imports_of_what_is_internal_are_found(code: str, problems: list[tuple[int, str]]) -> None:
    assert pages.internal_imports(code, {"hopyard": [], "hopyard.tune": ["Model"]}) == problems


def test_names_that_are_not_those_of_their_module_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("hopyard_of_two")
    module.__all__ = ["a", "b"]  # type: ignore[attr-defined]
    module.a = module.b = 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hopyard_of_two", module)
    assert pages.wrong_rows({"hopyard_of_two": ["a", "b"]}) == []
    assert pages.wrong_rows({"hopyard_of_two": ["b", "c"]}) == [
        "docs/names.md: `hopyard_of_two` and its __all__ differ in a, c"
    ]
    assert pages.wrong_rows({"hopyard_of_two": ["b", "a"]}) == [
        "docs/names.md: `hopyard_of_two` has the names of its __all__ in another order; sort both alike"
    ]
    del module.b  # type: ignore[attr-defined]
    assert pages.wrong_rows({"hopyard_of_two": ["a", "b"]}) == [
        "docs/names.md: `hopyard_of_two` has no b, which its __all__ names"
    ]
    (line,) = pages.wrong_rows({"hopyard_of_none": ["a"]})
    assert line.startswith("docs/names.md: `hopyard_of_none` cannot be imported (")
