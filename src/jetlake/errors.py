"""Every exception of the package, as one tree.

::

    JetlakeError
    ├── ProtocolError                 the peer broke the wire protocol (carries the `-ERR` text, if one is due)
    ├── BadSubjectError (ValueError)  a subject or pattern that the operation cannot take
    ├── BadHeaderError (ValueError)   a header block, key or value that cannot be read or written
    ├── ConfigError (ValueError)      an option or a configuration file that makes no sense
    ├── DecodeError (ValueError)      bytes that are not the JSON object they should be
    └── ApiError                      JetStream said no: code, err_code and description as on the wire
        ├── BadRequestError           10003 the request contradicts itself
        ├── NotFoundError             what was asked for is not there
        │   ├── StreamNotFoundError   10059
        │   ├── ConsumerNotFoundError 10014
        │   └── MessageNotFoundError  10037
        ├── StreamNameInUseError      10058 the stream exists with another configuration
        ├── ConsumerNameInUseError    10013 the push consumer is bound to another subject in use
        ├── ConsumerExistsError       10148 create asked for a new consumer
        ├── ConsumerDoesNotExistError 10149 update asked for an existing consumer
        ├── WrongLastSequenceError    10071, 10164 an expected-sequence header did not hold
        └── JetStreamNotEnabledError  10039, 10076 for the account, for the server
"""

from __future__ import annotations

from jetlake.errors_table import ERROR_TABLE, ErrorTemplate

__all__ = [
    "ERROR_TABLE",
    "ApiError",
    "BadHeaderError",
    "BadRequestError",
    "BadSubjectError",
    "ConfigError",
    "ConsumerDoesNotExistError",
    "ConsumerExistsError",
    "ConsumerNameInUseError",
    "ConsumerNotFoundError",
    "DecodeError",
    "ErrorTemplate",
    "JetStreamNotEnabledError",
    "JetlakeError",
    "MessageNotFoundError",
    "NotFoundError",
    "ProtocolError",
    "StreamNameInUseError",
    "StreamNotFoundError",
    "WrongLastSequenceError",
    "api_error",
    "api_error_of",
]


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


# The JetStream API


class DecodeError(JetlakeError, ValueError):
    """Bytes that are not the JSON they should be; the text reads well after `invalid JSON: `."""


class ApiError(JetlakeError):
    """The answer of a JetStream server that refused; match on the subclass or on `err_code`.

    Args:
        code: the HTTP-like status.
        err_code: the number in the error table.
        description: the server's own sentence.
    """

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(code, err_code, description)
        self.code = code
        self.err_code = err_code
        self.description = description

    def __str__(self) -> str:
        return f"{self.description} (code {self.code}, err_code {self.err_code})"


class BadRequestError(ApiError):
    """The request contradicts itself or lacks what it needs (10003)."""


class NotFoundError(ApiError):
    """The stream, consumer or message that was asked for is not there."""


class StreamNotFoundError(NotFoundError):
    """No stream has that name (10059)."""


class ConsumerNotFoundError(NotFoundError):
    """The stream has no consumer of that name (10014)."""


class MessageNotFoundError(NotFoundError):
    """The stream holds no such message (10037)."""


class StreamNameInUseError(ApiError):
    """A stream of that name exists with a different configuration (10058)."""


class ConsumerNameInUseError(ApiError):
    """The consumer exists and its deliver subject, which would change, is in use (10013)."""


class ConsumerExistsError(ApiError):
    """A consumer of that name exists with a different configuration (10148)."""


class ConsumerDoesNotExistError(ApiError):
    """An update named a consumer that is not there (10149)."""


class WrongLastSequenceError(ApiError):
    """The stream's or the subject's last sequence is not the one that the publisher expected (10071, 10164)."""


class JetStreamNotEnabledError(ApiError):
    """JetStream is off for the account (10039) or for the server (10076)."""


_API_ERRORS: dict[int, type[ApiError]] = {
    10003: BadRequestError,
    10013: ConsumerNameInUseError,
    10014: ConsumerNotFoundError,
    10037: MessageNotFoundError,
    10039: JetStreamNotEnabledError,
    10058: StreamNameInUseError,
    10059: StreamNotFoundError,
    10071: WrongLastSequenceError,
    10076: JetStreamNotEnabledError,
    10148: ConsumerExistsError,
    10149: ConsumerDoesNotExistError,
    10164: WrongLastSequenceError,
}


def api_error(err_code: int, **places: object) -> ApiError:
    """The error of that table row with its places filled in: `api_error(10043, seq=7)`, `api_error(10052, err="…")`.

    Raises:
        KeyError: the table has no such row, or a place of its text was left open.
    """
    row = ERROR_TABLE[err_code]
    description = row.template.format_map(places) if "{" in row.template else row.template
    return _API_ERRORS.get(err_code, ApiError)(row.code, err_code, description)


def api_error_of(code: int, err_code: int, description: str) -> ApiError:
    """The error that a server's answer describes; codes that the table does not know give a plain `ApiError`."""
    return _API_ERRORS.get(err_code, ApiError)(code, err_code, description)
