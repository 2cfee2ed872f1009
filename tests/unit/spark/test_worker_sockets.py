"""Spark's sockets to its Python workers, which answer without a secret, are nobody else's."""

import stat
import tempfile
from pathlib import Path

import pytest

from jetlake.spark.session import local_defaults
from jetlake.spark.worker_sockets import worker_sockets

FOLDER = "spark.python.unix.domain.socket.dir"


@pytest.fixture(autouse=True)
def fresh():
    worker_sockets.cache_clear()
    yield
    worker_sockets.cache_clear()


def test_the_folder_of_sockets_is_private():
    folder = Path(local_defaults("local")[FOLDER])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert local_defaults("local[2]")[FOLDER] == str(folder)


def test_a_path_that_is_too_long_leaves_spark_its_tcp(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert worker_sockets() == {}


def test_a_cluster_is_told_of_no_folder():
    assert local_defaults("yarn") == {}
