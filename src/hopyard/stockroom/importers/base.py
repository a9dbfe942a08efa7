"""The contract of importers: one for each format that data comes in. It knows nothing of packfiles or commits.

Rules of an importer:

* **Opening.** ``__init__`` checks the options and that the source is there, and reads nothing. ``columns`` opens it;
  what is wrong with it as a whole (another archive, a truncated one, no images) is said there, before any sample
  is read.
* **Original values.** Dtype, layout and bytes are those of the source, but in native byte order; nothing is scaled,
  cropped or cast.
* **Splits** are columns: those of the training split have plain names (``image``), others the split's before
  them (``test-image``), and say which. The samples i of all columns of one split belong together, so these have the
  same count; an import of others is refused before anything is written.
* **Reading** is pure: ``read(start, stop)`` gives the same samples whenever, wherever and however often it is called,
  also in another process that was sent the pickled ``ColumnSource``. It may be called from one thread at a time
  in each process. Arrays may be read-only. Rising calls are fast, others only right.
* **Lifetime.** What was unpacked lies in a temporary directory until ``close``, or until the process ends;
  sources can be read until then.
* **Identity.** JSON that is the same for the same source and options and differs if the files changed: it is
  recorded with the import, and an interrupted import goes on only if it is what it was.
* **Errors** say what was expected, what is there, and what to do, and call the importer as users type it
  (``type(self).typed_name()``). Those of one sample name its file; the driver (``run.py``) adds column and number. What
  the file system raises while a source is opened, of a folder where a file is needed for example, an import turns
  into such errors (``storing.py``).

Importers are found by the entry point group ``hopyard.importers``; a class of any package may stand there.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.errors import NotFoundError, UsageError
from hopyard.stockroom.importers.download import RemoteFile, download, downloads_folder
from hopyard.storage.oserrors import write_errors
from hopyard.storage.temporary import sweep, temporary_name
from hopyard.wording import nearest

Samples: TypeAlias = npt.NDArray[Any] | list[npt.NDArray[Any]] | list[str] | list[bytes]
"""Consecutive samples: (n, *shape) of one shape; else a list of one array, text or bytes each."""

GROUP = "hopyard.importers"
"""Entry points that are importers."""

_unpacked: set[Path] = set()
"""Temporary directories of importers that are not closed: columns may outlive their importer."""

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True)
class ColumnSource:
    """A column that can be read. Picklable.

    Attributes:
        name: of the column.
        count: of its samples, at least 1.
        kind: ``"tensor"``, ``"string"`` or ``"bytes"``.
        dtype: NumPy name of a tensor's elements, which are bools or numbers; ``"object"`` of strings and bytes.
        shape: of each sample, () for scalars; None: it differs from sample to sample. () of strings and bytes.
        read: samples [start, stop) of a tensor with a shape as one array (n, *shape), else as a list.
        keys: of samples [start, stop), unique in the column; None: 0 to count - 1.
        split: which its name begins with, before a hyphen; "": that of training, or there are none.
    """

    name: str
    count: int
    kind: Literal["tensor", "string", "bytes"]
    dtype: str
    shape: tuple[int, ...] | None
    read: Callable[[int, int], Samples]
    keys: Callable[[int, int], list[int | str]] | None = None
    split: str = ""

    @property
    def width(self) -> int | None:
        """Bytes of a sample, or None if samples differ in size."""
        if self.kind != "tensor" or self.shape is None:
            return None
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Option:
    """A setting of an importer.

    Attributes:
        name: a keyword of the constructor; ``--option name=value`` on the command line.
        default: also says the type: bool, int or str.
        help: one sentence.
        choices: the only values; (): any.
    """

    name: str
    default: bool | int | str
    help: str
    choices: tuple[bool | int | str, ...] = ()

    def parse(self, text: str | bool | int) -> bool | int | str:
        """The value that a text of the command line means, or a value itself; UsageError if none."""
        kind = type(self.default)
        if not isinstance(text, str):
            return self.check(text)
        if kind is bool and text.lower() in (*_TRUE, *_FALSE):
            return text.lower() in _TRUE
        if kind is str:
            return self.check(text)
        if kind is int and text.lstrip("-").isdecimal():
            return self.check(int(text))
        raise self._wrong(text)

    def check(self, value: Any) -> bool | int | str:
        """The value, if it is of the type and among the choices; else UsageError."""
        if type(value) is not type(self.default) or (self.choices and value not in self.choices):
            raise self._wrong(value)
        return value

    def _wrong(self, value: Any) -> UsageError:
        wanted = (
            f"one of {', '.join(map(repr, self.choices))}" if self.choices else type(self.default).__name__
        )
        return UsageError(
            f"Option {self.name}={value!r} must be {wanted}; it is {self.default!r} by default."
        )


class Importer(ABC):
    """One format. See the module's text for the rules; the class's own docstring is its help text.

    Args:
        source: the file or folder; None: what the importer downloads, if it does.
        options: those that ``options()`` lists; others keep their defaults.

    Attributes:
        settings: the value of every option.

    Raises:
        UsageError: an unknown option, a value that it does not take, or no source where one is needed.
        NotFoundError: the source is not there.
    """

    needs_source = True
    """False: without one it downloads the original files, or it is given its data by other arguments."""

    watch_download: Callable[[str, int, int | None], None] | None = None
    """Called while a file is downloaded: its name, bytes that are here, all bytes or None if that is not known."""

    def __init__(self, source: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self.settings: dict[str, Any] = self._checked(options)
        self._scratch: Path | None = None
        self.source: Path | None = None if source is None else Path(source).expanduser().absolute()
        if self.source is None and self.needs_source:
            raise UsageError(
                f"the importer {self.typed_name()!r} needs a source: there is nothing that it could download. "
                "Give a path (--from PATH)."
            )
        if self.source is not None and not self.source.exists():
            raise NotFoundError(f"There is no file or folder {self.source}. Check the path given by --from.")

    @classmethod
    def typed_name(cls) -> str:
        """Name by which users call the importer: that of its entry point; without one, that of the class."""
        value = f"{cls.__module__}:{cls.__qualname__}"
        return next((entry.name for entry in entry_points(group=GROUP) if entry.value == value), cls.__name__)

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """The settings of the importer."""
        return ()

    @classmethod
    def help(cls) -> str:
        """Plain text about what the importer imports, and about the importer's options."""
        lines = [inspect.cleandoc(cls.__doc__ or "")]
        for option in cls.options():
            lines.append(f"  {option.name}={option.default}: {option.help}")
        return "\n".join(lines)

    @abstractmethod
    def columns(self) -> list[ColumnSource]:
        """The columns, names unique, in the order in which they are to be written. The same at each call."""

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Identity of the source: a JSON object, with the names of classes where labels number them."""

    def close(self) -> None:
        """Remove what was unpacked. Closing twice is fine."""
        if self._scratch is not None:
            _remove(self._scratch)
            self._scratch = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def scratch(self) -> Path:
        """A directory in ``$TMPDIR`` for what has to be unpacked; it goes by ``close``, or with the process."""
        if self._scratch is None:
            sweep(tempfile.gettempdir())  # what killed processes left
            self._scratch = Path(tempfile.gettempdir(), temporary_name())
            with write_errors(str(self._scratch)):
                self._scratch.mkdir(0o700)
            _unpacked.add(self._scratch)
        return self._scratch

    def download(self, remote: RemoteFile, below: str = "") -> Path:
        """The file in the folder of downloads, or in a folder below it, downloaded if it is not there."""
        watch = None if self.watch_download is None else functools.partial(self.watch_download, remote.name)
        return download(remote, downloads_folder() / below, watch)

    @classmethod
    def _checked(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        known = {option.name: option for option in cls.options()}
        for name in given:
            if name not in known:
                there = f"The options are: {', '.join(known)}." if known else "It has none."
                raise UsageError(
                    f"the importer {cls.typed_name()!r} has no option {name!r}{nearest(name, known, '.')} {there}"
                )
        return {
            name: option.check(given[name]) if name in given else option.default
            for name, option in known.items()
        }


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    _unpacked.discard(directory)


@atexit.register
def _remove_all() -> None:
    for directory in list(_unpacked):
        _remove(directory)
