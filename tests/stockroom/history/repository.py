"""A repository of plain values and small columns, for the tests of its history."""

from __future__ import annotations

from typing import Any

from hopyard.stockroom.data import SampleColumn
from hopyard.stockroom.experiments import values
from hopyard.stockroom.history.commits import Commit, read_commit, write_commit
from hopyard.stockroom.history.conflicts import Conflict
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.merge import MergeResult, merge_commits
from hopyard.stockroom.history.publish import commit_draft
from hopyard.stockroom.history.references import References
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.records import ValueRecord
from hopyard.stockroom.views.view import Snapshot, View
from hopyard.storage import Store


class Repository:
    """Objects and references of a store, and how tests write and read them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.objects = Objects(store)
        self.references = References(store)

    def draft(self, commit: str | None) -> Draft:
        return Draft(self.objects, None if commit is None else read_commit(self.objects, commit).root)

    def commit(self, *parents: str, message: str = "", values: Any = None, columns: Any = None) -> str:
        """A commit upon the first of ``parents``, whoever the others are, with these changes."""
        draft = self.draft(parents[0] if parents else None)
        change(draft, values or {}, columns or {})
        return self.write(draft, *parents, message=message)

    def write(self, draft: Draft, *parents: str, message: str = "") -> str:
        """A commit of a draft, which no reference leads to."""
        root = draft.write()
        commit = write_commit(draft.writer, root, parents, message, "Ada <a@b>")
        draft.publish()
        draft.release()
        return commit.digest

    def publish(self, draft: Draft, *parents: str, branch: str = "main", message: str = "") -> Commit | None:
        return commit_draft(
            draft, self.references, f"heads/{branch}", parents, message, lambda: ("Ada <a@b>", None)
        )

    def merge(self, ours: str, theirs: str, resolve: Any = None) -> tuple[dict[str, Any], list[Conflict]]:
        """What is merged, and the conflicts."""
        with self.objects.writing() as writer:
            result: MergeResult = merge_commits(writer, ours, theirs, resolve)
        return contents(Snapshot(self.objects, result.root, "merged")), result.conflicts

    def contents(self, commit: str | None) -> dict[str, Any]:
        root = None if commit is None else read_commit(self.objects, commit).root
        return contents(Snapshot(self.objects, root, commit or "nothing"))


def change(draft: Draft, changed: dict[str, Any], columns: dict[str, Any]) -> None:
    """Set values and samples; None removes a value, a column or a sample."""
    for name, value in changed.items():
        draft.set("experiment", name, None if value is None else values.write(draft.writer, value))
    for name, samples in columns.items():
        if samples is None:
            draft.set("data", name, None)
            continue
        column = draft.column(name)
        for key, sample in samples.items():
            if sample is None:
                del column[key]
            else:
                column[key] = sample


def contents(view: View) -> dict[str, Any]:
    """Values by name, and the samples of columns as dicts."""
    found: dict[str, Any] = {}
    for name in view.names("experiment"):
        record = view.record("experiment", name)
        assert isinstance(record, ValueRecord)
        found[name] = values.read(view.objects, record)
    for name in view.names("data"):
        found[name] = samples_of(view, name)
    return found


def samples_of(view: View, name: str) -> dict[Any, Any]:
    column: Any = (
        view.column(name)
        if isinstance(view, Draft)
        else SampleColumn(view.objects, name, view.record("data", name))  # type: ignore[arg-type]
    )
    return {key: sample.tolist() if hasattr(sample, "tolist") else sample for key, sample in column.items()}
