"""Republish: stored messages are published again under another subject, for core NATS subscribers."""

from __future__ import annotations

from jetlake.model.encoding.times import format_time
from jetlake.model.stream import StreamConfig
from jetlake.model.transforms import Transform, compile_transform

__all__ = ["Republisher"]

_BARE = b"NATS/1.0\r\n"


class Republisher:
    """The republish directive of one stream.

    Args:
        stream: the stream's name.
        transform: maps stored subjects to published ones.
        headers_only: replace payloads by a header with their size.
    """

    def __init__(self, stream: bytes, transform: Transform, *, headers_only: bool) -> None:
        self._stream = stream
        self._transform = transform
        self._headers_only = headers_only

    @classmethod
    def of(cls, config: StreamConfig) -> Republisher | None:
        """Return the republisher of a stream; None without a directive."""
        directive = config.republish
        if directive is None or not directive.dest:
            return None
        transform = compile_transform(directive.src, directive.dest)
        return cls(config.name.encode(), transform, headers_only=directive.headers_only)

    def apply(
        self, subject: bytes, header: bytes, payload: bytes, sequence: int, time_ns: int, previous: int
    ) -> tuple[bytes, bytes, bytes] | None:
        """Return subject, header and payload to publish; None when the directive does not match the subject.

        Args:
            previous: the previous sequence on the same subject; 0 = none.
        """
        destination = self._transform.apply(subject)
        if destination is None:
            return None
        header = (
            b"%bNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n"
            % (
                header[:-2] if header else _BARE,
                self._stream,
                subject,
                sequence,
                format_time(time_ns).encode(),
            )
            + b"Nats-Last-Sequence: %d\r\n" % previous
        )
        if self._headers_only:
            return destination, header + b"Nats-Msg-Size: %d\r\n\r\n" % len(payload), b""
        return destination, header + b"\r\n", payload
