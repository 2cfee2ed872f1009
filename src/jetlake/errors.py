"""Every exception of the package, as one tree.

::

    JetlakeError
    ├── ProtocolError                 the peer broke the wire protocol (carries the `-ERR` text, if one is due)
    ├── BadSubjectError (ValueError)  a subject or pattern that the operation cannot take
    ├── BadHeaderError (ValueError)   a header block, key or value that cannot be read or written
    ├── ConfigError (ValueError)      an option or a configuration file that makes no sense
    └── ApiError                      JetStream said no: code, err_code and description as on the wire
"""

from __future__ import annotations

__all__ = ["BadHeaderError", "BadSubjectError", "ConfigError", "JetlakeError", "ProtocolError"]


class JetlakeError(Exception):
    """The root: whoever catches this catches everything the package raises on purpose."""


# The wire


class ProtocolError(JetlakeError):
    """The peer sent bytes that are no frame, or a frame beyond a limit.

    Args:
        reason: what was wrong, for logs and people.
        text: what a server answers as `-ERR '<text>'`; None when it says nothing.
        closes: whether the connection ends with it.
    """

    def __init__(self, reason: str, *, text: str | None = None, closes: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.text = text
        self.closes = closes


class BadSubjectError(JetlakeError, ValueError):
    """A subject that is empty, has empty tokens or blanks, or has wildcards where none may be."""

    def __init__(self, subject: bytes | str, reason: str) -> None:
        self.subject = subject.decode("utf-8", "backslashreplace") if isinstance(subject, bytes) else subject
        self.reason = reason
        super().__init__(f"bad subject {self.subject!r}: {reason}")


class BadHeaderError(JetlakeError, ValueError):
    """A header block that is not `NATS/1.0`, or a key or value that would break one."""


# Options and configuration


class ConfigError(JetlakeError, ValueError):
    """An option or a configuration value that makes no sense; the message names it and says why."""
