"""Every exception of the package, as one tree.

::

    JetlakeError
    ├── ProtocolError                 the peer violated the wire protocol (carries the `-ERR` text to send, if any)
    ├── BadSubjectError (ValueError)  a subject or pattern that is not valid for the operation
    ├── BadHeaderError (ValueError)   a header block, key or value that is not valid
    ├── ConfigError (ValueError)      an option or a configuration file that is not valid
    ├── DecodeError (ValueError)      bytes that are not the expected JSON
    ├── StoreError                    a disk operation of the store failed
    ├── NotJetStreamMessageError      the message has no JetStream reply subject and cannot be acknowledged
    ├── AlreadyAcknowledgedError      the message was already acknowledged; the first acknowledgement counts
    ├── TokenError (ValueError)       a token (JWT) that is malformed, forged, expired or not supported
    ├── InvalidOptionError (ConfigError)  an option of the client that is not valid; nothing was sent
    ├── ClientConnectionError (ConnectionError)
    │   ├── ConnectionClosedError     the connection is closed, by the program or after its last attempt
    │   ├── DisconnectedError         the connection was lost while an answer was awaited
    │   ├── NoServersError            no server could be reached; carries the reason for each address
    │   ├── AuthorizationError        the server refused the credentials
    │   ├── StaleConnectionError      server or client received nothing for too long
    │   └── OutboundBufferFullError   too many bytes were waiting for a connection
    ├── ServerError                   an error (`-ERR`) that the server sent
    │   └── PermissionsError          the user may not publish or subscribe to the subject
    ├── RequestTimeoutError (TimeoutError)
    │   ├── ConnectTimeoutError       a server did not complete the handshake in time
    │   ├── PublishTimeoutError       no stream acknowledged the message in time
    │   └── DrainTimeoutError         handlers did not finish in time
    ├── NoRespondersError             no service or stream answers on the subject
    │   └── AckRefusedError           the consumer refused an acknowledgement; carries the reason
    │       └── StaleAckError         the message has been redelivered since, and the consumer has strict acks
    ├── ServiceError                  a service returned an error; carries code, description and payload
    ├── SlowSubscriberError           messages arrived faster than they were read
    ├── SubscriptionClosedError       the subscription ended
    ├── ConsumeError                  reading from a consumer ended
    │   ├── ConsumerDeletedError      the consumer was deleted
    │   ├── HeartbeatMissedError      neither a message nor a heartbeat arrived in time
    │   ├── PullStatusError           the server refused a pull; carries status and description
    │   ├── SequenceGapError          deliveries are missing; carries the expected and the received sequence
    │   └── StreamReplacedError       the stream was deleted and recreated during the read
    ├── ConsumerGroupError            a consumer group does not exist, differs, or does not allow the change
    ├── BackupError                   a backup or restore ended early, or a folder has no backup; says why
    ├── MigrationError                a stream can't be moved, or its copy differs; says why
    ├── SchemaError                   a subject has no schema, or the new one is not compatible
    │   └── SchemaMismatchError       a payload does not match the schema of its subject; carries version and reason
    ├── BatchError                    a batch has ended, is empty, or is not supported by the server
    ├── ObjectError                   an object's content is damaged or incomplete, or a link is broken; says why
    ├── PublishWindowError            messages of a publish window were not stored; carries an error for each
    ├── SubscribeMismatchError        the existing consumer does not fit the subscription
    ├── LakeError                     a table of a lake is missing, or cannot be read or committed to; says what to do
    ├── SparkError                    the Spark source or sink cannot continue; says what to do
    │   ├── OffsetError               the checkpoint contains an offset that cannot be read
    │   ├── DataLossError             messages were removed before they were read
    │   │   └── StreamRecreatedError  the stream was deleted and recreated since the checkpoint was written
    │   ├── UnsupportedStreamError    stream or server do not support this kind of read or write
    │   ├── ConsumerHeldError         another query owns the durable consumer
    │   ├── BadPayloadError           a payload does not match its format
    │   ├── BatchWrittenError         a batch is repeated that was already written, and others after it
    │   └── RowPublishError           a row could not be published; names row, subject and the server's code
    └── ApiError                      JetStream refused the request; code, err_code and description as on the wire
        ├── BadRequestError           10003 the request is contradictory or incomplete
        ├── NotFoundError             the requested object does not exist
        │   ├── StreamNotFoundError   10059
        │   ├── ConsumerNotFoundError 10014
        │   └── MessageNotFoundError  10037
        │       ├── KeyNotFoundError  a bucket has no such key
        │       └── ObjectNotFoundError  an object store has no such object
        ├── StreamNameInUseError      10058 the stream exists with another configuration
        ├── ConsumerNameInUseError    10013 the push consumer is bound to another subject in use
        ├── ConsumerExistsError       10148 the consumer to create already exists
        ├── ConsumerDoesNotExistError 10149 the consumer to update does not exist
        ├── WrongLastSequenceError    10071, 10164 the last sequence is not the expected one
        │   ├── KeyExistsError        the bucket already has this key
        │   └── ObjectExistsError     the object store already has this object
        └── JetStreamNotEnabledError  10039, 10076 for the account, for the server
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jetlake.errors_table import ERROR_TABLE, HINTS, ErrorTemplate

__all__ = [
    "ERROR_TABLE",
    "AckRefusedError",
    "AlreadyAcknowledgedError",
    "ApiError",
    "AuthorizationError",
    "BackupError",
    "BadHeaderError",
    "BadPayloadError",
    "BadRequestError",
    "BadSubjectError",
    "BatchError",
    "BatchWrittenError",
    "ClientConnectionError",
    "ConfigError",
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "ConsumeError",
    "ConsumerDeletedError",
    "ConsumerDoesNotExistError",
    "ConsumerExistsError",
    "ConsumerGroupError",
    "ConsumerHeldError",
    "ConsumerNameInUseError",
    "ConsumerNotFoundError",
    "DataLossError",
    "DecodeError",
    "DisconnectedError",
    "DrainTimeoutError",
    "ErrorTemplate",
    "HeartbeatMissedError",
    "InvalidOptionError",
    "JetStreamNotEnabledError",
    "JetlakeError",
    "KeyExistsError",
    "KeyNotFoundError",
    "LakeError",
    "MessageNotFoundError",
    "MigrationError",
    "NoRespondersError",
    "NoServersError",
    "NotFoundError",
    "NotJetStreamMessageError",
    "ObjectError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "OffsetError",
    "OutboundBufferFullError",
    "PermissionsError",
    "ProtocolError",
    "PublishTimeoutError",
    "PublishWindowError",
    "PullStatusError",
    "RequestTimeoutError",
    "RowPublishError",
    "SchemaError",
    "SchemaMismatchError",
    "SequenceGapError",
    "ServerError",
    "ServiceError",
    "SlowSubscriberError",
    "SparkError",
    "StaleAckError",
    "StaleConnectionError",
    "StoreError",
    "StreamNameInUseError",
    "StreamNotFoundError",
    "StreamRecreatedError",
    "StreamReplacedError",
    "SubscribeMismatchError",
    "SubscriptionClosedError",
    "TokenError",
    "UnsupportedStreamError",
    "WrongLastSequenceError",
    "api_error",
    "api_error_of",
]


class JetlakeError(Exception):
    """The base class of all errors that the package raises on purpose."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...], dict[str, object]]:
        # An exception is pickled as a call of its class with `args`, the arguments of `BaseException.__init__`: a text
        # here, which is not what most subclasses take. A process pool whose task raised such an error waits for ever.
        return _unpickled, (type(self), self.args), self.__dict__


