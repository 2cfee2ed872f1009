"""The Spark home of links: complete but for the archives, made once, and never in the way of a user's own."""

import os
from pathlib import Path

import pyspark
import pytest

from jetlake.spark.session import use_installed_pyspark

INSTALLED = Path(pyspark.__file__).parent


@pytest.fixture
def environment(monkeypatch, tmp_path):
    # Set first, so that it is taken back to what it was.
    monkeypatch.setenv("SPARK_HOME", "")
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return monkeypatch


def test_a_home_has_all_but_the_archives(environment):
    use_installed_pyspark()
    home = Path(os.environ["SPARK_HOME"])
    assert (home / "bin" / "spark-submit").samefile(INSTALLED / "bin" / "spark-submit")
    assert (home / "jars").samefile(INSTALLED / "jars")
    assert not (home / "python").exists()


def test_it_is_made_once(environment, tmp_path):
    use_installed_pyspark()
    first = os.environ.pop("SPARK_HOME")
    use_installed_pyspark()
    assert os.environ["SPARK_HOME"] == first
    assert [entry.name for entry in (tmp_path / "cache" / "jetlake").iterdir()] == [Path(first).name]


def test_a_distribution_of_the_users_own_stays(environment):
    environment.setenv("SPARK_HOME", "/opt/spark")
    use_installed_pyspark()
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_without_a_folder_to_write_to_nothing_changes(environment, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    use_installed_pyspark()
    assert "SPARK_HOME" not in os.environ
