"""Messages that were taken together, and the ways to answer all of them with one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from jetlake.client.messages.message import Message, Outlet, nak_body
from jetlake.client.messages.ready import READY, Ready
from jetlake.errors import JetlakeError
from jetlake.model.ack_subject import check_ack_subjects
from jetlake.model.encoding.durations import Seconds
from jetlake.protocol import encoder

if TYPE_CHECKING:
    import typing_extensions

    # So that a bare `MessageBatch` means one of messages, also to a strict type checker.
    M = typing_extensions.TypeVar("M", bound=Message, default=Message)
else:
    M = TypeVar("M", bound=Message)


class MessageBatch(list[M]):
    """A list of messages, as returned by fetches and `batches()`, which can be acknowledged at once.

    It may also be built of other messages: `MessageBatch(done).ack()`. The server gets the same answers as from a call
    for each message, in their order and with one write. Messages that are settled already are left out. When a call
    raises, nothing was sent and no message is settled. Awaiting the calls is allowed and not needed.

    Attributes:
        error: the error that ended the fetch after these messages; None otherwise.
    """

    __slots__ = ("error",)

    def __init__(self, messages: Iterable[M] = (), error: JetlakeError | None = None) -> None:
        super().__init__(messages)
        self.error = error

    def ack(self) -> Ready:
        """Acknowledge all messages, as `Message.ack` does one.

        Raises:
            NotJetStreamMessageError: one did not come from JetStream.
            ConnectionClosedError: the connection is closed.
        """
        return self._settle(b"+ACK")

    def nak(self, delay: Seconds | None = None) -> Ready:
        """Ask for another delivery of all messages, at once or after `delay` seconds; errors as in `ack`."""
        return self._settle(nak_body(delay))

    def term(self, reason: str = "") -> Ready:
        """Terminate all messages, as `Message.term` does one; errors as in `ack`."""
        return self._settle(self[0].term_body(reason)) if self else READY

    def in_progress(self) -> Ready:
        """Restart the ack wait of all messages: the server waits for its full length again."""
        self._send(b"+WPI")
        return READY

    def _settle(self, body: bytes) -> Ready:
        kind = body[:4]
        for message in self._send(body):
            message._settled = kind
        return READY

    def _send(self, body: bytes) -> list[M]:
        """Send the body for every message that is not settled; these are returned."""
        waiting = [message for message in self if not message._settled]
        if not waiting:
            return waiting
        replies = [message.raw_reply for message in waiting]
        check_ack_subjects(replies)
        _outlet(waiting).send_run(encoder.pub_each(replies, body), len(replies))
        return waiting


def _outlet(messages: Sequence[Message]) -> Outlet:
    """Return where the answers of all the messages go."""
    outlet = messages[0]._outlet
    if outlet is None or [message for message in messages if message._outlet is not outlet]:
        raise JetlakeError("the messages do not belong to one connection")
    return outlet
