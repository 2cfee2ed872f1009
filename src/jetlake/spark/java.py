"""Finds the Java that Spark needs, and says what is wrong with it before Spark starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from jetlake.errors import SparkError

__all__ = ["JAVA_VERSION_MIN", "check_java", "missing_java"]

JAVA_VERSION_MIN = 17


def find_java() -> str | None:
    """Return the program that Spark would start: that of JAVA_HOME, or the one on the PATH."""
    folder = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(folder) / "bin") if folder else None)


def missing_java() -> str:
    """Return what to do where there is no Java; empty where there is one."""
    if find_java() is not None:
        return ""
    folder = os.environ.get("JAVA_HOME")
    where = f"in JAVA_HOME={folder}" if folder else "on the PATH"
    return f"there is no Java {where}: install Java {JAVA_VERSION_MIN} or newer, or set JAVA_HOME to where it is"


def check_java() -> None:
    """Refuse a machine whose Java cannot run Spark.

    Raises:
        SparkError: there is none, or one that is too old.
    """
    program = find_java()
    if program is None:
        raise SparkError(missing_java())
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    # "1.8.0_392" is Java 8.
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is not None and int(found[1]) < JAVA_VERSION_MIN:
        raise SparkError(
            f"{program} is Java {found[1]}, and Spark needs Java {JAVA_VERSION_MIN} or newer: install one, or set "
            "JAVA_HOME to where it is"
        )
