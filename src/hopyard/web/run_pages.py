"""Addresses of runs: list, documents, curves, schedules, events, and commands."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hopyard import tune
from hopyard.documents.runs import compared_json
from hopyard.errors import HopyardError, StorageError, UnreachableError, UsageError
from hopyard.experiment.logs import read_page
from hopyard.hopper.journal import FOLDER, holder, last_record
from hopyard.storage import Store
from hopyard.tune.asking import ask
from hopyard.tune.comparing import compared_rows
from hopyard.tune.listing import RunSummary, find_run, list_runs, summary
from hopyard.tune.rows import count_validations
from hopyard.web.answers import answer, event, status_of
from hopyard.web.guard import is_token
from hopyard.web.importance import KeptImportances
from hopyard.web.places import ShownPlace, place_of
from hopyard.web.requests import body, number, whole
from hopyard.web.runs import (
    changes_json,
    curves_bytes,
    described_json,
    listed_json,
    metrics_of,
    points_of,
    reading_json,
    schedule_bytes,
    trial_detail_json,
)
from hopyard.web.shapes import RunItemJson
from hopyard.web.watched import WatchedRun, WatchedRuns

_LIST_SECONDS = 2.0
_REMOTE_LIST_SECONDS = 15.0
_PATIENCE = 0.5
"""Seconds that a page waits for a journal that is read for the first time, before it is told how far that is; and for
the runs of a store with a URL, before it is told those of the others."""
_TURNS = 4
"""Requests about the runs of one store that are worked on at a time."""
_MOST_LINES = 5000
_MOST_COMPARED = 50
_BYTES = "application/octet-stream"
_Found = TypeVar("_Found")


class RunPages:
    """Answers about runs, and passes on commands to them.

    Args:
        places: stores whose runs are shown.
        token: needed for commands; None: there are none.

    Attributes:
        problems: why the runs of a store with a URL could not be listed when they were last asked for, by its number.
    """

    def __init__(self, places: list[ShownPlace], token: str | None) -> None:
        self._places, self._token = places, token
        self.problems: dict[int, str] = {}
        self._closing = asyncio.Event()
        self._turns = {place.number: CapacityLimiter(_TURNS) for place in places}
        stores = [place for place in places if place.kind == "store"]
        self._far = {each.number: _FarRows(each, self._rows_of) for each in stores if each.is_remote}
        self._listed = _List(self._look, _REMOTE_LIST_SECONDS if self._far else _LIST_SECONDS)
        self._watched, self._importances = WatchedRuns(), KeptImportances()
        self._ended: dict[tuple[int, str], tuple[list[tuple[str, int]], RunSummary]] = {}
        """Runs that have ended: what their journals consisted of, and their summaries."""

    def routes(self) -> list[Route]:
        """The addresses."""
        run = "/runs/{place:number}/{run}"
        return [
            Route("/runs", self._list),
            Route("/runs/events", self._list_events),
            Route("/runs/compare", self._compare),
            Route(run, self._describe),
            Route(f"{run}/events", self._events),
            Route(f"{run}/curves", self._curves),
            Route(f"{run}/schedule", self._schedule),
            Route(f"{run}/importance", self._importance),
            Route(f"{run}/trials/{{trial:number}}", self._trial),
            Route(f"{run}/logs", self._logs),
            Route(f"{run}/commands", self._command, methods=["POST"]),
        ]

    def end_events(self) -> None:
        """Have events end: the server is about to."""
        self._closing.set()

    async def _ends_within(self, seconds: float, sooner: Iterable[Future[Any]] = ()) -> bool:
        """Waits for so many seconds, or until one of ``sooner`` is done; whether the server ends meanwhile."""
        closing = asyncio.ensure_future(self._closing.wait())
        waited = [closing, *map(asyncio.wrap_future, sooner)]
        try:
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waited:
                each.cancel()
        return self._closing.is_set()

    # The list

    def _list(self, request: Request) -> Response:
        return answer({"runs": self._look().rows})

    def _look(self) -> _Look:
        """The list as it is now; of a store with a URL that does not tell its runs at once, as they were when it last
        did: others do not wait for it."""
        looks = {number: each.begin() for number, each in self._far.items()}
        near = {
            place.number: self._rows_of(place)
            for place in self._places
            if place.kind == "store" and place.number not in looks
        }
        late = list(wait(looks.values(), _PATIENCE).not_done)
        rows, problems = list[RunItemJson](), dict[int, str]()
        found_of = near | {number: each.rows() for number, each in self._far.items()}
        for at, found in sorted(found_of.items()):
            if isinstance(found, list):
                rows += found
            else:
                problems[at] = str(found)
        # The list of places sees by itself whether a folder is there.
        self.problems = {number: said for number, said in problems.items() if number in looks}
        return _Look(rows, problems, late)

    def _rows_of(self, place: ShownPlace) -> list[RunItemJson] | StorageError:
        """The rows of the runs of a store, or why these cannot be listed."""
        try:
            store = place.store()
            run_ids = list_runs(store)
        except StorageError as error:
            return error
        rows = []
        for run_id in run_ids:
            found = self._found(place, store, run_id)
            with found.lock if isinstance(found, WatchedRun) else contextlib.nullcontext():
                rows.append(listed_json(place.number, run_id, found))
        return rows

    def _found(self, place: ShownPlace, store: Store, run_id: str) -> RunSummary | WatchedRun | StorageError:
        key, run = (place.number, run_id), None
        try:
            folder = store.runs.at(run_id)
            held = holder(folder)
            known = self._ended.get(key)
            if held is None and known is not None and known[0] == _size(folder):
                return known[1]
            if held is None and last_record(folder).get("r") == "finish":
                size, found = _size(folder), summary(store, run_id)
                self._ended[key] = (size, found)
                return found
            run = self._run(place, run_id)
            if not run.is_read(_PATIENCE):
                return StorageError(
                    f"run {run_id} is still read: {run.share:.0%} of its journal. Wait a little."
                )
            run.refresh()
            return run
        except StorageError as error:
            with contextlib.suppress(StorageError):
                if run is not None and run.is_replaced():
                    self._watched.forget(*key)
            return error

    async def _list_events(self, request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            known, problems, is_first = dict[tuple[str, str], RunItemJson](), dict[int, str](), True
            while not await request.is_disconnected():
                look = await self._listed.now()
                now = {(row["place"], row["run"]): row for row in look.rows}
                changed = [row for key, row in now.items() if known.get(key) != row]  # at first all
                gone = [{"place": place, "run": run} for place, run in known if (place, run) not in now]
                places = [
                    str(number)
                    for number in sorted(problems.keys() | look.problems.keys())
                    if problems.get(number) != look.problems.get(number)
                ]
                if changed or gone or places or is_first:
                    yield event("runs", {"runs": changed, "gone": gone, "places": places})
                known, problems, is_first = now, look.problems, False
                if await self._ends_within(self._listed.every, look.late):
                    return

        return StreamingResponse(events(), media_type="text/event-stream")

    def _compare(self, request: Request) -> Response:
        asked = request.query_params.getlist("run")
        if not 1 <= len(asked) <= _MOST_COMPARED:
            raise UsageError(f"{len(asked)} runs are to be compared; choose from 1 to {_MOST_COMPARED}.")
        runs = []
        for each in asked:
            number, _, run_id = each.partition("/")
            runs.append(tune.open_run(place_of(self._places, number).store(), run_id))
        return answer(compared_json(compared_rows(runs)))

    # One run

    async def _describe(self, request: Request) -> Response:
        run = await self._in_turn(request, lambda: self._present(request))
        if not await _is_read(run, _PATIENCE):
            return answer(reading_json(run, run.share))
        return await self._looked_at(request, run, lambda: answer(described_json(run)))

    def _present(self, request: Request) -> WatchedRun:
        """The run that has the name now."""
        run = self._of(request)
        if run.is_replaced():
            self._watched.forget(request.path_params["place"], run.run_id)
            run = self._of(request)
        return run

    async def _looked_at(self, request: Request, run: WatchedRun, look: Callable[[], _Found]) -> _Found:
        """What is made from the run as it is now, once its journal is read. That many wait for it, or for work, keeps
        none of the threads from other stores, and from what takes no time."""
        await _is_read(run)

        def now() -> _Found:
            with run.lock:
                run.refresh()
                return look()

        return await self._in_turn(request, now)

    async def _in_turn(self, request: Request, work: Callable[[], _Found]) -> _Found:
        """The result of work on a store, of which little is done at a time."""
        place = place_of(self._places, request.path_params["place"])
        return await run_sync(work, limiter=self._turns[place.number])

    async def _curves(self, request: Request) -> Response:
        run = await self._in_turn(request, lambda: self._of(request))
        metric = request.query_params.get("metric")
        return await self._looked_at(
            request,
            run,
            lambda: Response(curves_bytes(run, metric or metrics_of(run.state)[0]), media_type=_BYTES),
        )

    async def _schedule(self, request: Request) -> Response:
        run = await self._in_turn(request, lambda: self._of(request))
        begin, end = number(request, "begin", None), number(request, "end", None)
        pixels = whole(request, "pixels", 2000, 1, 20_000)
        return await self._looked_at(
            request, run, lambda: Response(schedule_bytes(run, begin, end, pixels), media_type=_BYTES)
        )

    async def _trial(self, request: Request) -> Response:
        run = await self._in_turn(request, lambda: self._of(request))
        trial = request.path_params["trial"]
        return await self._looked_at(request, run, lambda: answer(trial_detail_json(run, trial)))

    async def _importance(self, request: Request) -> Response:
        run = await self._in_turn(request, lambda: self._of(request))
        await _is_read(run)
        return answer(
            await self._importances.of(lambda: self._looked_at(request, run, lambda: points_of(run)))
        )

    def _logs(self, request: Request) -> Response:
        place, run_id = place_of(self._places, request.path_params["place"]), request.path_params["run"]
        asked = request.query_params
        trial = None if asked.get("trial") is None else whole(request, "trial", 0, 0, 2**31)
        most = whole(request, "most", 500, 1, _MOST_LINES)
        page = read_page(place.store(), run_id, trial=trial, after=asked.get("after", ""), most=most)
        lines = [
            {name: getattr(line, name) for name in ("time", "trial", "worker", "stream", "text")}
            for line in page.lines
        ]
        return answer({"lines": lines, "next": page.next, "more": page.more})

    async def _events(self, request: Request) -> Response:
        run = await self._in_turn(request, lambda: self._of(request))
        resumed = request.headers.get("last-event-id") or request.query_params.get("since") or "0"
        place = place_of(self._places, request.path_params["place"])
        follower = _Follower(run, place, int(resumed) if re.fullmatch("[0-9]{1,15}", resumed) else 0)

        async def events() -> AsyncIterator[bytes]:
            while not await request.is_disconnected():
                await _is_read(run, _PATIENCE)
                for each in await self._in_turn(request, follower.look):
                    yield each
                if follower.gone:
                    self._watched.forget(request.path_params["place"], run.run_id)
                    return
                if await self._ends_within(run.every):
                    return

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _command(self, request: Request) -> Response:
        if self._token is None:
            return JSONResponse(
                {"error": "this dashboard gives no commands. Start it without --read-only to steer runs."},
                403,
            )
        if not is_token(request.headers.get("authorization"), self._token):
            return JSONResponse(
                {
                    "error": "the token is missing or another one. Enter the token that hopyard web has printed."
                },
                403,
            )
        command = await body(request)
        place, run_id = place_of(self._places, request.path_params["place"]), request.path_params["run"]

        def tell() -> str:
            return ask(find_run(place.store(), run_id), run_id, command)

        try:
            return answer({"said": await run_in_threadpool(tell)})
        except HopyardError as error:
            return JSONResponse({"error": str(error)}, status_of(error))

    def _of(self, request: Request) -> WatchedRun:
        return self._run(place_of(self._places, request.path_params["place"]), request.path_params["run"])

    def _run(self, place: ShownPlace, run_id: str) -> WatchedRun:
        return self._watched.get(place.number, place.store(), run_id, place.is_remote)


async def _is_read(run: WatchedRun, patience: float | None = None) -> bool:
    """Whether a run's journal was read once, waiting so many seconds, or until it is; no thread waits."""
    done, _ = await asyncio.wait([asyncio.wrap_future(run.begin_reading())], timeout=patience)
    return bool(done)


