"""Sockets of this machine alone between Spark and its Python workers, in place of loopback TCP.

Spark asks whoever connects to such a socket for no secret, and runs what it is sent. The sockets therefore live in a
folder that nobody but this user can enter, whatever the umask.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
from functools import cache

__all__ = ["worker_sockets"]

# The shortest that a system takes for a socket's path is 104 bytes with the end; Spark's names have 42.
_FOLDER_BYTES_MAX = 60


@cache
def worker_sockets() -> dict[str, str]:
    """Return Spark's settings; none where a system has no such sockets, or the folder's path is too long for them."""
    if not hasattr(socket, "AF_UNIX"):
        return {}
    folder = tempfile.mkdtemp(prefix="jetlake-spark-")
    atexit.register(_remove, folder, os.getpid())
    if len(folder.encode()) > _FOLDER_BYTES_MAX:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": folder,
    }


def _remove(folder: str, owner: int) -> None:
    """Remove the folder when the process ends that made it, and not when a child of that process does."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
