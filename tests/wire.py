"""A way to a server that counts the bytes which pass, and network namespaces to put workers into."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit


class Wire:
    """Listens at ``url`` and passes on what comes to a server, and what that answers.

    Attributes:
        url: where it listens.
        sent, received: bytes that its clients sent to the server, and received from it.
    """

    def __init__(self, server: str, address: str = "127.0.0.1") -> None:
        place = urlsplit(server)
        self._server = str(place.hostname), place.port or 80
        self._listening = socket.create_server((address, 0))
        self._lock = threading.Lock()
        self.url = f"http://{address}:{self._listening.getsockname()[1]}"
        self.sent = self.received = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Let nobody else in."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # until it is closed
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._connect, args=[client], daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server:
            back = threading.Thread(target=self._pass_on, args=(server, client, False), daemon=True)
            back.start()
            self._pass_on(client, server, True)
            back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                with self._lock:
                    self.sent += len(data) if to_server else 0
                    self.received += 0 if to_server else len(data)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Namespace:
    """A network of its own that has one link, to this machine.

    Attributes:
        path: the file to enter it by.
        link: the link's end on this machine.
        address: of this machine on that link.
    """

    path: str
    link: str
    address: str

    def bytes_passed(self) -> tuple[int, int]:
        """Bytes that the namespace has sent and received, as the kernel counts them, with all headers."""
        folder = Path("/sys/class/net", self.link, "statistics")
        sent, received = ((folder / name).read_text() for name in ("rx_bytes", "tx_bytes"))
        return int(sent), int(received)


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[Namespace]]:
    """So many of them; none where this process may not make them."""
    made = [
        Namespace(f"/run/netns/hop{os.getpid()}-{i}", f"hop{os.getpid()}-{i}", f"10.213.{i}.1")
        for i in range(count)
    ]
    try:
        yield made if shutil.which("ip") and os.geteuid() == 0 and all(map(_make, made)) else []
    finally:
        for space in made:
            if shutil.which("ip"):
                _ip(f"link del {space.link}")
                _ip(f"netns del {space.link}")


def _make(space: Namespace) -> bool:
    name, there = space.link, space.address.removesuffix("1") + "2"
    return all(
        map(
            _ip,
            (
                f"netns add {name}",
                f"link add {name} type veth peer name eth0 netns {name}",
                f"addr add {space.address}/30 dev {name}",
                f"link set {name} up",
                f"-n {name} addr add {there}/30 dev eth0",
                f"-n {name} link set lo up",
                f"-n {name} link set eth0 up",
            ),
        )
    )


def _ip(arguments: str) -> bool:
    return subprocess.run(["ip", *arguments.split()], capture_output=True, check=False).returncode == 0
