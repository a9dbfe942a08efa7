"""Workers on a Ray cluster: one actor each, which keeps the worker's process where Ray found room for it."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from typing import Any

from hopyard.backend._ray_cluster import RESERVED, Actors, fitting, listed, living_nodes
from hopyard.backend.base import check_timeout
from hopyard.backend.remote import Cluster, RemoteBackend
from hopyard.checks import integer
from hopyard.errors import UsageError, WorkerMismatchError
from hopyard.missing import missing_extra

CONNECT_SECONDS = 10.0


class RayBackend(RemoteBackend):
    """One worker per Ray actor, each with a fresh process of its own beside the actor.

    Connects when it is made: to the cluster that this process is connected to already; else to ``address``; else to
    the one of ``RAY_ADDRESS`` or of ``ray start`` on this machine; else it starts a Ray of this machine. The
    connection stays for the rest of the process, or until ``ray.shutdown()``.

    Args:
        address: ``"host:port"`` of the cluster's head; ``"auto"``: the one of this machine; ``"local"``: a new Ray of
            this machine; None: see above.
        num_workers: how many; None: as many as the cluster has room for.
        resources: custom resources that each worker takes, by name, such as ``{"fast_disk": 1}``.
        gpus_per_worker: GPUs that each worker takes and sees; a fraction shares one. None: 1 if the cluster has any.
        threads_per_worker: CPU threads that the mathematics of a task may use, and CPUs that each worker takes.
        unit_timeout: seconds that a task may take before its worker is killed; None for no limit.
        start_timeout: seconds that a worker may wait for its resources; None for no limit. A worker whose node is
            lost, and that finds no other in that time, takes turns with another worker until it does.

    Raises:
        UsageError: an argument is impossible, the cluster cannot be reached or has too little room.
        WorkerMismatchError: the cluster has another version of Ray or Python.
        MissingExtraError: Ray is not installed.
    """

    name = "ray"

    def __init__(
        self,
        address: str | None = None,
        num_workers: int | None = None,
        resources: Mapping[str, float] | None = None,
        gpus_per_worker: float | None = None,
        threads_per_worker: int = 1,
        unit_timeout: float | None = None,
        start_timeout: float | None = 120.0,
    ) -> None:
        super().__init__(threads_per_worker, unit_timeout)
        check_timeout(start_timeout, "start_timeout")
        if num_workers is not None:
            integer("num_workers", num_workers, 1)
        _check_gpus(gpus_per_worker)
        asked = {"CPU": float(threads_per_worker), **_checked_resources(resources or {})}
        self.address = address
        self.start_timeout = start_timeout
        _connect(address)
        nodes = living_nodes()
        if gpus_per_worker is None:
            gpus_per_worker = int(any(node.has.get("GPU", 0) for node in nodes))
        self.resources: dict[str, float] = dict(resources or {})
        self.gpus_per_worker: float = gpus_per_worker
        self.asked: dict[str, float] = asked | ({"GPU": float(gpus_per_worker)} if gpus_per_worker else {})
        self._num_workers = fitting(nodes, self.asked, num_workers)

    @property
    def num_workers(self) -> int:
        return self._num_workers

    def _cluster(self) -> Cluster:
        import ray

        if not ray.is_initialized():  # the user has ended the connection meanwhile
            _connect(self.address)
        return Actors(self._num_workers, self.asked, self.start_timeout)

    def __repr__(self) -> str:
        return f"RayBackend(num_workers={self.num_workers}, each with {listed(self.asked)})"


def _check_gpus(gpus: float | None) -> None:
    if gpus is None:
        return
    number = isinstance(gpus, int | float) and not isinstance(gpus, bool) and 0 <= gpus < math.inf
    if not number or (gpus > 1 and gpus != int(gpus)):
        raise UsageError(
            f"gpus_per_worker={gpus!r}, but it must be 0, a fraction of one GPU such as 0.5, a whole number "
            "of them, or None for 1 if there are any."
        )


def _checked_resources(resources: Mapping[str, float]) -> dict[str, float]:
    for name, amount in resources.items():
        if name in RESERVED:
            raise UsageError(
                f"resources={dict(resources)!r} was given, but {name!r} is none of Ray's custom resources; for CPUs "
                "and GPUs give threads_per_worker and gpus_per_worker."
            )
        if not isinstance(amount, int | float) or isinstance(amount, bool) or not 0 < amount < math.inf:
            raise UsageError(
                f"resources={dict(resources)!r} was given, but {name!r} must be a number > 0: what each worker "
                "takes of it."
            )
    return {name: float(amount) for name, amount in resources.items()}


# The cluster


def _connect(address: str | None) -> None:
    """Have this process connected to a cluster, that of ``address`` if one is given."""
    try:
        import ray
    except ImportError:
        raise missing_extra("ray", "ray", "RayBackend") from None
    if ray.is_initialized():
        _check_connection(address)
        return
    target = address or os.environ.get("RAY_ADDRESS", "")
    if ":" in target:
        _check_reachable(target)
    try:
        ray.init(address=address)
    except (ConnectionError, ValueError) as error:
        raise UsageError(
            f"address={address!r} was given, but no Ray cluster was found there ({error}). Start one with "
            "`ray start --head`, give the 'host:port' that it prints, or None for a Ray of this machine only."
        ) from error
    except RuntimeError as error:
        if "Version mismatch" not in str(error):
            raise
        raise WorkerMismatchError(
            f"This process cannot work with the Ray cluster at {target or 'this machine'}. {str(error).rstrip()}\n"
            "Install here the versions of Ray and Python that the cluster has, or start it with those of here."
        ) from error


def _check_reachable(address: str) -> None:
    """Ask before Ray does, which waits for minutes and then ends the process."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(
            f"The Ray cluster at {address!r} cannot be reached: {error}. Give the 'host:port' that "
            "`ray start --head` printed (port 6379 unless it says otherwise), and see that it still runs there "
            "(`ray status`) and that no firewall is between."
        ) from error


def _check_connection(address: str | None) -> None:
    """Refuse an address that is not that of the running connection."""
    import ray

    connected = ray.get_runtime_context().gcs_address
    if address in (None, "auto", connected):
        return
    assert address is not None
    host, _, port = address.rpartition("://")[2].rpartition(":")
    own_address: Any = ray.util.get_node_ip_address  # which has no type
    if f"{own_address() if host in ('localhost', '127.0.0.1') else host}:{port}" != connected:
        raise UsageError(
            f"address={address!r} was given, but this process is connected to the Ray cluster at {connected}. "
            "Leave the address out to use that one, or end the connection first with ray.shutdown()."
        )
