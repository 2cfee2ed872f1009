"""A machine without a Java for Spark is told so before Spark starts."""

from __future__ import annotations

import pytest
from pyspark import SparkContext

import jetlake.spark
from jetlake.errors import SparkError
from jetlake.spark.session import check_java


def put_java(folder, version):
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    program.chmod(0o755)


def test_a_session_without_java_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    # A process that has a session, as one of other tests, needs no Java for another.
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(SparkError, match=r"there is no Java in JAVA_HOME=.*: install Java 17 or newer"):
        jetlake.spark.session()


@pytest.mark.parametrize(("version", "number"), [("1.8.0_392", 8), ("11.0.21", 11)])
def test_an_old_java_is_named(tmp_path, monkeypatch, version, number):
    put_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkError, match=f"is Java {number}, and Spark needs Java 17"):
        check_java()


@pytest.mark.parametrize("version", ["17.0.1", "21", "25-ea"])
def test_a_java_that_is_new_enough(tmp_path, monkeypatch, version):
    put_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check_java()
