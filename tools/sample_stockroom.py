"""Makes tests/stockroom/sample: a small stockroom with everything that the format has, and what it holds as JSON.

`python tools/sample_stockroom.py` writes it anew. That is for a new version of the format only, beside the samples of
the old ones: what was written once must stay readable. The sample is of an early version, whose columns ended
fragments elsewhere; the tests pin the digests of what is made now.

Times, author and ids are fixed, so the same objects come out wherever it runs. The files of the prepared dataset are
taken from the sample that is there, since each version of Parquet's writer makes others.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from hopyard.data import Dataset, prepare
from hopyard.errors import PurgedError
from hopyard.objects import Tensor
from hopyard.objects.torch import to_tensor
from hopyard.stockroom.data import SampleColumn
from hopyard.stockroom.data.datasets import open_stored, store_dataset
from hopyard.stockroom.data.drafts import Edit
from hopyard.stockroom.data.rows import KeyedSamples, keys_of, plain
from hopyard.stockroom.data.samples import StoredSample, empty_record, record_for, rows_of
from hopyard.stockroom.experiments import ExperimentShelf, StockRun
from hopyard.stockroom.git import Head, write
from hopyard.stockroom.history.commits import log, read_commit
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.merge import merge_commits
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.stockroom.history.publish import commit_draft
from hopyard.stockroom.history.stage import Stage
from hopyard.stockroom.maintenance import purge
from hopyard.stockroom.maps import Key, encode
from hopyard.stockroom.maps.keys import encode_many
from hopyard.stockroom.models import ModelShelf
from hopyard.stockroom.records import ColumnRecord, DatasetRecord
from hopyard.stockroom.remotes import KIND, Repository
from hopyard.stockroom.views.view import Snapshot
from hopyard.storage import LocalStore
from hopyard.storage.format import claim_format

SAMPLE = Path(__file__).resolve().parent.parent / "tests/stockroom/sample"
AUTHOR = "Ada Lovelace <ada@example.org>"
_GIT = {"branch": "main", "commit": "1" * 40, "dirty": False}


class _Clock(datetime):
    """Each look at it is a minute later."""

    moment = datetime(2026, 1, 1, tzinfo=UTC)

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        _Clock.moment += timedelta(minutes=1)
        return _Clock.moment


@contextmanager
def _fixed_times() -> Iterator[None]:
    _Clock.moment = datetime(2026, 1, 1, tzinfo=UTC)
    with ExitStack() as stack:
        for module in ("history.commits", "history.references", "experiments.run"):
            stack.enter_context(patch(f"hopyard.stockroom.{module}.datetime", _Clock))
        stack.enter_context(patch("secrets.token_hex", lambda size: "0" * 2 * size))
        yield


class _Maker:
    def __init__(self, root: Path) -> None:
        self.store = LocalStore(root)
        claim_format(self.store, KIND)
        self.repository = Repository.at(self.store)

    def commit(self, branch: str, message: str, change: Callable[[Draft], None], *merged: str) -> str:
        tip = self.repository.references.tip(f"heads/{branch}").commit
        root = read_commit(self.repository.objects, tip).root if tip else None
        draft = Draft(self.repository.objects, root)
        change(draft)
        parents = [*([tip] if tip else []), *merged]
        facts = (AUTHOR, None if tip is None else _GIT)
        made = commit_draft(
            draft, self.repository.references, f"heads/{branch}", parents, message, lambda: facts
        )
        assert made is not None
        return made.digest

    def name(self, reference: str, commit: str | None) -> None:
        self.repository.references.set(reference, commit, AUTHOR)


def make(folder: Path, dataset: Dataset) -> None:
    """Write the sample, with this dataset, into an empty folder: ``head.stock``, and the root ``objects/``."""
    with _fixed_times():
        maker = _Maker(folder / "objects")
        first = maker.commit("main", "columns of every kind", _columns)
        maker.name("tags/v1", first)
        second = maker.commit("main", "a model and values ü", _model_and_values)
        maker.name("heads/dev", second)
        maker.name("heads/feature/ä ~".replace(" ~", "-1"), second)
        maker.name("heads/feature/ä-1", None)
        maker.name("remotes/origin/main", second)
        theirs = maker.commit("dev", "another version of the model", _on_dev)
        ours = maker.commit("main", "samples go and come", lambda draft: _on_main(draft, dataset))

        def merged(draft: Draft) -> None:
            result = merge_commits(draft.writer, ours, theirs)
            assert not result.conflicts
            draft.back(result.root)

        maker.commit("main", "Merge dev", merged, theirs)
        maker.commit("main", "a run", lambda draft: _run(draft, folder))
        purge(maker.repository, "caption", "secret", "asked to", AUTHOR, clock=lambda: _Clock.now())
        last = maker.commit("main", "many values, many fragments", _many)
        stage = Stage(maker.store, "main", last)
        for operation in (
            WriteOperation("image", _edit({7: Tensor("U8", (2, 3), np.arange(6, dtype="u1"))})),
            WriteOperation("caption", _edit({"new": "text", "x": "ü"})),
            WriteOperation("blob", Edit(empty_record("bytes", "U8", (), nested=False), [encode(1)])),
            WriteOperation(things=(("experiment", "staged", {"value": True}),)),
        ):
            stage.append(operation.encode())
        write(folder / "head.stock", Head("main", last))
    for lock in [*folder.rglob("*.lock"), folder / "artifact.json"]:
        lock.unlink()
    for path in sorted((folder / "objects").rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _edit(samples: dict[Key, StoredSample]) -> Edit:
    """An edit that sets samples, whose keys ascend."""
    values = list(samples.values())
    record = record_for(values, nested=False)
    return Edit(record, [], KeyedSamples(keys_of(encode_many(list(samples))), rows_of(values, record)))


def _columns(draft: Draft) -> None:
    draft.column("image").extend(np.arange(30, dtype="uint8").reshape(5, 2, 3))
    draft.column("caption").update(
        {"cat-7": "a cat", "": "", "ein Hund": "\u00fc \U0001f415", "secret": "purged"}
    )
    draft.column("embedding").update(
        {n: torch.arange(4).to(torch.bfloat16) / 3 + n for n in (-(2**63), -1, 2**62)}
    )
    draft.column("boxes").update({n: np.full((n % 3, 4), n, "float32") for n in range(6)})
    parts: dict[Any, Any] = {(1, "left"): [1, 2], (1, "right"): [3, 4], ("a\0b", 0): [5, 6], ("a", 2): [7, 8]}
    draft.column("nested").update({key: np.array(value, "int16") for key, value in parts.items()})
    draft.column("blob").update({0: b"", 1: bytes(range(256)), "x": b"\0"})
    for name in (
        "bool",
        "int8",
        "uint16",
        "int32",
        "uint64",
        "float16",
        "float64",
        "complex64",
        "complex128",
    ):
        draft.column(f"of {name}").update({0: np.array([0, 1], name), 9: np.array([1, 1], name)})
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        draft.column(f"of {kind}").update({0: torch.tensor([0.5, -1]).to(kind)})


def _model_and_values(draft: Draft) -> None:
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    state = OrderedDict(
        {"embed.weight": weight, "head.weight": weight, "norm": half, "steps": torch.tensor(3)}
    )
    tree = OrderedDict((name, to_tensor(tensor)) for name, tensor in state.items())
    tree["head.weight"] = tree["embed.weight"]
    ModelShelf(draft)["net"] = tree
    shelf = ExperimentShelf(draft)
    shelf["lr"], shelf["flag"], shelf["none"], shelf["one"] = 0.01, True, None, 1.0
    shelf["special"] = {
        "inf": float("inf"),
        3: (1, [2**80, -0.0, 1e-5, 1e16]),
        "text": 'a "ü"\n\u2028\U0001f415',
    }
    shelf["large"] = ["x" * 100] * 50


def _on_dev(draft: Draft) -> None:
    tree = ModelShelf(draft).tree("net")
    tree["norm"] = Tensor.from_numpy(np.array([2.5, np.nan], "float64"))
    ModelShelf(draft)["net"] = tree
    draft.column("caption")["cat-7"] = "a cat, and a dog"
    ExperimentShelf(draft)["lr"] = 0.02


def _on_main(draft: Draft, dataset: Dataset) -> None:
    del draft.column("image")[3]
    draft.column("image")[100] = np.full((2, 3), 255, "uint8")
    draft.set("data", "rows", store_dataset(draft.writer, dataset))
    del ExperimentShelf(draft)["none"]
    draft.set("data", "of bool", None)


def _run(draft: Draft, folder: Path) -> None:
    artifact = folder / "artifact.json"
    artifact.write_text('{"accuracy": 0.5}\n')
    seconds = iter(range(100))
    with StockRun(
        draft, {"lr": 0.01, "sizes": (1, 2)}, {"kind": "test"}, _GIT, clock=lambda: float(next(seconds))
    ) as run:
        for step in range(4):
            run.log(step=2 * step, loss=1 / (step + 1), accuracy=float("nan") if step == 2 else 0.5)
        run.log_artifact(artifact)
        run.link(model="net", data=["image", "rows"])


def _many(draft: Draft) -> None:
    shelf = ExperimentShelf(draft)
    for number in range(250):
        shelf[f"value {number}"] = number
    draft.column("many")[-1] = bytes(6000)  # says that samples are large, so a fragment has few
    draft.write()
    draft.column("many").update({n: bytes([n % 256]) * (n % 5) for n in range(0, 900, 3)})


# What it holds, read by Hopyard


def contents(folder: Path) -> dict[str, Any]:
    """All that the sample holds, as JSON: of each thing of a commit its number in ``things``."""
    repository = Repository.at(LocalStore(folder / "objects"))
    references = {kind: repository.references.names(kind) for kind in ("heads", "tags", "remotes")}
    tips = {commit for names in references.values() for commit in names.values()}
    commits, things = {}, Things()
    for commit in log(repository.objects, *sorted(tips)):
        shown = Snapshot(repository.objects, commit.root, commit.digest)
        found: dict[str, Any] = {"message": commit.message, "author": commit.author, "time": commit.time}
        found |= {"parents": list(commit.parents), "generation": commit.generation, "git": commit.git}
        found["things"] = {path: things.number(thing) for path, thing in _things(shown)}
        commits[commit.digest] = found
    return {"references": references, "commits": commits, "order": list(commits), "things": things.every}


class Things:
    """Things as JSON, each once."""

    def __init__(self) -> None:
        self.every: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, thing: Any) -> int:
        """Where it is in ``every``."""
        text = json.dumps(thing, sort_keys=True)
        if text not in self._numbers:
            self._numbers[text] = len(self.every)
            self.every.append(thing)
        return self._numbers[text]


def _things(snapshot: Snapshot) -> Iterator[tuple[str, Any]]:
    for name in snapshot.names("data"):
        record = snapshot.record("data", name)
        if isinstance(record, ColumnRecord):
            column = SampleColumn(snapshot.objects, name, record)
            keys = sorted([*column, *plain(column.purged_codes())], key=encode)
            yield f"data/{name}", {repr(key): _sample(column, key) for key in keys}
        elif isinstance(record, DatasetRecord):
            stored = open_stored(snapshot.objects, record, name)
            files = [entry.digest for entry in stored.manifest.files]
            yield f"data/{name}", {"rows": stored.manifest.rows, "files": files}
    models, values = ModelShelf(snapshot), ExperimentShelf(snapshot)
    yield from ((f"model/{name}", described(models.tree(name))) for name in models)
    yield from ((f"experiment/{name}", described(values[name])) for name in values)
    for run in values.runs():
        series = {
            name: [steps.tolist(), points.tobytes().hex()] for name, (steps, points) in run.metrics.items()
        }
        yield f"run/{run.id}", {
            "status": run.status, "params": described(run.params), "tags": described(run.tags), "series": series,
            "git": described(run.git), "links": run.links,
            "artifacts": {name: run.read(name).decode() for name in run.artifacts},
        }  # fmt: skip


def _sample(column: SampleColumn, key: Any) -> Any:
    try:
        value = column[key]
    except PurgedError as error:
        return {"purged": "asked to" in str(error)}
    return described(to_tensor(value) if isinstance(value, torch.Tensor) else value)


def described(value: Any) -> Any:
    """Samples and values as JSON that tells all of them apart."""
    if isinstance(value, Tensor):
        return {"shape": list(value.shape), "bytes": value.data.tobytes().hex()}
    if isinstance(value, np.ndarray | np.generic):
        return {"shape": list(value.shape), "bytes": value.tobytes().hex()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {"dict": [[described(key), described(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [described(item) for item in value]}
    return repr(value)


def dataset_of(folder: Path) -> Dataset:
    """The prepared dataset that a sample has."""
    repository = Repository.at(LocalStore(folder / "objects"))
    commit = repository.references.tip("heads/main").commit
    assert commit is not None
    record = Snapshot(repository.objects, read_commit(repository.objects, commit).root, "main").record(
        "data", "rows"
    )
    assert isinstance(record, DatasetRecord)
    return open_stored(repository.objects, record, "rows")


def _new_dataset(folder: Path) -> Dataset:
    rows = {
        "id": np.arange(20),
        "vector": np.arange(60, dtype="float32").reshape(20, 3),
        "name": ["a", "b"] * 10,
    }
    return prepare(rows, LocalStore(folder), validation=None).train


def main() -> None:
    """Replace the sample."""
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "sample"
        made.mkdir()
        there = (SAMPLE / "objects").exists()
        make(made, dataset_of(SAMPLE) if there else _new_dataset(Path(temporary) / "dataset"))
        (made / "expected.json").write_text(json.dumps(contents(made), indent=0, sort_keys=True) + "\n")
        (made / ".gitattributes").write_text("* -text\n")
        shutil.rmtree(SAMPLE, ignore_errors=True)
        shutil.copytree(made, SAMPLE)


if __name__ == "__main__":
    main()
