"""Python processes that tests start, forked off one that has imported what they need instead of started from nothing.

``install`` makes ``subprocess.Popen`` do so for this interpreter with ``-c``, ``-m`` or a script, and
``multiprocessing`` where it would start Python anew, in this process and in those that it starts so; git starts
``COMMAND``, which asks for one. What starts is a process like any other: with its own signals, descriptors,
environment, folder and exit code; it can be killed, and a killed parent leaves it behind. What is different: its parent
is the process that forks (``main``; ``PARENT`` tells the other), and modules are there already. One that is to have a
session of its own gets another process that forks, in that session: nothing from outside can join its groups of
processes. Programs that could notice (``NOTICED``), and environments that Python or a library reads when it starts
(``READ_AT_START``), get an interpreter of their own. The fixture ``fresh_processes`` does so for a whole test.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib.machinery
import io
import os
import pickle
import re
import runpy
import secrets
import selectors
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

MODULES = (
    "numpy",
    "pandas",
    "pyarrow.parquet",
    "pyarrow.compute",
    "pyarrow.dataset",
    "torch",
    "torch._dynamo",
    "hopyard.backend._worker",
    "hopyard.cli.data",
    "hopyard.cli.demo",
    "hopyard.cli.plan",
    "hopyard.cli.stock",
    "hopyard.cli.stock_reproduce",
    "hopyard.cli.tree",
    "hopyard.stockroom",
    "hopyard.torch",
    "hopyard.training.unit",
    "hopyard.tune",
    "hopyard.tune.tensorboard",
)
OF_RAY = (
    "attr", "click", "filelock", "jsonschema", "psutil", "pydantic.main", "pydantic.v1", "requests", "yaml",
)  # fmt: skip
"""What Ray's workers import, but for Ray, which reads their environment when it is imported, and for plugins of pytest,
which it has to import itself."""
MORE = {
    "keras": ("keras", "hopyard.keras", "hopyard.training.keras.replica"),
    "lightning": ("lightning.pytorch", "hopyard.lightning"),
}
"""Modules that other programs would notice."""
WITH = "HOPYARD_TESTS_WITH"
"""The variable that says which of them a process is forked with."""
NOTICED = re.compile(r"\bresource\.|\b(sys\.modules|meta_path|find_spec|VmRSS|RssAnon|prctl|tracemalloc)\b")
READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "GLIBC", "MALLOC", "ARROW_", "TORCH", "JAX", "XLA", "TF_")
NO_MATTER = (
    "TORCHINDUCTOR_CACHE_DIR", "TF_CPP_MIN_LOG_LEVEL", "PYTHONPATH", "PYTHONFAULTHANDLER", "PYTHONBREAKPOINT",
    "TORCHELASTIC_", "TORCH_NCCL_",
)  # fmt: skip
"""Beginnings of variables that keep no process from being forked: importing PyTorch's compiler or Keras sets the first
two; a fork follows the next two; Ray sets the fifth, which no test uses; the others are read where PyTorch trains with
several processes, which torchrun starts."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
HASHING = {"PYTHONHASHSEED": "0"}  # as workers have it; the tests themselves hash by another seed
FRESH = "HOPYARD_TESTS_FRESH"
"""With this variable in its environment a process is started from nothing."""
PARENT = "HOPYARD_TESTS_PARENT"
"""The variable that tells a forked process which one asked for it, as its parent would be."""

_PYTHON = sys.executable  # which tests may change
_HUGE, _MADV_COLLAPSE = 2 << 20, 25  # bytes of a page; of Linux 6.1
_SIZE = struct.Struct("!I")
_TOP = 256  # no descriptor of a process that forks is above
_ANSWER = struct.Struct("!qd")  # a process id or an exit status, and CPU seconds


class Request(NamedTuple):
    """A process to be: what ``Popen`` was given, and what a child has of its parent; without a group: a new session."""

    arguments: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    descriptors: tuple[int, ...]
    group: int | None
    owner: int
    parent: int
    ignored: tuple[int, ...]
    blocked: tuple[int, ...]
    umask: int


