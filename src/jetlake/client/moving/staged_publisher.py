"""The writer of a staged stream: messages in a bounded window, each at exactly the sequence it has at the source."""

from __future__ import annotations

from collections import deque

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.connection.answers import Answers
from jetlake.errors import ApiError, MigrationError
from jetlake.model.publish import decode_pub_ack
from jetlake.protocol import encoder

__all__ = ["WINDOW_MESSAGES", "StagedPublisher", "WrongSequenceError"]

WINDOW_MESSAGES = 256
"""Messages whose acknowledgement may be missing."""
_WINDOW_BYTES = 4 * 1024 * 1024


class WrongSequenceError(MigrationError):
    """The copy would not be equal: a message was not stored at the sequence that it has at the source."""


class StagedPublisher:
    """Publishes to a staged stream; usable in a `with` block.

    Nothing is ever sent twice, so that what is stored is a prefix of what was sent, in the same order.

    Args:
        api: the target.
        prefix: what the subjects begin with.
        next_sequence: the sequence that the next message must get.
    """

    def __init__(self, api: ApiCaller, prefix: str, next_sequence: int) -> None:
        self._connection = api.connection
        self._timeout_s = api.timeout_s
        self._prefix = prefix.encode() + b"."
        self._answers = Answers(api.connection, "copy of a stream")
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._next_acknowledged = next_sequence
        self.next_sequence = next_sequence

    def __enter__(self) -> StagedPublisher:
        self._answers.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.__exit__()

    async def publish(self, subject: str, header: bytes, payload: bytes) -> None:
        """Send one message; waits while the window is full.

        Raises:
            WrongSequenceError: the target refused a message, or stored it elsewhere.
        """
        size = len(header) + len(payload)
        while self._sizes and (len(self._sizes) >= WINDOW_MESSAGES or self._bytes + size > _WINDOW_BYTES):
            await self._acknowledged()
        place = self._prefix + subject.encode("utf-8", "surrogateescape")
        reply = self._answers.subject
        if header:
            self._connection.send(encoder.hpub(place, reply, header, payload))
        else:
            self._connection.send(encoder.pub(place, reply, payload))
        self._connection.end_turn()
        self._sizes.append(size)
        self._bytes += size
        self.next_sequence += 1

    async def finish(self) -> None:
        """Wait until everything is acknowledged.

        Raises:
            WrongSequenceError: as `publish`.
        """
        while self._sizes:
            await self._acknowledged()

    async def _acknowledged(self) -> None:
        answer = await self._answers.next(self._timeout_s, self._prefix.decode())
        if answer.status is not None:
            raise MigrationError(
                f"the copy has no leader or was deleted: nobody takes message {self._next_acknowledged}"
            )
        try:
            ack = decode_pub_ack(answer.payload)
        except ApiError as error:
            raise WrongSequenceError(f"the target refuses message {self._next_acknowledged}: {error}") from error
        if ack.seq != self._next_acknowledged or ack.duplicate:
            what = "a duplicate of" if ack.duplicate else "stored at"
            raise WrongSequenceError(f"message {self._next_acknowledged} is {what} sequence {ack.seq} at the target")
        self._next_acknowledged += 1
        self._bytes -= self._sizes.popleft()
