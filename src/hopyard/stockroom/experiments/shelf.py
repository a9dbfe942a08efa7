"""The values and runs of a revision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hopyard.errors import MissingKeyError
from hopyard.markup import cut
from hopyard.missing import missing_extra
from hopyard.stockroom.experiments.read import Runs, RunView
from hopyard.stockroom.experiments.run import StockRun
from hopyard.stockroom.experiments.values import plain, read, write
from hopyard.stockroom.records import RunRecord, ValueRecord
from hopyard.stockroom.records.frozen import frozen
from hopyard.stockroom.views.shelf import ListedThing, NamedThings
from hopyard.stockroom.views.view import writable
from hopyard.wording import nearest

if TYPE_CHECKING:
    import pandas as pd


class ExperimentShelf(NamedThings):
    """Plain values by name, ``shelf["lr"] = 0.01``; and runs. See the room's text for the rules."""

    _shelf, _what = "experiment", "value"

    # Values

    def __getitem__(self, name: str) -> Any:
        """The value as it was stored, of the same types; scalars of NumPy as Python's. Dicts and lists in it equal
        plain ones, and cannot be changed: ``.copy()`` gives plain ones.

        Raises:
            MissingKeyError: there is none of this name.
        """
        record = self.record(name)
        assert isinstance(record, ValueRecord)
        place = f"stock.experiment[{name!r}]"
        return frozen(
            read(self._view.objects, record),
            f"{place} was handed out to be read: changing it would change nothing that is stored. Take a copy, change "
            f"that, and assign it: value = {place}.copy(); ...; {place} = value",
        )

    def __setitem__(self, name: str, value: Any) -> None:
        """Store a value: int, float, bool, str, None, or lists, tuples and dicts of these.

        Raises:
            DataError: it is none; says what is not, and where. UsageError: the name cannot be one, or this is not open
                for writing. The shelf is as it was.
        """
        self._checked(name)
        checked = plain(value, f"The value {name!r}")
        draft = writable(self._view)
        with draft.guard.write(f"a write to experiment/{name}"):
            draft.set("experiment", name, write(draft.writer, checked))

    def _line(self, name: str) -> ListedThing:
        return ListedThing(f"experiment/{name}", cut(repr(self[name]), 60))

    # Runs

    def start(
        self,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, Any] | None = None,
        git: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> StockRun:
        """A new run; see :class:`StockRun`."""
        return StockRun(writable(self._view), params, tags, git, id=id)

    def run(self, id: str) -> RunView:
        """A stored run.

        Raises:
            MissingKeyError: there is none of this id.
        """
        record = self._view.record("run", self._checked(id))
        if not isinstance(record, RunRecord):
            known = self._view.names("run")
            raise MissingKeyError(
                f"there is no run {id!r} in {self._view.revision}{nearest(id, known, '.')} "
                f"It has {len(known)} runs; runs() gives them."
            )
        return RunView(self._view.objects, id, record)

    def runs(self) -> Runs:
        """All stored runs, the newest first."""
        found = [self.run(id) for id in self._view.names("run")]
        return Runs(sorted(found, key=lambda run: (run.started, run.id), reverse=True))

    def delete_run(self, id: str) -> None:
        """Take a run off the shelf.

        Raises:
            MissingKeyError: there is none of this id.
        """
        draft = writable(self._view)
        with draft.guard.write(f"a write to run/{id}"):
            self.run(id)
            draft.set("run", id, None)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each run, the newest first: ``id``, ``status``, ``started``, ``seconds``, then ``param.<name>``,
        ``tag.<name>`` and the last value of each metric as ``metric.<name>``.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise missing_extra("pandas", "demo", "A frame of runs") from error
        return pd.DataFrame([_row(run) for run in self.runs()])


def _row(run: RunView) -> dict[str, Any]:
    row: dict[str, Any] = {"id": run.id, "status": run.status, "started": run.started, "seconds": run.seconds}
    row |= {f"param.{name}": value for name, value in run.params.items()}
    row |= {f"tag.{name}": value for name, value in run.tags.items()}
    return row | {f"metric.{name}": values[-1] for name, (_, values) in run.metrics.items()}