# In processes that start others


class Forks:
    """The connection of a process, and of those it starts, to the one that forks.

    Attributes:
        address: of the process that forks: a socket without a file.
        owner: process id of the tests, which CPU seconds are counted for.
        session: of the process that forks, which no process in another one is forked for.
        environment: what Python and libraries have read of it.
    """

    def __init__(self, address: str, owner: int, session: int, environment: Mapping[str, str]) -> None:
        self.address = address
        self.owner = owner
        self.session = session
        self.environment = _read_at_start(environment)

    def takes(self, arguments: Sequence[str], folder: str, environment: Mapping[str, str]) -> bool:
        """Whether a process is none the worse for being forked."""
        if arguments[0] != _PYTHON or os.getsid(0) != self.session:
            return False
        text = _program(arguments[1:], folder)
        if text is None or NOTICED.search(text):
            return False
        if "keras" in _imported and not _on_tensorflow(environment):
            return False
        return _read_at_start(environment) == self.environment

    def start(self, request: Request, descriptors: Sequence[int]) -> Process:
        address, more = self.address, request.environment.get(WITH)
        if more == "keras" and not _on_tensorflow(request.environment):
            more = None
        if more is not None and more not in _imported:
            _ask(address, (more,))
            address = _address_with(address, more)
        connection = _connected(address)
        try:
            data = pickle.dumps(tuple(request))
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            connection.sendmsg([_SIZE.pack(len(data))], [rights])
            connection.sendall(data)
            pid, _ = _ANSWER.unpack(_exactly(connection, _ANSWER.size))
        except BaseException:
            connection.close()
            raise
        return Process(int(pid), connection)

    def cpu(self) -> float:
        """CPU seconds of the owner's processes that have ended."""
        return _count(self.address, self.owner, 0.0)


