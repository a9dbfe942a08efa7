"""The notice that the driver is to end: real signals, while units run on real workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.errors import Preempted, StorageFullError
from hopyard.hopper import notice as notices
from hopyard.hopper.history import broken_rules, committed_units
from hopyard.hopper.notice import SIGNALS, Notice
from hopyard.hopper.work import Options
from hopyard.storage import LocalStore, MemoryStore

AGAIN = "run the same script again to go on."


@pytest.fixture(scope="module")
def local() -> Iterator[LocalBackend]:
    with LocalBackend(num_workers=3) as backend:
        yield backend


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Signals are handled after each test as before it."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


def silent(message: str) -> None:
    pass


@contextmanager
def preempted(grace: float = 60.0, announce: Callable[[str], None] = silent) -> Iterator[Notice]:
    """Listen for the notice, which must be given."""
    with pytest.raises(Preempted) as raised, Notice(grace, announce) as notice:
        yield notice
    assert raised.value.code == os.EX_TEMPFAIL == 75


def play(run: Any, grace: float = 60.0) -> list[str]:
    """Drive a run whose driver is told to end. Gives what is said at the end."""
    said: list[str] = []
    with preempted(grace, said.append) as run.notice:
        run.notice.check()
        run.play()
    run.notice = None
    return said


def check_goes_on(run: Any, expected: Any, result_of: Any) -> None:
    """Whoever goes on comes to the same outcome, and does no unit twice that was done."""
    assert result_of(run.play()) == expected
    assert broken_rules(run.records()) == []
    units = [(record["t"][0], record["v"]) for record in run.records() if record["r"] == "unit"]
    assert len(units) == len(set(units))


def finishes(run: Any) -> list[str]:
    return [record["status"] for record in run.records() if record["r"] == "finish"]


class In:
    """A behaviour: signals to the driver in a visit of trial 1, once; then perhaps a wait that nothing ends."""

    def __init__(
        self, folder: Path, numbers: Any, then: Callable[[], object] = lambda: None, visit: int = 2
    ) -> None:
        self.folder, self.numbers, self.then, self.visit = folder, numbers, then, visit
        self.driver = os.getpid()
        (folder / "begun").mkdir()

    def __call__(self, request: Any) -> None:
        visit, told = request.unit.visit, self.folder / "told"
        (self.folder / "begun" / f"{request.trial}-{visit}").touch()
        if (request.trial, visit) == (1, self.visit) and not told.exists():
            told.write_text(str(os.getpid()))
            for number in self.numbers:
                os.kill(self.driver, number)
            self.then()

    def begun(self) -> set[str]:
        return {path.name for path in (self.folder / "begun").iterdir()}


def for_ever() -> None:
    threading.Event().wait()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("number", SIGNALS)
def test_no_more_units_are_begun_and_those_under_way_end(
    number: int, game: Any, result_of: Any, local: LocalBackend, tmp_path: Path
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    tells = In(tmp_path, [number])
    run = game(LocalStore(tmp_path / "store"), local, behaviour=tells)
    name = signal.Signals(number).name
    assert play(run) == [f"preempted by {name} before its first unit; {AGAIN}"]
    [said] = run.messages
    assert said.startswith(f"{name}: no more units are begun; up to 60 seconds for the ")
    assert said.endswith((" unit under way.", " units under way."))
    done = committed_units(run.records())
    assert {f"{unit['t'][0]}-{unit['v']}" for unit in done} == tells.begun()
    [told] = [unit for unit in done if (unit["t"], unit["v"]) == ([1], 2)]
    assert [unit for unit in done if unit["a"] > told["z"]] == []
    assert run.records()[-1]["status"] == "preempted"
    check_goes_on(run, expected, result_of)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_unit_in_the_driver_ends_and_no_more_is_begun(
    number: int, game: Any, result_of: Any, tmp_path: Path
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    tells = In(tmp_path, [number])
    run = game(MemoryStore(), InlineBackend(), behaviour=tells)
    play(run)
    name = signal.Signals(number).name
    assert run.messages == [f"{name}: no more units are begun; up to 60 seconds for the 1 unit under way."]
    done = committed_units(run.records())
    assert (done[-1]["t"], done[-1]["v"]) == ([1], 2)
    assert len(done) == len(tells.begun())
    assert finishes(run) == ["preempted"]
    check_goes_on(run, expected, result_of)
    assert finishes(run) == ["preempted", "completed"]


@pytest.mark.parametrize("grace", [0.0, 0.05])
def test_a_unit_longer_than_the_grace_is_given_up_with_its_worker(
    grace: float, game: Any, result_of: Any, tmp_path: Path
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    tells = In(tmp_path, [signal.SIGTERM], for_ever)
    with LocalBackend(num_workers=2) as backend:
        run = game(LocalStore(tmp_path / "store"), backend, behaviour=tells)
        play(run, grace)
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "told").read_text()), 0)
        assert (1, 2) not in [(unit["t"][0], unit["v"]) for unit in committed_units(run.records())]
        assert finishes(run) == ["preempted"]
        check_goes_on(run, expected, result_of)


@pytest.mark.parametrize("grace", [0.0, 0.05])
def test_a_unit_in_the_driver_that_is_longer_than_the_grace_is_given_up(
    grace: float, game: Any, result_of: Any, tmp_path: Path
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    run = game(MemoryStore(), InlineBackend(), behaviour=In(tmp_path, [signal.SIGUSR1], for_ever))
    play(run, grace)
    assert (1, 2) not in [(unit["t"][0], unit["v"]) for unit in committed_units(run.records())]
    assert finishes(run) == ["preempted"]
    check_goes_on(run, expected, result_of)


@pytest.mark.parametrize("isolated", [True, False], ids=["local", "inline"])
def test_more_signals_change_nothing(
    isolated: bool, game: Any, result_of: Any, local: LocalBackend, tmp_path: Path
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    backend = local if isolated else InlineBackend()
    tells = In(tmp_path, [signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM])
    run = game(LocalStore(tmp_path / "store"), backend, behaviour=tells)
    [said] = play(run)
    assert said.startswith("preempted by SIG")
    assert (1, 2) in [(unit["t"][0], unit["v"]) for unit in committed_units(run.records())]
    assert finishes(run) == ["preempted"]
    check_goes_on(run, expected, result_of)


def test_no_trial_fails_by_what_the_same_signal_has_ended(
    game: Any, result_of: Any, local: LocalBackend, tmp_path: Path
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    run = game(LocalStore(tmp_path / "store"), local, behaviour=In(tmp_path, [signal.SIGTERM], die))
    play(run)
    assert {record["r"] for record in run.records()} == {"run", "session", "trial", "unit", "finish"}
    check_goes_on(run, expected, result_of)


def test_what_only_a_worker_s_memory_had_is_done_again(
    game: Any, result_of: Any, local: LocalBackend, tmp_path: Path
) -> None:
    options = Options(checkpoint_every="epoch")
    expected = result_of(game(MemoryStore(), InlineBackend(), options=options).play())
    run = game(
        LocalStore(tmp_path / "store"), local, options=options, behaviour=In(tmp_path, SIGNALS, visit=1)
    )
    play(run)
    assert result_of(run.play()) == expected
    assert broken_rules(run.records()) == []


class Hears(list[str]):
    """Messages, of which one that says so is followed by a signal."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words

    def append(self, message: str) -> None:
        super().append(message)
        if self.words in message:
            signal.raise_signal(signal.SIGTERM)