def _unpickled(kind: type[JetlakeError], arguments: tuple[object, ...]) -> JetlakeError:
    """Return an error with these `args` and without calling its `__init__`; pickle restores the attributes."""
    error = kind.__new__(kind, *arguments)
    error.args = arguments  # `OSError.__new__` leaves them out where a subclass has its own `__init__`.
    return error


# The wire


class ProtocolError(JetlakeError):
    """The peer sent bytes that are no frame, or a frame beyond a limit.

    Args:
        reason: the violation, for logs and people.
        text: what a server answers as `-ERR '<text>'`; None for no answer.
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
    """An option or a configuration value that is not valid; the message names it and gives the reason."""


class TokenError(JetlakeError, ValueError):
    """A token (JWT) that is malformed, has a wrong signature, has expired, or contains something unsupported."""


# The JetStream API


class DecodeError(JetlakeError, ValueError):
    """Bytes that are not the expected JSON; the text can follow `invalid JSON: `."""


class NotJetStreamMessageError(JetlakeError, ValueError):
    """The reply subject is not one of JetStream's, so the message has no metadata and cannot be acknowledged."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(subject, reason)
        self.subject = subject
        self.reason = reason

    def __str__(self) -> str:
        return f"not a JetStream message: its reply subject is {self.subject!r}, and {self.reason}"


