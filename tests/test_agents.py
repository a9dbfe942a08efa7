"""Pages for programs and agents: AGENTS.md and llms.txt. tools/pages.py checks their links, commands and imports."""

from __future__ import annotations

import re
from collections import Counter

import pages
from hopyard.errors import HopyardError

AGENTS, LLMS = pages.ROOT / "AGENTS.md", pages.ROOT / "llms.txt"
ENTRY = re.compile(r"- \[(?P<title>[^\]]+)\]\((?P<path>[^)]+)\): (?P<note>.+)")


def test_the_code_for_agents_is_run_and_its_links_are_checked_with_the_pages() -> None:
    assert {AGENTS, LLMS} <= set(pages.pages())
    assert not [block for block in pages.read_page(AGENTS).blocks if block.not_run is not None]
    assert "RandomSearch(" in pages.script(pages.read_page(AGENTS))


def test_llms_txt_has_the_form_that_programs_expect() -> None:
    """That of https://llmstxt.org: a title, a summary, and sections, which are lists of links with notes."""
    title, empty, summary, *rest = LLMS.read_text().splitlines()
    assert title.startswith("# ")
    assert empty == ""
    assert summary.startswith("> ")
    first = next(place for place, line in enumerate(rest) if line.startswith("## "))
    assert not [line for line in rest[:first] if line.startswith(("#", "-"))]
    odd = [line for line in rest[first:] if line and not line.startswith("## ") and not ENTRY.fullmatch(line)]
    assert odd == []


def test_llms_txt_lists_every_page_once() -> None:
    listed = Counter(entry["path"] for entry in ENTRY.finditer(LLMS.read_text()))
    documents = {str(path.relative_to(pages.ROOT)) for path in (pages.ROOT / "docs").rglob("*.md")}
    assert documents - set(listed) == set()
    assert [path for path, times in listed.items() if times > 1] == []


def test_statuses_for_agents_are_those_of_the_command_line() -> None:
    def statuses(text: str) -> set[str]:
        section = text.partition("## How commands end")[2].partition("\n## ")[0]
        return set(re.findall(r"^\| (\d+) \|", section, re.MULTILINE))

    known = statuses((pages.ROOT / "docs" / "cli.md").read_text())
    assert statuses(AGENTS.read_text()) == known == {"0", "1", "2", "75", "130"}


def test_errors_that_agents_are_told_of_exist() -> None:
    import hopyard.errors

    section = AGENTS.read_text().partition("## Errors")[2].partition("\n## ")[0]
    named = re.findall(r"`(?:hopyard\.errors\.)?(\w+Error)`", section)
    assert len(named) > 3
    assert all(issubclass(getattr(hopyard.errors, name), HopyardError) for name in named)
