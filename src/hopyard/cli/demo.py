"""``hopyard demo``: sixteen networks on real images, in a run that is killed and goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from hopyard.backend import LocalBackend
from hopyard.cli.run import leaderboard
from hopyard.cli.terminal import console, say
from hopyard.hopper.journal import read_records
from hopyard.hopper.state import JournalRecord, RunState
from hopyard.missing import missing_extra
from hopyard.storage import LocalStore
from hopyard.tune import Callback, Model, RandomSearch, Run, TrialInfo, hp_choice, hp_loguniform, open_run

STORE = Path("experiments/digits")
TRIALS, EPOCHS, WORKERS = 16, 5, 2
PARTITIONS = 8  # so few rows would be one, between which nothing hops


def demo(
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill the run halfway, start it again, compare.")
    ] = False,
    run_id: Annotated[str | None, typer.Option(hidden=True)] = None,
    die: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Train sixteen networks on scikit-learn's digits over hopping partitions, and show the best one.

    Writes ./experiments/digits. Always a fresh run.
    """
    if kill:
        _killed_and_resumed()
    elif run_id is not None:
        search(run_id, die=die)
    else:
        _shown(search(None))


def search(run_id: str | None, *, die: bool = False, progress: bool = True) -> Model:
    """The demo's run: 1,797 images of 8 x 8 pixels, 16 networks, 5 epochs, 2 workers.

    Args:
        run_id: a name to resume it by; None: a fresh run.
        die: SIGKILL this process when half of the epochs are done.
    """
    return RandomSearch(
        backend=LocalBackend(num_workers=WORKERS, device="cpu"),
        store=LocalStore(STORE),
        estimator_gen_fn=_estimator,
        search_space={
            "width": hp_choice([32, 64, 128]),
            "lr": hp_loguniform(-4, -1),
            "batch_size": hp_choice([32, 64]),
        },
        num_models=TRIALS,
        num_epochs=EPOCHS,
        num_partitions=PARTITIONS,
        evaluation_metric="accuracy",
        run_id=run_id,
        fresh=run_id is None,
        callbacks=[_DieHalfway()] if die else (),
        progress=progress,
    ).fit(_digits())


def _digits() -> dict[str, Any]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise missing_extra("scikit-learn", "demo", "the demo") from error
    digits = load_digits()
    return {"features": (digits.data / 16).astype("float32"), "label": digits.target}


def _estimator(params: dict[str, Any]) -> Any:
    import torch

    from hopyard.torch import TorchEstimator

    model = torch.nn.Sequential(
        torch.nn.Linear(64, params["width"]), torch.nn.ReLU(), torch.nn.Linear(params["width"], 10)
    )
    return TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=torch.nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        batch_size=params["batch_size"],
    )


class _DieHalfway(Callback):
    """The hardest way to end a process, in the middle of a run."""

    def __init__(self) -> None:
        self.epochs = 0

    def on_epoch_end(self, trial: TrialInfo, epoch: int, metrics: Any) -> None:
        self.epochs += 1
        if self.epochs == TRIALS * EPOCHS // 2:
            os.kill(os.getpid(), signal.SIGKILL)


def _shown(model: Model) -> None:
    """The leaderboard, two pictures, and what to do next."""
    from hopyard.tune.pictures import draw_curves, draw_schedule

    run, best = model.run, model.info
    console().print("\n", leaderboard(run), sep="")
    pictures = STORE / "pictures"
    schedule = draw_schedule(run, pictures / f"{run.run_id}-schedule.svg")
    curves = draw_curves(run, pictures / f"{run.run_id}-curves.svg")
    hopyard, where = _program("hopyard"), f"{STORE} {run.run_id}"
    say(
        f"\nTrial {best.trial} is the best of {len(run.state.trials)}: after epoch {best.epoch} it recognises "
        f"{best.value:.1%} of the images that it was not trained on.\n\n"
        f"who was where, when   {schedule}\n"
        f"learning curves       {curves}\n"
        f"in TensorBoard        {_program('tensorboard')} --logdir {STORE / 'logs' / run.run_id}\n"
        f"the run in words      {hopyard} run describe {where}\n"
        f"the data              {hopyard} data inspect {STORE}\n"
        f"if it is ever killed  {hopyard} run resume {where}\n"
        f'the best model        {_program("python")} -c "from hopyard import open_run; from hopyard.storage import '
        f"LocalStore; print(open_run(LocalStore('{STORE}'), '{run.run_id}').best.torch())\""
    )


def _program(name: str) -> str:
    """Command for the program ``name`` of this environment: its path unless the shell finds just that one."""
    here = Path(sys.executable).parent / name
    found = shutil.which(name)
    if not here.exists() or (found and Path(found) == here):
        return name
    return str(here.relative_to(Path.cwd())) if here.is_relative_to(Path.cwd()) else str(here)


def _killed_and_resumed() -> None:
    """One run undisturbed, one killed halfway and started again; they must be the same to the last bit."""
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}"
    undisturbed, killed = f"undisturbed-{stamp}", f"killed-{stamp}"
    say("1. a run that nothing disturbs", style="bold")
    search(undisturbed)
    say("\n2. the same run, which kills itself (SIGKILL) halfway", style="bold")
    command = [sys.executable, "-m", "hopyard", "demo", "--run-id", killed]
    status = subprocess.run([*command, "--die"], check=False).returncode
    before = open_run(LocalStore(STORE), killed).state
    ending = signal.Signals(-status).name if status < 0 else f"status {status}"
    say(f"it ended by {ending} after {before.so_far}")
    say("\n3. the same command again", style="bold")
    subprocess.run(command, check=True)
    _compare(open_run(LocalStore(STORE), undisturbed), open_run(LocalStore(STORE), killed))


def _compare(undisturbed: Run, killed: Run) -> None:
    again = _done_twice(read_records(LocalStore(STORE).runs.at(killed.run_id)))
    same = _contents(undisturbed) == _contents(killed)
    _shown(killed.best)
    say(
        f"\n{killed.state.units:,} units, {again} of them done twice. Hyperparameters, every epoch's metrics and the "
        f"weights of {len(killed.models)} models, by digest, beside those of the run that nothing disturbed:"
    )
    if not same or again or killed.broken_rules():
        say("they DIFFER. This is a bug in Hopyard: please report it.", style="bold red")
        raise typer.Exit(1)
    say("the result is identical, to the last bit.", style="bold green")


def _done_twice(records: Iterable[JournalRecord]) -> int:
    units = [record for record in records if record["r"] == "unit"]
    visits = [(trial, unit["v"]) for unit in units for trial in unit["t"]]
    return len(visits) - len(set(visits))


def _contents(run: Run) -> dict[int, Any]:
    """Results of a run to compare: for every trial its point, its history, and the digest of its weights."""
    state: RunState = run.state
    return {
        number: (trial.params, trial.history, trial.best.state.digest if trial.best else None)
        for number, trial in state.trials.items()
    }
