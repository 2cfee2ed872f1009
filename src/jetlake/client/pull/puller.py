"""The pulls of a continuous read: sent when the counts say so, renewed after refusals, watched for silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message
from jetlake.client.pull.pull_options import ConsumeOptions
from jetlake.client.pull.pull_state import PullState
from jetlake.model.encoding.codec import encode

__all__ = ["Puller"]

_EVERY_MESSAGE = 1 << 62


class Puller:
    """Asks a consumer for messages, which come to one inbox and into a mailbox.

    Args:
        connection: where pulls go.
        options: how much to ask for, and when.

    Attributes:
        mailbox: where the messages wait to be handed out.
        on_silence: called when the server was silent for too long.
        pull_subject: where pulls go.
        state: the messages and bytes asked for and received.
        refill_at: how many messages may wait at most for `handed_out` to be due; negative for never.
    """

    __slots__ = (
        "_buffered_bytes",
        "_connection",
        "_head",
        "_heartbeat_s",
        "_is_stopped",
        "_loop",
        "_timer",
        "_timer_at",
        "mailbox",
        "on_silence",
        "pull_subject",
        "refill_at",
        "state",
    )

    def __init__(self, connection: Connection, options: ConsumeOptions) -> None:
        self._connection = connection
        self._loop = connection.loop
        self._heartbeat_s = options.idle_heartbeat_s
        self._head = b""
        self.pull_subject = b""
        self._buffered_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._is_stopped = False
        self.mailbox = Mailbox(self._loop)
        self.on_silence: Callable[[], None] | None = None
        self.state = PullState(options, self._loop.time())
        self.refill_at = -1

    def begin(self) -> None:
        """Pull for the first time; without a connection, only on the next one and only once."""
        if self._connection.is_connected:
            self.refill()
        else:
            self.state.disconnected()

    def aim(self, pull_subject: bytes, inbox: bytes) -> None:
        """Set the consumer to pull from and the inbox that it delivers to."""
        self.pull_subject = pull_subject
        self._head = b"PUB %b %b " % (pull_subject, inbox)

    def pause(self) -> None:
        """Stop pulling until `resume`: all pulls are lost."""
        self.state.disconnected()
        self._look_for_refill()
        self._stop_timer()

    def resume(self) -> None:
        """Pull again; nothing is outstanding."""
        if not self._is_stopped:
            self.state.reconnected(self._loop.time())
            self.refill()

    def stop(self) -> None:
        """Stop pulling for good."""
        self._is_stopped = True
        self.refill_at = -1
        self._stop_timer()

    # Messages

    def received(self, messages: list[Message], now: float) -> None:
        """Count messages that answer the pulls."""
        by_bytes = self.state.by_bytes
        self.state.received(sum([message.size for message in messages]) if by_bytes else len(messages), now)

    def buffered(self, messages: list[Message]) -> None:
        """Count messages that wait to be handed out."""
        if self.state.by_bytes:
            self._buffered_bytes += sum([message.size for message in messages])

    def handed_out(self, message: Message) -> None:
        """Count a message that was handed out, and pull if that is due."""
        if self.state.by_bytes:
            self._buffered_bytes = max(0, self._buffered_bytes - message.size)
        self.refill()

    def handed_out_all(self) -> None:
        """Note that the mailbox is empty, and pull if that is due."""
        self._buffered_bytes = 0
        self.refill()

    def refill(self) -> None:
        """Pull, if it is due."""
        if self._is_stopped:
            return
        state = self.state
        now = self._loop.time()
        request = state.next_request(self._buffered_bytes if state.by_bytes else len(self.mailbox.messages), now)
        if request is not None:
            body = encode(request)
            # At once and together with the acknowledgements before it, so that the server works while we do.
            self._connection.send(self._head + b"%d\r\n%b\r\n" % (len(body), body))
            self._connection.end_turn()
        self._look_for_refill()
        deadline = state.deadline(now)
        if deadline is not None and (self._timer is None or deadline < self._timer_at):
            self._arm(deadline)

    def _look_for_refill(self) -> None:
        """Set how many messages may wait before the iterator has to ask again; by bytes every message counts."""
        self.refill_at = _EVERY_MESSAGE if self.state.by_bytes else self.state.refill_at()

    # Silence

    def _arm(self, deadline: float) -> None:
        self._stop_timer()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._look)

    def _look(self) -> None:
        """Check the deadline, which messages only move, and set the timer again."""
        self._timer = None
        now = self._loop.time()
        if not self.state.missed_heartbeat(now):
            self.refill()
        elif now - self._timer_at > self._heartbeat_s / 2:
            # This process was stalled, not the server: what has come meanwhile is still in the socket.
            self._arm(now + min(1.0, self._heartbeat_s / 2))
        elif self.on_silence is not None:
            self.on_silence()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
