"""Original files from where their authors put them: resumed, checked, kept.

A file is downloaded to ``<name>.part`` and renamed once its checksum is right, so what has the name is whole. A
part that was left (a broken connection, a kill) is continued with an HTTP ``Range``. Processes that want one file take
turns by a lock on the part; those that come later find it there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from hopyard.errors import CorruptError, HopyardError, NotFoundError, StorageError
from hopyard.storage.oserrors import write_errors

DownloadWatch: TypeAlias = Callable[[int, int | None], None]
"""Called with the bytes that are here, and all bytes or None if the server does not say."""

_AT_ONCE = 1 << 18
_STALLED = 60.0  # seconds without a byte after which a connection counts as broken
_FRUITLESS = 5  # broken connections after which, if nothing new came, a server is given up


@dataclass(frozen=True)
class RemoteFile:
    """A file to download.

    Attributes:
        name: of the file here.
        urls: where it is, the preferred one first.
        md5: 32 hex digits that its publishers name. It protects from accidents, not from attackers.
    """

    name: str
    urls: tuple[str, ...]
    md5: str


def downloads_folder() -> Path:
    """``$HOPYARD_DOWNLOADS``, else ``$XDG_CACHE_HOME/hopyard/downloads``, else ``~/.cache/hopyard/downloads``."""
    if given := os.environ.get("HOPYARD_DOWNLOADS"):
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "hopyard" / "downloads"


def download(remote: RemoteFile, folder: Path, watch: DownloadWatch | None = None) -> Path:
    """The file in ``folder``, downloaded if it is not there.

    Raises:
        StorageError: no server has it: NotFoundError if all say so, CorruptError if all have something else.
        StorageFullError, NotWritableError: of the folder.
    """
    target = folder / remote.name
    part = folder / f"{remote.name}.part"
    if target.exists():
        return target
    with write_errors(str(part)):
        folder.mkdir(parents=True, exist_ok=True)
    with _locked(part, target) as held:
        if not held:
            return target
        failures: list[StorageError] = []
        for url in remote.urls:
            try:
                _fetch(url, remote.md5, part, watch)
            except (NotFoundError, CorruptError) as error:
                failures.append(error)
            except StorageError as error:
                if type(error) is not StorageError:  # the disk is full: no server helps
                    raise
                failures.append(error)
            else:
                with write_errors(str(target)):
                    part.rename(target)
                return target
    raise _failed(remote, failures, part)


@contextlib.contextmanager
def _locked(part: Path, target: Path) -> Iterator[bool]:
    """Holds the lock on the part; False if another process has finished the file in the meantime."""
    while not target.exists():
        with write_errors(str(part)):
            file = part.open("ab")
        with file:
            with write_errors(str(part)):
                fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            if part.exists() and os.path.samestat(os.fstat(file.fileno()), part.stat()):
                yield True
                return
        # it was renamed by the process that had the lock
    yield False


def _fetch(url: str, md5: str, part: Path, watch: DownloadWatch | None) -> None:
    """Bring the part to its end, and check it. What it had before may be wrong: then it begins again, once."""
    resumed = part.stat().st_size > 0
    _continue(url, part, watch)
    if _md5(part) == md5:
        return
    if resumed:
        os.truncate(part, 0)
        _continue(url, part, watch)
    if (found := _md5(part)) != md5:
        size = part.stat().st_size
        os.truncate(part, 0)
        raise CorruptError(f"{url} gave {size:,} bytes with the MD5 {found}, but {md5} was expected")


def _continue(url: str, part: Path, watch: DownloadWatch | None) -> None:
    """Ask for what is missing until all is there; every broken connection is followed by another."""
    broken = 0
    while True:
        before = part.stat().st_size
        try:
            if _transfer(url, part, watch):
                return
            why: object = "the connection was closed too early"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (404, 410):
                raise NotFoundError(f"{url} is not there (HTTP {error.code})") from error
            if error.code < 500:
                raise StorageError(f"{url} answers HTTP {error.code} {error.reason}") from error
            why = f"HTTP {error.code} {error.reason}"
        except HopyardError:
            raise
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
        broken = 0 if part.stat().st_size > before else broken + 1
        if broken == _FRUITLESS:
            raise StorageError(f"{url} cannot be read: {why}")


def _transfer(url: str, part: Path, watch: DownloadWatch | None) -> bool:
    """One request for what the part lacks; whether it is complete."""
    have = part.stat().st_size
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=_STALLED)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is missing, or the part is longer than the file: the checksum tells
            error.close()
            return True
        raise
    with answer:
        total = _total(answer, have)
        if answer.status != 206:
            os.truncate(part, 0)  # it sends all
            have = 0
        while block := answer.read1(_AT_ONCE):
            with write_errors(str(part)), part.open("ab") as file:
                file.write(block)
            have += len(block)
            if watch is not None:
                watch(have, total)
    return total is None or have >= total


def _total(answer: http.client.HTTPResponse, have: int) -> int | None:
    """Bytes of the whole file."""
    length = answer.headers.get("Content-Length")
    if length is None:
        return None
    return int(length) + (have if answer.status == 206 else 0)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _failed(remote: RemoteFile, failures: Sequence[StorageError], part: Path) -> StorageError:
    kinds = {type(error) for error in failures}
    kind = kinds.pop() if len(kinds) == 1 else StorageError
    kept = "" if not part.stat().st_size else f" The {part.stat().st_size:,} bytes that came are kept."
    return kind(
        f"{remote.name} could not be downloaded: {'; '.join(map(str, failures))}.{kept} Try again later, or download "
        "it by other means and give its path (--from PATH)."
    )
