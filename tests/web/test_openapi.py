"""The OpenAPI document: every address of the server is in it, and every answer is as it says, with no key beside."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator, FormatChecker
from starlette.routing import BaseRoute, Mount, Route
from tests.experiment.conftest import TRIAL
from tests.web.conftest import RUN, TOKEN, Answer, Client, rows, search, served
from typer.testing import CliRunner

from hopyard import StockRoom
from hopyard.backend import InlineBackend
from hopyard.cli import app
from hopyard.data import prepare
from hopyard.experiment import complete, create
from hopyard.hopper.control import _COMMANDS
from hopyard.storage import LocalStore
from hopyard.tune import Callback
from hopyard.web.answers import encoded
from hopyard.web.app import dashboard
from hopyard.web.openapi import openapi
from hopyard.web.plan_pages import _NUMBERS
from hopyard.web.runs import reading_json
from hopyard.web.watched import WatchedRun

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
TYPES = Path(__file__).parents[2] / "dashboard" / "src" / "lib" / "api.ts"
FORMATS = FormatChecker(())


@FORMATS.checks("date-time", raises=ValueError)
def is_time(value: object) -> bool:
    return bool(datetime.strptime(str(value), "%Y-%m-%dT%H:%M:%SZ"))


def closed(schema: Any) -> Any:
    """The schema, which allows no keys but those that it names."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(each) for name, each in schema.items()}
    return {**made, "additionalProperties": False} if isinstance(schema.get("properties"), dict) else made


class Described:
    """The document, by which answers are judged."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.schemas: dict[str, Any] = closed(document["components"]["schemas"])

    @cached_property
    def addresses(self) -> dict[tuple[str, re.Pattern[str]], tuple[str, Any]]:
        """Template and operation, by method and pattern."""
        return {
            (method.upper(), re.compile(_pattern(template))): (template, operation)
            for template, operations in self.document["paths"].items()
            for method, operation in operations.items()
        }

    def operation(self, method: str, path: str) -> tuple[str, Any]:
        """Of several that fit, that with the fewest parameters, as the server chooses."""
        plain = urlsplit(path).path
        known = [
            each
            for (way, pattern), each in self.addresses.items()
            if way == method and pattern.fullmatch(plain)
        ]
        assert known, f"{method} {plain} is not in the document"
        return min(known, key=lambda each: each[0].count("{"))

    def check(self, value: Any, schema: Any, where: str) -> None:
        whole = {"components": {"schemas": self.schemas}, **closed(schema)}
        Draft202012Validator.check_schema(whole)
        errors = Draft202012Validator(whole, format_checker=FORMATS).iter_errors(value)
        told = [f"{where}: {each.json_path}: {each.message[:300]}" for each in errors]
        assert told == []

    def judge(self, method: str, path: str, answer: Answer) -> None:
        """An answer has a status, a type and keys that the document names."""
        _, operation = self.operation(method, path)
        kind = "4XX" if 400 <= answer.status < 500 else str(answer.status)
        assert kind in operation["responses"], (path, answer.status, answer.body)
        response = operation["responses"][kind]
        if "$ref" in response:
            response = self.document["components"]["responses"][response["$ref"].rpartition("/")[2]]
        content = response["content"]
        assert answer.headers["content-type"] in content, path
        if answer.headers["content-type"] == "application/json":
            self.check(answer.json, content["application/json"]["schema"], path)

    def judge_event(self, path: str, name: str, document: Any) -> None:
        events = self.operation("GET", path)[1]["responses"]["200"]["content"]["text/event-stream"][
            "x-events"
        ]
        self.check(document, events[name], f"{path}: {name}")


def _pattern(template: str) -> str:
    kinds = {"revision": ".+", "place": r"\d+", "trial": r"\d+"}
    return re.sub(r"\{(\w+)\}", lambda found: kinds.get(found[1], "[^/]+"), template.replace(".", r"\."))


@pytest.fixture(scope="module")
def described(client: Client) -> Described:
    return Described(client.get("/api/openapi.json").json)


@pytest.fixture(scope="module")
def many(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with runs of many kinds: plain, replicated, an experiment, damaged; data with images and nulls."""
    folder = tmp_path_factory.mktemp("many")
    shutil.copytree(place, folder / "store")
    store = LocalStore(folder / "store")
    search(store, [0.1], run_id="twice", replicates=2).fit_on_prepared_data()
    code = folder / "definition"
    code.mkdir()
    (code / "model_def.py").write_text(
        TRIAL.replace("def build_model(self):", "def build_model(self):\n        print('built')")
    )
    config = {
        "entrypoint": "model_def:Trial", "name": "an experiment", "labels": ["small"],
        "hyperparameters": {"lr": {"type": "categorical", "vals": [0.1, 0.01]}},
        "searcher": {"name": "grid", "metric": "accuracy", "max_length": {"epochs": 2}},
    }  # fmt: skip
    create(complete(config), code, store, InlineBackend(), progress=False)
    shutil.copytree(folder / "store" / "runs" / RUN, folder / "store" / "runs" / "damaged")
    first = min((folder / "store" / "runs" / "damaged" / "journal").iterdir())
    first.write_bytes(first.read_bytes()[:-9] + b"123456789")
    random = np.random.default_rng(0)
    pictures = {
        "image": random.integers(0, 255, (20, 8, 8, 3), dtype=np.uint8),
        "rate": np.where(np.arange(20) % 3 == 0, np.nan, 1.0),
        "wide": random.standard_normal((20, 9)),
        "yes": np.arange(20) % 2 == 0,
        "raw": np.array([b"bytes"] * 20, dtype=object),
        "label": np.arange(20) % 4,
    }
    prepare(pictures, store=LocalStore(folder / "pictures"), nulls="mask")
    return folder / "store"


