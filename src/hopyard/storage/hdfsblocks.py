"""Hosts that have the blocks of files on HDFS, as WebHDFS or the JVM of Spark's driver tells: hdfs-native does not."""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import urlopen

from hopyard.errors import UnreachableError

_PATIENCE = 5.0  # seconds for an answer
_WEB_PORT = 9870


def hosts_of_file(url: str, path: str, settings: Mapping[str, str]) -> dict[str, int]:
    """The bytes of a file by the host that has them; a block counts for each of its hosts.

    Args:
        url: of the file system.
        settings: Hadoop's.

    Raises:
        UnreachableError: neither WebHDFS nor a JVM tells.
    """
    return bytes_by_host(_blocks(url, path, settings))


def bytes_by_host(blocks: Iterable[tuple[list[str], int]]) -> dict[str, int]:
    """The bytes of a file by the host that has them, of the hosts and the length of each block."""
    bytes_of = Counter[str]()
    for hosts, length in blocks:
        bytes_of.update(dict.fromkeys(hosts, length))
    return dict(bytes_of)


def _blocks(url: str, path: str, settings: Mapping[str, str]) -> Iterable[tuple[list[str], int]]:
    context = _spark_context()
    return _by_spark(context, url, path) if context is not None else _by_web(url, path, settings)


def _spark_context() -> Any:
    """The running context of a Spark driver in this process, with its JVM; None: there is none."""
    pyspark = sys.modules.get("pyspark")
    found = getattr(getattr(pyspark, "SparkContext", None), "_active_spark_context", None)
    return found if getattr(found, "_jvm", None) is not None else None


def _by_spark(context: Any, url: str, path: str) -> Iterator[tuple[list[str], int]]:
    """As Spark's driver sees it: with its settings, name services and tickets."""
    parts = urlsplit(url)
    address = f"{parts.scheme}://{parts.netloc}{quote(path)}" if parts.netloc else quote(path)
    try:
        there = context._jvm.org.apache.hadoop.fs.Path(context._jvm.java.net.URI(address))
        files = there.getFileSystem(context._jsc.hadoopConfiguration())
        status = files.getFileStatus(there)
        for block in files.getFileBlockLocations(status, 0, status.getLen()):
            yield list(block.getHosts()), block.getLength()
    except Exception as error:
        raise UnreachableError(f"Spark's driver was asked: {str(error).strip().splitlines()[-1]}") from error


def _by_web(url: str, path: str, settings: Mapping[str, str]) -> Iterator[tuple[list[str], int]]:
    said = []
    for address in web_addresses(url, settings):
        try:
            user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
            query = urlencode({"op": "GETFILEBLOCKLOCATIONS", "user.name": user})
            with urlopen(f"http://{address}/webhdfs/v1{quote(path)}?{query}", timeout=_PATIENCE) as answer:
                found = json.load(answer)["BlockLocations"]["BlockLocation"]
            return iter([(block["hosts"], block["length"]) for block in found])
        except HTTPError as error:
            said.append(f"{address} answered {error.code} {error.reason}")
            error.close()
        except (OSError, ValueError, LookupError, TypeError, HTTPException) as error:
            said.append(f"{address}: {getattr(error, 'reason', error)}")
    raise UnreachableError(f"WebHDFS was asked ({'; '.join(said) or 'no address of it is known'})")


def web_addresses(url: str, settings: Mapping[str, str]) -> list[str]:
    """The addresses of the web servers of a file system's name nodes."""
    parts = urlsplit(url if urlsplit(url).netloc else settings.get("fs.defaultFS", ""))
    if parts.scheme != "hdfs":
        return []  # viewfs is a table of file systems, which Spark knows
    service = parts.netloc
    nodes = [node.strip() for node in settings.get(f"dfs.ha.namenodes.{service}", "").split(",")]
    if nodes != [""]:
        keys = [f"{service}.{node}" for node in nodes]
        rpc = [settings.get(f"dfs.namenode.rpc-address.{key}", "") for key in keys]
        web = [settings.get(f"dfs.namenode.http-address.{key}", "") for key in keys]
    else:
        rpc, web = [parts.netloc], [settings.get("dfs.namenode.http-address", "")]
    found = [_web_address(*both) for both in zip(rpc, web, strict=True)]
    return [address for address in found if address]


def _web_address(rpc: str, web: str) -> str:
    """The address of a web server; of one that listens everywhere, at the host of the name node's RPC."""
    host, _, port = web.rpartition(":")
    if host and host != "0.0.0.0":
        return web
    host = rpc.partition(":")[0]
    return f"{host}:{port or _WEB_PORT}" if host else ""
