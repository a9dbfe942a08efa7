"""Dashboards of peers over the same trials, in the same browser: optuna-dashboard, MLflow and TensorBoard.

One trial is written by the peer's own library, the others in the same form into its database (TensorBoard: all by its
own writer), and the peer's server is asked for them afterwards. Its page is open when as many lines, points or rows
are in it as it should show; where the peer shows all trials only after clicks, they are made, and their time counts.
Each peer has its leanest setting: MLflow one worker and no job runner, TensorBoard its fast loader and no TensorFlow.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import signal
import socket
import sqlite3
import statistics
import subprocess
import time
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page
from playwright.sync_api import Error as BrowserError
from playwright.sync_api import TimeoutError as TooLong

from _many_trials import losses_of, params_of
from _peers import PeerError, environment

LIMIT, READ_LIMIT, FRAMES = 120.0, 600.0, 100
BEGIN = 1_800_000_000  # of the first trial, in seconds since 1970
_FRAMES = """async (target, [type, frames, points]) => {
    const box = target.getBoundingClientRect();
    const mark = document.body.appendChild(document.createElement('i'));  // without a change there is no frame
    mark.style.cssText = 'position:fixed;left:0;top:0;width:1px;height:1px;z-index:9999';
    const Kind = type.startsWith('pointer') ? PointerEvent : MouseEvent, times = [];
    const began = performance.now();
    for (let i = 0; i <= frames && (i <= 20 || performance.now() - began < 60_000); i++) {
        times.push(await new Promise(requestAnimationFrame));
        const [x, y] = points[i % points.length];
        const at = { clientX: box.left + x * box.width, clientY: box.top + y * box.height };
        mark.style.background = i % 2 ? '#888' : '#999';
        target.dispatchEvent(new Kind(type, { ...at, view: window, bubbles: true, composed: true, pointerId: 1 }));
    }
    mark.remove();
    return times.slice(1).map((time, i) => time - times[i]);
}"""
_DRAWN = """async () => {
    for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
    return performance.now();
}"""
_LINES = ".js-plotly-plot .gl-canvas-pick"  # Plotly's parallel coordinates
_AXIS = ".js-plotly-plot .axis-brush .background"
_PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


OURS: dict[str, float] = {}
"""Figures of Hopyard's dashboard in this run, by name: what stands beside those of peers."""


def report(name: str, value: float | None, unit: str, peer: str, ratio: float | None = None) -> None:
    """Print a figure; None: there is none, and ``peer`` says why."""
    line = {"name": f"dashboard, {name}", "value": None if value is None else round(value, 3), "unit": unit}
    line |= {"peer": peer, "ratio": None if ratio is None else round(ratio, 3)}
    print(json.dumps(line), flush=True)


def report_own(name: str, value: float, unit: str, limit: float | None = None) -> None:
    """Print a figure of Hopyard's, beside its limit, and keep it for the peers."""
    OURS[name] = value
    if limit is None:
        report(name, value, unit, "no limit; peers' below")
    else:
        report(name, value, unit, f"limit {limit:g} {unit}", value / limit)


