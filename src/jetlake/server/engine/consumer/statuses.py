"""Status messages to the clients of a consumer: header blocks without a payload."""

from __future__ import annotations

from jetlake.protocol import encoder

__all__ = [
    "BATCH_COMPLETED",
    "CONSUMER_DELETED",
    "EXCEEDED_MAX_WAITING",
    "NO_MESSAGES",
    "PIN_ID_MISMATCH",
    "PUSH_BASED",
    "REQUESTS_PENDING",
    "REQUEST_TIMEOUT",
    "REQUIRED_API_LEVEL",
    "SERVER_SHUTDOWN",
    "SIZE_EXCEEDS_MAX_BYTES",
    "WRONG_PIN_ID",
    "bad_request",
    "conflict",
    "heartbeat",
    "status",
    "with_pending",
]

# Complete header blocks, then status lines of waiting requests, which `with_pending` completes.
NO_MESSAGES = b"NATS/1.0 404 No Messages\r\n\r\n"
REQUESTS_PENDING = b"NATS/1.0 408 Requests Pending\r\n\r\n"
CONSUMER_DELETED = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
PUSH_BASED = b"NATS/1.0 409 Consumer is push based\r\n\r\n"
EXCEEDED_MAX_WAITING = b"NATS/1.0 409 Exceeded MaxWaiting\r\n\r\n"
PIN_ID_MISMATCH = b"NATS/1.0 423 Nats-Pin-Id mismatch\r\n\r\n"
REQUIRED_API_LEVEL = b"NATS/1.0 412 Required Api Level\r\n\r\n"

REQUEST_TIMEOUT = b"408 Request Timeout"
SIZE_EXCEEDS_MAX_BYTES = b"409 Message Size Exceeds MaxBytes"
BATCH_COMPLETED = b"409 Batch Completed"
SERVER_SHUTDOWN = b"409 Server Shutdown"
WRONG_PIN_ID = b"423 Nats-Wrong-Pin-Id"


def status(line: str) -> bytes:
    """Make a status without further headers; `line` is its code and description."""
    return encoder.status(line.encode())


def bad_request(detail: str) -> bytes:
    """Make the status of an invalid request."""
    return status(f"400 Bad Request - {' '.join(detail.split())}")


def conflict(detail: str) -> bytes:
    """Make the status of a request that exceeds a limit of the consumer."""
    return status(f"409 {detail}")


def with_pending(line: bytes, messages: int, size: int) -> bytes:
    """Make a status that ends a request, with the messages and bytes that were still to come."""
    return encoder.status(line, b"Nats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n" % (messages, size))


def heartbeat(consumer_sequence: int, stream_sequence: int, stalled: bytes = b"") -> bytes:
    """Make a heartbeat with the last delivered sequences, and the subject of an unanswered flow control request."""
    tail = b"Nats-Consumer-Stalled: %b\r\n" % stalled if stalled else b""
    return b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n%b\r\n" % (
        consumer_sequence,
        stream_sequence,
        tail,
    )