class ApiError(JetlakeError):
    """JetStream refused a request; match on the subclass or on `err_code`.

    Args:
        code: the HTTP-like status.
        err_code: the number in the error table.
        description: the server's text.

    Attributes:
        request: the refused request: an API call such as `STREAM.INFO.ORDERS`, or the subject of a message; or empty.
    """

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(code, err_code, description)
        self.code = code
        self.err_code = err_code
        self.description = description
        self.request = ""

    def __str__(self) -> str:
        where = f", on {self.request}" if self.request else ""
        hint = f": {self.hint}" if self.hint else ""
        return f"{self.description} (code {self.code}, err_code {self.err_code}{where}){hint}"

    @property
    def hint(self) -> str:
        """What to do about it, if the description does not say so; often empty."""
        return HINTS.get(self.err_code, "")


class BadRequestError(ApiError):
    """The request is contradictory or incomplete (10003)."""


class NotFoundError(ApiError):
    """The requested stream, consumer or message does not exist."""


class StreamNotFoundError(NotFoundError):
    """No stream has that name (10059)."""


class ConsumerNotFoundError(NotFoundError):
    """The stream has no consumer of that name (10014)."""


class MessageNotFoundError(NotFoundError):
    """The stream has no such message (10037)."""


class KeyNotFoundError(MessageNotFoundError):
    """The bucket has no such key, or it was deleted."""

    def __init__(self, bucket: str, key: str) -> None:
        super().__init__(404, 10037, f"bucket {bucket!r} has no key {key!r}")
        self.bucket = bucket
        self.key = key


class ObjectNotFoundError(MessageNotFoundError):
    """The object store has no such object, or it was deleted."""

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(404, 10037, f"object store {bucket!r} has no object {name!r}")
        self.bucket = bucket
        self.name = name


class StreamNameInUseError(ApiError):
    """A stream of that name exists with a different configuration (10058)."""


class ConsumerNameInUseError(ApiError):
    """The consumer exists and its deliver subject, which would change, is in use (10013)."""


class ConsumerExistsError(ApiError):
    """A consumer of that name exists with a different configuration (10148)."""


class ConsumerDoesNotExistError(ApiError):
    """The consumer to update does not exist (10149)."""


class WrongLastSequenceError(ApiError):
    """The stream's or the subject's last sequence is not the one that the publisher expected (10071, 10164)."""


class KeyExistsError(WrongLastSequenceError):
    """The bucket already has this key."""

    def __init__(self, bucket: str, key: str) -> None:
        super().__init__(400, 10071, f"bucket {bucket!r} already has the key {key!r}")
        self.bucket = bucket
        self.key = key


class ObjectExistsError(WrongLastSequenceError):
    """The object store already has this object."""

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(400, 10071, f"object store {bucket!r} already has the object {name!r}")
        self.bucket = bucket
        self.name = name


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
    """Return the error of that table row with its places filled in: `api_error(10043, seq=7)`.

    Raises:
        KeyError: the table has no such row, or a place of its text was left open.
    """
    row = ERROR_TABLE[err_code]
    description = row.template.format_map(places) if "{" in row.template else row.template
    return _API_ERRORS.get(err_code, ApiError)(row.code, err_code, description)


def api_error_of(code: int, err_code: int, description: str) -> ApiError:
    """Return the error that a server's answer describes; codes that the table does not know give a plain `ApiError`."""
    return _API_ERRORS.get(err_code, ApiError)(code, err_code, description)


# The store


class StoreError(JetlakeError):
    """A disk operation failed: the disk is full, read-only or failing. Stored messages stay readable.

    Args:
        doing: what the store was doing, such as `write to segment 3 of the stream`.
        reason: the reason that the disk gave.
        errno: the operating system's number, if it gave one.
    """

    def __init__(self, doing: str, reason: str, *, errno: int | None = None) -> None:
        super().__init__(f"cannot {doing}: {reason}")
        self.doing = doing
        self.reason = reason
        self.errno = errno

    @classmethod
    def of(cls, doing: str, error: OSError) -> StoreError:
        """Return the error for an error of the operating system."""
        return cls(doing, (error.strerror or str(error)).lower(), errno=error.errno)


# The client


class InvalidOptionError(ConfigError):
    """An option of a client call that cannot work; nothing was sent. The message names it and says why."""


class ClientConnectionError(JetlakeError, ConnectionError):
    """An error of the connection between the client and its servers."""