def test_a_run_that_waits_for_space_ends_at_once(game: Any, result_of: Any) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    run = game(MemoryStore(), InlineBackend(), options=Options(retry_seconds=3600.0))

    def full(request: Any) -> None:
        if request.unit.visit == 1:
            raise StorageFullError("the disk is full: 0 bytes free in /data.")

    run.behaviour, run.messages = full, Hears("paused: ")
    play(run)
    assert finishes(run) == ["preempted"]
    run.behaviour = None
    check_goes_on(run, expected, result_of)


def test_a_run_that_ends_by_itself_with_the_signal_is_completed(
    game: Any, result_of: Any, tmp_path: Path
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    run = game(MemoryStore(), InlineBackend())

    def tell(state: Any, record: Any) -> None:
        if record["r"] == "end" and all(not trial.running for trial in state.trials.values()):
            signal.raise_signal(signal.SIGTERM)

    run.on_record = tell
    play(run)
    assert finishes(run) == ["completed"]
    run.on_record = None
    assert result_of(run.play()) == expected


def test_a_driver_that_is_told_before_it_begins_a_unit_begins_none(game: Any, result_of: Any) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    run = game(MemoryStore(), InlineBackend())

    def tell(state: Any, record: Any) -> None:
        if record["r"] == "session":
            signal.raise_signal(signal.SIGTERM)

    run.on_record = tell
    play(run)
    assert [record["r"] for record in run.records() if record["r"] in ("unit", "finish")] == ["finish"]
    run.on_record = None
    check_goes_on(run, expected, result_of)


# By itself


def test_while_nothing_hops_the_signal_is_an_exception_that_ends_the_process_with_75() -> None:
    said: list[str] = []
    with preempted(announce=said.append) as notice:
        notice.check()
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("nothing is raised")
    assert said == [f"preempted by SIGTERM before its first unit; {AGAIN}"]
    assert issubclass(Preempted, SystemExit)


def test_a_signal_before_the_first_check_is_raised_by_it() -> None:
    with preempted() as notice:
        signal.raise_signal(signal.SIGTERM)
        reached = True
        notice.check()
        raise AssertionError("nothing is raised")
    assert reached


def test_what_is_said_is_what_was_noted_last() -> None:
    said: list[str] = []
    with preempted(announce=said.append) as notice:
        notice.check()
        try:
            signal.raise_signal(signal.SIGUSR1)
        finally:
            notice.note("after 3 units.")
    assert said == ["preempted by SIGUSR1 after 3 units."]


@pytest.mark.parametrize("error", [BrokenPipeError, SystemExit(1)], ids=repr)
def test_a_message_that_nobody_reads_any_more_does_not_change_the_status(
    error: Any, game: Any, result_of: Any, tmp_path: Path
) -> None:
    def closed(message: str) -> None:
        raise error

    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    run = game(MemoryStore(), InlineBackend(), behaviour=In(tmp_path, [signal.SIGTERM]))
    run.messages = types.SimpleNamespace(append=closed)
    with preempted(announce=closed) as run.notice:
        run.notice.check()
        run.play()
    assert finishes(run) == ["preempted"]
    run.notice, run.messages = None, []
    check_goes_on(run, expected, result_of)


@pytest.mark.parametrize("ends", [None, KeyboardInterrupt, SystemExit(1)], ids=repr)
def test_signals_do_not_disturb_who_cleans_up(ends: Any) -> None:
    cleaned = False
    with preempted(0.0) as notice:
        notice.check()
        try:
            if ends is not None:
                raise ends
            signal.raise_signal(signal.SIGTERM)
        finally:
            for number in SIGNALS:
                signal.raise_signal(number)
            cleaned = True
    assert cleaned


def test_code_that_swallows_the_exception_hears_of_it_again_after_the_grace() -> None:
    caught = []
    with preempted(0.05) as notice:
        notice.check()
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException as error:
            caught.append(error)
        for_ever()
    assert [type(error) for error in caught] == [Preempted]


def test_a_run_loop_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that waits for a store, which does not answer."""
    monkeypatch.setattr(notices, "CLOSING", 0.05)
    told: list[str] = []
    with preempted(0.05) as notice:
        notice.check()
        with notice.deferred(lambda: told.append("told")):
            signal.raise_signal(signal.SIGTERM)
            for_ever()
    assert told == ["told"] * 3  # by the signal, at the end of the grace, and at the very end


def test_the_error_that_the_signal_has_caused_is_the_cause() -> None:

    def drive() -> None:
        with Notice(60.0, silent) as notice, notice.deferred(lambda: None):
            signal.raise_signal(signal.SIGTERM)
            raise OSError("the JVM is gone")

    with pytest.raises(Preempted) as raised:
        drive()
    assert isinstance(raised.value.__cause__, OSError)


def test_handlers_are_given_back_and_signals_that_are_ignored_stay_so(game: Any) -> None:
    heard: list[int] = []

    def own(number: int, frame: Any) -> None:
        heard.append(number)

    before = [signal.signal(signal.SIGTERM, signal.SIG_IGN), signal.signal(signal.SIGUSR1, own)]
    try:
        with Notice() as notice:
            notice.check()
            signal.raise_signal(signal.SIGTERM)
            assert signal.getsignal(signal.SIGUSR1) != own
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        signal.raise_signal(signal.SIGUSR1)
        with preempted() as notice:
            notice.check()
            signal.raise_signal(signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
        assert signal.getsignal(signal.SIGUSR1) == own
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


def test_a_library_that_took_the_signal_meanwhile_has_it_afterwards() -> None:
    """As Ray does, whose handler ends the process with another status."""
    before = signal.getsignal(signal.SIGTERM)

    def theirs(number: int, frame: Any) -> None:
        raise SystemExit(number)

    try:
        with preempted() as notice:
            notice.check()
            signal.signal(signal.SIGTERM, theirs)
            notice.check()
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == theirs
        with Notice() as notice:
            notice.check()
            signal.signal(signal.SIGTERM, before)
        assert signal.getsignal(signal.SIGTERM) == before  # whoever has it keeps it
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread_signals_are_left_alone_and_runs_come_to_their_end(
    game: Any, result_of: Any
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    before = [signal.getsignal(number) for number in SIGNALS]
    seen: list[Any] = []
    run = game(MemoryStore(), InlineBackend())

    def drive() -> None:
        with Notice() as run.notice:
            run.notice.check()
            seen.append([signal.getsignal(number) for number in SIGNALS])
            seen.append(result_of(run.play()))

    thread = threading.Thread(target=drive)
    thread.start()
    thread.join()
    assert seen == [before, expected]


FORKS = """
import os, signal
from hopyard.hopper.notice import Notice

with Notice() as notice:
    notice.check()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, b".")
        while True:
            pass
    os.read(read, 1)
    os.kill(child, signal.SIGTERM)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""


def test_processes_forked_off_the_driver_end_by_the_signal_as_ever() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{int(signal.SIGTERM)}\n", "")