@pytest.fixture(scope="module")
def full_room(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stockroom with something of every kind on its shelves, in two commits, and a tag."""
    folder = tmp_path_factory.mktemp("full")
    stock = StockRoom.init(folder)
    prepared = prepare(rows(), store=LocalStore(place), validation=0.25)
    for step in range(2):
        with stock.enable_write(f"step {step}"):
            stock.data["image"] = {(key, "a"): np.full(3, key + step, np.float32) for key in range(4)}
            stock.data["train"] = prepared.train if step == 0 else prepared.val
            torch.manual_seed(step)
            stock.model["net"] = torch.nn.Linear(3, 2 + step).state_dict() | {
                "kept": torch.full((2,), step * 1.0)
            }
            stock.experiment["lr"] = {"rate": 0.1 / (step + 1)}
            with stock.run(params={"lr": 0.01}) as run:
                run.log(step=0, loss=0.5)
    stock.tag("v1", "HEAD~1")
    stock.close()
    return folder


@pytest.fixture(scope="module")
def wide(many: Path, full_room: Path) -> Iterator[Client]:
    """A client of a dashboard of the store with runs of many kinds, the full stockroom, and data with images."""
    with served([str(many), str(full_room), str(many.parent / "pictures")]) as found:
        yield found


def experiment_of(client: Client) -> str:
    listed = client.get("/api/runs").json["runs"]
    return next(str(each["run"]) for each in listed if each["name"] == "an experiment")


ASKED = [
    "/api/openapi.json", "/api/places", "/api/runs", f"/api/runs/compare?run=0/{RUN}&run=0/twice",
    "/api/runs/compare?run=0/EXPERIMENT", f"/api/runs/0/{RUN}", "/api/runs/0/twice", "/api/runs/0/EXPERIMENT",
    f"/api/runs/0/{RUN}/curves", f"/api/runs/0/{RUN}/curves?metric=val_loss",
    f"/api/runs/0/{RUN}/schedule?begin=0&end=1&pixels=10", f"/api/runs/0/{RUN}/importance",
    "/api/runs/0/twice/importance", f"/api/runs/0/{RUN}/trials/0", f"/api/runs/0/{RUN}/trials/1",
    "/api/runs/0/twice/trials/0", "/api/runs/0/EXPERIMENT/logs", "/api/runs/0/EXPERIMENT/logs?trial=0&after=&most=2",
    f"/api/runs/0/{RUN}/logs", "/api/data/0", "/api/data/0/describe", "/api/data/0/samples",
    "/api/data/0/samples?split=val&first=3&count=2", "/api/data/0/describe?path=DATASET",
    "/api/data/0/samples?path=DATASET", "/api/data/2/describe", "/api/data/2/samples", "/api/stock/1",
    "/api/stock/1/log", "/api/stock/1/log?from=v1&all=1&most=1",
    "/api/stock/1/diff", "/api/stock/1/diff?a=v1&b=HEAD", "/api/stock/1/diff?a=HEAD&b=v1", "/api/stock/1/commit/HEAD",
    "/api/stock/1/commit/v1", "/api/stock/1/model?path=model/net",
    "/api/stock/1/model?path=model/net&revision=HEAD&against=v1",
]  # fmt: skip
EVENTS = ["/api/runs/events", f"/api/runs/0/{RUN}/events?since=0"]
SENT = [
    ("/api/plan", {"searcher": {"name": "adaptive_asha", "max_trials": 16, "max_length": 64}}),
    (
        "/api/plan",
        {"workers": 8, "rows": 10**6, "rows_per_second": 5000, "data_gb": 50, "models": 16, "epochs": 10},
    ),
    (f"/api/runs/0/{RUN}/commands", {"do": "pause"}),
]
REFUSED = [
    ("GET", "/api/runs/0/nothing", 404), ("GET", "/api/runs/7/grid", 404), ("GET", "/api/runs/1/grid", 400),
    ("GET", "/api/runs/0/damaged", 503), ("GET", f"/api/runs/0/{RUN}/trials/99", 404),
    ("GET", f"/api/runs/0/{RUN}/curves?metric=nothing", 404), ("GET", f"/api/runs/0/{RUN}/schedule?pixels=0", 400),
    ("GET", "/api/runs/0/nothing/logs", 404), ("GET", "/api/runs/0/nothing/importance", 404),
    ("GET", "/api/runs/0/nothing/events", 404), ("GET", "/api/runs/compare", 400), ("GET", "/api/data/1", 400),
    ("GET", "/api/data/0/describe?path=gone", 404), ("GET", "/api/data/0/samples?split=test", 400),
    ("GET", "/api/stock/0", 400), ("GET", "/api/stock/1/log?from=gone", 404), ("GET", "/api/stock/1/diff?a=gone", 404),
    ("GET", "/api/stock/1/commit/gone", 404), ("GET", "/api/stock/1/model?path=data/image", 400),
    ("GET", "/api/stock/1/model?path=model/gone", 404), ("POST", "/api/plan", 400),
    ("POST", f"/api/runs/0/{RUN}/commands", 403),
]  # fmt: skip


@pytest.mark.parametrize("path", ASKED)
def test_every_answer_is_as_described(described: Described, wide: Client, path: str) -> None:
    if "EXPERIMENT" in path:
        path = path.replace("EXPERIMENT", experiment_of(wide))
    if "DATASET" in path:
        path = path.replace("DATASET", wide.get("/api/data/0").json["datasets"][0]["path"])
    answer = wide.get(path)
    assert answer.status == 200, answer.body
    described.judge("GET", path, answer)


@pytest.mark.parametrize(("path", "sent"), SENT)
def test_what_is_sent_is_as_described(described: Described, wide: Client, path: str, sent: Any) -> None:
    _, operation = described.operation("POST", path)
    described.check(sent, operation["requestBody"]["content"]["application/json"]["schema"], path)
    answer = wide.post(path, sent, **AUTHORIZED)
    assert answer.status == 200, answer.body
    described.judge("POST", path, answer)


@pytest.mark.parametrize(("method", "path", "status"), REFUSED)
def test_every_error_is_as_described(
    described: Described, wide: Client, method: str, path: str, status: int
) -> None:
    answer = wide.get(path) if method == "GET" else wide.post(path, {})
    assert answer.status == status, answer.body
    described.judge(method, path, answer)
    described.judge(method, path, wide.ask(method, path, b"{}", Host="evil.example"))


def test_another_method_is_refused_with_an_error_as_all_are(wide: Client) -> None:
    answer = wide.post("/api/runs", {})
    assert (answer.status, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
    assert answer.error == "POST /api/runs is not taken. /api/openapi.json says what is."


def test_a_journal_that_is_still_read_is_described(described: Described, place: Path) -> None:
    run = WatchedRun(LocalStore(place), RUN, 0.0)
    answer = Answer(200, {"content-type": "application/json"}, encoded(reading_json(run, 0.5)))
    described.judge("GET", f"/api/runs/0/{RUN}", answer)


class Begun(Callback):
    """Says when a search has its first validation."""

    def __init__(self) -> None:
        self.now = threading.Event()

    def on_epoch_end(self, trial: Any, epoch: int, metrics: Mapping[str, float]) -> None:
        self.now.set()


@pytest.mark.long
def test_events_of_a_run_that_goes_on_and_is_deleted_are_as_described(
    described: Described, serve: Any, tmp_path: Path
) -> None:
    begun, store = Begun(), LocalStore(tmp_path / "store")
    long = search(store, [10.0**-power for power in range(1, 200)], callbacks=[begun])
    going = threading.Thread(target=long.fit, args=(rows(),))
    going.start()
    assert begun.now.wait(60)
    address, path, seen = f"/api/runs/0/{RUN}", f"/api/runs/0/{RUN}/events?since=0", set()
    with serve([store.url]) as client:
        described.judge("GET", "/api/runs", client.get("/api/runs"))
        shown = client.get(address)
        described.judge("GET", address, shown)
        assert shown.json["driver"]["pid"] > 0
        listed = client.events("/api/runs/events")
        name, document = next(listed)
        described.judge_event("/api/runs/events", name, document)
        assert ([row["run"] for row in document["runs"]], document["gone"]) == ([RUN], [])
        for name, document in client.events(path):
            described.judge_event(path, name, document)
            if not seen:
                for word in ("pause", "resume", "stop"):
                    answer = client.post(f"{address}/commands", {"do": word}, **AUTHORIZED)
                    assert answer.status == 200, answer.body
                    described.judge("POST", f"{address}/commands", answer)
            seen.add(name)
            if name == "end":
                going.join()
                name, document = next(listed)
                described.judge_event("/api/runs/events", name, document)
                assert [row["run"] for row in document["runs"]] == [RUN]
                shutil.rmtree(tmp_path / "store" / "runs" / RUN)
    assert seen == {"changes", "message", "end", "gone"}
    described.judge_event(path, "reading", {"share": 0.5})


def test_addresses_are_those_of_the_server() -> None:
    def of(routes: list[BaseRoute], before: str = "") -> Iterator[tuple[str, str]]:
        for route in routes:
            if isinstance(route, Mount):
                yield from of(list(route.routes), before + route.path)
            elif isinstance(route, Route) and "rest:path" not in route.path and before:
                method = "post" if "POST" in (route.methods or ()) else "get"
                yield method, before + re.sub(r":\w+\}", "}", route.path)

    described = {(method, path) for path, operations in openapi()["paths"].items() for method in operations}
    assert set(of(dashboard([], None).routes)) == described


def test_all_addresses_and_parameters_of_queries_are_asked_for_here(described: Described) -> None:
    asked = [("GET", path) for path in ASKED + EVENTS] + [("POST", path) for path, _ in SENT]
    assert {described.operation(*each)[0] for each in asked} == set(described.document["paths"])
    used: dict[str, set[str]] = {}
    for method, path in asked:
        template, _ = described.operation(method, path)
        used.setdefault(template, set()).update(parse_qs(urlsplit(path).query, keep_blank_values=True))
    for template, operations in described.document["paths"].items():
        for operation in operations.values():
            named = {each["name"] for each in operation["parameters"] if each["in"] == "query"}
            assert used[template] == named, template


def test_parameters_of_queries_are_those_that_the_server_reads(described: Described) -> None:
    folder = Path(__file__).parents[2] / "src" / "hopyard" / "web"
    source = "".join(
        (folder / f"{name}.py").read_text() for name in ("run_pages", "data_pages", "stock_pages")
    )
    read = set(re.findall(r"""(?:query_params|asked)\.get(?:list)?\(\s*"(\w+)\"""", source))
    read |= set(re.findall(r"""(?:whole|number)\(\s*request, "(\w+)\"""", source))
    read |= {"a", "b", "path", "revision", "against"}  # in loops over their names
    named = {
        each["name"]
        for operations in described.document["paths"].values()
        for operation in operations.values()
        for each in operation["parameters"]
        if each["in"] == "query"
    }
    assert read == named


