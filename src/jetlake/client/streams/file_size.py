"""The size of an open file, for those who report progress."""

from __future__ import annotations

import os
from typing import BinaryIO

__all__ = ["bytes_left"]


def bytes_left(file: BinaryIO) -> int:
    """Return how many bytes are left to read; 0 where the file does not tell."""
    try:
        here = file.tell()
        size = file.seek(0, os.SEEK_END) - here
        file.seek(here)
        return size
    except (AttributeError, OSError, ValueError):
        return 0
