"""Requests that are sent once or repeated, and acknowledgements that wait for the server's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jetlake.client.connection.outbox import check_loop
from jetlake.client.connection.requests import Requests
from jetlake.client.messages.message import Message
from jetlake.errors import JetlakeError, NoRespondersError, OutboundBufferFullError
from jetlake.protocol import encoder

__all__ = ["RequestSender"]

_ELECTION_POLL_S = 0.25


class RequestSender:
    """Sends the requests of one connection.

    Args:
        loop: the event loop.
        requests: those that wait for their answers.
        send_now: writes a frame, or keeps it by its key while no server is connected.
        timeout_s: how long a request waits that says nothing else.
        is_clustered: whether the server is one of a cluster.
    """

    __slots__ = ("_is_clustered", "_loop", "_requests", "_send_now", "_timeout_s")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Requests,
        send_now: Callable[[bytes, bytes], None],
        timeout_s: float,
        is_clustered: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._requests = requests
        self._send_now = send_now
        self._timeout_s = timeout_s
        self._is_clustered = is_clustered

    async def request(
        self,
        subject: bytes,
        header: bytes,
        payload: bytes,
        timeout_s: float | None,
        is_repeatable: bool = False,
    ) -> Message:
        """Publish with a reply subject of our own and wait for the first answer.

        Args:
            timeout_s: how long to wait; the sender's own timeout when None.
            is_repeatable: the request may be sent again, which then happens instead of failing when the connection is
                lost, and when no answer comes.

        Raises:
            RequestTimeoutError: no answer in time.
            NoRespondersError: nobody listens.
            DisconnectedError: the connection was lost meanwhile.
            PermissionsError: the server refuses the subject, or the inbox for the answer.
        """
        check_loop(self._loop)
        reply, answer = self._requests.begin(subject, len(header) + len(payload), timeout_s or self._timeout_s)
        try:
            if header:
                frame = encoder.hpub(subject, reply, header, payload)
            else:
                frame = encoder.pub(subject, reply, payload)
            self._send_now(frame, reply)
            if is_repeatable:
                self._requests.repeat(reply, frame)
            return await answer
        except OutboundBufferFullError:
            self._requests.forget(reply)
            # Whoever calls in a loop and ignores the error must not keep the loop from connecting.
            await asyncio.sleep(0)
            raise
        except (JetlakeError, asyncio.CancelledError):
            self._requests.forget(reply)
            raise

    async def confirm(self, subject: bytes, payload: bytes, timeout_s: float | None) -> Message:
        """Send an acknowledgement and wait until its consumer has it.

        A cluster's consumer that elects a leader is waited for: nobody listens meanwhile, and an acknowledgement in the
        hands of the old leader may be lost, so that one that may come twice is sent again.

        Args:
            timeout_s: how long to wait; the sender's own timeout when None.

        Raises:
            RequestTimeoutError: no answer in time.
            NoRespondersError: nobody listens: the consumer is gone, or its cluster has no leader for it in time.
            DisconnectedError: the connection was lost meanwhile.
        """
        left_s = timeout_s or self._timeout_s
        give_up_at = self._loop.time() + left_s
        while True:
            is_clustered = self._is_clustered()
            is_repeatable = is_clustered and payload.startswith((b"+ACK", b"+TERM"))
            try:
                return await self.request(subject, b"", payload, left_s, is_repeatable)
            except NoRespondersError:
                left_s = give_up_at - self._loop.time() - _ELECTION_POLL_S
                if not is_clustered or left_s <= 0:
                    raise
            await asyncio.sleep(_ELECTION_POLL_S)