class _Look(NamedTuple):
    """The list of runs at a look: rows; why there are none of some stores, by their numbers; and looks at stores that
    have not told their runs yet."""

    rows: list[RunItemJson]
    problems: dict[int, str]
    late: list[Future[Any]]


class _FarRows:
    """The rows of a store with a URL. One thread at a time asks for them, however long that takes.

    Args:
        look: the rows of a store, or why it cannot be listed.
    """

    def __init__(
        self, place: ShownPlace, look: Callable[[ShownPlace], list[RunItemJson] | StorageError]
    ) -> None:
        self._place, self._look = place, look
        self._lock = threading.Lock()
        self._asked: Future[None] | None = None
        self._found: list[RunItemJson] | Exception | None = None
        self._found_at = -math.inf
        self._is_told = True

    def begin(self) -> Future[None]:
        """Have a thread ask, unless one does, or the rows that it has found just now are not told yet; done once it has
        them."""
        with self._lock:
            is_new = not self._is_told and time.monotonic() - self._found_at < _REMOTE_LIST_SECONDS
            if self._asked is None or (self._asked.done() and not is_new):
                self._asked = Future()
                self._asked.set_running_or_notify_cancel()  # who no longer waits for it ends it for nobody
                name = f"hopyard-web-list-{self._place.number}"
                threading.Thread(target=self._ask, args=(self._asked,), name=name, daemon=True).start()
            return self._asked

    def _ask(self, asked: Future[None]) -> None:
        try:
            self._found = self._look(self._place)
        except Exception as error:  # whoever asks for the rows is told
            self._found = error
        self._found_at, self._is_told = time.monotonic(), False
        asked.set_result(None)

    def rows(self) -> list[RunItemJson] | StorageError:
        """The rows that were found last, or why there are none."""
        with self._lock:
            found = self._found
            self._is_told = self._is_told or (self._asked is not None and self._asked.done())
        if isinstance(found, Exception) and not isinstance(found, StorageError):
            raise found
        if found is None:
            return UnreachableError(
                f"{self._place.url} has not told its runs yet. They appear here once it does; if it does not answer at "
                "all, the reason appears here."
            )
        return found