def test_commands_and_options_of_plans_are_those_that_are_taken(described: Described) -> None:
    command = described.schemas["Command"]["properties"]
    assert set(command["do"]["enum"]) == set(_COMMANDS)
    assert set(command) == {"do"}.union(*_COMMANDS.values())
    assert set(described.schemas["PlanOptions"]["properties"]) == {"searcher", *_NUMBERS}


# The command line

SAME = [
    ("/api/runs", ["run", "list", "STORE"]),
    (f"/api/runs/0/{RUN}", ["run", "describe", "STORE", RUN]),
    ("/api/runs/0/twice", ["run", "describe", "STORE", "twice"]),
    (f"/api/runs/compare?run=0/{RUN}&run=0/twice", ["run", "compare", "STORE", RUN, "twice"]),
    ("/api/data/0/describe", ["data", "inspect", "STORE"]),
    ("/api/data/2/describe", ["data", "inspect", "PICTURES"]),
    ("/api/stock/1/log", ["stock", "log"]),
    ("/api/stock/1/diff?a=v1&b=HEAD", ["stock", "diff", "v1", "HEAD"]),
    (
        "/api/stock/1/model?path=model/net&against=v1",
        ["stock", "inspect", "model/net", "--against", "v1"],
    ),
]


@pytest.mark.parametrize(("path", "words"), SAME, ids=[path for path, _ in SAME])
def test_documents_are_those_of_the_command_line(
    wide: Client, many: Path, full_room: Path, path: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"STORE": many, "PICTURES": many.parent / "pictures"}
    monkeypatch.chdir(full_room)
    done = CliRunner().invoke(app, [*(str(places.get(word, word)) for word in words), "--json"])
    assert done.exit_code == 0, done.output
    served, printed = wide.get(path).json, json.loads(done.stdout)
    assert is_part(printed, served["runs"] if path == "/api/runs" else served), path
    assert printed


