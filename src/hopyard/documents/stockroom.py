"""JSON of stockrooms; docs/cli.md documents the keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from hopyard.documents import shapes
from hopyard.stockroom.catalog.differences import Difference, MovedTensor
from hopyard.stockroom.history.commits import Commit
from hopyard.stockroom.maintenance.garbage import Collected
from hopyard.stockroom.maintenance.problems import Unproven, Verified
from hopyard.stockroom.maintenance.purging import PurgeReport
from hopyard.stockroom.records import ColumnRecord, ModelRecord, ValueRecord
from hopyard.stockroom.remotes import Fetched
from hopyard.stockroom.remotes.bringing import Brought
from hopyard.stockroom.remotes.pulling import Pulled
from hopyard.stockroom.remotes.purges import Purges
from hopyard.stockroom.remotes.pushing import Pushed
from hopyard.stockroom.remotes.returning import Returned
from hopyard.stockroom.session.status import Status
from hopyard.stockroom.views.shelf import ListedThing


def status_json(status: Status) -> shapes.StockStatusJson:
    """Where a stockroom is, and what is staged."""
    return {
        "branch": status.branch,
        "commit": status.commit,
        "behind": status.behind,
        "ahead": status.ahead,
        "detached": status.detached,
        "why": status.why,
        "staged": [{"path": path, "how": how} for path, how in status.staged],
        "elsewhere": [{"commit": commit, "writes": count} for commit, count in status.elsewhere.items()],
        "remotes": [
            {"branch": name, "more": more, "less": less} for name, (more, less) in status.remotes.items()
        ],
        "advice": status.advice,
    }


def commits_json(commits: Iterable[Commit], labels: Mapping[str, Sequence[str]]) -> list[shapes.CommitJson]:
    """Commits, with the branches and tags that are there."""
    return [
        {
            "commit": each.digest,
            "parents": each.parents,
            "time": datetime.fromisoformat(each.time),
            "author": each.author,
            "message": each.message,
            "labels": labels.get(each.digest, ()),
            "git": each.git,
        }
        for each in commits
    ]


def references_json(commits: Mapping[str, str], kind: str, own: str | None = None) -> list[dict[str, Any]]:
    """Branches or tags (``kind``), and where they are; ``own``: the branch that this is on."""
    marked = kind == "branch"
    return [
        {kind: name, "commit": commit, **({"current": name == own} if marked else {})}
        for name, commit in commits.items()
    ]


def differences_json(differences: Iterable[Difference]) -> list[shapes.DifferenceJson]:
    """What differs, and inside of it: samples, tensors, values, files. Reads what differs."""
    return [_difference(each) for each in differences]


def _difference(thing: Difference) -> shapes.DifferenceJson:
    kinds = {type(record) for record in (thing.before, thing.after) if record is not None}
    changed = thing.how == "changed"
    value = ValueRecord in kinds
    before, after = thing.values if value else (None, None)
    return {
        "path": thing.path,
        "how": thing.how,
        "before": thing.describe(thing.before) or None,
        "after": thing.describe(thing.after) or None,
        "samples": [{"key": key, "how": how} for key, how in thing.samples()]
        if changed and ColumnRecord in kinds
        else None,
        "tensors": [_tensor(each) for each in thing.tensors()] if changed and ModelRecord in kinds else None,
        "values": {"before": before, "after": after} if value else None,
        "files": _files(thing),
    }


def _tensor(moved: MovedTensor) -> shapes.TensorChangeJson:
    return {"path": moved.path, "how": moved.how, "moved": moved.moved, "relative": moved.relative}


def _files(thing: Difference) -> shapes.ChangedFilesJson | None:
    files = thing.files
    if files is None:
        return None
    return {
        "added": [each.name for each in files.added],
        "removed": [each.name for each in files.removed],
        "changed": files.changed,
    }


def listed_json(things: Iterable[ListedThing]) -> list[shapes.ListedThingJson]:
    """What is on the shelves."""
    return [
        {"path": each.path, "what": each.what, "count": each.count, "value_bytes": each.nbytes}
        for each in things
    ]


def pushed_json(pushed: Pushed) -> dict[str, Any]:
    """What was sent."""
    return {
        "branches": _moves(pushed.branches),
        "tags": references_json(pushed.tags, "tag"),
        "kept": pushed.kept,
        "objects": pushed.objects,
        "sent_bytes": pushed.nbytes,
        "purges": pushed.purges,
        "notes": pushed.notes,
    }


def fetched_json(fetched: Fetched | Brought) -> dict[str, Any]:
    """What came: history, or data that were named."""
    if isinstance(fetched, Fetched):
        return {
            "branches": _moves(fetched.branches),
            "tags": references_json(fetched.tags, "tag"),
            "differing_tags": references_json(fetched.differing, "tag"),
            "gone": fetched.gone,
            "received_bytes": fetched.nbytes,
            "purges": _purges(fetched.purges),
        }
    return {
        "objects": fetched.objects,
        "received_bytes": fetched.nbytes,
        "left": [
            {"path": thing, "objects": left.objects, "left_bytes": left.nbytes}
            for thing, left in fetched.left.items()
        ],
        "returned": [_of_purge(each) for each in fetched.returned],
    }


def pulled_json(pulled: Pulled, branch: str | None) -> dict[str, Any]:
    """What a pull did to the branch, and what came."""
    how = {"nothing": "up to date", "forward": "fast-forward"}.get(pulled.how, pulled.how)
    return {"how": how, "branch": branch, "commit": pulled.commit, "fetched": fetched_json(pulled.fetched)}


def verified_json(verified: Verified) -> dict[str, Any]:
    """The findings in a stockroom."""
    return {
        "ok": verified.ok,
        "commits": verified.commits,
        "objects": verified.objects,
        "read_bytes": verified.nbytes,
        "elsewhere": verified.elsewhere,
        "problems": verified.problems,
        "unproven": [_of_purge(each) | {"remote": each.remote} for each in verified.unproven],
        "returned": [_of_purge(each) for each in verified.returned],
    }


def collected_json(collected: Collected) -> dict[str, Any]:
    """What was deleted, or would be."""
    return {
        "dry_run": collected.is_dry,
        "objects": collected.objects,
        "files": collected.files,
        "packfiles": collected.packfiles,
        "freed_bytes": collected.freed,
        "young_bytes": collected.young,
    }


def purged_json(purged: PurgeReport) -> dict[str, Any]:
    """What was purged, and where the same bytes still are."""
    return {
        "column": purged.column,
        "keys": purged.keys,
        "fragments": purged.fragments,
        "staged": purged.staged,
        "shared": [{"column": name, "keys": keys} for name, keys in purged.shared.items()],
        "remotes": purged.remotes,
        "equal": {
            "count": purged.equal.count,
            "first": [{"column": name, "key": key} for name, key in purged.equal.found],
            "unread_bytes": purged.equal.left,
        },
        "collected": collected_json(purged.collected),
    }


def _moves(branches: Mapping[str, tuple[str | None, str]]) -> list[dict[str, Any]]:
    return [{"branch": name, "before": before, "now": now} for name, (before, now) in branches.items()]


def _purges(purges: Purges) -> dict[str, Any]:
    """How many claims of a remote wait, were accepted and are not believed, and what a user is told of them."""
    return {
        "waiting": purges.waiting,
        "accepted": len(purges.accepted),
        "refused": len(purges.refused),
        "messages": purges.lines(),
    }


def _of_purge(found: Returned | Unproven) -> dict[str, Any]:
    time = datetime.fromisoformat(found.time)
    return {"column": found.column, "keys": found.keys, "time": time, "by": found.by, "why": found.why}
