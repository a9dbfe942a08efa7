"""A real HDFS on this machine, every node a process of its own, whose nodes are killed and come back."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hopyard.storage import Store

JAR = "hadoop-client-minicluster-*.jar"
_OF_SPARK = ("hadoop-client-", "slf4j-api", "jcl-over-slf4j", "log4j-", "commons-l", "leveldbjni")
_HDFS = "org.apache.hadoop.hdfs"
_PATIENCE = 120.0  # seconds

# A node lives until its standard input is closed: by ``kill``, or with the process that started it.
_UNTIL_CLOSED = '"$@" < /dev/null & read -r nothing; kill -9 $!; wait'

_JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable")

_lasting: list[HdfsCluster] = []
_archives: list[Path] = []
"""The file of the classes that the first name node was formatted with: who reads it starts with less CPU time."""

_LOGGING = """
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{2}: %m%n
"""


def missing() -> str | None:
    """Why no HDFS can be started here; None: it can."""
    if shutil.which("java") is None:
        return "HDFS (Java 17 or newer)"
    if importlib.util.find_spec("hdfs_native") is None:
        return "HDFS (the package hdfs-native)"
    jar, spark = _jar(), _spark_jars()
    if jar is None:
        return f"HDFS ({JAR} of Hadoop, by HOPYARD_HADOOP or in Maven's repository; CONTRIBUTING.md says how to get it)"
    if not spark:
        return "HDFS (the package pyspark, whose jars hold Hadoop's client)"
    theirs, ours = (re.findall(r"-(\d+\.\d+\.\d+)\.jar", name)[0] for name in (spark[0], str(jar)))
    if theirs != ours:
        return f"HDFS (Hadoop {theirs}, which PySpark has the client of, instead of {ours})"
    return None


def _jar() -> Path | None:
    given = os.environ.get("HOPYARD_HADOOP")
    if given:
        place = Path(given)
        return place if place.is_file() else next(iter(sorted(place.glob(JAR))), None)
    maven = Path.home() / ".m2" / "repository" / "org" / "apache" / "hadoop" / "hadoop-client-minicluster"
    return next(iter(sorted(maven.glob(f"*/{JAR}"), reverse=True)), None)


def _spark_jars() -> list[str]:
    found = importlib.util.find_spec("pyspark")
    folder = (
        Path(found.origin).with_name("jars")
        if found is not None and found.origin is not None
        else Path("none")
    )
    return [str(jar) for name in _OF_SPARK for jar in sorted(folder.glob(f"{name}*.jar"))]


def _jars() -> list[str]:
    return [str(_jar()), *_spark_jars()]


def _run_java(*command: str) -> str:
    """The output of a program that ends well."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class HdfsCluster:
    """Name nodes and data nodes on loopback.

    Args:
        folder: for what the nodes keep, their logs and the clients' configuration.
        name_nodes: 1, or 2 that share a name service, of which the first is active.
        hosts: names by which the data nodes are known; all of them listen on loopback.

    Attributes:
        url: of the file system.
        conf: ``HADOOP_CONF_DIR`` of its clients.
    """

    def __init__(
        self, folder: Path, data_nodes: int = 2, name_nodes: int = 1, hosts: Sequence[str] = ()
    ) -> None:
        self.hosts = hosts or ("127.0.0.1",) * data_nodes
        self.conf = folder / "conf"
        self._folder, self._name_nodes, self._data_nodes = folder, name_nodes, data_nodes
        self._ports, self._web = free_ports(name_nodes), free_ports(name_nodes)
        self.url = f"hdfs://127.0.0.1:{self._ports[0]}" if name_nodes == 1 else "hdfs://nest"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._configure()

    @property
    def web(self) -> str:
        """The address of the first name node's web server, which speaks WebHDFS."""
        return f"127.0.0.1:{self._web[0]}"

    @property
    def active(self) -> int:
        """The number of the active one of two name nodes."""
        return next(number for number in range(self._name_nodes) if self._is_active(number))

    def start(self) -> None:
        """Start the nodes that do not run, and wait until every data node has joined."""
        for number in range(self._name_nodes):
            self.start_name_node(number)
        if self._name_nodes > 1 and not any(map(self._is_active, range(self._name_nodes))):
            self._tool("DFSHAAdmin", "-transitionToActive", "0")
        for number in range(self._data_nodes):
            self._run(
                f"data{number}", "server.datanode.DataNode",
                "-D", f"dfs.datanode.data.dir=file://{self._folder}/data{number}",
                "-D", f"dfs.datanode.hostname={self.hosts[number]}",
                *(argument for port in ("address", "http.address", "ipc.address")
                  for argument in ("-D", f"dfs.datanode.{port}=127.0.0.1:0")),
            )  # fmt: skip
        for number in range(self._name_nodes):
            self._until_live(number, self._data_nodes)

    def start_name_node(self, number: int) -> None:
        node = ["server.namenode.NameNode", "-D", f"dfs.namenode.name.dir=file://{self._folder}/name{number}"]
        if self._name_nodes > 1:
            node += ["-D", f"dfs.ha.namenode.id={number}"]
        if not (self._folder / f"name{number}" / "current").is_dir():
            if self._name_nodes == 1 and not _archives:
                self._format_and_archive(*node)
            else:
                self._call(*node, "-format" if number == 0 else "-bootstrapStandby", "-nonInteractive")
        self._run(f"name{number}", *node)
        self._until_live(number, 0)

    def _format_and_archive(self, *node: str) -> None:
        """Format a name node, and write an archive of what it loads.

        A folder may be behind the jars in the class path of a JVM that reads an archive, and nowhere in that of one
        that writes it.
        """
        archive = self._folder / "classes.jsa"
        command = [*_JAVA, f"-XX:ArchiveClassesAtExit={archive}", "-cp", os.pathsep.join(_jars())]
        _run_java(*command, f"{_HDFS}.{node[0]}", "-D", f"fs.defaultFS={self.url}", *node[1:], "-format")
        _archives.append(archive)

    @property
    def _java(self) -> list[str]:
        """What a node or a tool is started with."""
        archived = [f"-XX:SharedArchiveFile={archive}" for archive in _archives]
        hosts = f"-Djdk.net.hosts.file={self.conf / 'hosts'}"
        return [*_JAVA, *archived, hosts, "-cp", os.pathsep.join([*_jars(), str(self.conf)])]

    def kill(self, node: str) -> None:
        """``name0``, ``data1``...: as by ``kill -9``."""
        process = self._processes.pop(node)
        assert process.stdin is not None
        process.stdin.close()
        process.wait()

    def failover(self, before: int, after: int) -> None:
        """Make another name node the active one, where the one before is dead."""
        self._tool("DFSHAAdmin", "-failover", "--forcefence", "--forceactive", str(before), str(after))

    def admin(self, *arguments: str) -> str:
        """The output of ``hdfs dfsadmin`` with these arguments."""
        return self._tool("DFSAdmin", *arguments)

    def stop(self) -> None:
        for node in list(self._processes):
            self.kill(node)

    def _configure(self) -> None:
        self.conf.mkdir(parents=True)
        site = {
            "dfs.replication": str(self._data_nodes),
            "dfs.heartbeat.interval": "1",  # a dead data node is avoided after 3 s
            "dfs.namenode.heartbeat.recheck-interval": "1000",  # and counted as dead after 12 s
            "dfs.namenode.stale.datanode.interval": "3000",
            "dfs.namenode.avoid.read.stale.datanode": "true",
            "dfs.namenode.avoid.write.stale.datanode": "true",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.fs-limits.min-block-size": "1024",
        }
        if self._name_nodes == 1:
            site["dfs.namenode.http-address"] = self.web
        else:
            site |= {
                "dfs.nameservices": "nest",
                "dfs.ha.namenodes.nest": ",".join(map(str, range(self._name_nodes))),
                "dfs.namenode.shared.edits.dir": f"file://{self._folder}/edits",
                "dfs.ha.fencing.methods": "shell(/bin/true)",
                "dfs.client.failover.proxy.provider.nest":
                    f"{_HDFS}.server.namenode.ha.ConfiguredFailoverProxyProvider",
            }  # fmt: skip
            for number, (port, web) in enumerate(zip(self._ports, self._web, strict=True)):
                site[f"dfs.namenode.rpc-address.nest.{number}"] = f"127.0.0.1:{port}"
                site[f"dfs.namenode.http-address.nest.{number}"] = f"127.0.0.1:{web}"
        write_settings(self.conf / "core-site.xml", {"fs.defaultFS": self.url})
        write_settings(self.conf / "hdfs-site.xml", site)
        (self.conf / "hosts").write_text(
            f"127.0.0.1 localhost {socket.gethostname()}\n"
        )  # asks no name server
        (self.conf / "log4j2.properties").write_text(_LOGGING)

    def _run(self, name: str, *node: str) -> None:
        if name in self._processes:
            return
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["sh", "-c", _UNTIL_CLOSED, "sh", *self._java, f"{_HDFS}.{node[0]}", *node[1:]],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _tool(self, name: str, *arguments: str) -> str:
        return self._call(f"tools.{name}", *arguments)

    def _call(self, name: str, *arguments: str) -> str:
        return _run_java(*self._java, f"{_HDFS}.{name}", *arguments)

    def until_everywhere(self, store: Store, name: str) -> None:
        """Wait until the name node knows a file on all data nodes, which report it a moment after it is written."""
        end = time.monotonic() + _PATIENCE
        while store.hosts(name).keys() != set(self.hosts):
            assert time.monotonic() < end, f"{name} is on {store.hosts(name)}"
            threading.Event().wait(0.05)

    def _is_active(self, number: int) -> bool:
        return bool(self._told(number, "NameNodeStatus", "State") == "active")

    def _told(self, name_node: int, bean: str, name: str) -> Any:
        """A value that a name node tells about itself by its web server; None while it does not."""
        query = f"jmx?qry=Hadoop:service=NameNode,name={bean}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web[name_node]}/{query}") as answer:
                return json.load(answer)["beans"][0][name]
        except (OSError, IndexError, KeyError):
            return None

    def _until_live(self, name_node: int, data_nodes: int) -> None:
        """Wait until a name node counts that many data nodes as alive."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            alive = self._told(name_node, "FSNamesystemState", "NumLiveDataNodes")
            if alive is not None and alive >= data_nodes:
                return
            threading.Event().wait(0.05)
        logs = {log.name: log.read_text()[-2000:] for log in self._folder.glob("*.log")}
        raise AssertionError(f"HDFS did not come up in {_PATIENCE:.0f} s: {logs}")


def write_settings(file: Path, settings: Mapping[str, str]) -> None:
    """A file of Hadoop's configuration."""
    properties = (
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    file.write_text(f"<configuration>{''.join(properties)}</configuration>\n")


@pytest.fixture(scope="session")
def hdfs_if_there(tmp_path_factory: pytest.TempPathFactory) -> HdfsCluster | None:
    """One name node and two data nodes; None where no HDFS can be started.

    They end with this process: hdfs-native waits for a name node at its end where a write has failed before.
    """
    if missing() is not None:
        return None
    hosts = (socket.gethostname(), "elsewhere.example")
    return lasting(HdfsCluster(tmp_path_factory.mktemp("hdfs"), hosts=hosts))


def lasting(cluster: HdfsCluster) -> HdfsCluster:
    """The cluster, started, until this process ends."""
    _lasting.append(cluster)
    cluster.start()
    return cluster