class ConnectionClosedError(ClientConnectionError):
    """The connection is closed; open a new one."""


class DisconnectedError(ClientConnectionError):
    """The connection was lost before the answer; it is not known whether the server handled the request."""


class NoServersError(ClientConnectionError):
    """No server could be reached.

    Args:
        attempts: the reason for each address.
    """

    def __init__(self, attempts: dict[str, str]) -> None:
        self.attempts = attempts
        told = "; ".join(f"{address}: {reason}" for address, reason in attempts.items())
        super().__init__(f"no server could be reached ({told or 'no address is left to try'})")


class AuthorizationError(ClientConnectionError):
    """The server refused the credentials, or requires some and none were given."""


class StaleConnectionError(ClientConnectionError):
    """The other side did not answer pings; the connection is closed."""


class OutboundBufferFullError(ClientConnectionError):
    """Writes without a connection are kept up to `pending_bytes_max`; this one exceeds the limit."""


class ServerError(JetlakeError):
    """An error of the server that refers to no request; it is passed to the connection's `on_error`."""


class PermissionsError(ServerError):
    """The user may not publish or subscribe to that subject."""


class RequestTimeoutError(JetlakeError, TimeoutError):
    """No answer arrived in time."""


class ConnectTimeoutError(RequestTimeoutError):
    """A server did not complete the handshake in time."""


class PublishTimeoutError(RequestTimeoutError):
    """No stream acknowledged the message in time; it may still be stored."""


class DrainTimeoutError(RequestTimeoutError):
    """The operation did not finish in time; the rest of it is cancelled."""


class NoRespondersError(JetlakeError):
    """No responders on the subject: no service, no stream that captures it, or JetStream is off."""

    def __init__(self, subject: str, hint: str = "is there a stream or service for it, and is JetStream on?") -> None:
        super().__init__(f"no responders on {subject!r} ({hint})")
        self.subject = subject


class AlreadyAcknowledgedError(JetlakeError):
    """The message was already acknowledged: the server ignores all but the first acknowledgement."""


class AckRefusedError(NoRespondersError):
    """The consumer refused an acknowledgement: the message is redelivered, unless it was acknowledged otherwise.

    Args:
        subject: the message's ack subject.
        reason: the server's text.
    """

    def __init__(self, subject: str, reason: str) -> None:
        JetlakeError.__init__(self, f"the acknowledgement on {subject!r} was refused: {reason}")
        self.subject = subject
        self.reason = reason


class StaleAckError(AckRefusedError):
    """The message has been redelivered: with strict acks, only the later delivery can be acknowledged."""


class ServiceError(JetlakeError):
    """A request to a service failed: raised by a handler to send an error, and raised to the caller who receives it.

    Args:
        code: a number, like HTTP's.
        description: what went wrong, in one line.
        payload: further details.
    """

    def __init__(self, code: int, description: str, payload: bytes = b"") -> None:
        super().__init__(f"{description} ({code})")
        self.code = code
        self.description = description
        self.payload = payload


class SlowSubscriberError(JetlakeError):
    """A subscription's limit was reached because messages arrived faster than they were read.

    Args:
        subject: the subject of the subscription.
        dropped: how many messages this subscription has dropped so far.
    """

    def __init__(self, subject: str, dropped: int) -> None:
        super().__init__(f"subscription {subject!r} is too slow: {dropped} messages dropped so far")
        self.subject = subject
        self.dropped = dropped


class SubscriptionClosedError(JetlakeError):
    """The subscription ended and has no more messages."""


class ConsumeError(JetlakeError):
    """Reading from a consumer ended."""


class ConsumerDeletedError(ConsumeError):
    """The consumer (or its stream) was deleted during the read."""

    def __init__(self, stream: str, consumer: str) -> None:
        super().__init__(f"consumer {consumer!r} of stream {stream!r} was deleted; create it again to continue")
        self.stream = stream
        self.consumer = consumer


class HeartbeatMissedError(ConsumeError):
    """Neither a message nor a heartbeat arrived in the time that the server had promised.

    The connection and the consumer answer, and the consumer keeps its position.
    """

    def __init__(self, silent_s: float) -> None:
        super().__init__(
            f"no message and no heartbeat for {silent_s:g} s; server or network are stalled; read again to continue"
        )
        self.silent_s = silent_s


class PullStatusError(ConsumeError):
    """The server answered a pull with a status that ends it.

    Args:
        status: the number, such as 409.
        description: the server's text.
    """

    def __init__(self, status: int, description: str) -> None:
        super().__init__(f"the server ended the pull: {status} {description}")
        self.status = status
        self.description = description


