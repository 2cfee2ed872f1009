"""The subscriptions of a connection by number, and the delivery of each read's messages to them.

The reasons are in decision 14 (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

from jetlake.client.messages.message import Message, Outlet
from jetlake.client.messages.receiver import Receiver
from jetlake.client.messages.statistics import Traffic
from jetlake.protocol import encoder
from jetlake.protocol.frames import Frame, MessageRun

__all__ = ["SubscriptionTable"]


class SubscriptionTable:
    """Subscriptions by their number, which stays the same on every connection.

    Args:
        message_type: what the parser builds of a received message.
        outlet: where the messages' answers go.
        on_control: takes every frame that is not a message.
        on_complete: called with a receiver that got the last message it had asked for.
        on_failure: called with a receiver that could not read what came, and the error; the others go on.
        traffic: counts the messages.
    """

    __slots__ = (
        "_message_type",
        "_next_sid",
        "_on_complete",
        "_on_control",
        "_on_failure",
        "_receivers",
        "_traffic",
        "outlet",
    )

    def __init__(
        self,
        message_type: type[Message],
        outlet: Outlet,
        on_control: Callable[[Frame], None],
        on_complete: Callable[[Receiver], None],
        on_failure: Callable[[Receiver, Exception], None],
        traffic: Traffic,
    ) -> None:
        self._message_type = message_type
        self._on_control = on_control
        self._on_complete = on_complete
        self._on_failure = on_failure
        self._receivers: dict[bytes, Receiver] = {}
        self._next_sid = 0
        self._traffic = traffic
        self.outlet = outlet

    def add(self, receiver: Receiver) -> None:
        """Register a receiver under a new number."""
        self._next_sid += 1
        receiver.sid = b"%d" % self._next_sid
        receiver.delivered = receiver.delivered_before = 0
        self._receivers[receiver.sid] = receiver

    def remove(self, receiver: Receiver) -> None:
        """Remove a receiver; its later messages are dropped."""
        self._receivers.pop(receiver.sid, None)

    def clear(self) -> None:
        """Remove all receivers."""
        self._receivers.clear()

    def __contains__(self, receiver: Receiver) -> bool:
        return receiver.sid in self._receivers

    def receivers(self) -> list[Receiver]:
        """List all receivers, oldest subscription first."""
        return list(self._receivers.values())

    def resume_frames(self) -> bytes:
        """Encode the SUB and UNSUB frames that restore the subscriptions on a new connection."""
        frames = []
        for receiver in self._receivers.values():
            frames.append(encoder.sub(receiver.subject, receiver.queue, receiver.sid))
            receiver.delivered_before = receiver.delivered
            if receiver.delivered_max:
                frames.append(encoder.unsub(receiver.sid, max(1, receiver.delivered_max - receiver.delivered)))
        return b"".join(frames)

    # Receiving

    def receive(self, frames: list[Any]) -> None:
        """Deliver the frames of one read: runs of messages as lists, the others one by one."""
        receivers = self._receivers
        message_type = self._message_type
        outlet = self.outlet
        sid = b""
        run: list[Message] = []
        for frame in frames:
            if type(frame) is message_type:
                frame._outlet = outlet
                if frame.sid == sid:
                    run.append(frame)
                    continue
                if run:
                    self._deliver(receivers.get(sid), run)
                sid = frame.sid
                run = [frame]
            else:
                if run:
                    self._deliver(receivers.get(sid), run)
                    run = []
                    sid = b""
                if type(frame) is MessageRun:
                    self._deliver_run(receivers.get(frame.sid), frame)
                else:
                    self._on_control(frame)
        if run:
            self._deliver(receivers.get(sid), run)

    def _deliver_run(self, receiver: Receiver | None, run: MessageRun) -> None:
        if receiver is None:
            return  # Unsubscribed while they were under way.
        count = len(run.payloads)
        if receiver.takes_answers and not run.replies:
            self._hand_over(receiver, count, receiver.receive_answers, run.subjects, run.payloads)
            return
        nothing = repeat(b"")
        columns = run.subjects, repeat(run.sid), run.replies or nothing, nothing, run.payloads, repeat(self.outlet)
        messages = list(map(self._message_type, *columns, repeat(not receiver.needs_ack)))
        self._hand_over(receiver, count, receiver.receive_run if run.replies else receiver.receive, messages)

    def _deliver(self, receiver: Receiver | None, messages: list[Message]) -> None:
        if receiver is not None:
            self._hand_over(receiver, len(messages), receiver.receive, messages)

    def _hand_over(self, receiver: Receiver, count: int, receive: Callable[..., None], *received: object) -> None:
        receiver.delivered += count
        self._traffic.messages_received += count
        try:
            receive(*received)
        except Exception as error:  # Whoever may publish to an inbox may publish anything.
            self._on_failure(receiver, error)
            return
        if receiver.delivered_max and receiver.delivered >= receiver.delivered_max:
            self._on_complete(receiver)
