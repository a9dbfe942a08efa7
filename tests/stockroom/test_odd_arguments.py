"""What is given in place of a name, a revision or a choice is refused in words, whatever it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sampling import sample

from hopyard import StockRoom
from hopyard.errors import HopyardError, UsageError


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(3000):
        value = [value]
    return value


class _Failing:
    """Whatever is asked of it fails."""

    def _fail(self, *_: object) -> Any:
        raise RuntimeError("it fails")

    __repr__ = __str__ = __hash__ = __eq__ = __fspath__ = _fail


ODD: dict[str, Any] = {
    "bytes": b"x",
    "int": 3,
    "float": 1.5,
    "true": True,
    "list": ["a"],
    "dict": {"a": 1},
    "set": {1},
    "deep": _deep(),
    "bad": _Failing(),
    "obj": object(),
    "surr": "\ud800",
    "empty": "",
    "nul": "a\0b",
    "long": "x" * 5000,
    "tuple": ("a",),
    "cls": int,
}

CALLS: dict[str, Callable[[Any, Any], object]] = {
    "switch": lambda s, v: s.switch(v),
    "branch": lambda s, v: s.branch(v),
    "branch rev": lambda s, v: s.branch("new", v),
    "tag": lambda s, v: s.tag(v),
    "tag rev": lambda s, v: s.tag("t", v),
    "delete_branch": lambda s, v: s.delete_branch(v),
    "delete_tag": lambda s, v: s.delete_tag(v),
    "at": lambda s, v: s.at(v),
    "resolve": lambda s, v: s.resolve(v),
    "log": lambda s, v: list(s.log(v)),
    "log limit": lambda s, v: list(s.log(limit=v)),
    "log branches": lambda s, v: list(s.log(branches=v)),
    "diff": lambda s, v: s.diff(v),
    "diff b": lambda s, v: s.diff("HEAD", v),
    "merge": lambda s, v: s.merge(v),
    "merge base": lambda s, v: s.merge("HEAD", base=v),
    "merge message": lambda s, v: s.merge("HEAD", message=v),
    "merge resolve": lambda s, v: s.merge("dev", resolve=v),
    "revert": lambda s, v: s.revert(v),
    "revert parent": lambda s, v: s.revert("HEAD", parent=v),
    "reset": lambda s, v: s.reset(v),
    "commit": lambda s, v: s.commit(v),
    "enable_write": lambda s, v: s.enable_write(v),
    "purge": lambda s, v: s.purge(v, 1),
    "purge key": lambda s, v: s.purge("x", v),
    "purge why": lambda s, v: s.purge("x", 1, why=v),
    "push": lambda s, v: s.push(v),
    "push branches": lambda s, v: s.push("origin", branches=v),
    "push branches of": lambda s, v: s.push("origin", branches=[v]),
    "push to": lambda s, v: s.push("origin", branches={"main": v}),
    "push tags": lambda s, v: s.push("origin", tags=v),
    "push tags of": lambda s, v: s.push("origin", tags=[v]),
    "push name": lambda s, v: s.push("origin", name=v),
    "fetch": lambda s, v: s.fetch(v),
    "fetch data": lambda s, v: s.fetch(data=v),
    "fetch data of": lambda s, v: s.fetch(data=[v]),
    "fetch keys": lambda s, v: s.fetch(data=["x"], keys=v),
    "fetch models": lambda s, v: s.fetch(models=v),
    "fetch models of": lambda s, v: s.fetch(models=[v]),
    "fetch runs": lambda s, v: s.fetch(runs=v),
    "fetch revision": lambda s, v: s.fetch(data=["x"], revision=v),
    "fetch max": lambda s, v: s.fetch(data=["x"], max_bytes=v),
    "fetch branches": lambda s, v: s.fetch(branches=v),
    "fetch branches of": lambda s, v: s.fetch(branches=[v]),
    "pull": lambda s, v: s.pull(v),
    "pull branch": lambda s, v: s.pull("origin", v),
    "pull resolve": lambda s, v: s.pull("origin", resolve=v),
    "forget_remote": lambda s, v: s.forget_remote(v),
    "gc remote": lambda s, v: s.gc(remote=v),
    "verify from": lambda s, v: s.verify(repair_from=v),
    "verify remote": lambda s, v: s.verify(remote=v),
    "open": lambda s, v: StockRoom(v),
    "open fetch": lambda s, v: StockRoom(s.place.root, fetch=v),
    "clone": lambda s, v: StockRoom.clone(v, s.place.root / "c1"),
    "clone name": lambda s, v: StockRoom.clone(str(s.place.root / "remote"), s.place.root / "c2", name=v),
    "data get": lambda s, v: s.data[v],
    "data in": lambda s, v: v in s.data,
    "data del": lambda s, v: s.data.__delitem__(v),
    "data set": lambda s, v: s.data.__setitem__(v, [1, 2]),
    "column get": lambda s, v: s.data["x"][v],
    "column in": lambda s, v: v in s.data["x"],
    "column del": lambda s, v: s.data["x"].__delitem__(v),
    "model get": lambda s, v: s.model[v],
    "model set": lambda s, v: s.model.__setitem__(v, {"a": 1}),
    "model del": lambda s, v: s.model.__delitem__(v),
    "model prefix": lambda s, v: s.model.read("m", prefix=v),
    "registry get": lambda s, v: s.registry[v],
    "registry in": lambda s, v: v in s.registry,
    "registry version": lambda s, v: s.registry.version("r", v),
    "register": lambda s, v: s.registry.register(v, "m"),
    "register model": lambda s, v: s.registry.register("r", v),
    "register run": lambda s, v: s.registry.register("r", "m", run=v),
    "register params": lambda s, v: s.registry.register("r", "m", params=v),
    "register params of": lambda s, v: s.registry.register("r", "m", params={"p": v}),
    "register metrics": lambda s, v: s.registry.register("r", "m", metrics=v),
    "register metrics of": lambda s, v: s.registry.register("r", "m", metrics={"p": v}),
    "register description": lambda s, v: s.registry.register("r", "m", description=v),
    "register labels": lambda s, v: s.registry.register("r", "m", labels=v),
    "register labels of": lambda s, v: s.registry.register("r", "m", labels=[v]),
    "registry change": lambda s, v: s.registry.change("r", v),
    "registry renumber": lambda s, v: s.registry.renumber("r", v),
    "registry renumber to": lambda s, v: s.registry.renumber("r", 1, v),
    "registry download": lambda s, v: s.registry.version("r", 1).download(v),
    "exp get": lambda s, v: s.experiment[v],
    "exp set": lambda s, v: s.experiment.__setitem__(v, 1),
    "exp val": lambda s, v: s.experiment.__setitem__("v", v),
    "exp del": lambda s, v: s.experiment.__delitem__(v),
    "run params": lambda s, v: s.run(params=v).__enter__(),
    "run tags": lambda s, v: s.run(tags=v).__enter__(),
    "exp in": lambda s, v: v in s.experiment,
    "model in": lambda s, v: v in s.model,
    "data get()": lambda s, v: s.data.get(v),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    with StockRoom.init(folder) as stock:
        with stock.enable_write("all"):
            stock.data["x"], stock.model["m"], stock.experiment["e"] = [1, 2, 3], {"a": 1}, 1
            stock.registry.register("r", "m")
        stock.push(folder / "remote")
        stock.branch("dev")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "stock")
    return tmp_path / "stock"


@pytest.mark.parametrize("call", sample("odd arguments", CALLS, quick=25, ci=len(CALLS)))
def test_an_odd_argument_is_refused_in_words(
    folder: Path, call: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    with StockRoom(folder, enable_write=True) as stock:
        for value in ODD.values():
            try:
                CALLS[call](stock, value)
            except HopyardError as error:
                said.append(str(error))
    assert all(len(text) > 20 for text in said)


@pytest.mark.parametrize(
    ("call", "value", "said"),
    [
        (
            "switch",
            {"a": 1},
            r"the branch, tag or commit to switch to was given as {'a': 1} of type dict\. Give a text",
        ),
        (
            "tag",
            ODD["deep"],
            r"the name of a tag was given as <list, nested too deeply to be shown> of type list",
        ),
        ("purge", ODD["deep"], r"the column of a purge was given as <list, nested too deeply to be shown>"),
        (
            "delete_tag",
            ODD["bad"],
            r"the name of a tag was given as <_Failing, whose repr fails: RuntimeError>",
        ),
        ("push tags", 3, r"the tags to be pushed were given as 3 of type int\. Give a list of texts"),
        (
            "push branches",
            "main",
            r"the branches to be pushed were given as 'main' of type str\. Give a list of texts",
        ),
        ("fetch data", 3, r"data=3 was given, but names are a list: data=\[3\]"),
        ("fetch data", [3], r"one of the names in data= was given as 3 of type int"),
        ("fetch max", "1 MB", r"max_bytes='1 MB', but it must be a number of at least 0"),
        ("log limit", 1.5, r"limit=1\.5 must be a number of commits, at least 0"),
        ("log branches", "some", r"branches='some' must be 'these' or 'all'"),
        ("revert parent", "1", r"parent='1' must be the number of a parent"),
        ("model prefix", 3, r"the prefix of a model's keys was given as 3 of type int"),
        ("forget_remote", None, r"the name of a remote was given as None of type NoneType"),
        ("open", ODD["bad"], r"a path was given as _Failing, which cannot be made a text: RuntimeError"),
    ],
)
def test_the_error_says_what_was_given(folder: Path, call: str, value: Any, said: str) -> None:
    with StockRoom(folder) as stock, pytest.raises(UsageError, match=said):
        CALLS[call](stock, value)
