"""Context of a trial: what its code is told of the experiment, and its ways to data."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hopyard.errors import NotFoundError, UsageError
from hopyard.experiment.secrets import resolve_secrets
from hopyard.wording import nearest, some_names

if TYPE_CHECKING:
    from hopyard.data import Dataset
    from hopyard.experiment.downloads import Downloads
    from hopyard.experiment.streams import Stream


@dataclass(frozen=True)
class Distributed:
    """Place of this process among the processes that train one trial.

    Attributes:
        rank: its number among all of them, from 0.
        size: how many there are.
        local_rank: its number among those of its machine, from 0.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    def get_rank(self) -> int:
        """``rank``."""
        return self.rank

    def get_size(self) -> int:
        """``size``."""
        return self.size

    def get_local_rank(self) -> int:
        """``local_rank``."""
        return self.local_rank


class TrialContext:
    """Hyperparameters and data of one trial. It can be used as long as the trial is on this machine.

    Args:
        data: the configuration's field of that name, with references to secrets.
        hyperparameters: the trial's point of the search space; nested as in the configuration.
        downloads: keeps what this trial has downloaded in use.
        distributed: the place of this process.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        hyperparameters: Mapping[str, Any],
        downloads: Downloads,
        distributed: Distributed | None = None,
    ) -> None:
        self._data, self._hyperparameters, self._downloads = dict(data), dict(hyperparameters), downloads
        self.distributed: Distributed = Distributed() if distributed is None else distributed

    def get_data_config(self) -> dict[str, Any]:
        """The configuration's field ``data``, with the values of secrets; a copy.

        Raises:
            ConfigError: secrets are missing on this machine.
        """
        resolved: dict[str, Any] = resolve_secrets(copy.deepcopy(self._data))
        return resolved

    def get_hparams(self) -> dict[str, Any]:
        """All hyperparameters of this trial; a copy."""
        return copy.deepcopy(self._hyperparameters)

    def get_hparam(self, name: str) -> Any:
        """The value of a hyperparameter; ``"optimizer.lr"`` is the one called ``lr`` within ``optimizer``.

        Raises:
            UsageError: there is none of that name.
        """
        value: Any = self._hyperparameters
        path: list[str] = []
        for step in name.split("."):
            known = list(value) if isinstance(value, Mapping) else []
            if step not in known:
                where = ".".join(["hyperparameters", *path])
                there = f"{where} has {some_names(known)}" if known else f"{where} has no names"
                raise UsageError(
                    f"get_hparam({name!r}) asks for a hyperparameter that the configuration does not have"
                    f"{nearest(step, known, '.')} {there}. Correct the name, or add it to the configuration."
                )
            path.append(step)
            value = value[step]
        return copy.deepcopy(value)

    def download(self, url: str, directory: str | os.PathLike[str] | None = None) -> Path:
        """The path of an object, or of a folder of all objects below a prefix, on this machine: transferred once for
        all trials and processes, verified, and continued where a transfer was interrupted.

        Args:
            url: of the object or prefix, or a path.
            directory: where the trial gets a copy of its own, which it may write to; None: the file that all share.

        Raises:
            NotFoundError, UsageError, StorageError: as ``hopyard.experiment.downloads.Downloads.download`` says.
        """
        return self._downloads.download(url, directory)

    def stream(
        self,
        urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        decode: Callable[[bytearray], Any] = bytes,
        *,
        record_bytes: int | None = None,
        batch_size: int | None = None,
        header_bytes: int | None = None,
    ) -> Stream:
        """Batches that are read from a store while the trial trains; see ``hopyard.experiment.streams.stream``."""
        from hopyard.experiment.streams import stream

        return stream(
            urls, decode, record_bytes=record_bytes, batch_size=batch_size, header_bytes=header_bytes
        )

    def dataset(self, name: str = "train", **options: Any) -> Dataset:
        """The dataset that the field ``data`` of the configuration names.

        ``data: {train: URL, val: URL}`` names one for each; ``data: {store: URL}`` names a store, of which ``name`` is
        the split.

        Args:
            name: a field of ``data``, or a split.
            options: those of ``hopyard.data.open_dataset``.

        Paths are absolute: one that is relative begins at the trial's working directory, its own copy of the model
        definition.

        Raises:
            UsageError: ``data`` has neither; or its value is no path or URL.
            NotFoundError: nothing is there.
        """
        from hopyard.data import open_dataset

        data = self.get_data_config()
        place = data.get(name, data.get("store"))
        if not isinstance(place, str):
            raise UsageError(
                f"dataset({name!r}) asks for a dataset, but data of the configuration names none: it has "
                f"{some_names(list(data)) if data else 'no fields'}. Write data: {{{name}: URL}}, with the URL or path "
                "of Parquet files or of a prepared dataset, or data: {store: URL}."
            )
        split: Literal["train", "val"] = "val" if name == "val" else "train"
        try:
            return open_dataset(place, split, **options)
        except NotFoundError as error:
            if "://" in place or Path(place).is_absolute():
                raise
            field = name if name in data else "store"
            raise NotFoundError(
                f"data.{field} of the configuration is {place!r}, a path relative to the trial's working directory, "
                f"which is its own copy of the model definition. Write an absolute path or a URL. {error}"
            ) from None
