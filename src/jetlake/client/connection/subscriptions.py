"""The subscriptions of a connection: made, ended and paused on whichever server there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jetlake.client.connection.outbox import check_loop
from jetlake.client.connection.server_link import ServerLink
from jetlake.client.connection.subscription_table import SubscriptionTable
from jetlake.client.messages.receiver import Receiver
from jetlake.errors import ConnectionClosedError, PermissionsError
from jetlake.protocol import encoder

__all__ = ["Subscriptions"]


class Subscriptions:
    """Subscribes receivers, and passes the connection's events to them.

    Args:
        loop: the event loop.
        table: the receivers by subscription number.
        link: the server that there is.
        send: writes a frame.
        on_pause: called with whether the socket is paused, when that changes.

    Attributes:
        listeners: receivers that are between two subscriptions and hear of the connection all the same.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        table: SubscriptionTable,
        link: ServerLink,
        send: Callable[[bytes], None],
        on_pause: Callable[[bool], None],
    ) -> None:
        self._loop = loop
        self._table = table
        self._link = link
        self._send = send
        self._on_pause = on_pause
        self._without_room: set[Receiver] = set()
        self.listeners: set[Receiver] = set()

    def subscribe(self, receiver: Receiver) -> None:
        """Subscribe now and again on each later connection, until `unsubscribe`.

        Raises:
            ConnectionClosedError: the connection is closed.
        """
        check_loop(self._loop)
        if self._link.is_closed:
            raise ConnectionClosedError("the connection is closed")
        self._table.add(receiver)
        if self._link.wire is not None:
            self._send(encoder.sub(receiver.subject, receiver.queue, receiver.sid))

    def unsubscribe(self, receiver: Receiver, delivered_max: int = 0) -> None:
        """End the subscription now, or after so many messages since it began."""
        if receiver not in self._table:
            return
        left = 0
        if delivered_max > receiver.delivered:
            receiver.delivered_max = delivered_max
            left = delivered_max - receiver.delivered_before
        else:
            self.forget(receiver)
        if self._link.wire is not None:
            self._send(encoder.unsub(receiver.sid, left))

    def stop_delivery(self, receiver: Receiver) -> None:
        """Send UNSUB, and go on receiving what is under way; `forget` follows."""
        if receiver in self._table and self._link.wire is not None:
            self._send(encoder.unsub(receiver.sid))

    def forget(self, receiver: Receiver) -> None:
        """Drop all later messages of the subscription."""
        self._table.remove(receiver)
        self.resume_reading(receiver)

    def complete(self, receiver: Receiver) -> None:
        """End a subscription that got the last message it had asked for."""
        self.forget(receiver)
        receiver.ended(None)

    def fail(self, receiver: Receiver, error: Exception) -> None:
        """End a subscription whose receiver could not read what came."""
        self.unsubscribe(receiver)
        receiver.ended(error)

    def pause_reading(self, receiver: Receiver) -> None:
        """Stop reading the socket until this receiver (and every other that asked for it) resumes."""
        self._without_room.add(receiver)
        transport = self._link.transport
        if transport is not None and transport.is_reading():
            transport.pause_reading()
            self._on_pause(True)

    def resume_reading(self, receiver: Receiver) -> None:
        """Read the socket again, unless another receiver has no room."""
        if receiver not in self._without_room:
            return
        self._without_room.discard(receiver)
        transport = self._link.transport
        if not self._without_room and transport is not None and not transport.is_closing():
            transport.resume_reading()
            self._on_pause(False)

    def receivers(self) -> list[Receiver]:
        """List the subscribed receivers and the listeners."""
        return list(dict.fromkeys((*self._table.receivers(), *self.listeners)))

    def forbid(self, error: PermissionsError, text: str) -> None:
        """Pass a permissions violation to its cause: the waiting publishers of the subject, or the subscription."""
        quoted = text.split('"')
        subject = quoted[1].encode() if len(quoted) > 2 else b""
        lowered = text.lower()
        if "publish to" in lowered:
            for receiver in self.receivers():
                receiver.forbidden(subject, error)
        elif "subscription to" in lowered:
            queue = quoted[3].encode() if len(quoted) > 4 else b""
            for receiver in self._table.receivers():
                if receiver.subject == subject and receiver.queue == queue:
                    self.forget(receiver)
                    receiver.ended(error)

    def end(self, error: Exception | None) -> None:
        """End all subscriptions: the connection is closed."""
        receivers = self.receivers()
        self._table.clear()
        self.listeners.clear()
        for receiver in receivers:
            receiver.ended(error)
