"""Every exception of the package, as one tree.

::

    JetlakeError
    ├── ProtocolError                 the peer broke the wire protocol (carries the `-ERR` text, if one is due)
    ├── BadSubjectError (ValueError)  a subject or pattern that the operation cannot take
    ├── BadHeaderError (ValueError)   a header block, key or value that cannot be read or written
    ├── ConfigError (ValueError)      an option or a configuration file that makes no sense
    ├── DecodeError (ValueError)      bytes that are not the JSON object they should be
    ├── StoreError                    the disk did not do what the store asked of it
    ├── NotJetStreamMessageError      the message has no JetStream reply subject: nothing to acknowledge
    ├── AlreadyAcknowledgedError      the message got another acknowledgement before, which is the one that counts
    ├── TokenError (ValueError)       a token (JWT) that is malformed, forged, expired, or not understood
    ├── InvalidOptionError (ConfigError)  an option of the client, refused before anything is sent
    ├── ClientConnectionError (ConnectionError)
    │   ├── ConnectionClosedError     the connection is closed, by the program or for good
    │   ├── DisconnectedError         the connection was lost while an answer was awaited
    │   ├── NoServersError            no server could be reached; carries what each one said
    │   ├── AuthorizationError        the server refused the credentials
    │   ├── StaleConnectionError      server or client heard nothing for too long
    │   └── OutboundBufferFullError   too much was written while there was no connection
    ├── ServerError                   a complaint (`-ERR`) that the server sent
    │   └── PermissionsError          the user may not publish or subscribe there
    ├── RequestTimeoutError (TimeoutError)
    │   ├── ConnectTimeoutError       a server did not finish its greeting in time
    │   ├── PublishTimeoutError       no stream acknowledged the message in time
    │   └── DrainTimeoutError         handlers did not finish in time
    ├── NoRespondersError             no service or stream answers on the subject
    │   └── AckRefusedError           the consumer did not take an acknowledgement; carries the reason
    │       └── StaleAckError         the message was delivered again since, and the consumer has strict acks
    ├── ServiceError                  a service answers that a request failed; carries code, description and payload
    ├── SlowSubscriberError           messages came faster than they were taken
    ├── SubscriptionClosedError       the subscription ended
    ├── ConsumeError                  reading from a consumer ended
    │   ├── ConsumerDeletedError      the consumer is gone
    │   ├── HeartbeatMissedError      nothing was heard for too long
    │   ├── PullStatusError           the server refused a pull; carries status and description
    │   ├── SequenceGapError          deliveries are missing; carries the expected and the received sequence
    │   └── StreamReplacedError       the stream is not the one that the read began with
    ├── ConsumerGroupError            a consumer group is not there, is different, or cannot be changed so
    ├── BackupError                   a backup or restore ended early, or a folder holds none; says why
    ├── MigrationError                a stream can't be moved, or its copy is not equal; says why
    ├── SchemaError                   a subject has no schema, or one that may not follow the one before
    │   └── SchemaMismatchError       a payload does not fit the schema of its subject; carries version and reason
    ├── BatchError                    a batch of messages is over, empty, or unknown to the server
    ├── ObjectError                   an object's content is not whole, or a link leads nowhere; says why
    ├── PublishWindowError            messages of a publish window were not stored; carries one error each
    ├── SubscribeMismatchError        the consumer that exists is not the one that was asked for
    ├── LakeError                     a table of a lake is gone, or cannot be read or committed to; says what to do
    ├── SparkError                    the Spark source or sink cannot continue; says what to do
    │   ├── OffsetError               the checkpoint holds an offset that cannot be read
    │   ├── DataLossError             messages were removed before they were read
    │   │   └── StreamRecreatedError  the stream is not the one that the checkpoint speaks of
    │   ├── UnsupportedStreamError    the stream or server does not allow to be read or written this way
    │   ├── ConsumerHeldError         another query holds the durable consumer
    │   ├── BadPayloadError           a payload is not what its format says
    │   ├── BatchWrittenError         a batch comes again that was written, and was followed by others
    │   └── RowPublishError           a row could not be published; names row, subject and the server's code
    └── ApiError                      JetStream said no: code, err_code and description as on the wire
        ├── BadRequestError           10003 the request contradicts itself
        ├── NotFoundError             the requested object does not exist
        │   ├── StreamNotFoundError   10059
        │   ├── ConsumerNotFoundError 10014
        │   └── MessageNotFoundError  10037
        │       ├── KeyNotFoundError  a bucket has no such key
        │       └── ObjectNotFoundError  an object store has no such object
        ├── StreamNameInUseError      10058 the stream exists with another configuration
        ├── ConsumerNameInUseError    10013 the push consumer is bound to another subject in use
        ├── ConsumerExistsError       10148 create asked for a new consumer
        ├── ConsumerDoesNotExistError 10149 update asked for an existing consumer
        ├── WrongLastSequenceError    10071, 10164 an expected-sequence header did not hold
        │   ├── KeyExistsError        a bucket has that key already
        │   └── ObjectExistsError     an object store has that object already
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
    """The root: catching it catches everything the package raises on purpose."""

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


class TokenError(JetlakeError, ValueError):
    """A token (JWT) that is malformed, was not signed by whom it names, has expired, or says what is not understood."""


# The JetStream API


class DecodeError(JetlakeError, ValueError):
    """Bytes that are not the JSON they should be; the text reads well after `invalid JSON: `."""


class NotJetStreamMessageError(JetlakeError, ValueError):
    """The reply subject is not one of JetStream's, so the message has no metadata and cannot be acknowledged."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(subject, reason)
        self.subject = subject
        self.reason = reason

    def __str__(self) -> str:
        return f"not a JetStream message: its reply subject is {self.subject!r}, and {self.reason}"