def opened(browser: Browser, address: str) -> tuple[Page, list[float]]:
    """A page, and the bytes of each answer that it gets, as they were sent."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(LIMIT * 1000)
    sent: list[float] = []
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: sent.append(event["encodedDataLength"]))
    page.goto(address, wait_until="commit")
    return page, sent


def first_paint(page: Page) -> float:
    """Seconds from the beginning of a page to the first paint of its contents."""
    return float(page.wait_for_function(_PAINTED).json_value()) / 1000


def frames(
    page: Page, selector: str, kind: str, points: Sequence[tuple[float, float]], press: bool = False
) -> float:
    """The 95th percentile of milliseconds between frames, while the pointer goes from point to point.

    It is of 100 frames; of fewer, but 20, if they take more than a minute.

    Args:
        points: shares of the width and height of the element.
        press: with a button held down, from the first point on.
    """
    target = page.locator(selector).first
    target.scroll_into_view_if_needed()
    box = target.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + points[0][0] * box["width"], box["y"] + points[0][1] * box["height"])
    if press:
        page.mouse.down()
    found = target.evaluate(_FRAMES, [kind, FRAMES, points])
    if press:
        page.mouse.up()
    return float(statistics.quantiles(found, n=20)[-1])


@dataclass(frozen=True)
class View:
    """A page of a peer, and what is in it once it shows its trials.

    Args:
        shows: what of the trials it can show, in words.
        last: elements of which ``count`` are there when it shows them.
        plots: what the pointer goes over: in words, and its selector.
        brush: an axis along which a range is drawn.
        clicks: what somebody does in the page before it shows them.
    """

    name: str
    path: str
    shows: str
    last: str
    count: int
    plots: tuple[tuple[str, str], ...] = ()
    brush: str | None = None
    clicks: Callable[[Page], None] | None = None


class Dashboard(ABC):
    """A peer: how it is given trials, served, asked for them, and looked at."""

    name: str

    @abstractmethod
    def write(self, folder: Path, trials: int, epochs: int) -> None:
        """Write trials into an empty folder."""

    @abstractmethod
    def command(self, folder: Path, port: int) -> list[str | Path]:
        """What serves the folder at a port."""

    @abstractmethod
    def read(self, address: str, number: int) -> tuple[int, dict[str, Any], list[float]]:
        """How many trials the server has, and the hyperparameters and losses of one, from its API."""

    @abstractmethod
    def views(self, address: str, trials: int) -> list[View]:
        """The pages that show what a run's page of ours shows."""

    def measure(self, browser: Browser, folder: Path, trials: int, epochs: int) -> None:
        """Print the figures of this peer.

        Raises:
            PeerError: it could not be given the trials, or does not serve them.
        """
        own = folder / self.name
        own.mkdir()
        self.write(own, trials, epochs)
        began = time.perf_counter()
        with self.served(own) as (address, process):
            self.wait(address, process, own, trials, epochs)
            seconds = time.perf_counter() - began
            self.report("journal read", seconds, "s", f"{trials:,} trials of {epochs}, and its start")
            for view in self.views(address, trials):
                try:
                    self.look(browser, address, view)
                except BrowserError as error:
                    self.report(
                        "leaderboard and curves there", str(error).splitlines()[0], "s", f"{view.name} ended"
                    )
            self.report("memory of the server, largest", memory(process.pid), "MB", "all of its processes")

    def report(self, name: str, value: float | str, unit: str, shows: str) -> None:
        """Print Hopyard's figure of that name, and this peer's beside it.

        Args:
            value: the peer's, or why it has none.
            shows: what of the trials the peer shows for it.
        """
        beside = value if isinstance(value, str) else f"{value:.3g} {unit}"
        ratio = None if isinstance(value, str) else OURS[name] / value
        report(name, OURS[name], unit, f"{self.name}: {beside} ({shows})", ratio)

    def wait(
        self, address: str, process: subprocess.Popen[str], folder: Path, trials: int, epochs: int
    ) -> None:
        """Until the server has all trials; the last one must be that which was written."""
        number, reason = trials - 1, ""
        until = time.monotonic() + READ_LIMIT
        while time.monotonic() < until:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
            if process.poll() is not None:
                said = (folder / "server.log").read_text().strip().splitlines()
                raise PeerError(f"its server ended: {(said or ['?'])[-1]}")
            try:
                count, params, losses = self.read(address, number)
            except (OSError, KeyError, IndexError) as error:  # not there yet
                reason = str(error)
            else:
                reason = f"it has {count:,} trials"
                if count == trials and len(losses) == epochs:
                    if not _equal(params, params_of(number)) or not _close(losses, losses_of(number, epochs)):
                        raise PeerError(
                            f"trial {number} is not the one that was written: {params}, {losses[:3]}"
                        )
                    return
        raise PeerError(f"its server has not read {trials:,} trials after {READ_LIMIT:.0f} s: {reason}")

    def look(self, browser: Browser, address: str, view: View) -> None:
        """A page: when it is there, what was sent for it, and how long frames take."""
        page, sent = opened(browser, address + view.path)
        shows = f"{view.name}, {view.shows}"
        try:
            self.report("first paint", first_paint(page), "s", shows)
            began = time.monotonic()
            try:
                if view.clicks is not None:
                    view.clicks(page)
                page.locator(view.last).nth(view.count - 1).wait_for(
                    state="attached", timeout=max(1.0, LIMIT - (time.monotonic() - began)) * 1000
                )
                there = float(page.evaluate(_DRAWN)) / 1000
            except TooLong:
                self.report("leaderboard and curves there", f"not there after {LIMIT:.0f} s", "s", shows)
                self.report("sent for a run's page", sum(sent) / 1e6, "MB", f"{shows}, until then")
                return
            self.report("leaderboard and curves there", there, "s", shows)
            self.report("sent for a run's page", sum(sent) / 1e6, "MB", shows)
            across = [(0.15 + 0.7 * i / FRAMES, 0.2 + 0.6 * (i * 37 % 101) / 101) for i in range(FRAMES)]
            for name, selector in view.plots:
                hover = frames(page, selector, "mousemove", across)
                self.report(f"hovering over {name}, 95th percentile", hover, "ms", shows)
            if view.brush is not None:
                along = [(0.5, 0.15 + 0.7 * i / FRAMES) for i in range(FRAMES)]
                drawn = frames(page, view.brush, "mousemove", along, press=True)
                self.report("brushing, 95th percentile", drawn, "ms", shows)
        finally:
            page.close()

    @contextlib.contextmanager
    def served(self, folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
        """The peer's server over a folder: its address and process."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        more = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (folder / "server.log").open("w") as log:
            process = subprocess.Popen(
                self.command(folder, port),
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=folder,
                env={**os.environ, **more},
                start_new_session=True,
            )
            try:
                yield f"http://127.0.0.1:{port}", process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def memory(process: int) -> float:
    """Largest memory of a process and of each that it started, together, in MB."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return (int(found[1]) / 1024 if found else 0.0) + sum(memory(child) for child in children)


def asked(address: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON that a server answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=READ_LIMIT) as answer:
        return json.load(answer)


def _equal(params: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether hyperparameters are those wanted; some servers give all as text."""
    return params.keys() == wanted.keys() and all(
        params[name] == value
        if isinstance(value, str)
        else math.isclose(float(params[name]), value, rel_tol=1e-5)
        for name, value in wanted.items()
    )


def _close(losses: list[float], wanted: list[float]) -> bool:
    """Whether losses are those wanted, in the precision of 32 bits that some servers keep."""
    return all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(losses, wanted, strict=True))


def _insert(base: sqlite3.Connection, table: str, rows: list[dict[str, Any]]) -> None:
    names, values = ", ".join(rows[0]), ", ".join(f":{name}" for name in rows[0])
    base.executemany(f"INSERT INTO {table}({names}) VALUES ({values})", rows)


class OptunaDashboard(Dashboard):
    """The page of a study: history of values, and curves of intermediate values; and parallel coordinates."""

    name = "optuna-dashboard"

    def write(self, folder: Path, trials: int, epochs: int) -> None:
        import optuna
        from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

        spaces: dict[str, BaseDistribution] = {
            "lr": FloatDistribution(1e-5, 1e-1, log=True),
            "weight_decay": FloatDistribution(1e-6, 1e-2, log=True),
            "dropout": FloatDistribution(0, 0.6),
            "momentum": FloatDistribution(0.5, 0.99),
            "width": FloatDistribution(16, 512, step=16),
            "depth": FloatDistribution(1, 8, step=1),
            "optimizer": CategoricalDistribution(["sgd", "adam", "adamw"]),
            "activation": CategoricalDistribution(["relu", "gelu", "tanh"]),
        }
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(study_name="trials", storage=f"sqlite:///{folder}/trials.db")
        losses = losses_of(0, epochs)
        values = dict(enumerate(losses))
        study.add_trial(
            optuna.trial.create_trial(
                params=params_of(0), distributions=spaces, value=losses[-1], intermediate_values=values
            )
        )
        with contextlib.closing(sqlite3.connect(folder / "trials.db")) as base, base:
            base.row_factory = sqlite3.Row
            (first,) = base.execute("SELECT * FROM trials")
            (value,) = base.execute("SELECT objective, value_type FROM trial_values")
            kinds = dict(base.execute("SELECT param_name, distribution_json FROM trial_params"))
            for number in range(1, trials):
                losses, own = losses_of(number, epochs), {"trial_id": first["trial_id"] + number}
                params = [
                    own
                    | {"param_name": name, "param_value": spaces[name].to_internal_repr(chosen)}
                    | {"distribution_json": kinds[name]}
                    for name, chosen in params_of(number).items()
                ]
                steps = [
                    own | {"step": step, "intermediate_value": loss, "intermediate_value_type": "FINITE"}
                    for step, loss in enumerate(losses)
                ]
                _insert(base, "trials", [dict(first) | own | {"number": number}])
                _insert(base, "trial_params", params)
                _insert(base, "trial_values", [dict(value) | own | {"value": losses[-1]}])
                _insert(base, "trial_intermediate_values", steps)

    def command(self, folder: Path, port: int) -> list[str | Path]:
        program = environment("dashboards").with_name("optuna-dashboard")
        return [
            program,
            f"sqlite:///{folder}/trials.db",
            "--port",
            str(port),
            "--server",
            "wsgiref",
            "--quiet",
        ]

    def read(self, address: str, number: int) -> tuple[int, dict[str, Any], list[float]]:
        trials = asked(f"{address}/api/studies/1")["trials"]
        params = {each["name"]: each["param_external_value"] for each in trials[number]["params"]}
        return len(trials), params, [each["value"] for each in trials[number]["intermediate_values"]]

    def views(self, address: str, trials: int) -> list[View]:
        return [
            View(
                "history and curves",
                "/dashboard/studies/1",
                "all trials",
                "#graph-intermediate-values .scatterlayer .trace",
                trials,
                (("curves", "#graph-intermediate-values .nsewdrag"),),
            ),
            View(
                "parallel coordinates",
                "/dashboard/studies/1/smartSelection",
                "all trials",
                _AXIS,
                9,  # of eight hyperparameters and the value
                (("parallel coordinates", _LINES),),
                _AXIS,
            ),
        ]


class MLflow(Dashboard):
    """The table of runs; the curves of some; and the comparison of all, which has parallel coordinates."""

    name = "MLflow"

    def write(self, folder: Path, trials: int, epochs: int) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        client = MlflowClient(f"sqlite:///{folder}/trials.db")
        experiment = client.create_experiment("trials", artifact_location=(folder / "artifacts").as_uri())
        begin = BEGIN * 1000
        run = client.create_run(experiment, run_name="trial 0", start_time=begin).info
        client.log_batch(
            run.run_id,
            metrics=[
                Metric("loss", loss, begin + step, step) for step, loss in enumerate(losses_of(0, epochs))
            ],
            params=[Param(name, str(value)) for name, value in params_of(0).items()],
        )
        client.set_terminated(run.run_id, end_time=begin + epochs)
        with contextlib.closing(sqlite3.connect(folder / "trials.db")) as base, base:
            base.row_factory = sqlite3.Row
            (first,) = base.execute("SELECT * FROM runs")
            for number in range(1, trials):
                run_id, at = f"{random.Random(number).getrandbits(128):032x}", begin + number * 1000
                own, name = {"run_uuid": run_id}, f"trial {number}"
                when = {"start_time": at, "end_time": at + epochs}
                where = {"artifact_uri": first["artifact_uri"].replace(run.run_id, run_id)}
                metrics = [
                    own | {"key": "loss", "value": loss, "timestamp": at + step, "step": step, "is_nan": 0}
                    for step, loss in enumerate(losses_of(number, epochs))
                ]
                params = [own | {"key": key, "value": str(value)} for key, value in params_of(number).items()]
                _insert(base, "runs", [dict(first) | own | when | where | {"name": name}])
                _insert(base, "tags", [own | {"key": "mlflow.runName", "value": name}])
                _insert(base, "params", params)
                _insert(base, "metrics", metrics)
                _insert(base, "latest_metrics", metrics[-1:])

    def command(self, folder: Path, port: int) -> list[str | Path]:
        program = environment("dashboards").with_name("mlflow")
        store = ["--backend-store-uri", f"sqlite:///{folder}/trials.db", "--no-serve-artifacts"]
        store += ["--default-artifact-root", str(folder / "artifacts")]
        return [program, "server", "--workers", "1", "--port", str(port), *store]

    def read(self, address: str, number: int) -> tuple[int, dict[str, Any], list[float]]:
        runs = self._runs(address)
        run = next(each for each in runs if each["info"]["run_name"] == f"trial {number}")
        query = urllib.parse.urlencode({"run_id": run["info"]["run_id"], "metric_key": "loss"})
        history = asked(f"{address}/api/2.0/mlflow/metrics/get-history?{query}")["metrics"]
        params = {each["key"]: each["value"] for each in run["data"]["params"]}
        return (
            len(runs),
            params,
            [each["value"] for each in sorted(history, key=lambda each: int(each["step"]))],
        )

    def views(self, address: str, trials: int) -> list[View]:
        runs = json.dumps([each["info"]["run_id"] for each in self._runs(address)], separators=(",", ":"))
        query = urllib.parse.urlencode({"runs": runs, "experiments": '["1"]'})
        first = f"the last {min(trials, 100):,} of {trials:,} trials, more by clicks"
        few = f"the last {min(trials, 10):,} of {trials:,} trials"
        page = "/#/experiments/1/runs?compareRunsMode="
        curves = (("curves", ".js-plotly-plot .nsewdrag"),)
        lines = (("parallel coordinates", _LINES),)
        return [
            View("table", f"{page}TABLE", first, ".ag-row", min(trials, 10)),
            View(
                "curves", f"{page}CHART", few, ".js-plotly-plot .scatterlayer .trace", min(trials, 10), curves
            ),
            View(
                "parallel coordinates",
                f"/#/compare-runs?{query}",
                "all trials, three of their hyperparameters",
                _AXIS,
                4,
                lines,
                _AXIS,
            ),
        ]

    def _runs(self, address: str) -> list[dict[str, Any]]:
        body = {"experiment_ids": ["1"], "max_results": 50_000}
        return list(asked(f"{address}/api/2.0/mlflow/runs/search", body)["runs"])


class TensorBoard(Dashboard):
    """Curves beside the list of runs, and parallel coordinates of hyperparameters."""

    name = "TensorBoard"

    def write(self, folder: Path, trials: int, epochs: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        done = plugin_data_pb2.SessionEndInfo(status=1, end_time_secs=BEGIN + epochs)
        about = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=done))
        end = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=about, tensor=metadata.NULL_TENSOR)
        for number in range(trials):
            run = folder / "runs" / f"trial-{number:05d}"
            run.mkdir(parents=True)
            begin = hparams_pb(params_of(number), trial_id=run.name, start_time_secs=BEGIN)
            events = [
                Event(wall_time=BEGIN, file_version="brain.Event:2"),
                Event(wall_time=BEGIN, summary=begin),
            ]
            for step, loss in enumerate(losses_of(number, epochs)):
                scalar = Summary(value=[Summary.Value(tag="loss", simple_value=loss)])
                events.append(Event(wall_time=BEGIN + step, step=step, summary=scalar))
            events.append(Event(wall_time=BEGIN + epochs, summary=Summary(value=[end])))
            with (run / f"events.out.tfevents.{BEGIN}.localhost").open("wb") as file:
                writer = RecordWriter(file)
                for event in events:
                    writer.write(event.SerializeToString())

    def command(self, folder: Path, port: int) -> list[str | Path]:
        # A module that its builds without TensorFlow have: without it, it would load the whole of TensorFlow.
        light = "import sys, types; sys.modules['tensorboard.compat.notf'] = types.ModuleType('notf')"
        code = f"{light}; from tensorboard.main import run_main; run_main()"
        return [environment("dashboards"), "-c", code, "--logdir", str(folder / "runs"), "--port", str(port)]

    def read(self, address: str, number: int) -> tuple[int, dict[str, Any], list[float]]:
        data, name = f"{address}/data/plugin", f"trial-{number:05d}"
        count = len(asked(f"{data}/scalars/tags"))
        losses = [value for _, _, value in asked(f"{data}/scalars/scalars?tag=loss&run={name}")]
        states = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
        body = {"startIndex": number, "sliceSize": 1, "colParams": [], "allowedStatuses": states}
        (group,) = asked(f"{data}/hparams/session_groups", body)["sessionGroups"] or [{"hparams": {}}]
        return count, group["hparams"], losses

    def views(self, address: str, trials: int) -> list[View]:
        def choose_all(page: Page) -> None:
            page.locator("runs-data-table tb-data-table-content-row").nth(trials - 1).wait_for(
                state="attached"
            )
            box = page.locator("runs-data-table tb-data-table-header-cell input[type=checkbox]").first
            if not box.is_checked():
                box.click()

        def widen(page: Page) -> None:
            size = page.locator("tf-hparams-query-pane paper-input[label^='Max #'] input")
            size.fill(str(trials))
            size.press("Enter")
            page.get_by_text("Parallel Coordinates View").click()

        lines = "tf-hparams-parallel-coords-plot svg"
        return [
            View(
                "curves and runs",
                "/#timeseries",
                "all trials, after the click that chooses them",
                "scalar-card tb-data-table-content-row",
                trials,
                (("curves", "scalar-card line-chart-interactive-view svg"),),
                clicks=choose_all,
            ),
            View(
                "parallel coordinates",
                "/#hparams",
                "all trials, after the number on a page is set",
                f"{lines} path",
                2 * trials,
                (("parallel coordinates", lines),),
                clicks=widen,
            ),
        ]


PEERS: list[Dashboard] = [OptunaDashboard(), MLflow(), TensorBoard()]