def is_part(printed: Any, served: Any) -> bool:
    """Whether all that was printed was served, too, with the same values."""
    if isinstance(printed, dict):
        return printed.keys() <= served.keys() and all(
            is_part(each, served[key]) for key, each in printed.items()
        )
    if isinstance(printed, list):
        return len(printed) == len(served) and all(map(is_part, printed, served))
    return bool(printed == served)


# The pages' types

INTERFACE = re.compile(r"^export interface (\w+)(?: extends (\w+))? \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
OURS = {"Exported"}  # of files, not of the server


def interfaces() -> dict[str, dict[str, tuple[bool, str]]]:
    """Keys of each interface of the pages: whether it may be missing, and its type."""
    found: dict[str, dict[str, tuple[bool, str]]] = {}
    for name, parent, body in INTERFACE.findall(TYPES.read_text()):
        keys = {
            key: (bool(optional), " ".join(kind.split()))
            for key, optional, kind in re.findall(
                r"^  (\w+)(\??): (.*?);\n(?=  \w|  /|\Z)", body, re.M | re.S
            )
        }
        found[name] = {**found.get(parent, {}), **keys}
    return found


def kinds_of(schema: Any, schemas: Mapping[str, Any]) -> set[str]:
    """Kinds of JSON values that a schema allows; all, as ``any``."""
    if "$ref" in schema:
        return kinds_of(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema:
        return set().union(*(kinds_of(each, schemas) for each in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return {"string"}
    return {{"integer": "number"}.get(schema["type"], schema["type"])} if "type" in schema else {"any"}


def kinds_in(text: str, types: Mapping[str, Any]) -> set[str]:
    """Kinds of JSON values that a type of TypeScript allows."""
    found = set()
    for part in (each.strip() for each in re.split(r"\|(?![^({<]*[)}>])", text)):
        if part.endswith("[]"):
            found.add("array")
        elif part.startswith("'"):
            found.add("string")
        elif part.startswith(("{", "Record<")) or part == "JsonObject" or part in types:
            found.add("object")
        else:
            found.add({"Json": "any"}.get(part, part))
    return found


@pytest.mark.parametrize("name", sorted(set(interfaces()) - OURS))
def test_types_of_the_pages_are_those_of_the_server(described: Described, name: str) -> None:
    schema, keys = described.schemas[name], interfaces()[name]
    assert set(keys) == set(schema["properties"])
    for key, (optional, text) in keys.items():
        served_kinds, read = (
            kinds_of(schema["properties"][key], described.schemas),
            kinds_in(text, interfaces()),
        )
        assert served_kinds <= read or "any" in read, f"{name}.{key} is {sorted(served_kinds)}, not {text}"
        assert optional or key in schema["required"], f"{name}.{key} may be missing"


def test_a_key_that_is_not_described_is_found(described: Described, wide: Client) -> None:
    answer = wide.get("/api/places")
    changed = Answer(200, answer.headers, json.dumps({**answer.json, "more": 1}).encode())
    with pytest.raises(AssertionError, match="'more' was unexpected"):
        described.judge("GET", "/api/places", changed)