class _List:
    """The list of runs, which all pages that follow it share.

    Attributes:
        every: seconds between two looks of a page.
    """

    def __init__(self, look: Callable[[], _Look], every: float) -> None:
        self.every: float = every
        self._look, self._turn = look, asyncio.Lock()
        self._seen, self._known = -math.inf, _Look([], {}, [])

    async def now(self) -> _Look:
        """The list; of a look a moment ago, if there was one and no store has told more since."""
        async with self._turn:
            is_old = time.monotonic() - self._seen > self.every / 4
            if is_old or any(each.done() for each in self._known.late):
                self._known = await run_in_threadpool(self._look)
                self._seen = time.monotonic()
            return self._known


class _Follower:
    """What one page has been told of a run, and what comes next."""

    def __init__(self, run: WatchedRun, place: ShownPlace, version: int) -> None:
        self._run, self._place, self._version = run, place, version
        self._sent: dict[int, int] | None = None
        self._standing, self._waiting = ("", False), list[str]()
        self.gone: bool = False

    def look(self) -> list[bytes]:
        """Events since the last look."""
        run = self._run
        if not run.is_read(0.0):
            return [event("reading", {"share": run.share})]
        with run.lock:
            try:
                run.refresh()
                return list(self._events())
            except StorageError as error:
                self.gone = True
                # Where its store has vanished, too, that is the reason.
                return [event("gone", {"error": self._place.problem() or str(error)})]

    def _events(self) -> Iterator[bytes]:
        run = self._run
        if self._sent is None:  # the page asks for curves after it is connected
            self._sent = {number: count_validations(trial) for number, trial in run.state.trials.items()}
            yield event("changes", changes_json(run, self._version, self._sent), run.count)
            self._version, self._standing, self._waiting = run.count, self._stands(), run.seen_waiting()
            return
        for message in run.messages_since(self._version):
            yield event("message", {"text": message})
        is_new = self._stands() != self._standing or run.seen_waiting() != self._waiting
        if run.count > self._version or is_new:
            yield event("changes", changes_json(run, self._version, self._sent), run.count)
            if run.holder is None and self._stands() != self._standing:
                yield event("end", {"status": run.status})
            self._version, self._standing, self._waiting = run.count, self._stands(), run.seen_waiting()
        else:
            yield b": nothing new\n\n"

    def _stands(self) -> tuple[str, bool]:
        """How the run stands, and whether it is driven: a driver records the end before it gives the run back."""
        return self._run.status, self._run.holder is not None


def _size(folder: Store) -> list[tuple[str, int]]:
    """Segments of a journal with their sizes, which differ when anything was written."""
    return [(entry.name, entry.size) for entry in folder.list(FOLDER)]