class SequenceGapError(ConsumeError):
    """Deliveries are missing between the last message and this one."""

    def __init__(self, expected: int, received: int, stream_seq: int) -> None:
        super().__init__(f"expected delivery {expected} and got {received} (stream sequence {stream_seq})")
        self.expected = expected
        self.received = received
        self.stream_seq = stream_seq


class StreamReplacedError(ConsumeError):
    """The stream was recreated, or lost its end, during the read: its sequences refer to other messages.

    Args:
        stream: its name.
        last_read: the sequence of the last message that was read; 0 for none.
    """

    def __init__(self, stream: str, last_read: int) -> None:
        super().__init__(
            f"stream {stream!r} was replaced during this read (last sequence read: {last_read}); "
            "start a new read for its present messages"
        )
        self.stream = stream
        self.last_read = last_read


class ConsumerGroupError(JetlakeError):
    """A consumer group does not exist, differs, or does not allow the change."""


class BackupError(JetlakeError):
    """A backup or restore that ended before its archive was complete, or a folder without a backup."""


class MigrationError(JetlakeError):
    """A stream that can't be moved to another server, or a copy that differs from it."""


class SchemaError(JetlakeError, ValueError):
    """A subject has no schema, or a new one is not compatible with it; the message says what to do."""


class SchemaMismatchError(SchemaError):
    """A payload does not match the schema of its subject; nothing was sent.

    Args:
        subject: the message's subject.
        version: the version of the schema.
        reason: what does not match.
    """

    def __init__(self, subject: str, version: int, reason: str) -> None:
        super().__init__(f"the payload for {subject} does not fit version {version} of its schema: {reason}")
        self.subject = subject
        self.version = version
        self.reason = reason


class BatchError(JetlakeError):
    """A batch of messages cannot continue: it has ended, is empty, or the server does not support batches."""


class ObjectError(JetlakeError):
    """An object whose content is damaged, incomplete or was replaced during the read, or a broken link."""


class PublishWindowError(JetlakeError):
    """Some messages of a publish window were not acknowledged.

    Args:
        failures: subject and error of each, in the order in which they failed.
        positions: the position of each in the messages of one `publish_many`, from 0; empty for other calls.
    """

    def __init__(self, failures: list[tuple[str, Exception]], positions: Sequence[int] = ()) -> None:
        subject, error = failures[0]
        first = f"message {positions[0]}, on {subject!r}" if positions else f"on {subject!r}"
        super().__init__(f"{len(failures)} messages were not acknowledged; the first, {first}: {error}")
        self.failures = failures
        self.positions = list(positions)


class SubscribeMismatchError(JetlakeError):
    """The existing consumer does not fit this subscription; the message says what differs."""


# Spark


class LakeError(JetlakeError):
    """A table of a lake is missing, was changed, or cannot be read or committed to; the message says what to do."""


class SparkError(JetlakeError):
    """The Spark source or sink cannot continue; the message says why and what to do."""


class OffsetError(SparkError):
    """The checkpoint contains an offset of a newer release, or something that is not an offset."""


class DataLossError(SparkError):
    """Messages were removed from the stream before the query read them."""


class StreamRecreatedError(DataLossError):
    """The stream was recreated since the checkpoint was written: its sequences refer to other messages."""


class UnsupportedStreamError(SparkError):
    """The stream's configuration, the server's version or the permissions do not allow this read or write."""


class ConsumerHeldError(SparkError):
    """The durable consumer for the query's position belongs to another query."""


class BadPayloadError(SparkError):
    """A payload could not be decoded in the format that the options name."""


class BatchWrittenError(SparkError):
    """A batch is repeated that the sink has already written, or has started to write with other rows."""


class RowPublishError(SparkError):
    """The server refused a row, or did not acknowledge it.

    Args:
        row: number of the row in its partition, from 0.
        subject: the subject of the row.
        reason: the server's text.
        err_code: the server's code, or 0.
    """

    def __init__(self, row: int, subject: str, reason: str, err_code: int = 0) -> None:
        code = f" (err_code {err_code})" if err_code else ""
        super().__init__(f"row {row} of the partition could not be published on {subject!r}: {reason}{code}")
        self.row = row
        self.subject = subject
        self.reason = reason
        self.err_code = err_code


def __dir__() -> list[str]:
    return sorted(__all__)
