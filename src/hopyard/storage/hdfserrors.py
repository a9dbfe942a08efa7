"""Turns errors of HDFS into the errors of a store, with the next step."""

from __future__ import annotations

import re

from hopyard.errors import (
    InvalidNameError,
    NotWritableError,
    StorageError,
    StorageFullError,
    UnreachableError,
)

_STANDBY = ("StandbyException",)
_SAFE_MODE = ("SafeModeException", "in safe mode")
_NESTED = (
    "ParentNotDirectoryException",
    "FileAlreadyExistsException",
    "must both be directories",
    "(is not a directory)",
)
_FULL = ("QuotaExceededException", "could only be written to 0 of", "could only be replicated to 0")
_FORBIDDEN = ("AccessControlException", "AuthorizationException")
_KERBEROS = ("SASLError", "GSSAPI", "SaslException", "NoSASLMechanism", "InvalidToken", "libgssapi")
_NO_SETTING = ("No fs.defaultFS setting found", "No NameNode hosts found")
_DATA_NODES = (
    "BlocksNotFound",
    "All nodes failed",
    "Failed to complete file",
    "DataTransferError",
    "DataNode",
    "Block",
)


def is_of_library(error: BaseException) -> bool:
    """Whether hdfs-native raised an error that it has no class of its own for: RuntimeError, OSError, or a panic."""
    return type(error).__name__ == "PanicException" or isinstance(error, RuntimeError | OSError | ValueError)


def hdfs_error(url: str, name: str, error: BaseException, writing: bool) -> StorageError | InvalidNameError:
    """The error for a call that failed.

    Args:
        error: the library's; only the first line of what it says is repeated, and not the server's stack.
    """
    place, action = f"{url}/{name}".rstrip("/"), "written" if writing else "read"
    seen = f"{type(error).__name__} {error}"
    said = _said(str(error))

    def has(signs: tuple[str, ...]) -> bool:
        return any(sign in seen for sign in signs)

    if has(_NESTED):
        return InvalidNameError(
            f"cannot store {name!r} in {url}: a name would be both an object and a prefix of another, which no "
            "directory can hold. Use another name."
        )
    if has(_SAFE_MODE):
        return UnreachableError(
            f"{place} cannot be {action}: the name node is in safe mode and takes no changes ({said}). It leaves it "
            "once enough data nodes have reported; `hdfs dfsadmin -safemode get` says whether it has."
        )
    if has(_STANDBY):
        return UnreachableError(
            f"{place} cannot be {action}: the name node is in standby ({said}). Give the name service instead of one "
            "node, hdfs://nameservice/path with HADOOP_CONF_DIR set, or make a name node active."
        )
    if has(_FULL):
        return StorageFullError(
            f"no space is left for {place}: {said}. Nothing was half-written. Make space there, raise its quota, or "
            "look whether data nodes are gone: `hdfs dfsadmin -report`."
        )
    if has(_KERBEROS):
        return StorageError(
            f"{place} cannot be {action}: the name node does not accept who asks ({said}). Get a Kerberos ticket by "
            "kinit, and set HADOOP_CONF_DIR to the cluster's configuration."
        )
    if has(_FORBIDDEN):
        right = "to write there" if writing else "to read it"
        kind = NotWritableError if writing else StorageError
        return kind(
            f"{place} cannot be {action}: {said}. Give this user the right {right}, or set HADOOP_USER_NAME to another."
        )
    if has(_NO_SETTING):
        return StorageError(
            f"{place} cannot be {action}: {said}. Set HADOOP_CONF_DIR to the folder with the cluster's core-site.xml "
            "and hdfs-site.xml, or give the name node: hdfs://host:port/path."
        )
    if has(_DATA_NODES):
        return UnreachableError(
            f"{place} cannot be {action}: data nodes do not answer ({said}). Look at them: `hdfs dfsadmin -report`."
        )
    if isinstance(error, OSError):
        return UnreachableError(
            f"{place} cannot be {action}: no node answers ({said}). Look at the network, at the data nodes, and at the "
            "address, which is that of the name node's RPC (dfs.namenode.rpc-address; often port 8020 or 9000)."
        )
    return StorageError(f"{place} cannot be {action}: {said}. Look at the name node's log.")


def _said(text: str) -> str:
    """The first line of the server's or the library's message."""
    remote = re.match(r'RPCError\("[^"]*", "(.*)', text, re.DOTALL)
    inner = re.match(r'\w+\("(.*)', text, re.DOTALL)
    found = remote or inner
    line = re.split(r"\\n|\n", found[1] if found else text, maxsplit=1)[0]
    return line.removesuffix('")').replace('\\"', '"').strip().rstrip(".") or "it says nothing"
