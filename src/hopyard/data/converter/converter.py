"""The converter itself: rows of a DataFrame as files, and as batches for PyTorch and TensorFlow."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from hopyard.data.converter.arguments import Epochs, asked
from hopyard.data.converter.kept import delete_directory
from hopyard.data.converter.places import PARENT_CACHE_DIR_URL_CONF
from hopyard.data.dataset import Dataset
from hopyard.data.loader import Loader
from hopyard.data.opening.opening import open_dataset
from hopyard.errors import NotFoundError, UsageError
from hopyard.missing import missing_extra

_log = logging.getLogger("hopyard")
_TORCH_OPTIONS = (
    "device", "generator", "in_order", "multiprocessing_context", "num_workers", "persistent_workers", "pin_memory",
    "pin_memory_device", "prefetch_factor", "timeout", "worker_init_fn",
)  # fmt: skip

DeleteHandler = Callable[[str], None]
_delete_handler: DeleteHandler = delete_directory


def register_delete_dir_handler(handler: DeleteHandler | None) -> None:
    """Have ``converter.delete()`` call ``handler(url)`` instead of removing the directory itself; None: as before.

    Raises:
        UsageError: the handler cannot be called.
    """
    global _delete_handler
    if handler is not None and not callable(handler):
        raise UsageError(
            f"register_delete_dir_handler({handler!r}) was called, but a handler is a function of a directory's URL, "
            "or None for the default one."
        )
    _delete_handler = delete_directory if handler is None else handler


class SparkDatasetConverter:
    """The rows of a DataFrame as Parquet files, made by :func:`make_spark_converter`. Picklable.

    It goes into closures: only the files' places travel, so that it works wherever these can be read, on
    executors too. ``len(converter)`` is the number of rows. ``converter.dataset()`` is the dataset that searches
    and everything else in Hopyard reads.

    Attributes:
        cache_dir_url: of the directory with the files.
        file_urls: of the files, in the order of their rows.
        dataset_size: rows.
    """

    PARENT_CACHE_DIR_URL_CONF = PARENT_CACHE_DIR_URL_CONF
    """The key of Spark's configuration for the directory that all converters write below."""

    def __init__(self, cache_dir_url: str, names: Sequence[str], dataset_size: int, owned: bool) -> None:
        self.cache_dir_url = cache_dir_url
        self.dataset_size = dataset_size
        self._names = tuple(names)
        self._owned = owned

    @property
    def file_urls(self) -> list[str]:
        """URLs of the files, in the order of their rows."""
        return [name if "://" in name else f"file://{quote(name)}" for name in self._names]

    def __len__(self) -> int:
        return self.dataset_size

    def __repr__(self) -> str:
        return f"SparkDatasetConverter({self.dataset_size} rows in {self.cache_dir_url})"

    def dataset(self, **options: Any) -> Dataset:
        """The rows as a dataset, with the options of :func:`hopyard.data.open_dataset`.

        Raises:
            NotFoundError: the files were deleted.
        """
        try:
            return open_dataset(list(self._names), **options)
        except NotFoundError as error:
            raise NotFoundError(
                f"The files of the converter in {self.cache_dir_url} are not there: {error} They were deleted, or "
                "this machine does not see them. Call make_spark_converter again, with a parent directory that "
                "all machines share."
            ) from error

    @contextlib.contextmanager
    def make_torch_dataloader(
        self,
        batch_size: int = 32,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int = 0,
        **options: Any,
    ) -> Iterator[Any]:
        """A context manager around a ``torch.utils.data.DataLoader`` of dicts of tensors.

        Args:
            batch_size: rows of a batch, on each rank.
            num_epochs: of one iteration over the loader; None: one. The next iteration goes on with the next epoch.
            workers_count: accepted, and starts nothing: data is decoded ahead in threads, where it must be.
            shuffling_queue_capacity: above 0, rows are shuffled; how large does not matter.
            options: ``cur_shard``, ``shard_count``; ``shuffle`` (or ``shuffle_row_groups``, which is True by default,
                and ``shuffle_rows``; they all shuffle rows as a whole); ``seed``; arguments of ``open_dataset``
                (``columns``, ``filters``, ``nulls``, ...); of ``dataset.loader`` (``transform``, ``remainder``,
                ``drop_last``, ...) and of its PyTorch output (``device``, ``pin_memory``).

        Raises:
            UsageError: an argument is unknown or impossible, or contradicts the launcher of this process.
        """
        its = asked(
            "make_torch_dataloader", batch_size, num_epochs, workers_count, shuffling_queue_capacity, options,
            _TORCH_OPTIONS,
        )  # fmt: skip
        loader = self.dataset(**its.opening).loader(**its.loading, output="torch", **its.more)
        yield loader if num_epochs in (None, 1) else Epochs(loader, num_epochs or 1)

    @contextlib.contextmanager
    def make_tf_dataset(
        self,
        batch_size: int | None = None,
        prefetch: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """A context manager around a ``tf.data.Dataset`` of namedtuples of tensors.

        Args:
            batch_size: rows of a batch; None: 32.
            prefetch: batches made ahead; None: TensorFlow chooses.
            num_epochs: of one iteration; None: one, but as many as Keras draws with ``steps_per_epoch``, which is
                said once.
            workers_count, shuffling_queue_capacity, options: as of :meth:`make_torch_dataloader`.

        Raises:
            UsageError: as there; or columns' names cannot be fields of a namedtuple.
            UnsupportedTypeError: TensorFlow has no type for a column.
        """
        its = asked(
            "make_tf_dataset", batch_size, num_epochs, workers_count, shuffling_queue_capacity, options
        )
        try:
            from hopyard.data.converter.tensorflow_batches import tf_batches
        except ModuleNotFoundError as error:
            raise missing_extra("tensorflow", "tensorflow", "make_tf_dataset()") from error
        dataset = self.dataset(**its.opening)
        loading = dict(its.loading)
        if loading.pop("drop_last", False):
            loading["tail"] = "drop"
        batches = tf_batches(Loader(dataset, **loading), num_epochs, prefetch)
        with warnings.catch_warnings():
            if (
                num_epochs is None
            ):  # Keras learns the length from the first epoch's end, and takes it for an accident
                warnings.filterwarnings("ignore", message="Your input ran out of data")
            yield batches

    def delete(self) -> None:
        """Remove the files; the same DataFrame is then converted anew. Deleting twice is fine.

        Raises:
            UsageError: the files were there before the converter, or the directory is not a converter's.
        """
        if not self._owned:
            raise UsageError(
                f"The converter of {self.cache_dir_url} reads Parquet files that it has not written, so delete() "
                "leaves them alone. If they are not needed, delete them yourself."
            )
        _delete_handler(self.cache_dir_url)

    def delete_quietly(self) -> None:
        """Delete at the end of a process, when nobody can catch anything: a failure is logged."""
        try:
            self.delete()
        except Exception as error:  # handlers may raise anything
            _log.warning("%s could not be deleted: %s", self.cache_dir_url, error)
