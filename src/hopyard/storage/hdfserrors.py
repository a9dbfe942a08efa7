"""Turns errors of HDFS into the errors of a store, with the next step."""

from __future__ import annotations

import re

from hopyard.errors import (
    ExpiredError,
    InvalidNameError,
    NotWritableError,
    StorageError,
    StorageFullError,
    UnreachableError,
)

WEB_SCHEMES = ("webhdfs", "swebhdfs")
"""What the URL of an ``HDFSStore`` begins with that is reached over HTTP, and over HTTPS."""

TOKEN = "HOPYARD_WEBHDFS_TOKEN"
"""The environment variable with a delegation token for these, as ``GETDELEGATIONTOKEN`` answers it."""

NO_REPLACING = "does not rename a file over another"
NO_WEBHDFS = "is no WebHDFS"

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
_KERBEROS = (
    "HTTP 401",
    "AuthenticationException",
    "SASLError",
    "GSSAPI",
    "SaslException",
    "NoSASLMechanism",
    "InvalidToken",
    "libgssapi",
)
_NO_SETTING = ("No fs.defaultFS setting found", "No NameNode hosts found")
_LATER = ("RetriableException",)
_UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED",)
_DATA_NODES = (
    "the data node ",
    "Failed to find datanode",
    "no active nodes",
    "BlocksNotFound",
    "All nodes failed",
    "Failed to complete file",
    "DataTransferError",
    "DataNode",
    "Block",
)


def is_of_library(error: BaseException) -> bool:
    """Whether a client raised an error that it has no class of its own for: RuntimeError, OSError, or a panic."""
    return type(error).__name__ == "PanicException" or isinstance(error, RuntimeError | OSError | ValueError)


def hdfs_error(url: str, name: str, error: BaseException, writing: bool) -> StorageError | InvalidNameError:
    """The error for a call that failed.

    Args:
        error: the library's; only the first line of what it says is repeated, and not the server's stack.
    """
    place, action = f"{url}/{name}".rstrip("/"), "written" if writing else "read"
    seen = f"{type(error).__name__} {error}"
    said = _said(str(error))
    web = url.partition(":")[0] in WEB_SCHEMES

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
        other = (
            "the other name node or a gateway instead of this one"
            if web
            else "the name service instead of one node, hdfs://nameservice/path with HADOOP_CONF_DIR set"
        )
        return UnreachableError(
            f"{place} cannot be {action}: the name node is in standby ({said}). Give {other}, or make a name node "
            "active."
        )
    if has(_LATER):
        return UnreachableError(
            f"{place} cannot be {action}: the name node takes no requests now ({said}). Try again later, and look at "
            "its log."
        )
    if has(_FULL):
        return StorageFullError(
            f"no space is left for {place}: {said}. Nothing was half-written. Make space there, raise its quota, or "
            "look whether data nodes are gone: `hdfs dfsadmin -report`."
        )
    if web and "InvalidToken" in seen and "expired" in seen:
        return ExpiredError(
            f"{place} cannot be {action}: the delegation token has expired ({said}). Renew it by "
            f"op=RENEWDELEGATIONTOKEN, or set {TOKEN} to a new one and start this process again."
        )
    if has(_KERBEROS):
        remedy = (
            "Tickets of Kerberos are not sent over HTTP: get a delegation token, for instance by `curl --negotiate "
            f"-u : 'http://host:port/webhdfs/v1/?op=GETDELEGATIONTOKEN'`, and set {TOKEN} to its urlString; or use "
            "hdfs://."
            if web
            else "Get a Kerberos ticket by kinit, and set HADOOP_CONF_DIR to the cluster's configuration."
        )
        return StorageError(
            f"{place} cannot be {action}: the name node does not accept who asks ({said}). {remedy}"
        )
    if has((NO_REPLACING,)):
        return StorageError(
            f"{place} cannot be replaced: {said}, which gateways like HttpFS cannot, and to delete the old one first "
            "would leave none to readers. Give the address of the name node's own web server "
            "(dfs.namenode.http-address), or of another gateway."
        )
    if has(_UNTRUSTED):
        return StorageError(
            f"{place} cannot be {action}: the server's certificate is not trusted ({said}). Set SSL_CERT_FILE to the "
            "certificate of the authority that signed it."
        )
    if has((NO_WEBHDFS,)):
        return StorageError(
            f"{place} cannot be {action}: {said}. Give host and port of the name node's web server (often 9870) or of "
            "HttpFS (often 14000), with swebhdfs:// if it speaks HTTPS."
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
        more = (
            " Their web servers must be reachable from here (dfs.datanode.http.address); where they are not, give the "
            "address of a gateway (HttpFS)."
            if web
            else ""
        )
        return UnreachableError(
            f"{place} cannot be {action}: data nodes do not answer ({said}). Look at them: `hdfs dfsadmin "
            f"-report`.{more}"
        )
    if isinstance(error, OSError):
        address = (
            "the name node's web server (dfs.namenode.http-address; often port 9870) or of HttpFS (often 14000)"
            if web
            else "the name node's RPC (dfs.namenode.rpc-address; often port 8020 or 9000)"
        )
        return UnreachableError(
            f"{place} cannot be {action}: no node answers ({said}). Look at the network, at the data nodes, and at the "
            f"address, which is that of {address}."
        )
    return StorageError(f"{place} cannot be {action}: {said}. Look at the name node's log.")


def _said(text: str) -> str:
    """The first line of the server's or the library's message."""
    remote = re.match(r'RPCError\("[^"]*", "(.*)', text, re.DOTALL)
    inner = re.match(r'\w+\("(.*)', text, re.DOTALL)
    over_http = re.match(r"\w+Exception: (.*)", text, re.DOTALL)
    found = remote or inner or over_http
    line = re.split(r"\\n|\n", found[1] if found else text, maxsplit=1)[0]
    return line.removesuffix('")').replace('\\"', '"').strip().rstrip(".") or "it says nothing"
