"""What is published: text from the command line with its places filled in, or standard input."""

from __future__ import annotations

import sys
import time

__all__ = ["body_of", "value_of"]


def value_of(text: str | None) -> bytes:
    """Return what was typed as it is, or standard input."""
    return sys.stdin.buffer.read() if text is None else text.encode()


def body_of(text: str | None, number: int) -> bytes:
    """Return what was typed, with `{{Count}}` and `{{Time}}` filled in, or standard input."""
    if text is None:
        return value_of(None)
    return text.replace("{{Count}}", str(number)).replace("{{Time}}", time.strftime("%H:%M:%S")).encode()
