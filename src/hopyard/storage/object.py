"""Objects in a bucket: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.

The library ``obstore`` sends the requests. What it leaves to its callers is here: who won a
``put_new`` whose reply was lost, names that would be both an object and a prefix, errors that
say what to do, and no secret in a pickle, a message or a URL.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hopyard.errors import CorruptError, InvalidNameError, NotFoundError, StorageError, UsageError
from hopyard.missing import missing_extra
from hopyard.storage.base import Buffer, Entry, Part, Store
from hopyard.storage.forks import check_process
from hopyard.storage.names import validate_name, validate_prefix
from hopyard.storage.nesting import Nesting
from hopyard.storage.objecterrors import CUT_OFF, bucket_error, request_error

T = TypeVar("T")

SCHEMES = {
    "s3": "S3Store",
    "s3a": "S3Store",
    "gs": "GCSStore",
    "az": "AzureStore",
    "abfs": "AzureStore",
    "abfss": "AzureStore",
}
"""What an URL may begin with, and the class of ``obstore.store`` that it means."""

# A request that nobody answers ends after a minute or two; docs/storage.md says how to change this.
_CLIENT: dict[str, Any] = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "10min"}
_RETRIES: dict[str, Any] = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=5), "base": 2},
}

_PART = 16 << 20  # bytes of a part of an upload; larger for objects that would have too many parts
_MAX_PARTS = 9_000
_PARTS_AT_ONCE = 4
_PIECE = 256 << 10  # bytes of an answer at least, that are handed on at once
_ATTEMPTS = 3  # of a conditional write that neither won nor lost
_WRITER = "hopyardwriter"  # metadata of an object written by put_new; Azure takes letters and digits only

_SECRETS = {
    "access_key", "access_key_id", "secret_access_key", "session_token", "token", "account_key", "client_secret",
    "sas_key", "sas_token", "bearer_token", "service_account_key", "encryption_key", "sse_customer_key_base64",
    "fabric_session_token",
}  # fmt: skip


class ObjectStore(Store):
    """A bucket, or the part of it below a prefix.

    Credentials are never arguments: each process finds its own in its environment
    (``AWS_ACCESS_KEY_ID``..., ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_KEY``...) or
    asks the machine it runs on, so that a pickled store holds none.

    Args:
        url: ``s3://bucket/prefix`` (or ``s3a://``), ``gs://bucket/prefix``, ``az://container/prefix``,
            ``abfss://container@account.dfs.core.windows.net/prefix``.
        options: what ``obstore`` takes for this kind of store: ``endpoint``, ``region``, ``account_name``,
            ``skip_signature``, ``virtual_hosted_style_request``...; ``client_options`` and ``retry_config``
            change single timeouts and numbers of retries; ``credential_provider``, a function that
            pickles by reference, gives credentials that the environment does not.

    Raises:
        UsageError: the URL or an option is not of the kind described here.
        MissingExtraError: ``obstore`` is not installed.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._url = _check_url(url)
        self._options = options
        self._client = _open(self._url, options)
        self._nesting = Nesting(self._size, self._some_below, self._nested)
        self._bucket_exists = False

    @property
    def url(self) -> str:
        return self._url

    # Reading

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self._checked(name)
        if start == 0 and length is None:
            return self._asked(name, lambda: bytes(_obstore().get(self._client, name).bytes()))
        data = b""
        if length != 0:
            wanted = {"offset": start} if length is None else (start, start + length)
            try:
                found = self._ranged(name, wanted)
                data, size = bytes(found.data), found.size
            except StorageError as error:
                # Servers refuse a range that begins behind the end with an error of its own.
                if type(error) is not StorageError or start < (size := self._existing_size(name)):
                    raise
        else:
            size = self._existing_size(name)
        stop = size if length is None else start + length
        if start > size or stop > size:
            raise CorruptError(
                f"bytes {start}..{stop} of {self._url}/{name} were asked for, but it has only {size}. "
                "The object was cut off or replaced: restore it from a copy, or make it again."
            )
        return data

    def read(self, name: str, start: int = 0, length: int | None = None) -> Part:
        self._checked(name)
        wanted: Any = (
            {"suffix": -start}
            if start < 0
            else {"offset": start}
            if length is None
            else (start, start + length)
        )
        # Azure knows no suffixes; of an empty range, or an empty object, servers answer with errors of their own.
        if length != 0 and not (start < 0 and (length is not None or self._url.startswith("a"))):
            try:
                part = self._ranged(name, wanted)
            except NotFoundError:
                raise
            except StorageError as error:
                if type(error) is not StorageError:
                    raise
            else:
                if start < 0 or length is None or memoryview(part.data).nbytes == length:
                    return part
        return super().read(name, start, length)

    def receive(self, name: str, start: int, length: int, keep: Callable[[int, memoryview], object]) -> Part:
        self._checked(name)

        def ask() -> tuple[Part, int]:
            found = _obstore().get(self._client, name, options={"range": (start, start + length)})
            at = start
            for piece in found.stream(min_chunk_size=_PIECE):
                keep(at, memoryview(piece))
                at += len(piece)
            return Part(b"", found.meta["size"], _version(found.meta)), at - start

        try:
            part, received = self._asked(name, ask)
        except StorageError as error:
            if type(error) is not StorageError:
                raise
        else:
            if received == length:
                return part
        # Says it of a range beyond the end, and of an empty one.
        return super().receive(name, start, length, keep)

    def _ranged(self, name: str, wanted: Any) -> Part:
        """Bytes of an object by one request; fewer than wanted where it ends."""

        def ask() -> Part:
            found = _obstore().get(self._client, name, options={"range": wanted})
            return Part(memoryview(found.bytes()), found.meta["size"], _version(found.meta))

        return self._asked(name, ask)

    def foreign(self) -> Store:
        return _ForeignObjects(self._url, **self._options)

    def _checked(self, name: str) -> str:
        """The name, if it can be one of this store."""
        return validate_name(name)

    def _existing_size(self, name: str) -> int:
        size = self._size(name)
        if size is None:
            raise self._not_found(name)
        return size

    def size(self, name: str) -> int | None:
        return self._size(self._checked(name))

    def _size(self, name: str) -> int | None:
        meta = self._head(name)
        return None if meta is None else int(meta["size"])

    def version(self, name: str) -> str | None:
        meta = self._head(self._checked(name))
        return None if meta is None else _version(meta)

    def written_at(self, name: str) -> float | None:
        meta = self._head(self._checked(name))
        return None if meta is None else float(meta["last_modified"].timestamp())

    def _head(self, name: str) -> Mapping[str, Any] | None:
        try:
            with self._errors(name):
                meta: Mapping[str, Any] = _obstore().head(self._client, name)
        except NotFoundError:
            if not self._bucket_exists:  # a missing bucket answers HEAD just like a missing object
                self._some_below("")
                self._bucket_exists = True
            return None
        except StorageError as error:
            if "400 Bad Request" in str(error):  # an answer to HEAD does not say why
                self._some_below("")
            raise
        return meta

    def list(self, prefix: str = "") -> Iterator[Entry]:
        if prefix:
            self._checked(prefix)
        pages = self._asked(
            prefix, lambda: list(_obstore().list(self._client, prefix or None, chunk_size=1000))
        )
        # Most buckets list in order of names, but not all.
        found = sorted(Entry(meta["path"], meta["size"]) for page in pages for meta in page)
        directories = {entry.name[:end] for entry in found for end in _slashes(entry.name)} | {"", prefix}
        # What consoles keep for a directory is an empty object of its name.
        return (entry for entry in found if entry.size or entry.name not in directories)

    def folders(self, prefix: str = "") -> Sequence[str]:
        if prefix:
            self._checked(prefix)
        found = self._asked(prefix, lambda: _obstore().list_with_delimiter(self._client, prefix or None))[
            "common_prefixes"
        ]
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def _some_below(self, prefix: str) -> Sequence[str]:
        """Names below the prefix: all if there are fewer than 1000, else that many."""
        page = self._asked(
            prefix, lambda: next(_obstore().list(self._client, prefix or None, chunk_size=1000), ())
        )
        return [meta["path"] for meta in page if meta["path"] not in ("", prefix)]

    def _asked(self, name: str, ask: Callable[[], T], writing: bool = False) -> T:
        """The answer to requests that may be repeated: asked for again when it was cut off, where the library does not
        do so."""
        failures = import_module("obstore.exceptions")
        with self._errors(name, writing):
            for _ in range(_ATTEMPTS - 1):
                try:
                    return ask()
                except failures.GenericError as error:
                    if not any(sign in str(error) for sign in CUT_OFF):
                        raise
            return ask()

    # Writing

    def put(self, name: str, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        self._put(name, view, len(view))

    def put_file(self, name: str, path: Path) -> None:
        self._put(name, path, path.stat().st_size)
        path.unlink()

    def _put(self, name: str, content: memoryview | Path, size: int) -> None:
        self._nesting.check(validate_name(name))
        part = max(_PART, -(-size // _MAX_PARTS))
        self._asked(
            name,
            lambda: _obstore().put(
                self._client,
                name,
                content,
                use_multipart=size > part,
                chunk_size=part,
                max_concurrency=_PARTS_AT_ONCE,
            ),
            writing=True,
        )

    def put_new(self, name: str, data: Buffer) -> bool:
        self._nesting.check(validate_name(name))
        failures = import_module("obstore.exceptions")
        token = uuid.uuid4().hex
        with self._errors(name, writing=True):
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    _obstore().put(
                        self._client,
                        name,
                        memoryview(data).cast("B"),
                        mode="create",
                        attributes={_WRITER: token},
                        use_multipart=False,
                    )
                    return True
                except (failures.AlreadyExistsError, failures.PreconditionError, failures.GenericError):
                    # Lost, or won without hearing of it: the object itself says which.
                    writer = self._writer(name)
                    if writer is not None:
                        return writer == token
                    if attempt == _ATTEMPTS:
                        raise
        raise AssertionError("unreachable")

    def _writer(self, name: str) -> str | None:
        """The token of the ``put_new`` that wrote the object, "" if something else did; None: there is none."""
        try:
            with self._errors(name):
                found = _obstore().get(self._client, name, options={"head": True}).attributes
        except NotFoundError:
            return None
        return str(found.get(_WRITER, ""))

    def delete(self, name: str) -> None:
        validate_name(name)
        with contextlib.suppress(NotFoundError):
            self._asked(name, lambda: _obstore().delete(self._client, name), writing=True)

    # Errors

    @contextlib.contextmanager
    def _errors(self, name: str, writing: bool = False) -> Iterator[None]:
        """Turn the library's errors into those of a store."""
        check_process("ObjectStore")
        failures = import_module("obstore.exceptions")
        try:
            yield
        except FileNotFoundError as error:
            raise bucket_error(self._url, str(error)) or self._not_found(name) from None
        except failures.BaseError as error:
            # Not chained: what the library says in full may hold an access key's id or a signed URL.
            raise request_error(self._url, name, type(error).__name__, str(error), writing) from None

    def _not_found(self, name: str) -> NotFoundError:
        return NotFoundError(
            f"there is no object {name!r} in the store {self._url}. List the store to see what it holds."
        )

    def _nested(self, name: str, outer: str, inner: str) -> InvalidNameError:
        return InvalidNameError(
            f"cannot store {name!r} in {self._url}: {outer!r} would be both an object and a prefix of "
            f"{inner!r}, which no directory can hold. Use another name."
        )

    def __repr__(self) -> str:
        return f"ObjectStore({self._url!r})"

    def __reduce__(self) -> tuple[Callable[..., ObjectStore], tuple[str]]:
        return partial(type(self), **self._options), (self._url,)


class _ForeignObjects(ObjectStore):
    """An ``ObjectStore`` to be read, whose names may have any characters."""

    def _checked(self, name: str) -> str:
        return name


def _obstore() -> Any:
    """The library, which no import of Hopyard loads."""
    try:
        return import_module("obstore")
    except ImportError:
        raise missing_extra("obstore", "s3", "a store in a bucket") from None


def _version(meta: Mapping[str, Any]) -> str:
    return f"{meta['e_tag']} {meta['version'] or ''}".strip()


def _slashes(name: str) -> Iterator[int]:
    return (match.start() for match in re.finditer("/", name))


def _check_url(url: str) -> str:
    """The URL without a slash at its end.

    Raises:
        UsageError: it is none, or holds more than a place.
    """
    parts = urlsplit(str(url))
    if "@" in parts.netloc and not parts.scheme.startswith("abfs"):
        raise UsageError(
            f"the URL of a store on {parts.scheme}:// was given with credentials in it, which messages and files "
            "would repeat. Leave out what stands before '@' and set environment variables, for instance "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    if parts.query or parts.fragment:
        raise UsageError(
            f"the URL of a store on {parts.scheme}://{parts.netloc} goes on with '?' or '#', but it is a bucket and "
            "a prefix only. Give options as arguments: ObjectStore('s3://bucket', region='eu-west-1')."
        )
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise UsageError(
            f"{url!r} is no bucket. Give one of {', '.join(f'{s}://' for s in SCHEMES)}, then the bucket and, if "
            "there is one, a prefix: ObjectStore('s3://bucket/prefix')."
        )
    prefix = parts.path.strip("/")
    validate_prefix(prefix)
    return f"{parts.scheme}://{parts.netloc}/{prefix}".rstrip("/")


def _open(url: str, options: Mapping[str, Any]) -> Any:
    """The library's store. Sends nothing.

    Raises:
        UsageError: an option is a secret, unknown, or has no such values.
    """
    config = dict(options)
    for key in config:
        if re.sub("^(aws|azure_storage|azure|google)_", "", key.lower()) in _SECRETS:
            raise UsageError(
                f"ObjectStore was given {key}=, a secret, which would be written wherever the store is pickled. "
                f"Set it in the environment of the processes ({_variable(key, url)}), or give credential_provider=."
            )
    client = {**_CLIENT, **config.pop("client_options", {})}
    if _endpoint(url, config).startswith("http://"):
        client.setdefault("allow_http", True)
    retries = {**_RETRIES, **config.pop("retry_config", {})}
    more = (
        {"credential_provider": config.pop("credential_provider")} if "credential_provider" in config else {}
    )
    _obstore()
    try:
        kind = getattr(import_module("obstore.store"), SCHEMES[urlsplit(url).scheme])
        return kind.from_url(url, config=config, client_options=client, retry_config=retries, **more)
    except BaseException as error:  # the library raises its own errors, TypeError, ValueError, and panics
        if not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        said = str(error).splitlines()[0].rstrip(".")
        raise UsageError(
            f"the store {url} cannot be opened with the options {', '.join(sorted(options)) or '(none)'} and this "
            f"environment: {said}. See docs/storage.md."
        ) from None


def _endpoint(url: str, config: Mapping[str, Any]) -> str:
    """The server that is named instead of the cloud's own."""
    kind = "AWS" if url.startswith("s3") else "AZURE_STORAGE"
    options = ("endpoint", "endpoint_url", f"{kind.lower()}_endpoint", f"{kind.lower()}_endpoint_url")
    given = [config.get(name) for name in options]
    given += [os.environ.get(f"{kind}_{name}") for name in ("ENDPOINT_URL_S3", "ENDPOINT_URL", "ENDPOINT")]
    return next((str(value) for value in given if value), "")


def _variable(key: str, url: str) -> str:
    """The environment variable that an option of this kind of store is read from."""
    scheme = urlsplit(url).scheme
    before = "AWS_" if scheme.startswith("s3") else "GOOGLE_" if scheme == "gs" else "AZURE_STORAGE_"
    name = key.upper()
    return name if name.startswith(before.split("_")[0] + "_") else before + name