class ApiError(JetlakeError):
    """The answer of a JetStream server that refused; match on the subclass or on `err_code`.

    Args:
        code: the HTTP-like status.
        err_code: the number in the error table.
        description: the server's own sentence.

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
        """What to do about it, where the description does not say; often empty."""
        return HINTS.get(self.err_code, "")


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
    """An update named a consumer that is not there (10149)."""


class WrongLastSequenceError(ApiError):
    """The stream's or the subject's last sequence is not the one that the publisher expected (10071, 10164)."""


class KeyExistsError(WrongLastSequenceError):
    """The bucket has that key already."""

    def __init__(self, bucket: str, key: str) -> None:
        super().__init__(400, 10071, f"bucket {bucket!r} has the key {key!r} already")
        self.bucket = bucket
        self.key = key


class ObjectExistsError(WrongLastSequenceError):
    """The object store has that object already."""

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(400, 10071, f"object store {bucket!r} has the object {name!r} already")
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
    """The disk refused: it is full, read-only or failing. Messages stored before stay readable.

    Args:
        doing: what the store was about to do, such as `write to segment 3 of the stream`.
        reason: what the disk said.
        errno: the operating system's number, if it gave one.
    """

    def __init__(self, doing: str, reason: str, *, errno: int | None = None) -> None:
        super().__init__(f"cannot {doing}: {reason}")
        self.doing = doing
        self.reason = reason
        self.errno = errno

    @classmethod
    def of(cls, doing: str, error: OSError) -> StoreError:
        """Return the store's form of an error of the operating system."""
        return cls(doing, (error.strerror or str(error)).lower(), errno=error.errno)


# The client


class InvalidOptionError(ConfigError):
    """An option of a client call that cannot work; nothing was sent. The message names it and says why."""


class ClientConnectionError(JetlakeError, ConnectionError):
    """What goes wrong between the client and its servers."""


class ConnectionClosedError(ClientConnectionError):
    """The connection is closed; make a new one."""


class DisconnectedError(ClientConnectionError):
    """The connection was lost while an answer was awaited; whether the server acted on it is not known."""


class NoServersError(ClientConnectionError):
    """No server could be reached.

    Args:
        attempts: what each server said, by its address.
    """

    def __init__(self, attempts: dict[str, str]) -> None:
        self.attempts = attempts
        told = "; ".join(f"{address}: {reason}" for address, reason in attempts.items())
        super().__init__(f"no server could be reached ({told or 'none is left to try'})")


class AuthorizationError(ClientConnectionError):
    """The server refused the credentials, or asks for some and none were given."""


class StaleConnectionError(ClientConnectionError):
    """The other side did not answer pings; the connection is given up."""


class OutboundBufferFullError(ClientConnectionError):
    """While there is no connection, writes are kept up to `pending_bytes_max`; this one did not fit."""


class ServerError(JetlakeError):
    """A complaint of the server that names no request; it reaches the connection's `on_error`."""


class PermissionsError(ServerError):
    """The user may not publish or subscribe to that subject."""


class RequestTimeoutError(JetlakeError, TimeoutError):
    """No answer came in time."""


class ConnectTimeoutError(RequestTimeoutError):
    """A server did not finish its greeting in time."""


class PublishTimeoutError(RequestTimeoutError):
    """No stream acknowledged the message in time; it may be stored all the same."""


class DrainTimeoutError(RequestTimeoutError):
    """The operation did not finish in time; the rest of it is cancelled."""


class NoRespondersError(JetlakeError):
    """No responders on the subject: no service, no stream that captures it, or JetStream is off."""

    def __init__(self, subject: str, hint: str = "is there a stream or service for it, and is JetStream on?") -> None:
        super().__init__(f"no responders on {subject!r} ({hint})")
        self.subject = subject


class AlreadyAcknowledgedError(JetlakeError):
    """The message got another acknowledgement before: the server ignores all but the first."""


class AckRefusedError(NoRespondersError):
    """The consumer did not take an acknowledgement: the message is delivered again, unless it was settled otherwise.

    Args:
        subject: the message's ack subject.
        reason: what the server says.
    """

    def __init__(self, subject: str, reason: str) -> None:
        JetlakeError.__init__(self, f"the acknowledgement on {subject!r} was refused: {reason}")
        self.subject = subject
        self.reason = reason


class StaleAckError(AckRefusedError):
    """The message was delivered again since: with strict acks, only the later delivery can be acknowledged."""


