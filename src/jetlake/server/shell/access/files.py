"""Files with secrets that the configuration names."""

from __future__ import annotations

from pathlib import Path

from jetlake.errors import ConfigError

__all__ = ["read_text"]


def read_text(path: str, what: str) -> str:
    """Read a file whole.

    Raises:
        ConfigError: it cannot be read, or is no text.
    """
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: cannot read {path!r} ({error.__class__.__name__})") from None
