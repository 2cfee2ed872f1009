"""Spark's sockets to its Python workers, which answer without a secret, are nobody else's."""

import stat
import subprocess
import sys
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


def test_the_folder_goes_with_the_process_that_made_it_and_not_with_a_child_of_it():
    script = """
import os, sys
from jetlake.spark.worker_sockets import worker_sockets
folder = worker_sockets()["spark.python.unix.domain.socket.dir"]
child = os.fork()
if not child:
    sys.exit()
os.waitpid(child, 0)
print(folder, os.path.isdir(folder))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    folder, was_there = done.stdout.split()
    assert was_there == "True"
    assert not Path(folder).exists()


def test_a_path_that_is_too_long_leaves_spark_its_tcp(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert worker_sockets() == {}


def test_a_cluster_is_told_of_no_folder():
    assert local_defaults("yarn") == {}
