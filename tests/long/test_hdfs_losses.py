"""Nodes of HDFS die in the middle of a run and of a push, and come back: the same bits, and nothing is lost."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.hdfs_cluster import HdfsCluster, lasting
from tests.services.hdfs.conftest import folder, hdfs  # noqa: F401
from tests.stockroom.remotes.repositories import at, commit, content, samples
from tests.storage.test_object_rooms import rows, search

from hopyard.backend import LocalBackend
from hopyard.stockroom.remotes import clone, push
from hopyard.storage import HDFSStore, LocalStore
from hopyard.storage.base import Buffer
from hopyard.tune import Callback


@pytest.fixture(scope="module")
def pair(hdfs_if_there: Any, tmp_path_factory: pytest.TempPathFactory) -> HdfsCluster | None:
    """Two name nodes, of which the first is active; they end with this process, as ``hdfs_if_there``."""
    if hdfs_if_there is None:
        return None
    return lasting(HdfsCluster(tmp_path_factory.mktemp("hdfs-pair"), data_nodes=1, name_nodes=2))


class Once(Callback):
    """Does something after the first epoch of any trial."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def on_epoch_end(self, *args: Any) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


class LosingStore(HDFSStore):
    """Does something before the write of that number."""

    def before(self, number: int, action: Callable[[], None]) -> LosingStore:
        self._left, self._action = number, action
        return self

    def _write(self, name: str, pieces: Any, publish: Any) -> bool:
        self._left -= 1
        if self._left == 0:
            self._action()
        return super()._write(name, pieces, publish)


class Switch:
    """Kills the active name node; the other one becomes active a moment later, while its clients wait."""

    def __init__(self, cluster: HdfsCluster) -> None:
        self._cluster, self._active = cluster, cluster.active
        self._threads: list[threading.Thread] = []

    def __call__(self) -> None:
        self._cluster.kill(f"name{self._active}")
        both = (self._active, 1 - self._active)
        self._threads.append(threading.Thread(target=self._cluster.failover, args=both))
        self._threads[0].start()

    def undo(self) -> None:
        """Bring the name node back."""
        for thread in self._threads:
            thread.join()
        self._cluster.start()


@pytest.fixture
def nest(pair: HdfsCluster | None, hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch) -> HdfsCluster:  # noqa: F811
    assert pair is not None
    monkeypatch.setenv("HADOOP_CONF_DIR", str(pair.conf))
    return pair


@pytest.fixture
def switch(nest: HdfsCluster) -> Iterator[Switch]:
    switch = Switch(nest)
    yield switch
    switch.undo()


def test_the_active_name_node_is_killed_in_a_run(nest: HdfsCluster, switch: Switch, tmp_path: Path) -> None:
    expected = search(LocalStore(tmp_path)).fit(rows())
    backend = LocalBackend(num_workers=2)
    model = search(HDFSStore(f"{nest.url}/run"), backend=backend, callbacks=[Once(switch)]).fit(rows())
    assert model.get_all_model_history() == expected.get_all_model_history()
    assert model.run.broken_rules() == []


def test_the_active_name_node_is_killed_in_a_push(nest: HdfsCluster, switch: Switch, tmp_path: Path) -> None:
    local = at(tmp_path / "local")
    first = commit(local, image=samples(50), models={"net": {"w": np.ones(3)}})
    last = commit(local, "dev", "d", label=samples(50))
    store = LosingStore(f"{nest.url}/push").before(3, switch)
    push(local, at(store, "origin", index=False), ["main", "dev"])
    _, fetched = clone(HDFSStore(f"{nest.url}/push"), tmp_path / "copy", by="Bob")
    assert fetched.heads == {"dev": last, "main": first}
    assert content(at(HDFSStore(f"{nest.url}/push"), "origin", index=False), first) == content(local, first)


def test_a_data_node_is_killed_in_a_run_and_comes_back(
    hdfs: HdfsCluster,  # noqa: F811
    folder: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    expected = search(LocalStore(tmp_path)).fit(rows())
    callbacks = [Once(lambda: hdfs.kill("data0"))]
    try:
        model = search(HDFSStore(folder), callbacks=callbacks).fit(rows())
    finally:
        hdfs.start()
    assert model.get_all_model_history() == expected.get_all_model_history()
    assert model.run.broken_rules() == []


class Heard(io.StringIO):
    """Standard output, and what is done once a text was said."""

    def __init__(self, text: str, action: Callable[[], None]) -> None:
        super().__init__()
        self._text, self._thread = text, threading.Thread(target=action)

    def write(self, said: str) -> int:
        written = super().write(said)
        if self._thread.ident is None and self._text in self.getvalue():
            self._thread.start()
        return written

    def join(self) -> None:
        self._thread.join()


def test_a_run_without_a_name_node_says_that_it_waits_and_goes_on_when_there_is_one(
    hdfs: HdfsCluster,  # noqa: F811
    folder: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hopyard.storage.hdfs._PATIENCE", 5.0)
    expected = search(LocalStore(tmp_path)).fit(rows())
    heard = Heard("paused: ", hdfs.start)
    try:
        with contextlib.redirect_stdout(heard):
            callbacks = [Once(lambda: hdfs.kill("name0"))]
            model = search(HDFSStore(folder), callbacks=callbacks).fit(rows())
            heard.join()
    finally:
        hdfs.start()
    assert model.get_all_model_history() == expected.get_all_model_history()
    assert model.run.broken_rules() == []
    assert "goes on by itself" in heard.getvalue()
    assert "there is an answer" in heard.getvalue()


def test_a_replacement_is_whole_for_readers_while_a_data_node_dies(hdfs: HdfsCluster, folder: str) -> None:  # noqa: F811
    store, contents = HDFSStore(folder), [bytes([n]) * 200_000 for n in range(4)]
    store.put("a", contents[0])
    strange: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.wait(0.05):
            found: Buffer = store.get("a")
            if found not in contents:
                strange.append(len(found))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        hdfs.kill("data1")
        for content_ in contents[1:]:
            store.put("a", content_)
    finally:
        done.set()
        reader.join()
        hdfs.start()
    assert strange == []
    assert store.get("a") == contents[-1]
