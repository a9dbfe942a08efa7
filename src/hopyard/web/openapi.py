"""OpenAPI document of the dashboard's server: its addresses, what they take, and the keys of what they give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from hopyard import __version__
from hopyard.documents import shapes as documents
from hopyard.web import shapes

_ABOUT = (
    "Documents are those of `--json` of the command line, whose page (cli.md) says what the keys mean: times are ISO "
    "8601 in UTC, keys of durations end with `_seconds`, of sizes with `_bytes`, and NaN and infinities are null. "
    "Later versions may add keys, and do not rename them. An error has a status above 399, and says what to do. The "
    "server listens on 127.0.0.1 and refuses names that are not its own, and other sites' pages, with status 403."
)
_SUFFIX = "Json"
_SCHEMAS = "#/components/schemas/{model}"
_WHOLE, _NUMBER, _TEXT = {"type": "integer", "minimum": 0}, {"type": "number"}, {"type": "string"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a query.

    Attributes:
        name: of it.
        schema: of its value.
        about: what it does.
        needed: whether there is no answer without it.
    """

    name: str
    schema: Mapping[str, Any]
    about: str
    needed: bool = False


@dataclass(frozen=True)
class Address:
    """An address of the server.

    Attributes:
        path: parts of it in braces are parameters.
        about: what it gives.
        gives: types of its JSON documents, any one of which it may give; none: it gives no JSON.
        query: parameters of its query.
        bytes: what the bytes are that it gives; empty: it gives none.
        events: documents of its server-sent events, by their names.
        takes: type of the JSON document that is sent to it by POST; None: it is asked by GET.
        guarded: whether it needs the token.
    """

    path: str
    about: str
    gives: tuple[Any, ...] = ()
    query: tuple[Parameter, ...] = ()
    bytes: str = ""
    events: Mapping[str, Any] = field(default_factory=dict)
    takes: Any = None
    guarded: bool = False


_RUN = "/api/runs/{place}/{run}"
_DATA = "/api/data/{place}"
_STOCK = "/api/stock/{place}"
_PATH = Parameter("path", _TEXT, "of the dataset in its store, as it is listed; none: the store itself")
_REVISION = "a commit, or the beginning of one, a branch, a tag, or `HEAD~1`"

ADDRESSES = (
    Address("/api/openapi.json", "This document.", (dict[str, Any],)),
    Address("/api/places", "What is shown: stores and stockrooms.", (shapes.PlacesJson,)),
    Address("/api/runs", "The runs of all stores.", (shapes.RunListJson,)),
    Address(
        "/api/runs/events", "Runs as they change; the first event comes at once, and has all.",
        events={"runs": shapes.RunListEventJson},
    ),
    Address(
        "/api/runs/compare", "Runs side by side.", (list[documents.ComparedRunJson],),
        (Parameter("run", {"type": "array", "items": _TEXT}, "`PLACE/RUN`; once for each run, from 1 to 50", True),),
    ),
    Address(
        _RUN, "A run with its trials, best first; or how far its journal is read.",
        (shapes.RunJson, shapes.ReadingJson),
    ),
    Address(
        f"{_RUN}/events", "A run as it goes on.",
        query=(
            Parameter("since", _WHOLE, "the `version` that is known; 0: none. The header `Last-Event-ID` says it, too"),
        ),
        events={
            "changes": shapes.RunChangesJson, "message": shapes.MessageJson, "end": shapes.EndJson,
            "gone": shapes.ErrorJson, "reading": shapes.ReadingShareJson,
        },
    ),
    Address(
        f"{_RUN}/curves", "The curves of a metric of all trials.",
        query=(Parameter("metric", _TEXT, "one of the run's `metrics`; none: that by which trials are ranked"),),
        bytes="Begins with HYC1; web.md has the layout.",
    ),
    Address(
        f"{_RUN}/schedule", "The schedule, or a part of it.",
        query=(
            Parameter("begin", _NUMBER, "seconds since the run began; none: its begin"),
            Parameter("end", _NUMBER, "seconds since the run began; none: its end"),
            Parameter("pixels", {"type": "integer", "minimum": 1, "maximum": 20_000, "default": 2000},
                      "units that are narrower than a pixel are merged"),
        ),
        bytes="Begins with HYS2; web.md has the layout.",
    ),
    Address(
        f"{_RUN}/importance", "How much of the differences in the metric goes with each hyperparameter.",
        (shapes.ImportancesJson,),
    ),
    Address(f"{_RUN}/trials/{{trial}}", "A trial with its history.", (shapes.TrialHistoryJson,)),
    Address(
        f"{_RUN}/logs", "What trials printed.", (shapes.LogsJson,),
        (
            Parameter("trial", _WHOLE, "only its lines"),
            Parameter("after", {**_TEXT, "default": ""}, "`next` of the answer before: lines after these"),
            Parameter("most", {"type": "integer", "minimum": 1, "maximum": 5000, "default": 500}, "so many lines"),
        ),
    ),
    Address(f"{_RUN}/commands", "Steer a run.", (shapes.SaidJson,), takes=shapes.CommandJson, guarded=True),
    Address(_DATA, "The datasets of a store.", (shapes.DatasetListJson,)),
    Address(f"{_DATA}/describe", "The splits of a dataset.", (list[shapes.SplitJson],), (_PATH,)),
    Address(
        f"{_DATA}/samples", "Rows of a dataset.", (shapes.SamplesJson,),
        (
            _PATH,
            Parameter("split", {"enum": ["train", "val"], "default": "train"}, "of the dataset"),
            Parameter("first", {**_WHOLE, "default": 0}, "number of the first row"),
            Parameter("count", {"type": "integer", "minimum": 1, "maximum": 200, "default": 20}, "so many rows"),
        ),
    ),
    Address(_STOCK, "A stockroom: its branches, tags and shelves, and what is staged.", (shapes.StockJson,)),
    Address(
        f"{_STOCK}/log", "Commits, the latest first.", (list[documents.CommitJson],),
        (
            Parameter("from", _TEXT, f"{_REVISION}; none: where the stockroom is"),
            Parameter("all", {"enum": ["0", "1"], "default": "0"}, "1: of all branches"),
            Parameter("most", {"type": "integer", "minimum": 1, "maximum": 5000, "default": 200}, "so many commits"),
        ),
    ),
    Address(
        f"{_STOCK}/diff", "What is staged, or what differs between two revisions.", (list[documents.DifferenceJson],),
        (Parameter("a", _TEXT, _REVISION), Parameter("b", _TEXT, _REVISION)),
    ),
    Address(f"{_STOCK}/commit/{{revision}}", "A commit, and what came with it.", (shapes.CommitContentsJson,)),
    Address(
        f"{_STOCK}/model", "A model of a stockroom.", (documents.ModelJson,),
        (
            Parameter("path", _TEXT, "such as `model/resnet`", True),
            Parameter("revision", _TEXT, f"{_REVISION}; none: where the stockroom is"),
            Parameter("against", _TEXT, f"{_REVISION} to compare it with"),
        ),
    ),
    Address("/api/plan", "What a search would cost.", (documents.PlanJson,), takes=shapes.PlanOptionsJson),
)  # fmt: skip

_PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "place": (_WHOLE, "number of the store or stockroom, as `/api/places` has it"),
    "run": (_TEXT, "id of the run"),
    "trial": (_WHOLE, "number of the trial"),
    "revision": (_TEXT, _REVISION),
}


@cache
def openapi() -> dict[str, Any]:
    """The document, in OpenAPI 3.1. Schemas leave room for more keys, as later versions may add some."""
    types = {f"{each!r}": each for each in _types()}
    adapters = [(name, "serialization", TypeAdapter(each)) for name, each in types.items()]
    made, rest = TypeAdapter.json_schemas(adapters, ref_template=_SCHEMAS)  # type: ignore[arg-type]
    schemas = {name: _renamed(schema) for (name, _), schema in made.items()}
    named = {
        name.removesuffix(_SUFFIX): _untitled(_renamed(schema)) for name, schema in rest["$defs"].items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hopyard's dashboard", "version": __version__, "description": _ABOUT},
        "paths": {each.path: _operation(each, schemas) for each in ADDRESSES},
        "components": {
            "schemas": named,
            "responses": {
                "Error": {
                    "description": "What is wrong.",
                    "content": _json([schemas[f"{shapes.ErrorJson!r}"]]),
                }
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token that hopyard web has printed.",
                }
            },
        },
    }


def _types() -> Iterator[Any]:
    yield shapes.ErrorJson
    for each in ADDRESSES:
        yield from each.gives
        yield from each.events.values()
        if each.takes is not None:
            yield each.takes


def _operation(address: Address, schemas: Mapping[str, Any]) -> dict[str, Any]:
    parts = [part.strip("{}") for part in address.path.split("/") if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _PARTS[name][0], "description": _PARTS[name][1]}
        for name in parts
    ] + [
        {"name": each.name, "in": "query", "required": each.needed, "schema": each.schema, "description": each.about}
        for each in address.query
    ]  # fmt: skip
    error = {"$ref": "#/components/responses/Error"}
    operation: dict[str, Any] = {
        "summary": address.about,
        "parameters": parameters,
        "responses": {"200": _answer(address, schemas), "4XX": error, "503": error},
    }
    if address.takes is not None:
        operation["requestBody"] = {"required": True, "content": _json([schemas[f"{address.takes!r}"]])}
    if address.guarded:
        operation["security"] = [{"token": []}]
    return {"get" if address.takes is None else "post": operation}


def _answer(address: Address, schemas: Mapping[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if address.gives:
        content = _json([schemas[f"{each!r}"] for each in address.gives])
    if address.bytes:
        content["application/octet-stream"] = {}
    if address.events:
        content["text/event-stream"] = {
            "schema": _TEXT,
            "x-events": {name: schemas[f"{each!r}"] for name, each in address.events.items()},
        }
    return {"description": address.bytes or address.about, "content": content}


def _json(schemas: list[Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}


def _renamed(schema: Any) -> Any:
    """A schema that names itself and others as programs know them, without what tells them from classes here."""
    if isinstance(schema, list):
        return [_renamed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: each.removesuffix(_SUFFIX)
        if name in ("$ref", "title") and isinstance(each, str)
        else _renamed(each)
        for name, each in schema.items()
    }


def _untitled(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose keys have no titles, which pydantic makes of their names."""
    if "properties" not in schema:
        return schema
    keys = {
        name: {word: value for word, value in each.items() if word != "title"}
        for name, each in schema["properties"].items()
    }
    return {**schema, "properties": keys}
