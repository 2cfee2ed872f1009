"""Garbage collections of the Python processes that Spark keeps: a whole one after every task and every plan."""

from __future__ import annotations

import gc
import sys
from functools import cache

from pyspark import TaskContext

__all__ = ["spare_imports"]


@cache
def spare_imports() -> None:
    """Exclude the modules imported so far from this process's collections; a user's own process is left alone."""
    if TaskContext.get() is not None or _was_forked_by_spark():
        gc.freeze()


def _was_forked_by_spark() -> bool:
    """Return whether this is a worker, also one that plans and has no task."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
