"""Pipelined publishing: many messages under way at once, up to a window, their acknowledgements matched as they come.

No future, timer or task exists for a message unless somebody awaits it. What was not acknowledged is never forgotten in
silence: it is raised where its `PendingAck` is awaited, by `complete`, and reported to `on_error`.

The reasons are in decision 15 (docs/decisions).
"""

from __future__ import annotations

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.message import Message
from jetlake.client.messages.receiver import Denial, Receiver
from jetlake.client.publish.ack_deadlines import AckDeadlines
from jetlake.client.publish.failures import Failures, looks_stored, refusal
from jetlake.client.publish.message_retries import MessageRetries, is_passing
from jetlake.client.publish.message_sender import MessageSender
from jetlake.client.publish.messages_under_way import MessagesUnderWay
from jetlake.client.publish.pending_ack import PendingAck
from jetlake.client.publish.single_message import SingleMessage
from jetlake.client.publish.stream_search import StreamSearch
from jetlake.client.publish.window_room import WindowRoom
from jetlake.errors import ConnectionClosedError, DisconnectedError, InvalidOptionError, PermissionsError
from jetlake.protocol.nuid import new_inbox

__all__ = ["PublishWindow"]


class PublishWindow(Receiver):
    """The messages of one JetStream context that are under way.

    Args:
        connection: where they go.
        messages_max: most messages under way; `room` waits at the limit.
        bytes_max: most bytes under way.
        ack_timeout_s: how long a message may go without acknowledgement.
        retries: how often a message is sent again when no stream listens; after that, as long as there is one.
        search: tells a stream without a leader from no stream.
    """

    takes_answers = True

    __slots__ = (
        "_connection",
        "_deadlines",
        "_denied",
        "_failures",
        "_is_released",
        "_pending",
        "_prefix",
        "_retries",
        "_room",
        "_sender",
        "_under_way",
        "ack_timeout_s",
        "bytes_max",
        "changed",
        "disown",
        "loop",
        "messages_max",
        "put",
        "put_message",
        "put_run",
    )

    def __init__(
        self,
        connection: Connection,
        *,
        messages_max: int,
        bytes_max: int,
        ack_timeout_s: float,
        retries: int,
        search: StreamSearch,
    ) -> None:
        self._prefix = new_inbox(connection.options.inbox_prefix).encode() + b"."
        super().__init__(self._prefix + b"*")
        self._connection = connection
        self.loop = connection.loop
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.ack_timeout_s = ack_timeout_s
        self._under_way = MessagesUnderWay(self._half_time)
        self._pending = self._under_way.singles
        self._is_released = False
        self._denied = Denial()
        self._room = WindowRoom(
            self.loop,
            messages_max,
            count=lambda: self.pending,
            is_full=lambda: self.is_full,
            on_wake=self._woken,
        )
        self.changed = self._room.changed
        self._deadlines = AckDeadlines(
            self.loop,
            self._pending,
            ack_timeout_s,
            is_connected=lambda: self.is_connected,
            repeat=self._repeat,
            give_up=self._take_out,
            split_runs=self._split_late_runs,
        )
        self._sender = MessageSender(
            connection,
            self._prefix,
            self._under_way,
            self._deadlines,
            half_time=self._half_time,
            bytes_max=bytes_max,
            subscribe=self._make_sure_of_inbox,
            on_run=self._limit,
        )
        self.put = self._sender.put
        self.put_message = self._sender.put_message
        self.put_run = self._sender.put_run
        self._retries = MessageRetries(
            self.loop,
            self._pending,
            retries=retries,
            search=search,
            send_again=self._send_again,
            give_up=self._take_out,
        )
        self._failures = Failures(connection.signal)
        self.disown = self._failures.disown
        connection.subscribe(self)
        self._limit()

    @property
    def pending(self) -> int:
        """Messages under way."""
        return self._under_way.count + self._sender.gathered

    @property
    def is_full(self) -> bool:
        """Whether the next message has to wait."""
        # A run that is still open is not in the size: none is opened near the limit.
        return self.pending >= self.messages_max or self._under_way.size >= self.bytes_max

    @property
    def free(self) -> int:
        """How many messages may be put without waiting."""
        return self._sender.free

    @property
    def is_connected(self) -> bool:
        """Whether messages go to a server, or are kept for the next one."""
        return self._sender.is_connected

    # Publishing

    def _split_all(self) -> None:
        """Put the messages of all runs among the single ones."""
        if self._sender.gathered:
            self._connection.end_turn()
        self._under_way.split_runs()
        self._limit()

    def _split_late_runs(self, now: float) -> float | None:
        self._under_way.split_runs(is_late=True, until=now)
        return self._under_way.runs.next_deadline()

    def _make_sure_of_inbox(self) -> None:
        """Subscribe the inbox again after a connection that refused it; fails on a closed connection."""
        if not self.sid:
            self._denied.check(self._connection.reconnects)
            self._connection.subscribe(self)
            self._sender.is_connected = self._connection.is_connected

    def _half_time(self) -> float:
        """Return when half of the time of a message is over that is sent now."""
        return self.loop.time() + self.ack_timeout_s / 2

    async def room(self) -> None:
        """Wait until there is room for a message, behind the publishers that wait already.

        The caller puts its messages before anything else runs.
        """
        if not self._room.is_awaited and not self.is_full:
            return
        self._connection.end_turn()
        try:
            await self._room.wait()
        except BaseException:
            self._limit()
            raise
        self._sender.free = self.messages_max - self.pending

    def _limit(self) -> None:
        """Set how many messages may be put without waiting: those who wait for room go first."""
        is_closed = self._room.is_awaited or self._under_way.size >= self.bytes_max
        self._sender.free = 0 if is_closed else self.messages_max - self.pending

    async def complete(self) -> None:
        """Wait until every message under way is acknowledged or given up.

        Raises:
            PublishWindowError: some were given up since the last call and nobody awaited them.
        """
        await self.settle()
        self._failures.check()

    async def settle(self) -> None:
        # Only what is under way now: others may go on publishing.
        self._connection.end_turn()
        await self._under_way.settled(self.changed)

    def release(self) -> None:
        """End the subscription as soon as nothing is under way: nobody can publish through this window any more."""
        self._is_released = True
        self._room.wake()

    def _woken(self) -> None:
        self._limit()
        if self._is_released and not self.pending:
            self._deadlines.stop()
            self._connection.unsubscribe(self)

    # Acknowledgements

    def receive(self, messages: list[Message]) -> None:
        failed: list[PendingAck] = []
        if self._under_way.runs.messages and not all(looks_stored(one.payload) for one in messages):
            self._under_way.split_runs()
        stored = [message for message in messages if not self._is_refused(message, failed)]
        self._acknowledge([message.raw_subject for message in stored], [message.payload for message in stored])
        if failed:
            self._failures.report(failed)

    def receive_answers(self, subjects: list[bytes], payloads: list[bytes]) -> None:
        # One search for all: most answers are read only if somebody asks.
        if not looks_stored(b"".join(payloads), len(payloads)):
            super().receive_answers(subjects, payloads)
        else:
            self._acknowledge(subjects, payloads)

    def _acknowledge(self, replies: list[bytes], answers: list[bytes]) -> None:
        self._under_way.acknowledge(replies, answers)
        self._limit()
        self._room.acknowledged()

    def _is_refused(self, message: Message, failed: list[PendingAck]) -> bool:
        """Read an answer if it may be a refusal; what is refused for good is added to `failed`."""
        if looks_stored(message.payload):
            return False
        reply = message.raw_subject
        pending = self._pending.get(reply)
        error = None if pending is None else refusal(pending.raw_subject.decode("utf-8", "replace"), message)
        if pending is None or error is None:
            return False
        if not self._try_again(reply, error):
            failed.append(self._under_way.give_up(reply, error))
        return True

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        self._split_all()
        self._take_out([reply for reply, pending in self._pending.items() if pending.raw_subject == subject], error)

    def _try_again(self, reply: bytes, error: Exception) -> bool:
        """Send a refused message again, together with others, after a moment; False if it is refused for good.

        Each attempt has the whole timeout, unless the publisher has set one for the message.
        """
        pending = self._pending[reply]
        if not is_passing(pending, error):
            return False
        pending.attempts += 1
        if pending.retries is not None or pending.timeout_s is None:
            self._pending[reply] = self._pending.pop(reply)
            self._deadlines.restart(reply, pending)
        self._retries.add(reply, pending)
        return True

    def _send_again(self, replies: list[bytes]) -> None:
        """Send messages again in the order of publishing; without a connection the next one gets all of them."""
        if self.is_connected and not self._connection.is_closed:
            for reply in sorted(replies, key=self._sender.number):
                pending = self._pending.get(reply)
                if pending is not None:
                    self._connection.send(pending.frame(reply))

    # Time and connection

    def _repeat(self, reply: bytes, pending: SingleMessage) -> None:
        """Send a message again whose time is half over, if it has an id, which the stream recognises.

        A server of a cluster that dies takes the messages in its hands with it, and nobody tells their publisher.
        """
        if pending.has_id and reply not in self._retries:
            self._connection.send(pending.frame(reply))

    def disconnected(self) -> None:
        """Keep messages with an id, which are sent again and recognised; whether others arrived is unknown."""
        self._sender.is_connected = False
        self._connection.forget_unsent(self._prefix)
        self._under_way.split_runs()
        self._take_out(
            [reply for reply, pending in self._pending.items() if not pending.has_id],
            DisconnectedError("the connection was lost before the acknowledgement; the message may be stored or not"),
        )

    def reconnected(self) -> None:
        self._sender.is_connected = True
        self._deadlines.clear()
        self._retries.clear()
        self._give_up_larger()
        # In the order of publishing, which later attempts have changed.
        for reply in sorted(self._pending, key=self._sender.number):
            self._pending[reply] = pending = self._pending.pop(reply)
            self._deadlines.restart(reply, pending)
            self._connection.send(pending.frame(reply))
        if self._pending and self._deadlines.timer is None:
            self._deadlines.arm(self._half_time())

    def _give_up_larger(self) -> None:
        """Give up what is larger than this server takes, which would close every connection again."""
        failed = []
        for reply, pending in list(self._pending.items()):
            try:
                self._connection.check_size(len(pending.header) + len(pending.payload))
            except InvalidOptionError as error:
                failed.append(self._under_way.give_up(reply, error))
        if failed:
            self._failures.report(failed)
            self._room.wake()

    def ended(self, error: Exception | None) -> None:
        self._sender.is_connected = False
        self.sid = b""
        self._denied.take(error, self._connection.reconnects)
        self._deadlines.stop()
        self._retries.stop_search()
        self._split_all()
        self._take_out(
            list(self._pending), error or ConnectionClosedError("the connection was closed before the acknowledgement")
        )

    def _take_out(self, replies: list[bytes], error: Exception) -> None:
        """Give these messages up."""
        failed = [self._under_way.give_up(reply, error) for reply in replies]
        if failed:
            self._failures.report(failed)
        self._room.wake()
