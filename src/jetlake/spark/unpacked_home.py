"""A Spark home without the archive of its Python side, so that Python processes import the installed package.

Spark puts `pyspark.zip` before everything else on the path of every Python process it starts. Python keeps compiled
code of files, never of archives, so each of these processes compiles all of pyspark anew: two thirds of its start.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import pyspark

__all__ = ["use_unpacked_home"]


def use_unpacked_home() -> None:
    """Let a Spark that this process starts from now on import the installed pyspark in its Python processes.

    Changes nothing where `SPARK_HOME` names a distribution already, and where there is no folder to write to.
    """
    if "SPARK_HOME" not in os.environ:
        with contextlib.suppress(OSError):
            os.environ["SPARK_HOME"] = str(_make_home(Path(pyspark.__file__).parent, _cache_folder()))


def _cache_folder() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME")
    return (Path(configured) if configured else Path.home() / ".cache") / "jetlake"


def _make_home(installed: Path, cache: Path) -> Path:
    """Return a folder of links to all that an installation has but its archives; made once for each installation."""
    key = hashlib.sha256(f"{installed}\n{pyspark.__version__}".encode()).hexdigest()[:16]
    home = cache / f"spark-home-{key}"
    if home.is_dir():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    # Made aside and moved in whole: another process may be at the same.
    fresh = Path(tempfile.mkdtemp(dir=cache))
    try:
        for entry in installed.iterdir():
            if entry.name != "python":
                (fresh / entry.name).symlink_to(entry)
        fresh.rename(home)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not home.is_dir():
            raise
    return home
