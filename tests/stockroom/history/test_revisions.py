"""What people write for a commit means one commit, or an error that helps."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from hopyard.errors import NotFoundError, UsageError
from hopyard.stockroom.history.commits import write_commit
from hopyard.stockroom.history.revisions import resolve
from hopyard.storage import MemoryStore

from .repository import Repository


class Resolved(Repository):
    """Three commits, a merge of two of them, and references to them."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.first = self.commit(message="first")
        self.second = self.commit(self.first, message="second\n\nat length")
        self.side = self.commit(self.first, message="side")
        self.merged = self.commit(self.second, self.side, message="merged")
        for name, commit in {
            "heads/main": self.merged, "heads/feature/x": self.side, "tags/v1": self.first,
            "remotes/origin/main": self.second, "heads/both": self.first, "tags/both": self.second,
            "heads/same": self.first, "tags/same": self.first, "heads/beef": self.side,
        }.items():  # fmt: skip
            self.references.set(name, commit, "Ada")

    def __call__(self, text: str, head: str | None = None) -> str:
        return resolve(self.objects, self.references, text, head)


@pytest.fixture
def repository() -> Resolved:
    return Resolved()


def test_every_form_means_its_commit(repository: Resolved) -> None:
    r = repository
    expected = {
        "main": r.merged, "feature/x": r.side, "v1": r.first, "origin/main": r.second, "same": r.first,
        "heads/both": r.first, "tags/both": r.second, "remotes/origin/main": r.second, "beef": r.side,
        r.side: r.side, r.side[:8]: r.side, r.side[:7].upper(): r.side, " main ": r.merged,
        "main~0": r.merged, "main~": r.second, "main~1": r.second, "main~2": r.first, "main~~": r.first,
        "main^": r.second, "main^0": r.merged, "main^2": r.side, "main^2~": r.first, "main~1^1": r.first,
        f"{r.merged[:8]}^2": r.side,
    }  # fmt: skip
    assert {text: r(text) for text in expected} == expected
    assert r("HEAD~1", head=r.second) == r.first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mian", "'mian' is no branch, tag or commit here; did you mean 'main'? If a remote has it"),
        ("qqq", "here; there are 'beef', 'both', 'feature/x', 'main', 'same', 'v1', 'origin/main', 'HEAD'. If"),
        ("0" * 12, f"'{'0' * 12}' is no branch"), ("0" * 64, "the object 0000"), ("abc", "'abc' is no branch"),
        ("v1~1", "v1~1 is before the first commit: 0 come before v1. The log shows all"),
        ("main~3", "main~3 is before the first commit: 2 come before main."),
        ("main~1^2", "main~1^2 is not there: main~1 ("), ("HEAD", "HEAD means no commit: nothing is committed yet"),
    ],
)  # fmt: skip
def test_what_is_not_there_says_what_is_near(repository: Resolved, text: str, message: str) -> None:
    with pytest.raises(NotFoundError, match=re.escape(message)):
        repository(text)


@pytest.mark.parametrize("text", ["", "~1", "^", "main~x", "a^b", None])
def test_what_is_no_revision_says_what_is(repository: Resolved, text: Any) -> None:
    with pytest.raises(UsageError, match=r"is no revision. Give a branch, a tag, REMOTE/BRANCH"):
        repository(text)


def test_names_of_two_commits_list_both_with_their_messages(repository: Resolved) -> None:
    with pytest.raises(NotFoundError, match="'both' may mean 2 commits") as caught:
        repository("both")
    lines = str(caught.value).splitlines()
    assert lines[1].startswith(f"    heads/both: {repository.first[:12]} 'first', 20")
    assert lines[2].startswith(f"    tags/both: {repository.second[:12]} 'second', 20")


def test_beginnings_of_two_commits_list_both(repository: Resolved) -> None:
    time = datetime(2026, 5, 1, tzinfo=UTC)
    begun: dict[str, str] = {}
    with repository.objects.writing() as writer:
        for number in range(5000):
            digest = write_commit(writer, None, [], str(number), "Ada", time=time).digest
            if digest[:4] in begun:
                break
            begun[digest[:4]] = digest
    other = begun[digest[:4]]
    with pytest.raises(NotFoundError, match=f"'{digest[:4]}' may mean 2 commits. Give more digits") as caught:
        repository(digest[:4])
    assert [line[4:16] for line in str(caught.value).splitlines()[1:]] == sorted([digest[:12], other[:12]])
    assert f"{number!s}'" in str(caught.value)
    length = next(n for n in range(5, 64) if digest[:n] != other[:n])
    assert repository(digest[:length]) == digest


def test_a_beginning_of_something_else_is_no_commit(repository: Resolved) -> None:
    with repository.objects.writing() as writer:
        digest = writer.add_json({"not": "a commit"})
    with pytest.raises(NotFoundError, match="is no branch, tag or commit here"):
        repository(digest[:8])