class ServiceError(JetlakeError):
    """A request to a service failed: raised by a handler to answer so, and to the caller who gets such an answer.

    Args:
        code: a number, like HTTP's.
        description: what went wrong, in one line.
        payload: more about it.
    """

    def __init__(self, code: int, description: str, payload: bytes = b"") -> None:
        super().__init__(f"{description} ({code})")
        self.code = code
        self.description = description
        self.payload = payload


class SlowSubscriberError(JetlakeError):
    """A subscription's limit was reached because messages came faster than they were taken.

    Args:
        subject: what is subscribed.
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
    """The consumer (or its stream) was deleted while it was read."""

    def __init__(self, stream: str, consumer: str) -> None:
        super().__init__(f"consumer {consumer!r} of stream {stream!r} was deleted; create it again to continue")
        self.stream = stream
        self.consumer = consumer


class HeartbeatMissedError(ConsumeError):
    """Neither a message nor a heartbeat came for longer than the server had promised.

    The connection and the consumer answer, and the consumer keeps its position.
    """

    def __init__(self, silent_s: float) -> None:
        super().__init__(
            f"no message and no heartbeat for {silent_s:g} s; the server or the network stalls, read again to continue"
        )
        self.silent_s = silent_s


class PullStatusError(ConsumeError):
    """The server answered a pull with a status that ends it.

    Args:
        status: the number, such as 409.
        description: the server's words.
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
    """The stream was deleted and created again, or lost its end, while it was read: its sequences mean other messages.

    Args:
        stream: its name.
        last_read: the sequence of the last message that was read; 0 for none.
    """

    def __init__(self, stream: str, last_read: int) -> None:
        super().__init__(
            f"stream {stream!r} is another one since this read began (it had come to sequence {last_read}); "
            "begin a new read to have what it holds now"
        )
        self.stream = stream
        self.last_read = last_read


class ConsumerGroupError(JetlakeError):
    """A consumer group is not there, is different, or cannot be changed so."""


class BackupError(JetlakeError):
    """A backup or restore that ended before its archive was complete, or a folder that holds no backup."""


class MigrationError(JetlakeError):
    """A stream that can't be moved to another server, or a copy that is not equal to it."""


class SchemaError(JetlakeError, ValueError):
    """A subject has no schema, or a new one is not compatible with it; the message says what to do."""


class SchemaMismatchError(SchemaError):
    """A payload does not fit the schema of its subject; nothing was sent.

    Args:
        subject: the message's subject.
        version: the version of the schema.
        reason: what does not fit.
    """

    def __init__(self, subject: str, version: int, reason: str) -> None:
        super().__init__(f"the payload for {subject} does not fit version {version} of its schema: {reason}")
        self.subject = subject
        self.version = version
        self.reason = reason


class BatchError(JetlakeError):
    """A batch of messages cannot continue: it is over, has no messages, or the server knows no such batches."""


class ObjectError(JetlakeError):
    """An object whose content is damaged, incomplete or replaced while it was read, or a link that leads nowhere."""


class PublishWindowError(JetlakeError):
    """Some messages of a publish window were not acknowledged.

    Args:
        failures: subject and error of each, in the order in which they were found out.
        positions: where each stood among the messages of one `publish_many`, from 0 on; empty for others.
    """

    def __init__(self, failures: list[tuple[str, Exception]], positions: Sequence[int] = ()) -> None:
        subject, error = failures[0]
        first = f"message {positions[0]}, on {subject!r}" if positions else f"on {subject!r}"
        super().__init__(f"{len(failures)} messages were not acknowledged; the first, {first}: {error}")
        self.failures = failures
        self.positions = list(positions)


class SubscribeMismatchError(JetlakeError):
    """The consumer that exists cannot serve this subscription; the message says which part differs."""


# Spark


class LakeError(JetlakeError):
    """A table of a lake is gone, was changed, or cannot be read or committed to; the message says what to do."""


class SparkError(JetlakeError):
    """The Spark source or sink cannot continue; the message says why and what to do."""


class OffsetError(SparkError):
    """The checkpoint holds an offset of a newer release, or something that is none."""


class DataLossError(SparkError):
    """Messages that the query had not read yet are gone from the stream."""


class StreamRecreatedError(DataLossError):
    """The stream was deleted and created again since the checkpoint was written: its sequences mean other messages."""


class UnsupportedStreamError(SparkError):
    """The stream's configuration, the server's version or the permissions do not allow this way of reading it."""


class ConsumerHeldError(SparkError):
    """The durable consumer that would hold the query's place belongs to another query."""


class BadPayloadError(SparkError):
    """A payload could not be decoded in the format that the options name."""


class BatchWrittenError(SparkError):
    """A batch of a streaming query comes again that the sink has written, or begun to write, with other rows."""


class RowPublishError(SparkError):
    """The server refused a row, or did not acknowledge it.

    Args:
        row: number of the row in its partition, from 0.
        subject: where it was to be published.
        reason: the server's words.
        err_code: the server's code, 0 when it sent none.
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