def _connected(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    return connection


def _on_tensorflow(environment: Mapping[str, str]) -> bool:
    """Whether Keras is imported with the backend that it has in the process that forks with it."""
    return environment.get("KERAS_BACKEND", "tensorflow") == "tensorflow"


def _address_with(address: str, more: str) -> str:
    """Of the process that forks with more modules than the one at ``address``."""
    return f"{address}-{more}"


def _ask(address: str, asked: tuple[object, ...]) -> float:
    """Ask for what is no process; the number that is the answer."""
    with _connected(address) as connection:
        data = pickle.dumps(asked)
        connection.sendall(_SIZE.pack(len(data)) + data)
        _, answer = _ANSWER.unpack(_exactly(connection, _ANSWER.size))
    return float(answer)


def _count(address: str, owner: int, more: float) -> float:
    """Add CPU seconds to those of an owner; how many there are then."""
    return _ask(address, (owner, more))


class Process:
    """A forked process, as the one that asked for it sees it."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.connection = connection
        self.owner = os.getpid()

    def __del__(self) -> None:
        self.connection.close()  # of a process that nobody has waited for, as Ray's

    def wait(self, flags: int) -> tuple[int, int]:
        """What ``os.waitpid`` returns."""
        if os.getpid() != self.owner:
            raise ChildProcessError
        if flags & os.WNOHANG:
            with selectors.PollSelector() as selector:
                selector.register(self.connection, selectors.EVENT_READ)
                if not selector.select(0):
                    return 0, 0
        with self.connection:
            try:
                status, _ = _ANSWER.unpack(_exactly(self.connection, _ANSWER.size))
            except EOFError:  # the process that forks is gone, and what it forked with it
                status = signal.SIGKILL
        return self.pid, int(status)


def _request(
    forks: Forks, arguments: Sequence[str], folder: str, environment: dict[str, str], descriptors: Sequence[int],
    group: int | None,
) -> Request:  # fmt: skip
    """For a process with more descriptors than the first three."""
    mask = os.umask(0)
    os.umask(mask)
    return Request(
        tuple(arguments[1:]),
        folder,
        environment,
        (0, 1, 2, *descriptors),
        group,
        forks.owner,
        os.getpid(),
        tuple(
            number
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)
            if signal.getsignal(number) is signal.SIG_IGN
        ),
        tuple(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        mask,
    )


def install(forks: Forks | Callable[[], Forks], *, spawn: bool = True) -> None:
    """Let ``subprocess.Popen`` fork from now on; a function is called when something is forked first.

    Args:
        spawn: whether ``multiprocessing`` does so, too, where it would start Python anew.
    """
    execute, try_wait, poll = (
        subprocess.Popen._execute_child,  # type: ignore[attr-defined]
        subprocess.Popen._try_wait,  # type: ignore[attr-defined]
        subprocess.Popen._internal_poll,  # type: ignore[attr-defined]
    )
    made: list[Forks] = []
    lock = threading.Lock()

    def connected() -> Forks:
        with lock:
            if not made:
                made.append(forks if isinstance(forks, Forks) else forks())
            return made[0]

    def execute_child(
        self: Any, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Any, cwd: Any, env: Any,
        startupinfo: Any, creationflags: Any, shell: bool, *more: Any,
    ) -> None:  # fmt: skip
        *pipes, _, gid, gids, uid, umask, start_new_session, process_group = more
        plain = not shell and preexec_fn is None and executable is None and close_fds
        plain = plain and gid is None and gids is None and uid is None and umask == -1 and process_group == -1
        arguments = [] if isinstance(args, (str, bytes, os.PathLike)) else [os.fsdecode(a) for a in args]
        environment = dict(os.environ if env is None else env)
        plain = plain and arguments[:1] == [_PYTHON] and FRESH not in environment
        folder = str(Path(os.fsdecode("." if cwd is None else cwd)).absolute())
        plain = plain and Path(folder).is_dir()
        if not plain or not connected().takes(arguments, folder, environment):
            execute(
                self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                *more,
            )  # fmt: skip
            return
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        standard = [given if given != -1 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        request = _request(
            connected(), arguments, folder, environment, pass_fds, None if start_new_session else os.getpgrp()
        )
        self._forked = connected().start(request, [*standard, *pass_fds])
        self.pid = self._forked.pid
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def wait(self: Any, flags: int) -> tuple[int, int]:
        forked = getattr(self, "_forked", None)
        if forked is None:
            return try_wait(self, flags)  # type: ignore[no-any-return]
        try:
            return forked.wait(flags)  # type: ignore[no-any-return]
        except ChildProcessError:
            return self.pid, 0

    def internal_poll(self: Any, _deadstate: Any = None, **changes: Any) -> Any:
        forked = getattr(self, "_forked", None)
        if forked is None:
            return poll(self, _deadstate, **changes)
        return poll(self, _deadstate, _waitpid=lambda _, flags: forked.wait(flags))

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
    subprocess.Popen._try_wait = wait  # type: ignore[attr-defined]
    subprocess.Popen._internal_poll = internal_poll  # type: ignore[attr-defined]
    if spawn:
        _install_spawn(connected)


def _install_spawn(connected: Callable[[], Forks]) -> None:
    from multiprocessing import popen_spawn_posix, util

    start, poll = util.spawnv_passfds, popen_spawn_posix.Popen.poll
    running: dict[int, Process] = {}

    def start_forked(path: Any, args: Any, passfds: Sequence[int]) -> int:
        arguments, folder, environment = [os.fsdecode(a) for a in args], str(Path.cwd()), dict(os.environ)
        plain = arguments[-1] == "--multiprocessing-fork" and FRESH not in environment
        if not plain or not connected().takes(arguments, folder, environment):
            return int(start(path, args, passfds))
        request = _request(connected(), arguments, folder, environment, passfds, os.getpgrp())
        process = connected().start(request, [0, 1, 2, *passfds])
        running[process.pid] = process
        return process.pid

    def poll_forked(self: Any, flag: int = os.WNOHANG) -> Any:
        if self.returncode is None and self.pid in running:
            try:
                pid, status = running[self.pid].wait(flag)
            except ChildProcessError:  # of the process that forked this one
                return None
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                del running[pid]
            return self.returncode
        return poll(self, flag)

    util.spawnv_passfds = start_forked
    popen_spawn_posix.Popen.poll = poll_forked  # type: ignore[method-assign]


ADDRESS = "HOPYARD_TESTS_FORKS"
"""The variable that has the address for all processes of a run of the tests, and whose CPU seconds are counted."""
COMMAND = f"{shlex.quote(sys.executable)} -I -S {shlex.quote(str(Path(__file__).absolute()))} run"
"""For programs that know nothing of all this: as ``python``, but forked where that is possible."""

_started: list[subprocess.Popen[bytes]] = []
_forks: list[Forks] = []
_imported: set[str] = set()  # of MORE, in this process


def start() -> None:
    """Start the process that forks; it lives as long as this one."""
    with _listen() as listener:
        environment = {**os.environ, **dict.fromkeys(THREADS, "1"), **HASHING, FRESH: "1"}
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        command = [sys.executable, __file__, str(listener.fileno())]
        _started.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, pass_fds=[listener.fileno()])
        )
        name = listener.getsockname()[1:].decode()
    os.environ[ADDRESS] = f"{os.getsid(0)} {name}"


def _listen(address: str | None = None) -> socket.socket:
    """A socket without a file, at which whoever asks by now waits; without an address, at a new one."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address or f"\0hopyard-tests-{os.getpid()}-{secrets.token_hex(8)}")
    listener.listen(64)
    return listener


def count_apart() -> None:
    """Count CPU seconds for this process from here on, not for the one that started it."""
    if ADDRESS in os.environ:
        session, name, *_ = os.environ[ADDRESS].split()
        os.environ[ADDRESS] = f"{session} {name}"


def connect() -> Forks:
    """The forks of this run of the tests."""
    if not _forks:
        if ADDRESS not in os.environ:
            start()
        session, name, *owner = os.environ[ADDRESS].split()
        owner = owner or [str(os.getpid())]
        os.environ[ADDRESS] = " ".join((session, name, *owner))
        _forks.append(Forks("\0" + name, int(*owner), int(session), os.environ))
    return _forks[0]


def cpu() -> float:
    """CPU seconds of all that was forked for this process and has ended."""
    return _forks[0].cpu() if _forks else 0.0


def close() -> None:
    for process in _started:
        process.kill()
        process.communicate()


def _warnings(arguments: Sequence[str]) -> tuple[list[str], Sequence[str]]:
    """What the options ``-W`` say, and the arguments behind them."""
    options = []
    while len(arguments) > 1 and arguments[0] == "-W":
        options.append(arguments[1])
        arguments = arguments[2:]
    return options, arguments


def _program(arguments: Sequence[str], folder: str) -> str | None:
    """The text of a program, or the name of a module; None: of a program that cannot be forked."""
    _, arguments = _warnings(arguments)
    if len(arguments) > 1 and arguments[0] in ("-c", "-m"):
        return arguments[1]
    if not arguments or arguments[0].startswith("-"):
        return None
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(folder, arguments[0]).read_text()
    return None


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """What of it matters; whether it asks for the hash seed that all have makes no difference."""
    read = {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}
    return HASHING | {name: value for name, value in read.items() if not name.startswith(NO_MATTER)}


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


# In the process that forks


def _import_if_there(names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(ImportError):  # which programs will say
            importlib.import_module(name)


def _keep() -> None:
    """Let no process that is forked look through what was imported, neither for garbage nor when it ends."""
    gc.collect()
    gc.freeze()
    # PyTorch would take back each of its operators: 9,000 pages written to, most of what a short process costs.
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    _collapse()


def _collapse() -> None:
    """Lay what was imported into huge pages, where Linux can: a fork copies and drops a table of all pages."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, file, *_ = line.split()
        first, end = (int(address, 16) for address in addresses.split("-"))
        first, end = -(-first // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if rights == "rw-p" and file == "0" and first < end:
            madvise(first, end - first, _MADV_COLLAPSE)


def main(descriptor: int) -> None:
    """Import what programs need, and fork what is asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in MODULES:
        importlib.import_module(name)
    _import_if_there(OF_RAY)
    sys.path[0] = ""  # which was the folder of this file
    _keep()
    _fork(socket.socket(fileno=descriptor))


def _fork(listener: socket.socket, above: str | None = None) -> NoReturn:
    """Fork what is asked for, until standard input ends. In a forked process: run what it is to run.

    Args:
        above: where to say how many CPU seconds all that took.
    """
    address = listener.getsockname().decode()
    selector = selectors.PollSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    running: dict[int, tuple[int, int, socket.socket]] = {}  # by the descriptor of each process
    seconds: dict[int, float] = {}  # by owner
    others: set[str] = set()  # of MORE, with which other processes fork

    def count(owner: int, used: float) -> None:
        seconds[owner] = seconds.get(owner, 0.0) + used
        if above is not None:
            with contextlib.suppress(OSError, EOFError):  # all tests have ended
                _count(above, owner, used)

    while True:
        for key, _ in selector.select():
            if key.fd == 0:
                os._exit(0)
            if key.fd in running:
                pid, owner, connection = running.pop(key.fd)
                selector.unregister(key.fd)
                os.close(key.fd)
                _, status, usage = os.wait4(pid, 0)
                count(owner, usage.ru_utime + usage.ru_stime)
                with contextlib.suppress(OSError), connection:
                    connection.sendall(_ANSWER.pack(status, 0))
                continue
            connection, _ = listener.accept()
            try:
                asked, descriptors = _receive(connection)
            except (OSError, EOFError):  # which was killed meanwhile
                connection.close()
                continue
            if len(asked) == 2:
                owner, used = asked
                count(owner, used)
                with contextlib.suppress(OSError), connection:
                    connection.sendall(_ANSWER.pack(0, seconds[owner]))
                continue
            if len(asked) == 1:
                (more,) = asked
                if more not in others:
                    others.add(more)
                    own = [other.fileno() for other in (listener, connection)]
                    own += [*running, *(other.fileno() for *_, other in running.values())]
                    _fork_with(more, listener.getsockname().decode(), own)
                with contextlib.suppress(OSError), connection:
                    connection.sendall(_ANSWER.pack(0, 0))
                continue
            request = Request(*asked)
            settled, settle = os.pipe()
            if (pid := os.fork()) == 0:
                own = [listener.fileno(), connection.fileno(), settled, settle, *running]
                own += [other.fileno() for *_, other in running.values()]
                if request.group is None:
                    address = _new_session(address, [*own, *descriptors])
                else:
                    with contextlib.suppress(OSError):  # the group has ended meanwhile
                        os.setpgid(0, request.group)
                os.write(settle, b".")
                _become(request, descriptors, own)
                install(Forks(address, request.owner, os.getsid(0), os.environ))
                _run(request.arguments)
            for descriptor in (*descriptors, settle):
                os.close(descriptor)
            os.read(
                settled, 1
            )  # whoever asked may ask for its group, and signal that, as soon as there is an answer
            os.close(settled)
            running[descriptor := os.pidfd_open(pid)] = pid, request.owner, connection
            selector.register(descriptor, selectors.EVENT_READ)
            with contextlib.suppress(OSError):
                connection.sendall(_ANSWER.pack(pid, 0))


def _fork_with(more: str, above: str, own: Sequence[int]) -> None:
    """Start a process that imports more modules, and forks until standard input ends."""
    listener = _listen(_address_with(above, more))
    if os.fork() != 0:
        listener.close()
        return
    for descriptor in own:
        os.close(descriptor)
    _import_if_there(MORE[more])
    _imported.add(more)
    _keep()
    _fork(listener, above)


def _receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """What is asked for, with the descriptors that came along."""
    head, descriptors, _, _ = socket.recv_fds(connection, _SIZE.size, 64)
    if len(head) < _SIZE.size:
        raise EOFError
    return pickle.loads(_exactly(connection, *_SIZE.unpack(head))), descriptors


def _new_session(above: str, own: Sequence[int]) -> str:
    """Begin a session with a process that forks for it until this one ends, and is not its child; where to ask."""
    os.setsid()
    reading, writing = os.pipe()
    end = fcntl.fcntl(writing, fcntl.F_DUPFD_CLOEXEC, _TOP)
    os.close(writing)
    listener = _listen()
    address: str = listener.getsockname().decode()
    if (pid := os.fork()) == 0:
        if os.fork() != 0:
            os._exit(0)
        os.setpgid(0, 0)
        for descriptor in (*own, end):
            os.close(descriptor)
        os.dup2(reading, 0)
        os.close(reading)
        _fork(listener, above)
    os.waitpid(pid, 0)
    os.close(reading)
    listener.close()
    return address


def _become(request: Request, descriptors: Sequence[int], own: Sequence[int]) -> None:
    """Make this process the one that was asked for."""
    top = 1 + max(request.descriptors)
    moved = []
    for descriptor in descriptors:  # so that none stands where another belongs
        while descriptor < top:
            descriptor = os.dup(descriptor)
        moved.append(descriptor)
    for descriptor in own:
        os.close(descriptor)
    for descriptor, number in zip(moved, request.descriptors, strict=True):
        os.dup2(descriptor, number)
    os.closerange(top, _TOP)
    os.umask(request.umask)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    os.environ[PARENT] = str(request.parent)
    if request.environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.path[1:1] = filter(None, request.environment.get("PYTHONPATH", "").split(os.pathsep))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request.ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
    # The objects of the process that forks believe that they can seek, or cannot.
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(  # type: ignore[misc]
        io.BufferedReader(io.FileIO(0, closefd=False)), sys.stdin.encoding
    )
    sys.stdout = sys.__stdout__ = _writer(1, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _writer(2, sys.stderr)  # type: ignore[misc]
    import numpy as np
    import torch

    np.random.seed()
    threads = request.environment.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(int(threads) if threads.isdigit() else len(os.sched_getaffinity(0)))


def _writer(descriptor: int, like: Any) -> io.TextIOWrapper:
    binary = io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False))
    is_prompt = descriptor == 2 or binary.isatty()
    return io.TextIOWrapper(
        binary, like.encoding, like.errors, line_buffering=is_prompt, write_through=like.write_through
    )


def _run(arguments: Sequence[str]) -> NoReturn:
    """What Python does with these arguments, but in this process, whose end is that of the program."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["tests.forked"] = sys.modules["__main__"]
    sys.modules["__main__"] = module
    importlib.invalidate_caches()
    sys.orig_argv[:] = [sys.executable, *arguments]
    code: object = None
    try:
        _execute(arguments, module)
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = error if isinstance(error, KeyboardInterrupt) else 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    # What the interpreter would do with its own modules takes a third of a second, and nobody sees it.
    module.__dict__.clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or None
            stream.flush()
    if isinstance(code, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


def _execute(arguments: Sequence[str], module: types.ModuleType) -> None:
    options, arguments = _warnings(arguments)
    sys.warnoptions += options
    warnings._processoptions(options)  # type: ignore[attr-defined]
    kind, *rest = arguments
    if kind == "-m":
        sys.argv[:] = ["-m", *rest[1:]]
        sys.path[0] = os.getcwd()  # noqa: PTH109
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif kind == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), module.__dict__)
    else:
        file = str(Path(kind).absolute())
        sys.argv[:] = arguments
        sys.path[0] = str(Path(file).resolve().parent)
        module.__file__ = file
        module.__loader__ = importlib.machinery.SourceFileLoader("__main__", file)
        exec(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True), module.__dict__)


# For programs that know nothing of it


def run(arguments: Sequence[str]) -> int:
    """Run Python with these arguments, forked where that is possible; its exit status."""
    if ADDRESS in os.environ:
        install(connect, spawn=False)  # which takes longer to import than all else here
    return subprocess.call([sys.executable, *arguments])


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(run(sys.argv[2:]))
    main(int(sys.argv[1]))
