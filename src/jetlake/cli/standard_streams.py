"""Standard input, output and error as every command expects them, however the process was started."""

from __future__ import annotations

import os
import sys

# As type checkers know it: `typing` need not be loaded before the server listens.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["prepare_standard_streams"]


def prepare_standard_streams() -> None:
    """Open what the parent process closed, and let no character that the locale lacks fail a command.

    The number of a closed descriptor would go to the next socket or file, and the event loop aborts on those below 3.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere(mode))
    output: Any = sys.stdout
    if hasattr(output, "reconfigure"):  # What a test puts in its place takes every character.
        output.reconfigure(errors="backslashreplace")


def _nowhere(mode: str) -> Any:
    descriptor = os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number, the closed one's.
    os.set_inheritable(descriptor, True)
    return os.fdopen(descriptor, mode, encoding="utf-8")
