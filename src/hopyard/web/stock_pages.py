"""Addresses of stockrooms: status, commits, differences, models."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from hopyard.documents import shapes
from hopyard.documents.shelves import model_json
from hopyard.documents.stockroom import (
    commits_json,
    differences_json,
    listed_json,
    references_json,
    status_json,
)
from hopyard.errors import HopyardError, UsageError
from hopyard.stockroom import StockRoom
from hopyard.stockroom.catalog.shelves import Shelves, list_shelves
from hopyard.stockroom.models import describe
from hopyard.stockroom.records import thing_of
from hopyard.tune.stock import is_reproducible
from hopyard.web.answers import answer
from hopyard.web.places import ShownPlace, place_of
from hopyard.web.requests import whole

_MOST_COMMITS = 5000


class StockPages:
    """Answers about stockrooms. Each opens the stockroom anew, so that it shows what is there now.

    Args:
        places: stockrooms that are shown.
    """

    def __init__(self, places: list[ShownPlace]) -> None:
        self._places = places

    def status(self, request: Request) -> Response:
        with self._room(request) as room:
            problem, status = None, None
            try:
                status = status_json(room.status())
            except HopyardError as error:  # as in the middle of a merge of git's
                problem = str(error)
            return answer(
                {
                    "status": status,
                    "branches": references_json(room.branches(), "branch", room.head.branch),
                    "tags": references_json(room.tags(), "tag"),
                    "things": _things(room),
                    "merging": problem,
                }
            )

    def log(self, request: Request) -> Response:
        asked = request.query_params
        most = whole(request, "most", 200, 1, _MOST_COMMITS)
        with self._room(request) as room:
            begin = [asked["from"]] if asked.get("from") else []
            branches = "all" if asked.get("all") == "1" else "these"
            commits = room.log(*begin, limit=most, branches=branches)  # type: ignore[arg-type]
            return answer(commits_json(commits, room.labels()))

    def diff(self, request: Request) -> Response:
        with self._room(request) as room:
            a, b = (request.query_params.get(name) or None for name in "ab")
            return answer(differences_json(room.diff(a, b)))

    def commit(self, request: Request) -> Response:
        revision = request.path_params["revision"]
        with self._room(request) as room:
            (commit,) = room.log(revision, limit=1)
            things = _things(room.at(revision))
            changed = room.diff(commit.parents[0], commit.digest) if commit.parents else None
            new = {thing["path"] for thing in things}
            if changed is not None:
                new = {each.path for each in changed if each.how != "removed"}
            runs = [path for path in sorted(new) if path.startswith("run/")]
            return answer(
                {
                    "commit": commits_json([commit], room.labels())[0],
                    "things": things,
                    "models": [path for path in sorted(new) if path.startswith("model/")],
                    "runs": runs,
                    "reproduce": _reproducing(room, commit.digest, runs),
                }
            )

    def model(self, request: Request) -> Response:
        asked = request.query_params
        path, revision, against = (asked.get(name, "") for name in ("path", "revision", "against"))
        shelf, name = thing_of(path)
        if shelf != "model":
            raise UsageError(f"{path} is no model. Ask for one of the shelf model, such as model/resnet.")
        with self._room(request) as room:
            other = room.at(against).model.record(name) if against else None
            shown: Shelves = room.at(revision) if revision else room
            return answer(model_json(path, describe(shown.model, name, other)))

    def _room(self, request: Request) -> StockRoom:
        return place_of(self._places, request.path_params["place"]).stockroom()


def _reproducing(room: StockRoom, commit: str, runs: Sequence[str]) -> list[str]:
    """Commands that train again the searches among the runs that came with a commit, in the stockroom's folder."""
    shelf = room.at(commit).experiment
    views = [shelf.run(thing_of(path)[1]) for path in runs]
    searches = [view for view in views if is_reproducible(view)]
    command = (
        f"cd {shlex.quote(str(room.place.root.resolve()))} && hopyard stock reproduce {commit[:12]} --trust"
    )
    if len(searches) == 1:
        return [command]
    return [f"{command} --run {shlex.quote(view.id)}" for view in searches]


def _things(shown: Shelves) -> list[shapes.ListedThingJson]:
    return listed_json(list_shelves(shown, None))
