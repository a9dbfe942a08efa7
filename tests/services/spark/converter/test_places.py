"""URLs of parent directories, in every form that Databricks and Petastorm know."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.data.converter.places import cache_url, parent_url, plain_path
from hopyard.errors import UsageError
from hopyard.spark import SparkDatasetConverter


class Conf:
    """A session with this configuration."""

    def __init__(self, **settings: str) -> None:
        self.conf = self
        self._settings = settings

    def get(self, key: str, default: Any) -> Any:
        return self._settings.get(key, default)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("file:///dbfs/tmp/cache", "file:///dbfs/tmp/cache"),
        ("file:///dbfs/tmp/cache/", "file:///dbfs/tmp/cache"),
        ("file:/dbfs/tmp/cache//", "file:///dbfs/tmp/cache"),
        ("dbfs:/tmp/cache", "file:///dbfs/tmp/cache"),
        ("dbfs:///tmp/cache", "file:///dbfs/tmp/cache"),
        ("/dbfs/tmp/cache", "file:///dbfs/tmp/cache"),
        ("/Volumes/main/default/cache", "file:///Volumes/main/default/cache"),
        ("dbfs:/Volumes/main/default/cache", "file:///Volumes/main/default/cache"),
        ("file:///Volumes/main/default/cache", "file:///Volumes/main/default/cache"),
        ("file:/tmp/cache", "file:///tmp/cache"),
        ("file:///tmp/a%20b", "file:///tmp/a%20b"),
        ("file:///tmp/100%2525/", "file:///tmp/100%2525"),
    ],
)
def test_urls_of_one_directory_are_one(given: str, url: str) -> None:
    assert cache_url(given) == url


@pytest.mark.parametrize("given", ["/tmp/cache", "tmp/cache", "/dbfs", "/Volumesque/x"])
def test_a_scheme_less_url_is_refused_with_the_one_to_write(given: str) -> None:
    with pytest.raises(UsageError, match=rf"is the scheme-less '{given}'.* Write 'file:///.*', 'dbfs:/"):
        cache_url(given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("memory://x", "memory is not shared with Spark's executors"),
        ("hfds://x", "has the scheme 'hfds'"),
        ("file://host/x", "names the host 'host'"),
    ],
)
def test_what_processes_do_not_share_is_refused(given: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        cache_url(given)


@pytest.mark.parametrize(
    "key",
    [
        "spark.hopyard.converter.parentCacheDirUrl",
        "hopyard.converter.parentCacheDirUrl",
        "hopyard.spark.converter.parentCacheDirUrl",
        "petastorm.spark.converter.parentCacheDirUrl",
    ],
)
def test_every_name_of_the_setting_counts(key: str) -> None:
    assert parent_url(Conf(**{key: "dbfs:/tmp/x"})) == "file:///dbfs/tmp/x"


def test_the_own_name_counts_first() -> None:
    own = SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF
    both = {own: "file:///a", "petastorm.spark.converter.parentCacheDirUrl": "file:///b"}
    assert parent_url(Conf(**both)) == "file:///a"


def test_an_unset_directory_says_how_to_set_it() -> None:
    with pytest.raises(UsageError, match=r"is not set.*spark\.conf\.set\('spark\.hopyard\.converter\.parent"):
        parent_url(Conf())


def test_paths_of_data_may_have_any_form() -> None:
    assert plain_path("dbfs:/data/x") == "/dbfs/data/x"
    assert plain_path("file:/data/x/") == "file:///data/x"
    assert plain_path("data/x") == "data/x"
    assert plain_path("s3://bucket/x/") == "s3://bucket/x"
    with pytest.raises(UsageError, match="is no URL of a directory"):
        plain_path("")
