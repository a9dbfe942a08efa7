"""A dashboard that is really served, over a store with runs and data, and a stockroom."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from hopyard import StockRoom
from hopyard.backend import Backend, InlineBackend
from hopyard.data import prepare
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice
from hopyard.web.app import dashboard
from hopyard.web.places import find_places
from hopyard.web.serving import DashboardServer

cloudpickle.register_pickle_by_value(sys.modules[__name__])

TOKEN = "the token of these tests"
HOSTILE = "</script><img src=x onerror=alert(1)>\u202e"
RUN = "grid"


def rows(count: int = 96) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    features = random.standard_normal((count, 4)).astype(np.float32)
    label = (features.sum(axis=1) > 0).astype(np.int64)
    names = np.array([f"{HOSTILE} {place}" for place in range(count)], dtype=object)
    return {"features": features, "label": label, "name": names}


def estimator(params: dict[str, Any]) -> TorchEstimator:
    if params["width"] == 3:
        raise ValueError(f"three is not enough {HOSTILE}")
    model = torch.nn.Sequential(torch.nn.Linear(4, params["width"]), torch.nn.Linear(params["width"], 2))
    return TorchEstimator(
        model, torch.optim.Adam, torch.nn.CrossEntropyLoss(), metrics=["accuracy"], batch_size=16,
        optimizer_params={"lr": params["lr"]},
    )  # fmt: skip


def search(
    store: LocalStore,
    rates: Sequence[float] = (0.1, 0.01, 0.001, 0.0001),
    backend: Backend | None = None,
    **changes: Any,
) -> GridSearch:
    """Three trials for each learning rate, of two epochs over three partitions; those of width 3 fail."""
    space = {"width": hp_choice([4, 3, 8]), "lr": hp_choice(list(rates))}
    arguments: dict[str, Any] = {
        "num_epochs": 2, "num_partitions": 3, "evaluation_metric": "accuracy", "run_id": RUN, "progress": False,
        "feature_columns": ["features"], "label_columns": ["label"],
    }  # fmt: skip
    return GridSearch(backend or InlineBackend(), store, estimator, space, **(arguments | changes))


@dataclass
class Answer:
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


@dataclass
class Client:
    """Asks a server on this machine."""

    port: int
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, **headers)

    def post(self, path: str, document: Any, **headers: str) -> Answer:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.ask("POST", path, body, **headers)

    def ask(self, method: str, path: str, body: bytes | None, **headers: str) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            named = {name.replace("_", "-"): value for name, value in (self.headers | headers).items()}
            connection.request(method, path, body, named)
            found = connection.getresponse()
            return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())
        finally:
            connection.close()

    def events(self, path: str, **headers: str) -> Iterator[tuple[str, Any]]:
        """Kinds and documents of server-sent events, as they come."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(
                "GET", path, headers={name.replace("_", "-"): each for name, each in headers.items()}
            )
            found, kind = connection.getresponse(), ""
            assert found.getheader("content-type", "").startswith("text/event-stream"), found.read()
            while line := found.readline().decode().rstrip("\n"):
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield kind, json.loads(line.removeprefix("data: "))
                    found.readline()
                elif line.startswith(":"):
                    found.readline()
        finally:
            connection.close()


@contextmanager
def served(given: list[str], token: str | None = TOKEN, static: Path | None = None) -> Iterator[Client]:
    """A dashboard of some stores and stockrooms, on a port of its own."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        pages = {} if static is None else {"static": static}
        app = dashboard(find_places(given), token, port, ("dashboard.example",), **pages)
        server = DashboardServer(app, seconds=0, log_level="error")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Client(port)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def serve() -> Callable[..., Any]:
    return served


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that has prepared data and a run. Tests leave it so."""
    folder = tmp_path_factory.mktemp("web")
    store = LocalStore(folder / "store")
    prepare(rows(), store=store, validation=0.25)
    search(store).fit_on_prepared_data()
    return folder / "store"


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stockroom with two commits of a column and a model, and a branch. Tests leave it so."""
    folder = tmp_path_factory.mktemp("room")
    stock = StockRoom.init(folder)
    for step, name in enumerate(["first", HOSTILE]):
        torch.manual_seed(step)
        with stock.enable_write(message=name):
            stock.data["image"] = {key: np.full(3, key + step, np.float32) for key in range(4)}
            stock.model["net"] = torch.nn.Linear(3, 2).state_dict()
            stock.experiment["lr"] = 0.1 / (step + 1)
    stock.branch("dev", "HEAD~1")
    stock.close()
    return folder


@pytest.fixture(scope="session")
def client(place: Path, room: Path) -> Iterator[Client]:
    """A client of a dashboard of the store, which is place 0, and the stockroom, which is place 1."""
    with served([str(place), str(room)]) as found:
        yield found
