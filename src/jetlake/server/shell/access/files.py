"""Files with secrets that the configuration names."""

from __future__ import annotations

from pathlib import Path

from jetlake.errors import ConfigError
from jetlake.server.config.conf import read_file

__all__ = ["read_text"]


def read_text(path: str, what: str) -> str:
    """Read a file whole.

    Raises:
        ConfigError: it cannot be read, or is no text.
    """
    try:
        return read_file(Path(path).expanduser())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: cannot read {path!r} ({error.__class__.__name__})") from None
